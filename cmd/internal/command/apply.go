package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/nearest"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// applying are the flags that say how a plan is carried out.
type applying struct {
	planning
	approve   bool
	onFailure string
}

func (f *applying) bindApplying(c *cobra.Command, otherwise string) {
	c.Flags().StringVar(&f.onFailure, "on-failure", otherwise, "when a step fails: rollback, stop or continue, a `way`")
	_ = c.RegisterFlagCompletionFunc("on-failure", cobra.FixedCompletions(onFailures, cobra.ShellCompDirectiveNoFileComp))
}

var onFailures = []string{string(apply.Rollback), string(apply.Stop), string(apply.Continue)}

func (f *applying) check() error {
	switch apply.OnFailure(f.onFailure) {
	case apply.Rollback, apply.Stop, apply.Continue, "":
		return nil
	}
	return &view.Problem{What: fmt.Sprintf("-on-failure: there is no way %q", f.onFailure), Fix: "It is rollback, stop or continue." + nearest.DidYouMean(f.onFailure, onFailures)}
}

func (a *app) applyCommand() *cobra.Command {
	var f applying
	c := lines(&cobra.Command{
		Use:   "apply [PLANFILE | DOCUMENT...]",
		Short: "Bring the site to what the document says",
		Long: `Carry out a saved plan exactly as it is, or plan, show the plan, ask, and carry it
out. A saved plan is applied without a question, and only once.

Each step is seen to be done before the next one that needs it begins. When a step
fails, everything that was done is undone and looked at again (exit status 3), unless
-on-failure says otherwise. Press Ctrl-C once to end what is under way and start
nothing more; converge resume goes on from there.`,
		Example: `  converge apply site.cue
  converge apply tfplan
  converge apply -auto-approve -on-failure=stop site.cue
  converge apply -json tfplan`,
		ValidArgsFunction: completeDocuments,
	})
	c.Flags().BoolVar(&f.destroy, "destroy", false, "destroy everything that is recorded")
	c.Flags().BoolVar(&f.approve, "auto-approve", false, "do not ask")
	f.bindApplying(c, string(apply.Rollback))
	f.bind(a, c)
	c.RunE = func(c *cobra.Command, args []string) error { return a.apply(c, f, args) }
	return c
}

func (a *app) destroyCommand() *cobra.Command {
	f := applying{planning: planning{destroy: true}}
	c := lines(&cobra.Command{
		Use:   "destroy [DOCUMENT...]",
		Short: "Destroy everything that is recorded for the site",
		Long: `Plan the destruction of everything that converge made or adopted for the site, show
it, ask, and carry it out. What is protected stays, and so does everything that
converge does not manage. The same as: converge apply -destroy

In automation (CI, CONVERGE_IN_AUTOMATION) the budget of the document's policy holds
unless -max-destroy allows more.`,
		Example: `  converge destroy
  converge destroy -auto-approve -max-destroy=100%`,
		ValidArgsFunction: completeDocuments,
	})
	c.Flags().BoolVar(&f.approve, "auto-approve", false, "do not ask")
	f.bindApplying(c, string(apply.Rollback))
	f.bind(a, c)
	c.RunE = func(c *cobra.Command, args []string) error { return a.apply(c, f, args) }
	return c
}

func (a *app) apply(c *cobra.Command, f applying, args []string) error {
	ctx := c.Context()
	if err := f.check(); err != nil {
		return err
	}
	if len(args) == 1 {
		p, err := readPlan(args[0])
		if err != nil {
			return err
		}
		if p != nil {
			return a.applySaved(ctx, c, f, p)
		}
	}
	if err := a.mayAsk(f.approve); err != nil {
		return err
	}
	s, doc, err := a.desired(ctx, args)
	if err != nil {
		return err
	}
	e, err := s.engine()
	if err != nil {
		return err
	}
	if err := e.Free(ctx); err != nil { // better said before the question than after the answer
		return err
	}
	p, err := s.makePlan(ctx, e, doc, f.planning)
	if err != nil {
		return err
	}
	a.view.Plan(p)
	switch {
	case len(p.Refusals) > 0:
		return &engine.RefusedError{Refusals: p.Refusals}
	case len(p.Unknown) > 0 && !f.partial:
		return &engine.UnknownError{Unknown: p.Unknown}
	}
	if !f.approve && !p.Empty() {
		question := "Do you want to perform these actions?\n  converge will do what is shown above."
		if f.destroy {
			question = "Do you really want to destroy all of this?\n  converge will do what is shown above. What is destroyed does not come back."
		}
		if err := a.ask(ctx, question, "Apply cancelled."); err != nil {
			return err
		}
	}
	return s.carry(func(o engine.ApplyOptions) (engine.Result, error) { return e.Apply(ctx, p, o) }, f, false)
}

// applySaved carries out a plan from a file.
func (a *app) applySaved(ctx context.Context, c *cobra.Command, f applying, p *plan.Plan) error {
	for _, name := range []string{"destroy", "target", "exclude", "replace", "max-destroy"} {
		if flag := c.Flags().Lookup(name); flag != nil && flag.Changed {
			return &view.Problem{What: "a saved plan is applied as it is: -" + name + " has no place here", Fix: "Give it to converge plan."}
		}
	}
	if _, err := a.schema(); err != nil { // the view learns which fields are secret
		return err
	}
	s, err := a.open(ctx, &schema.Document{Site: p.Site}, c.Flags().Args())
	if err != nil {
		return err
	}
	e, err := s.engine()
	if err != nil {
		return err
	}
	return s.carry(func(o engine.ApplyOptions) (engine.Result, error) { return e.Apply(ctx, p, o) }, f, false)
}

// readPlan reads a saved plan; nil when the file is something else.
func readPlan(path string) (*plan.Plan, error) {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return nil, nil // whoever reads it as a document says what is wrong
	}
	data, err := os.ReadFile(path)
	if err != nil || !bytes.HasPrefix(bytes.TrimSpace(data), []byte(`{"format":`)) {
		return nil, nil
	}
	p, err := plan.Decode(data)
	if err != nil {
		return nil, &view.Problem{What: "the plan cannot be read", Where: path + ": " + err.Error(), Err: err}
	}
	return p, nil
}

// carry runs something that changes the site, and gives the outcome for how it ended. To be undone is what is wanted when
// undo is set, and what is left when not.
func (s *session) carry(run func(engine.ApplyOptions) (engine.Result, error), f applying, undo bool) error {
	res, err := run(engine.ApplyOptions{OnFailure: apply.OnFailure(f.onFailure), AllowPartial: f.partial, Interrupt: s.running()})
	s.acted = s.hasStarted()
	switch {
	case err != nil && s.acted && !errors.Is(err, engine.ErrInterrupted):
		return &openRun{run: res.Run.ID, err: &view.Problem{
			What: "run " + res.Run.ID + " is open: its end could not be reached", Where: err.Error(), Err: err,
			Fix: "The journal is intact. When that is mended, settle it with: converge resume " + res.Run.ID,
		}}
	case err != nil:
		return err
	}
	switch res.Run.Status {
	case state.RunReverted:
		if !undo {
			return outcome(exitReverted)
		}
	case state.RunPartial, state.RunOpen:
		return outcome(exitPartial)
	}
	return nil
}

// An openRun is an error after which a run is open.
type openRun struct {
	err error
	run string
}

// Error implements error.
func (e *openRun) Error() string {
	return e.err.Error()
}

// Unwrap gives the cause.
func (e *openRun) Unwrap() error { return e.err }
