package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state/etcd"
)

// shared are the flags of every command.
type shared struct {
	chdir    string
	site     string
	config   string
	dataDir  string
	json     bool
	color    bool
	noColor  bool
	quiet    bool
	input    bool
	logLevel string
	logForm  string
	timeout  time.Duration

	lockTimeout time.Duration
	parallelism int

	endpoints     []string
	ca, cert, key string
	server        config.Server

	layout view.PlanLayout // flags of the commands that show plans

	evalTimeout time.Duration
	evalMemory  int64
}

func (f *shared) bind(c *cobra.Command) {
	p := c.PersistentFlags()
	p.StringVar(&f.chdir, "chdir", "", "run in this `dir`ectory")
	p.StringVar(&f.site, "site", "", "the `name` of the site, if no document gives it")
	p.StringVar(&f.config, "config", "", "configuration `file`; default: converge.yaml next to the document, in this directory, or above")
	p.BoolVar(&f.json, "json", false, "write only JSON to standard output")
	p.BoolVar(&f.color, "color", false, "use colours even in a pipe")
	p.BoolVar(&f.noColor, "no-color", false, "do not use colours")
	p.BoolVar(&f.quiet, "quiet", false, "show no progress, and no plan unless asking for approval")
	p.BoolVar(&f.input, "input", true, "ask for input if needed; -input=false never asks")
	p.DurationVar(&f.lockTimeout, "lock-timeout", 0, "`duration` to wait for another process to release the site lock, such as 5m")
	p.IntVar(&f.parallelism, "parallelism", 10, "maximum `n`umber of concurrent steps; for calls: carbide.parallel")
	p.DurationVar(&f.timeout, "timeout", 0, "stop cleanly after this `duration`")
	p.StringVar(&f.logLevel, "log-level", "", "log to standard error at this `level`: trace (includes etcd), debug, info, warn or error")
	p.StringVar(&f.logForm, "log-format", "", "the `form` of the lines of the log: text or json; default: text")
	p.StringSliceVar(&f.endpoints, "etcd-endpoints", nil, "comma-separated `urls` of the store's etcd; default: an embedded one")
	p.StringVar(&f.ca, "etcd-ca", "", "PEM `file` with the CA certificates for etcd")
	p.StringVar(&f.cert, "etcd-cert", "", "PEM `file` with the client certificate for etcd")
	p.StringVar(&f.key, "etcd-key", "", "PEM `file` with the client key for etcd")
	p.StringVar(&f.server.Address, "server", "", "`address` of a site agent: unix:PATH, or https://HOST:PORT from another machine")
	p.StringVar(&f.server.CA, "server-ca", "", "PEM `file` with the CA certificates for an https site agent")
	p.StringVar(&f.server.Cert, "server-cert", "", "PEM `file` with the client certificate for an https site agent")
	p.StringVar(&f.server.Key, "server-key", "", "PEM `file` with the client key for an https site agent")
	p.StringVar(&f.dataDir, "data-dir", "", "the `dir`ectory of the embedded store; default: .converge next to converge.yaml")
	p.DurationVar(&f.evalTimeout, "eval-timeout", 0, fmt.Sprintf("CPU time limit for evaluating a document, a `duration`; default: %v", load.DefaultLimits.Time))
	p.Int64Var(&f.evalMemory, "eval-memory", 0, fmt.Sprintf("memory limit for evaluating a document, in `mib`; default: %d", load.DefaultLimits.Memory>>20))
}

// jsonLines marks commands whose -json output is lines; other commands print a single value.
const jsonLines = "json-lines"

func lines(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{jsonLines: "true"}
	return c
}

