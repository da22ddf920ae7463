// Package command is the command line: one file per subcommand.
//
// Arguments become a typed struct, the engine runs, a view renders. A command returns an error, which [Run] shows and
// turns into an exit status (exit.go), or an outcome, about which everything was already reported.
//
// # Words
//
// An *app* is one invocation: its system, the shared flags, and the view. A *session* is its connection to
// one site: schema, configuration, store.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// A System is the part of its process that a command uses. All fields are required.
type System struct {
	Args                  []string // without the name of the program
	Stdin, Stdout, Stderr *os.File
	Environ               []string // NAME=VALUE
	Executable            string   // path of the program: documents are evaluated in a child process of it
	Version               string
	Exit                  func(code int) // ends the process at once, when it is interrupted a second time
	Patience              time.Duration  // how long the shell waits at most for completions that are read from the store; zero: there are none
}

// Run carries out one command and returns its exit status.
func Run(sys System) int {
	collect.begin()
	a := &app{sys: sys, env: environment(sys.Environ), out: &output{w: sys.Stdout}, err: &output{w: sys.Stderr}}
	a.log, a.scrubber = slog.New(slog.DiscardHandler), secret.NewScrubber()
	ctx, stop := a.listen(context.Background())
	defer stop()
	root := a.root()
	args, err := a.arguments(root, sys.Args)
	if err == nil {
		if completing(sys.Args) {
			root.SetOut(&completions{w: a.out, dash: singleDash(sys.Args)})
		}
		root.SetArgs(args)
		err = root.ExecuteContext(ctx)
	}
	return a.end(args, err)
}

// An app is one invocation.
type app struct {
	sys       System
	name      string // of the command
	documents bool   // it accepts documents
	env       env
	flags     shared
	out       *output
	err       *output
	view      view.View
	log       *slog.Logger

	scrubber *secret.Scrubber // knows the secrets that were read, for the log

	limited context.Context // ends with -timeout; nil without one

	loaded *kinds.Schema // nil until needed
	kinds  schema.Kinds  // those of loaded

	closers   []func() // in the order in which they were opened
	signal    atomic.Pointer[os.Signal]
	interrupt interrupt
	acted     bool // something was changed: the status reports that, whatever happens to the output
}

// end shows the error, closes everything and returns the exit status.
func (a *app) end(args []string, err error) int {
	if a.view == nil { // the arguments were wrong
		a.view = a.newView(jsonAsked(args), nil)
	}
	if err != nil && !said(err) {
		err = a.overtime(a.cutShort(err))
		a.view.Error(err)
	}
	code := a.status(err)
	for i := len(a.closers) - 1; i >= 0; i-- {
		a.closers[i]()
	}
	a.view.Close()
	werr := a.out.broken()
	switch {
	case werr == nil || errors.Is(werr, syscall.EPIPE): // a reader that has read enough is not a failure
	case a.acted:
		a.say("Warning: standard output: " + werr.Error() + "\n  Changes already made stand; the exit status reflects them.\n")
	default:
		a.say("Error: standard output: " + werr.Error() + "\n")
		if code == exitDone || code == exitDifferent { // which mean that nothing failed
			code = exitError
		}
	}
	return code
}

// cutShort names a signal as the cause of an error that came after it and before a run began: what was in progress was
// cancelled, and not every error says so.
func (a *app) cutShort(err error) error {
	if a.signal.Load() == nil || a.hasStarted() || errors.Is(err, context.Canceled) {
		return err
	}
	return &view.Problem{What: "interrupted", Where: err.Error(), Err: errors.Join(context.Canceled, err)}
}

// overtime names -timeout as the cause of an error that it has caused. A run that it ended is open.
func (a *app) overtime(err error) error {
	interrupted := errors.Is(err, engine.ErrInterrupted) && a.signal.Load() == nil
	if a.limited == nil || a.limited.Err() == nil || !interrupted && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	p := &view.Problem{What: fmt.Sprintf("the command did not finish within -timeout=%s", a.flags.timeout), Where: err.Error(), Fix: "Allow more time with -timeout.", Err: context.DeadlineExceeded}
	if p.Where == context.DeadlineExceeded.Error() { // which adds nothing
		p.Where = ""
	}
	if a.hasStarted() {
		return &openRun{err: p}
	}
	return p
}

