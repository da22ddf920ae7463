package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
)

// planning are the flags that shape a plan.
type planning struct {
	destroy    bool
	target     []string
	exclude    []string
	replace    []string
	maxDestroy string
	partial    bool
	missing    bool
	sweep      bool
	refresh    string
}

func (f *planning) bind(a *app, c *cobra.Command) {
	a.bindLayout(c)
	p := c.Flags()
	p.StringArrayVar(&f.target, "target", nil, "include only this `ref` and what it depends on, with * as wildcard; may be repeated")
	p.StringArrayVar(&f.exclude, "exclude", nil, "exclude this `ref` and everything that depends on it; may be repeated")
	p.StringArrayVar(&f.replace, "replace", nil, "recreate this `ref` even if nothing differs; may be repeated")
	p.StringVar(&f.maxDestroy, "max-destroy", "", "refuse to destroy more than this `limit`, such as 3 or 10%")
	p.BoolVar(&f.partial, "allow-partial", false, "continue even if part of the site could not be observed or is skipped")
	p.BoolVar(&f.missing, "allow-missing", false, "continue even if most or all of the objects created are gone, or another server answers")
	p.BoolVar(&f.sweep, "sweep", false, "only remove the strays that converge has certainly given up")
	for _, name := range []string{"target", "exclude", "replace"} {
		_ = c.RegisterFlagCompletionFunc(name, a.completeRefs)
	}
}

// bindRefresh adds the flag for commands that follow a document.
func (f *planning) bindRefresh(c *cobra.Command) {
	c.Flags().StringVar(&f.refresh, "refresh", refreshAll, "`what` to observe: all, or changed (only what the document changes)")
	_ = c.RegisterFlagCompletionFunc("refresh", cobra.FixedCompletions([]string{refreshAll, refreshChanged}, cobra.ShellCompDirectiveNoFileComp))
}

// check refuses flags with which no plan can be made.
func (f *planning) check() error {
	if _, err := f.options(false); err != nil {
		return err
	}
	return f.checkRefresh()
}

// options returns the options of a plan. A person who destroys everything by name needs no budget; in automation the budget
// holds, because nobody is watching.
func (f *planning) options(automation bool) (plan.Options, error) {
	if f.destroy && len(f.replace) > 0 {
		return plan.Options{}, &view.Problem{What: "-destroy and -replace cannot be combined: destroyed resources are not recreated"}
	}
	if f.sweep && (f.destroy || len(f.replace) > 0) {
		return plan.Options{}, &view.Problem{What: "-sweep only removes strays: it cannot be combined with -destroy or -replace"}
	}
	if f.maxDestroy != "" {
		if _, err := plan.Budget(f.maxDestroy, 0); err != nil {
			return plan.Options{}, &view.Problem{What: fmt.Sprintf("invalid -max-destroy %q: want a number such as 3 or a share such as 10%%", f.maxDestroy), Err: err}
		}
	}
	for _, list := range [][]string{f.target, f.exclude, f.replace} {
		if err := checkPatterns(list); err != nil {
			return plan.Options{}, err
		}
	}
	return plan.Options{
		Destroy: f.destroy, Target: f.target, Exclude: f.exclude, Replace: f.replace, MaxDestroy: f.maxDestroy,
		Unlimited: f.destroy && f.maxDestroy == "" && !automation, AllowMissing: f.missing, Sweep: f.sweep,
	}, nil
}

// checkPatterns refuses patterns that cannot match any ref.
func checkPatterns(patterns []string) error {
	for _, p := range patterns {
		_, err := path.Match(p, "")
		if parts := strings.Split(p, "/"); len(parts) != 3 || slices.Contains(parts, "") || err != nil {
			return &view.Problem{
				What: fmt.Sprintf("invalid ref pattern %q", p),
				Fix:  "Want SCOPE/KIND/NAME, for example site/carbide.vpc/prod or gpu-01/ovs.*/*. To list the recorded resources: converge state list",
			}
		}
	}
	return nil
}