// begin prepares what every command needs.
func (a *app) begin(c *cobra.Command, args []string) error {
	a.name, a.documents = c.Name(), strings.Contains(c.Use, "[DOC")
	f := &a.flags
	if f.chdir != "" {
		if err := os.Chdir(f.chdir); err != nil {
			return &view.Problem{What: "-chdir: " + err.Error()}
		}
	}
	fallBack := func(flag *string, name, otherwise string) {
		if *flag == "" {
			*flag = a.env[name]
		}
		if *flag == "" {
			*flag = otherwise
		}
	}
	fallBack(&f.dataDir, envDataDir, "")
	fallBack(&f.config, envConfig, "")
	fallBack(&f.logLevel, envLog, "")
	fallBack(&f.logForm, envLogFormat, logText)
	if len(f.endpoints) == 0 && a.env[envEndpoints] != "" {
		f.endpoints = strings.Split(a.env[envEndpoints], ",")
	}
	if a.env.no(envInput) && !c.Flags().Changed("input") {
		f.input = false
	}
	a.view = a.newView(f.json, c)
	if err := meant(c, args); err != nil {
		return err
	}
	if g := string(f.layout.Group); g != "" && !slices.Contains(view.Groupings, g) {
		return &view.Problem{What: fmt.Sprintf("invalid -group-by %q", g), Fix: "Use one of " + strings.Join(view.Groupings, ", ") + "." + nearest.DidYouMean(g, view.Groupings)}
	}
	if f.parallelism < 1 {
		return &view.Problem{What: fmt.Sprintf("invalid -parallelism %d: want 1 or more", f.parallelism)}
	}
	if err := a.openLog(); err != nil {
		return err
	}
	for _, w := range a.env.unknown() {
		a.view.Warn(w)
	}
	if f.timeout > 0 {
		ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
		a.closers = append(a.closers, cancel)
		a.limited = ctx
		c.SetContext(ctx)
	}
	return nil
}

// newView chooses the view. C is nil when the arguments could not be read.
func (a *app) newView(json bool, c *cobra.Command) view.View {
	if a.kinds == nil {
		a.kinds = schema.Kinds{}
	}
	o := view.Options{
		Out: a.out, Err: a.err, Kinds: a.kinds, Version: a.sys.Version, Quiet: a.flags.quiet,
		OutStyle: a.style(a.sys.Stdout), ErrStyle: a.style(a.sys.Stderr), Layout: a.flags.layout,
	}
	if json && (c == nil || c.Annotations[jsonLines] != "") {
		return view.NewJSON(o)
	}
	if o.Live = a.live(a.sys.Stderr); o.Live != nil {
		o.Together = term.IsTerminal(int(a.sys.Stdout.Fd()))
	}
	if json {
		return view.Document{Human: view.NewHuman(o)}
	}
	return view.NewHuman(o)
}

