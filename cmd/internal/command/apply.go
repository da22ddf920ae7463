package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// applying are the flags that say how a plan is carried out.
type applying struct {
	planning
	approve   bool
	approval  string
	onFailure string
	confirm   time.Duration
}

// bindApproving adds the flags that replace an answer.
func (f *applying) bindApproving(c *cobra.Command) {
	c.Flags().BoolVar(&f.approve, "auto-approve", false, "do not ask for approval; steps that cannot be undone exactly still need -approve")
	c.Flags().StringVar(&f.approval, "approve", "", "approve only the plan with this `digest` (see converge plan), even if it cannot be undone exactly")
}

func (f *applying) bindApplying(c *cobra.Command, otherwise string) {
	c.Flags().StringVar(&f.onFailure, "on-failure", otherwise, "`action` when a step fails: rollback, stop or continue")
	_ = c.RegisterFlagCompletionFunc("on-failure", cobra.FixedCompletions(onFailures, cobra.ShellCompDirectiveNoFileComp))
}

// bindConfirm adds the flag that makes a run wait for its confirmation.
func (f *applying) bindConfirm(c *cobra.Command) {
	c.Flags().DurationVar(&f.confirm, "confirm", 0, "roll the run back unless converge confirm is run within this `duration` of its start")
}

// Limits of the time in which a run is to be confirmed.
const (
	leastConfirm = 30 * time.Second
	mostConfirm  = time.Hour
)

// applyOtherwise says what to do where nobody can be asked.
const applyOtherwise = "Apply a saved plan (converge plan -out=site.plan), or use -auto-approve."

var onFailures = []string{string(apply.Rollback), string(apply.Stop), string(apply.Continue)}

func (f *applying) check() error {
	if err := f.planning.check(); err != nil {
		return err
	}
	switch {
	case f.confirm == 0:
	case f.confirm < leastConfirm || f.confirm > mostConfirm:
		return &view.Problem{What: fmt.Sprintf("invalid -confirm %v: want between %v and %v", f.confirm, leastConfirm, mostConfirm)}
	case f.onFailure != string(apply.Rollback):
		return &view.Problem{What: "-confirm rolls back what is not confirmed: it cannot be used with -on-failure=" + f.onFailure}
	}
	switch apply.OnFailure(f.onFailure) {
	case apply.Rollback, apply.Stop, apply.Continue, "":
		return nil
	}
	return &view.Problem{What: fmt.Sprintf("invalid -on-failure %q", f.onFailure), Fix: "Use rollback, stop or continue." + nearest.DidYouMean(f.onFailure, onFailures)}
}

func (a *app) applyCommand() *cobra.Command {
	var f applying
	c := lines(&cobra.Command{
		Use:   "apply [PLANFILE | DOCUMENT...]",
		Short: "Make the site match the document",
		Long: `Apply a saved plan exactly as it is; without one, make a plan, show it, ask for
approval, and apply it. A saved plan is applied without asking, and only once; on a
terminal, a plan with steps that cannot be undone exactly still asks once. A plan file
that was edited, damaged, or saved with another store is refused.

Each step is verified before the next step that needs it starts. When a step fails,
everything done so far is reverted and verified by observing again (exit status 3),
unless -on-failure says otherwise. Steps that cannot be undone exactly run last, and
only when the plan was approved by its digest: with -approve, or by answering yes to the
prompt that lists them. Press Ctrl-C once to let calls in flight finish, drop pending
waits, and start nothing new; converge resume continues from there.

With -confirm, the run is rolled back unless somebody runs converge confirm within that
time of its start (the last fifth, and at least ten seconds, is kept for rolling back).
Nodes with a guard undo by themselves what may have cut them off, even when neither the
site nor this command can reach them (exit status 9). What cannot be undone exactly is
begun only after the confirmation.`,
		Example: `  converge apply site.cue
  converge apply -confirm=5m site.cue
  converge apply site.plan
  converge apply -auto-approve -on-failure=stop site.cue
  converge apply -approve=9b1f27c04de81a35 site.plan
  converge apply -json site.plan`,
		ValidArgsFunction: completeDocuments,
	})
	c.Flags().BoolVar(&f.destroy, "destroy", false, "destroy everything recorded in state")
	f.bindRefresh(c)
	f.bindApproving(c)
	f.bindApplying(c, string(apply.Rollback))
	f.bindConfirm(c)
	f.bind(a, c)
	c.RunE = func(c *cobra.Command, args []string) error { return a.apply(c, f, args) }
	return c
}

func (a *app) destroyCommand() *cobra.Command {
	f := applying{planning: planning{destroy: true}}
	c := lines(&cobra.Command{
		Use:   "destroy [DOCUMENT...]",
		Short: "Destroy everything recorded for the site",
		Long: `Plan the destruction of everything that converge created or adopted for the site, show
the plan, ask for approval, and apply it. Protected resources stay, and so does
everything that converge does not manage. Same as: converge apply -destroy

The document in the store stays. A site agent that may apply it makes again what was
destroyed: put a document without resources first.

In automation (CI, CONVERGE_IN_AUTOMATION) the budget in the document's policy applies
unless -max-destroy allows more.`,
		Example: `  converge destroy
  converge plan -destroy; converge destroy -approve=9b1f27c04de81a35`,
		ValidArgsFunction: completeDocuments,
	})
	f.bindApproving(c)
	f.bindApplying(c, string(apply.Rollback))
	f.bind(a, c)
	c.RunE = func(c *cobra.Command, args []string) error { return a.apply(c, f, args) }
	return c
}