// jsonAsked reports whether -json was given, when the arguments could not be parsed.
func jsonAsked(args []string) bool {
	for _, arg := range args {
		if arg == "--" {
			break
		}
		if name, value, _ := strings.Cut(arg, "="); name == "--json" && value != "false" {
			return true
		}
	}
	return false
}

// output writes to a file until a write fails, and keeps the error. A reader that has gone away must not end a run. The log of what goes on
// beside a command is written to the same one.
type output struct {
	w io.Writer

	mu     sync.Mutex
	failed error
}

// Write implements io.Writer and never fails.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		_, o.failed = o.w.Write(b)
	}
	return len(b), nil
}

// broken returns the error of the write that failed.
func (o *output) broken() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// print writes the result of a command.
func (a *app) print(text string) { _, _ = io.WriteString(a.out, text) }

// say writes a message for people to standard error, beside the result.
func (a *app) say(text string) { _, _ = io.WriteString(a.err, text) }

// groups of commands in the main help.
const (
	groupMain   = "main"
	groupLook   = "look"
	groupRuns   = "runs"
	groupAgents = "agents"
	groupState  = "state"
	groupTools  = "tools"
)

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	cobra.EnableCommandSorting = false // ours is the order in which they are needed
	root := &cobra.Command{
		Use:   "converge",
		Short: "Make a site match its document",
		Long: `converge makes a GPU-cloud site match its document: it validates the document,
observes the site, plans the difference, applies it, and when a step fails it
reverts what it did and verifies that by observing again.

Both -flag and --flag are accepted.`,
		Version:       a.sys.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          onlySubcommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("converge " + versionText(a.sys.Version) + "\n")
	root.SetHelpCommand(helpCommand(root))
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { a.print(helpText(c)) })
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(
		&cobra.Group{ID: groupMain, Title: "Main commands:"},
		&cobra.Group{ID: groupLook, Title: "Documents and resources:"},
		&cobra.Group{ID: groupRuns, Title: "Runs:"},
		&cobra.Group{ID: groupAgents, Title: "Sites that run themselves:"},
		&cobra.Group{ID: groupState, Title: "State, holds and locks:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"},
	)
	root.SetHelpCommandGroupID(groupTools)
	root.SetCompletionCommandGroupID(groupTools)
	a.flags.bind(root)
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error { return a.begin(c, args) }
	add := func(group string, cs ...*cobra.Command) {
		for _, c := range cs {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupMain, a.initCommand(), a.validateCommand(), a.planCommand(), a.applyCommand(), a.destroyCommand(), a.driftCommand())
	add(groupLook, a.fmtCommand(), a.schemaCommand(), a.putCommand(), a.getCommand(), a.historyCommand(), a.diffCommand(), a.showCommand(), a.explainCommand(), a.graphCommand(), a.observeCommand(), a.importCommand(), a.inventoryCommand())
	add(groupRuns, a.runsCommand(), a.cancelCommand(), a.confirmCommand(), a.resumeCommand(), a.rollbackCommand())
	add(groupAgents, a.serveCommand(), a.approveCommand(), a.eventsCommand(), a.agentCommand(), a.trustCommand())
	add(groupState, a.stateCommand(), a.holdCommand(), a.releaseCommand(), a.freezeCommand(), a.lockCommand(), a.forceUnlockCommand(), a.auditCommand())
	add(groupTools, a.devCommand(), a.manCommand(), a.versionCommand())
	root.AddCommand(a.evalCommand())
	return root
}

// group returns a command that only contains others.
func group(use, short, long string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: onlySubcommand, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(children...)
	return c
}
