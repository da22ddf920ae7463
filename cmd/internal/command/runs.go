package command

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/state"
)

func (a *app) runsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "runs",
		Short: "List runs, newest first",
		Long: `List the runs of the site, newest first: what was carried out, how it ended, and by
whom.

With -follow the open run is shown step by step while another process carries it out,
from its start until it ends; with -json as the lines that apply writes. If that process
is gone and the run has not finished, it exits with 4.`,
		Example: `  converge runs
  converge runs -json
  converge runs -follow
  converge show 20261120-121537.042-9f3a01`,
		Args: exactly(0),
	}
	var follow bool
	c.Flags().BoolVar(&follow, "follow", false, "show the open run while it is in progress")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if follow && a.flags.json {
			a.view = a.newView(true, lines(c))
		}
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		runs, err := s.store.Runs(c.Context())
		if err != nil {
			return err
		}
		if follow {
			return s.follow(c.Context(), runs)
		}
		for i := range runs {
			s.recount(c.Context(), &runs[i])
		}
		if a.flags.json {
			return a.printJSON(map[string]any{"runs": nonNil(runs)})
		}
		a.print(view.RunsText(runs, a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

// recount sets the number of done steps of an open run from its journal; where that cannot be read, the run is shown all
// the same.
func (s *session) recount(ctx context.Context, run *state.Run) {
	done, err := engine.Finished(ctx, s.store, *run)
	if err != nil {
		s.view.Warn("the progress of run " + run.ID + " could not be determined: " + err.Error())
		return
	}
	run.Done = done
}

// follow shows the newest open run until it ends.
func (s *session) follow(ctx context.Context, runs []state.Run) error {
	i := slices.IndexFunc(runs, func(r state.Run) bool { return r.Status == state.RunOpen })
	if i < 0 {
		s.view.Note("No run is open.")
		return nil
	}
	if _, err := s.schema(); err != nil { // the view learns which fields are secret
		return err
	}
	steps := s.view
	if !s.flags.json { // here they are the result, not progress beside it
		steps = view.NewHuman(view.Options{Out: s.out, Err: s.out, Kinds: s.kinds, Live: s.live(s.sys.Stdout), OutStyle: s.style(s.sys.Stdout), ErrStyle: s.style(s.sys.Stdout)})
		defer steps.Close()
	}
	err := engine.Follow(ctx, s.store, runs[i], steps.Event)
	if errors.Is(err, engine.ErrAbandoned) {
		return &openRun{run: runs[i].ID, err: &view.Problem{What: err.Error(), Fix: "To resume it: converge resume " + runs[i].ID, Err: err}}
	}
	if ctx.Err() != nil && s.signal.Load() != nil {
		return outcome(s.interrupted()) // only the watching ends
	}
	return err
}

// nonNil turns nil into an empty list, which JSON shows as [] instead of null.
func nonNil[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func (a *app) resumeCommand() *cobra.Command {
	var f applying
	c := lines(&cobra.Command{
		Use:   "resume [RUN]",
		Short: "Resume an unfinished run",
		Long: `Continue the open or partial run from where its journal left off. If the outcome of a
call is unknown, it is determined by observing. A run that was being undone continues to
be undone, to the step requested. No approval is asked for: the plan of the run was
approved when it started, and nothing else is done.

A partial run is refused (7) if a later run has changed what it touched, or was carried
out after its hold was released.`,
		Example: `  converge resume
  converge resume 20261120-121537.042-9f3a01`,
		Args:              between(0, 1),
		ValidArgsFunction: a.completeRuns,
	})
	f.bindApplying(c, "")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.resume(c, f, args)
	}
	return c
}

func (a *app) rollbackCommand() *cobra.Command {
	var dry bool
	var to uint32
	var f applying
	c := lines(&cobra.Command{
		Use:   "rollback RUN",
		Short: "Roll back a run",
		Long: `Show what rolling back a run would do, ask for approval, and do it, in reverse order,
verifying all of it by observing again. It is refused if the run did something that
cannot be undone exactly, or if something has changed since.

With -to-step=N the first N steps are kept, as numbered by converge show -run, and only
the steps after them are rolled back and verified. The kept steps must be done; they need
nothing of what is undone. The run then ends "rolled back to step N": the site matches
neither its state before the run nor its document, and the next plan has the undone steps
again. It can be rolled back further. If a rollback is killed, converge resume continues
to the same step.

The revision of the document that the run applied is then on hold, so that a site agent
does not apply it again. It does if the store has a newer one that says the same.`,
		Example: `  converge rollback 20261120-121537.042-9f3a01
  converge rollback -dry-run 20261120-121537.042-9f3a01
  converge rollback -to-step=3 20261120-121537.042-9f3a01
  converge rollback -auto-approve 20261120-121537.042-9f3a01`,
		Args:              exactly(1),
		ValidArgsFunction: a.completeRuns,
	})
	c.Flags().BoolVar(&f.approve, "auto-approve", false, "do not ask for confirmation")
	a.bindLayout(c)
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would be rolled back")
	c.Flags().Uint32Var(&to, "to-step", 0, "keep the steps up to this `n`umber and roll back those after it; 0 rolls back all")
	_ = c.RegisterFlagCompletionFunc("to-step", a.completeSteps)
	c.MarkFlagsMutuallyExclusive("dry-run", "auto-approve")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		if _, err := s.run(ctx, args[0], "there is no run "+args[0]); err != nil {
			return err
		}
		e, err := s.engine()
		if err != nil {
			return err
		}
		p, err := e.Undoing(ctx, args[0], int(to))
		if err != nil {
			return err
		}
		held := e.Held(ctx, p)
		if !dry && held != nil { // better reported before the question than after the answer
			return held
		}
		if asked := !f.approve && !p.Empty(); dry || asked || !a.flags.quiet || a.flags.json {
			a.view.Plan(p)
		}
		caution := s.caution(ctx, p)
		if (dry || f.approve) && caution != "" {
			a.view.Warn(caution)
		}
		if dry {
			if held != nil {
				a.view.Warn("this cannot be rolled back now: " + view.Held(held))
			}
			return nil
		}
		if !f.approve && !p.Empty() {
			if err := a.mayAsk(false, "Review it with -dry-run; if that is what you want, use -auto-approve."); err != nil {
				return err
			}
			what := "this run"
			if to > 0 {
				what = fmt.Sprintf("the steps of this run after step %d", to)
			}
			question := cautious("Do you want to roll back "+what+"?\n  converge will do what is shown above, and verify all of it by observing again.", caution)
			if err := a.ask(ctx, question, "Rollback cancelled."); err != nil {
				return err
			}
		}
		f.approval = p.Approval()
		return s.carry(func(o engine.ApplyOptions) (engine.Result, error) {
			o.Keep = int(to)
			return e.Rollback(ctx, args[0], o)
		}, f, true)
	}
	return c
}

// resume continues a run that did not end.
func (a *app) resume(c *cobra.Command, f applying, args []string) error {
	ctx := c.Context()
	if err := f.check(); err != nil {
		return err
	}
	s, err := a.open(ctx, nil, nil)
	if err != nil {
		return err
	}
	run := ""
	if len(args) > 0 {
		run = args[0]
		if _, err := s.run(ctx, run, "there is no run "+run); err != nil {
			return err
		}
	}
	e, err := s.engine()
	if err != nil {
		return err
	}
	return s.carry(func(o engine.ApplyOptions) (engine.Result, error) { return e.Resume(ctx, run, o) }, f, false)
}