func (a *app) apply(c *cobra.Command, f applying, args []string) (err error) {
	ctx := c.Context()
	if err := f.check(); err != nil {
		return err
	}
	if len(args) == 1 {
		saved, err := readPlan(args[0])
		if err != nil {
			return err
		}
		if saved != nil {
			return a.applySaved(ctx, c, f, saved)
		}
	}
	unasked := a.mayAsk(f.approve || f.approval != "", applyOtherwise)
	m := create
	if unasked != nil { // and so nothing is written
		m = pretend
	}
	s, doc, err := a.desired(ctx, args, m, unasked == nil, f.refresh == refreshChanged)
	if err != nil {
		return err
	}
	if unasked != nil {
		return s.heldOr(ctx, unasked)
	}
	if !f.destroy && !f.sweep { // which follow no document
		defer func() { s.answerRefused(doc.Site.Serial, err) }()
	}
	e, err := s.engine()
	if err != nil {
		return err
	}
	if err := e.Free(ctx); err != nil { // better reported before the question than after the answer
		return err
	}
	p, err := s.makePlan(ctx, e, doc, f.planning)
	if err != nil {
		return err
	}
	asked := !f.approve && f.approval == "" && !p.Empty()
	if asked || !a.flags.quiet || a.flags.json || len(p.Refusals) > 0 || p.Partial() {
		a.view.Plan(p)
	}
	switch {
	case len(p.Refusals) > 0:
		return &engine.RefusedError{Refusals: p.Refusals}
	case p.Partial() && !f.partial:
		return &engine.UnknownError{Unknown: p.Unknown, Omitted: p.Omitted}
	}
	if err := s.admit(ctx, p); err != nil {
		return err
	}
	if err := s.approval(ctx, &f, p); err != nil {
		return err
	}
	return s.carry(func(o engine.ApplyOptions) (engine.Result, error) { return e.Apply(ctx, p, o) }, f, false)
}

// heldOr returns that the site is held or a run is open, which an approval would not change; otherwise the given error.
func (s *session) heldOr(ctx context.Context, unasked error) error {
	e, err := s.engine()
	if err != nil {
		return err
	}
	return cmp.Or(e.Held(ctx, &plan.Plan{}), unasked)
}

// approval gets the approval of a plan: from a flag, or by asking.
func (s *session) approval(ctx context.Context, f *applying, p *plan.Plan) error {
	caution := ""
	if p.Destroy {
		caution = s.caution(ctx, p)
	}
	if f.approve || f.approval != "" || p.Empty() { // the engine knows whether it is the approval of this plan
		if caution != "" {
			s.view.Warn(caution)
		}
		return nil
	}
	above, all := "the actions shown above", "all shown above"
	if s.flags.layout.Summary {
		above, all = "the actions counted above", "listed by converge plan"
	}
	question := "Do you want to perform these actions?\n  converge will perform " + above + "."
	if f.destroy {
		question = "Do you really want to destroy all of this?\n  converge will perform " + above + ". Destroyed objects cannot be recovered."
	}
	if late := p.Irreversible(); len(late) > 0 {
		question += "\n\n  These cannot be undone exactly:"
		const shown = 20
		for _, step := range late[:min(len(late), shown)] {
			question += fmt.Sprintf("\n    %s %s: %s", step.Action, step.Ref, step.Undo.Meaning())
		}
		if len(late) > shown {
			question += fmt.Sprintf("\n    and %d more, %s", len(late)-shown, all)
		}
	}
	if err := s.ask(ctx, cautious(question, caution), "Apply cancelled."); err != nil {
		return err
	}
	f.approval = p.Approval()
	return nil
}