func (a *app) planCommand() *cobra.Command {
	var f planning
	var out string
	var detailed bool
	c := lines(&cobra.Command{
		Use:   "plan [DOCUMENT...]",
		Short: "Show what would change",
		Long: `Observe the site and show the changes that would make it match the document. Nothing is
changed.

The document is one or more files (CUE, JSON, YAML), or a directory of such files. In a
directory, these are the CUE files, and the JSON and YAML files with an apiVersion of
converge, except those whose names start with a dot or an underscore. The default is
the document that the cloud left in the inbox, which stays there, or else the newest
one in the store; converge apply accepts the one in the inbox.

With -refresh=changed, only resources whose declaration differs from the revision applied
last are observed and planned, with what they refer to and what has to follow. All else
is assumed to be as it was left: neither drift nor a secret with another value, or one
that may no longer be read, is noticed there. Nothing else is read of a document in the
store. The whole site is planned, and the reason shown, when that part alone cannot be
decided: when it would be refused, when the records were changed by hand, or when an
older run was resumed or rolled back since.

Very long values are truncated; -full shows everything, -summary only counts, one screen
for the largest plan. These flags and -group-by affect only the text output.

With -json the output is in the line format of Terraform's JSON UI; converge show -json
FILE prints a saved plan as one document.`,
		Example: `  converge plan site.cue
  converge plan -out=site.plan site.cue
  converge plan -summary site.cue           counts instead of steps
  converge plan -full -group-by=kind site.cue
  converge plan -detailed-exitcode          exits with 2 when there are changes
  converge plan -refresh=changed            in a large site, without observing all of it
  converge plan -target='site/carbide.vpc/*' site.cue`,
		ValidArgsFunction: completeDocuments,
	})
	p := c.Flags()
	p.BoolVar(&f.destroy, "destroy", false, "plan to destroy all recorded resources")
	p.StringVar(&out, "out", "", "save the plan to this `file`")
	p.BoolVar(&detailed, "detailed-exitcode", false, "exit with 2 when there are changes")
	f.bindRefresh(c)
	f.bind(a, c)
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		if err := f.check(); err != nil { // better reported before the work than after it
			return err
		}
		if out != "" {
			if err := replaceable(out); err != nil {
				return notSaved(out, err)
			}
		}
		without := pretend
		if out != "" { // the plan is bound to the secret key of its store
			without = create
		}
		s, doc, err := a.desired(ctx, args, without, false, f.refresh == refreshChanged)
		if err != nil {
			return err
		}
		s.looks = out == ""
		e, err := s.engine()
		if err != nil {
			return err
		}
		made, err := s.makePlan(ctx, e, doc, f)
		if err != nil {
			return err
		}
		var held *engine.HeldError
		if err := e.Held(ctx, made); errors.As(err, &held) {
			a.view.Warn("this plan cannot be applied: " + view.Held(held))
		} else if err != nil {
			return err
		}
		if len(args) > 0 { // documents from the store or the inbox were checked when they were read
			if err := s.admit(ctx, made); errors.As(err, new(refusal)) {
				a.view.Warn("this plan cannot be applied: " + err.Error())
			} else if err != nil {
				return err
			}
		}
		a.view.Plan(made)
		if out != "" {
			if err := s.save(c, e, made, out, f.partial); err != nil {
				return err
			}
		}
		return planOutcome(made, f.partial, detailed)
	}
	return c
}

// makePlan makes a plan, and explains a missing configuration.
func (s *session) makePlan(ctx context.Context, e *engine.Engine, doc *schema.Document, f planning) (*plan.Plan, error) {
	o, err := f.options(s.env.automation())
	if err == nil && (o.Destroy || o.Sweep) {
		err = s.vouched(ctx, doc)
	}
	if err != nil {
		return nil, err
	}
	plans := e.Plan
	if f.refresh == refreshChanged {
		plans = func(ctx context.Context, doc *schema.Document, o plan.Options) (*plan.Plan, error) {
			return s.planChanged(ctx, e, doc, o)
		}
	}
	p, err := plans(ctx, doc, o)
	if err != nil {
		return nil, err
	}
	if len(p.Unknown) > 0 && s.conf.Path == "" {
		s.view.Note(s.whereConfig())
	}
	return p, nil
}

// planOutcome returns the status of a plan that was shown.
func planOutcome(p *plan.Plan, partial, detailed bool) error {
	switch {
	case len(p.Refusals) > 0:
		return outcome(exitRefused)
	case p.Partial() && !partial:
		return outcome(exitUnknown)
	case detailed && !p.Empty():
		return outcome(exitDifferent)
	}
	return nil
}

// save writes a plan to a file that only its owner can read.
func (s *session) save(c *cobra.Command, e *engine.Engine, p *plan.Plan, path string, partial bool) error {
	data, digest, err := e.SavePlan(c.Context(), p)
	if err != nil {
		return err
	}
	if err := files.Replace(path, data, 0o600); err != nil {
		return notSaved(path, err)
	}
	note := fmt.Sprintf("\nSaved the plan to %s\n  sha256:%s", path, digest)
	if !s.env.automation() && len(p.Refusals) == 0 && (len(p.Unknown) == 0 || partial) {
		note += "\nTo apply exactly this plan: " + s.applying(c, p, path, partial)
	}
	s.view.Note(note)
	return nil
}

// replaceable refuses to overwrite another file with a plan, such as a document whose name follows -out.
func replaceable(path string) error {
	if err := files.Replaceable(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 { // there is nothing to lose
		return nil
	}
	if saved, err := readPlan(path); saved == nil && err == nil {
		return fmt.Errorf("%s already exists and is not a saved plan", path)
	}
	return nil
}

// notSaved returns why a plan could not be saved, and where it can be.
func notSaved(path string, err error) error {
	p := &view.Problem{What: "the plan was not saved", Where: err.Error(), Err: err}
	if replaceable(path) != nil {
		p.Fix = "Choose a new file, or a saved plan to replace: -out=FILE. To print a plan as JSON to standard output: converge show -json FILE"
	}
	return p
}

// applying returns what to type to carry out a saved plan: with the approval that the plan needs, and with the flags for
// its store and configuration.
func (s *session) applying(c *cobra.Command, p *plan.Plan, path string, partial bool) string {
	words := []string{"converge", "apply"}
	for _, name := range []string{"chdir", "config", "data-dir", "etcd-endpoints", "etcd-ca", "etcd-cert", "etcd-key", "server", "server-ca", "server-cert", "server-key"} {
		switch f := c.Flag(name); {
		case !f.Changed:
		case name == "etcd-endpoints":
			words = append(words, "-"+name+"="+strings.Join(s.flags.endpoints, ","))
		default:
			words = append(words, "-"+name+"="+f.Value.String())
		}
	}
	if dir := s.conf.Dir(); s.conf.Path != "" && s.flags.config == "" && dir != "." && dir != filepath.Dir(path) {
		words = append(words, "-config="+s.conf.Path) // it was found beside the document
	}
	if len(p.Irreversible()) > 0 {
		words = append(words, "-approve="+p.Approval()[:plan.ShortApproval])
	}
	if partial && len(p.Unknown) > 0 {
		words = append(words, "-allow-partial")
	}
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	return shellescape.QuoteCommand(append(words, path))
}