// columns returns the width of a terminal. A file that is not a terminal has lines of any length, so that its readers can
// search for phrases.
func columns(f *os.File) int {
	if !term.IsTerminal(int(f.Fd())) {
		return view.Unbroken
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 { // it does not report one
		return 80
	}
	return width
}

// live returns a function for the width of a terminal on which lines may be redrawn; nil when the file is not one.
func (a *app) live(f *os.File) func() (width int) {
	if !term.IsTerminal(int(f.Fd())) || a.env["TERM"] == "dumb" || a.env.automation() {
		return nil
	}
	return func() int { return columns(f) }
}

// style returns whether colours are shown on a file, and how wide it is.
func (a *app) style(f *os.File) view.Style {
	s := view.Style{Width: columns(f)}
	switch {
	case a.flags.noColor:
	case a.flags.color, a.env.yes("CLICOLOR_FORCE"):
		s.Color = true
	case a.env["NO_COLOR"] != "", a.env["TERM"] == "dumb":
	default:
		s.Color = term.IsTerminal(int(f.Fd()))
	}
	return s
}

// bindLayout adds the flags that say how a plan is shown.
func (a *app) bindLayout(c *cobra.Command) {
	a.bindFull(c)
	c.Flags().BoolVar(&a.flags.layout.Summary, "summary", false, "show only counts, per scope and kind, or per group with -group-by")
	c.Flags().StringVar((*string)(&a.flags.layout.Group), "group-by", "", "group steps by this `part`: wave (their order, the default), scope, kind or action")
	c.MarkFlagsMutuallyExclusive("full", "summary")
	_ = c.RegisterFlagCompletionFunc("group-by", cobra.FixedCompletions(view.Groupings, cobra.ShellCompDirectiveNoFileComp))
}

// bindFull adds the flag that shows values in full.
func (a *app) bindFull(c *cobra.Command) {
	c.Flags().BoolVar(&a.flags.layout.Full, "full", false, "do not truncate long values")
}

// logAsService opens the log of a command that runs as a service: what it does is logged unless the user wants something else. Each line
// of a log for programs names the service, since the logs of several come together.
func (a *app) logAsService(component string) error {
	if a.flags.logLevel == "" && a.env[envLogPath] == "" {
		a.flags.logLevel = "info"
		if err := a.openLog(); err != nil {
			return err
		}
	}
	if a.flags.logForm == logJSON {
		a.log = a.log.With("component", component)
	}
	return nil
}

// The forms of the log.
const (
	logText = "text"
	logJSON = "json"
)

// openLog starts the log when one is requested.
func (a *app) openLog() error {
	if f := a.flags.logForm; f != logText && f != logJSON {
		return &view.Problem{What: fmt.Sprintf("invalid -log-format %q", f), Fix: "Use text or json." + nearest.DidYouMean(f, []string{logText, logJSON})}
	}
	if a.flags.logLevel == "" && a.env[envLogPath] == "" {
		return nil
	}
	level := slog.LevelInfo
	switch name := strings.ToLower(a.flags.logLevel); name {
	case "":
	case "off":
		return nil
	case "trace":
		level = etcd.Trace
	default:
		names := []string{"trace", "debug", "info", "warn", "error"}
		if !slices.Contains(names, name) {
			return &view.Problem{What: fmt.Sprintf("invalid -log-level %q", name), Fix: "Use one of " + strings.Join(names, ", ") + "." + nearest.DidYouMean(name, names)}
		}
		if err := level.UnmarshalText([]byte(name)); err != nil {
			return err
		}
	}
	var w io.Writer = a.err
	if path := a.env[envLogPath]; path != "" {
		f, err := files.Append(path)
		if err != nil {
			return &view.Problem{What: "the log file cannot be opened", Where: err.Error(), Fix: "Choose another file with " + envLogPath + ", or unset it to log to standard error."}
		}
		a.closers = append(a.closers, func() { _ = f.Close() })
		w = f
	}
	var lines slog.Handler = slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
	if a.flags.logForm == logJSON {
		lines = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // as people and other programs write it, not in nanoseconds
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}})
	}
	a.log = slog.New(a.scrubber.Handler(lines))
	return nil
}

// alsoLog makes the log go to another handler too, which is made for its level: info when there is no log.
func (a *app) alsoLog(to func(slog.Leveler) slog.Handler) {
	log, level := a.log.Handler(), slog.LevelInfo
	for _, l := range []slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug, etcd.Trace} {
		if log.Enabled(context.Background(), l) {
			level = l
		}
	}
	a.log = slog.New(slog.NewMultiHandler(log, a.scrubber.Handler(to(level))))
}

// who returns the person and the machine, for locks, runs and approvals.
func who() string {
	name := "uid-" + strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && !invented(u) {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return name + "@" + host
}

// invented reports whether the name of a user may be what $USER says and not what the system does. A program without libraries knows
// only the users in /etc/passwd, and of any other package user takes the environment's word, which anybody can choose.
func invented(u *user.User) bool {
	if u.Name != "" || u.Username != os.Getenv("USER") {
		return false
	}
	users, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(users)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[0] == u.Username && f[2] == u.Uid {
			return false
		}
	}
	return true
}

// did reports what a command has done, as JSON or as text. From then on the status reflects that, whatever happens to the
// output. Where nothing was done, as in a dry run, the report is the whole result.
func (a *app) did(nothing bool, v any, text string) error {
	a.acted = a.acted || !nothing
	if a.flags.json {
		return a.printJSON(v)
	}
	a.print(text)
	return nil
}

// instant is how JSON has a time.
const instant = "2006-01-02T15:04:05.000Z07:00"

// printLine writes one of several values of a command, as a line of JSON.
func (a *app) printLine(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		a.print(string(line) + "\n")
	}
	return err
}

// printJSON writes the single value of a command.
func (a *app) printJSON(v any) error {
	text, err := view.Indent(v)
	if err != nil {
		return err
	}
	a.print(text)
	return nil
}