// applySaved carries out a plan from a file.
func (a *app) applySaved(ctx context.Context, c *cobra.Command, f applying, saved *plan.File) (err error) {
	for _, name := range []string{"destroy", "target", "exclude", "replace", "max-destroy", "allow-missing", "sweep", "refresh"} {
		if flag := c.Flags().Lookup(name); flag != nil && flag.Changed {
			return &view.Problem{What: "a saved plan is applied as is: -" + name + " cannot be used with it", Fix: "Pass it to converge plan instead."}
		}
	}
	if _, err := a.schema(); err != nil { // the view needs to know which fields are secret
		return err
	}
	p := saved.Plan
	s, err := a.open(ctx, &schema.Document{Site: p.Site}, c.Flags().Args())
	if errors.Is(err, errOtherSite) {
		return &engine.RefusedError{Refusals: []plan.Refusal{plan.Refuse(schema.Ref{},
			"the plan is for site "+p.Site.Name+", but -site, "+envSite+" or "+config.Name+" names another", "correct one of them")}}
	}
	if err != nil {
		return err
	}
	s.headline("saved plan " + c.Flags().Arg(0))
	e, err := s.engine()
	if err != nil {
		return err
	}
	if err := e.VerifyFile(ctx, saved); err != nil { // before any of it is shown as a plan, or accepted for one
		return err
	}
	if err := s.takePlanned(ctx, p); err != nil {
		return err
	}
	if !p.Destroy && !p.Sweep { // which follow no document
		defer func() { s.answerRefused(p.Site.Serial, err) }()
	}
	if err := s.admit(ctx, p); err != nil {
		return err
	}
	if f.approval == "" && len(p.Irreversible()) > 0 && a.mayAsk(false, applyOtherwise) == nil {
		a.view.Plan(p)
		f.approve = false // -auto-approve does not replace this
	} else if f.approval == "" {
		f.approve = true // a saved plan is applied without asking
	}
	if err := s.approval(ctx, &f, p); err != nil {
		return err
	}
	f.sweep = p.Sweep
	return s.carry(func(o engine.ApplyOptions) (engine.Result, error) { return e.Apply(ctx, p, o) }, f, false)
}

// maxPlan is the maximum size of a saved plan: several times that of the largest document.
const maxPlan = 512 << 20

// isPlan reports whether a file looks like a saved plan. Only its start is read.
func isPlan(path string) (bool, error) {
	f, err := files.Open(path)
	if errors.Is(err, fs.ErrNotExist) && path != load.Stdin {
		return false, &view.Problem{What: "no such file: " + path, Fix: "Save a plan with: converge plan -out=FILE", Err: err}
	}
	if err != nil {
		return false, nil // reading it as a document reports what is wrong
	}
	start := make([]byte, 512)
	n, _ := io.ReadFull(f, start)
	return plan.IsFile(start[:n]), f.Close()
}

// readPlan reads a saved plan; nil when the file is something else.
func readPlan(path string) (*plan.File, error) {
	if saved, err := isPlan(path); err != nil || !saved {
		return nil, err
	}
	var saved *plan.File
	data, err := files.Read(path, maxPlan)
	if err == nil {
		saved, err = plan.DecodeFile(data)
	}
	if err != nil {
		return nil, &view.Problem{What: "the plan cannot be read", Where: path + ": " + err.Error(), Err: err}
	}
	return saved, nil
}

// carry runs something that changes the site, and returns the outcome of how it ended. An undone run is the goal when
// undo is set, and a failure otherwise.
func (s *session) carry(run func(engine.ApplyOptions) (engine.Result, error), f applying, undo bool) error {
	collect.at(200) // a tenth less time, a fifth more memory
	res, err := run(engine.ApplyOptions{OnFailure: apply.OnFailure(f.onFailure), AllowPartial: f.partial, Approve: f.approval, Confirm: f.confirm, Interrupt: s.running()})
	started := s.hasStarted()
	s.acted = s.acted || started
	if res.Run.Op == "apply" && !f.sweep && (err == nil || errors.Is(err, engine.ErrInterrupted)) {
		s.answerRun(res.Run)
	}
	switch {
	case err != nil && started && !errors.Is(err, engine.ErrInterrupted):
		return &openRun{run: res.Run.ID, err: &view.Problem{
			What: "run " + res.Run.ID + " is still open: it could not be finished", Where: err.Error(), Err: err,
			Fix: s.remembered(res.Run.ID),
		}}
	case err != nil:
		return err
	}
	switch res.Run.Status {
	case state.RunReverted:
		switch {
		case res.Run.Unconfirmed:
			return outcome(exitUnconfirmed)
		case !undo:
			return outcome(exitReverted)
		}
	case state.RunPartial, state.RunOpen:
		return outcome(exitPartial)
	}
	return nil
}

// remembered returns what the store has of a run whose end could not be reached, and what to do then.
func (s *session) remembered(run string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := s.store.Run(ctx, run)
	if err == nil {
		var log *journal.Log
		if log, err = journal.Read(ctx, s.store, run); err == nil && len(log.Records) == 0 {
			err = state.ErrNotFound
		}
	}
	switch {
	case errors.As(err, new(*etcd.AwayError)):
		return "Put the store back where it was, or mount it again; then run: converge resume " + run + "\nIf it is lost, restore a backup in its place, then run: converge state restored"
	case err == nil:
		return "The journal is intact. Once the error is fixed, run: converge resume " + run
	case errors.Is(err, state.ErrNotFound):
		return "The store no longer has this run: it was emptied, or a different store answers. Restore a backup, then run: converge state restored\nWithout a backup, record the objects that carry this site's mark again: converge state rebuild DOC, then run: converge state restored"
	}
	return "The journal could not be read: " + err.Error() + "\nOnce that is fixed, run: converge resume " + run
}

// An openRun is an error that leaves a run open.
type openRun struct {
	err error
	run string
}

// Error implements error.
func (e *openRun) Error() string {
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *openRun) Unwrap() error { return e.err }
