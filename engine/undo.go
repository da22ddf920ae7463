package engine

import (
	"context"
	"errors"
	"fmt"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Undoing returns, as a plan to look at, what a rollback would do that undoes the run with that id except for its first keep
// steps. It changes nothing, and fails as Rollback does where a rollback would not begin.
func (e *Engine) Undoing(ctx context.Context, id string, keep int) (*plan.Plan, error) {
	look := func(ctx context.Context) (*plan.Plan, error) {
		run, p, body, err := e.choose(ctx, "rollback", id)
		if err != nil {
			return nil, err
		}
		_, sum, err := e.journalOf(ctx, run, p, body)
		if err != nil {
			return nil, err
		}
		return e.inverse(ctx, run, p, sum, keep)
	}
	if holder, err := e.o.Store.LockInfo(ctx); err != nil {
		return nil, err
	} else if holder == nil {
		return look(ctx)
	}
	var inverse *plan.Plan // the process that holds the lock may be working on this very run
	_, err := e.locked(ctx, "look", func(ctx context.Context, _ *state.Lock) (res Result, err error) {
		inverse, err = look(ctx)
		return res, err
	})
	return inverse, err
}

// Rollback undoes the run with that id, or the newest when id is empty: all of it, or what came after the first steps that the
// options keep. These must be done, and the run then ends rolled back; where nothing comes after them, a run that has ended
// stays as it is. It refuses to undo what cannot be undone exactly. When the options hold the approval of a plan from Undoing,
// it fails with a *StaleError if something else would now be undone.
func (e *Engine) Rollback(ctx context.Context, id string, o ApplyOptions) (Result, error) {
	return e.continueRun(ctx, "rollback", id, o, func(run state.Run, p *plan.Plan, sum journal.Replay) (undo bool, err error) {
		inverse, err := e.inverse(ctx, run, p, sum, o.Keep)
		switch {
		case err != nil:
		case o.Approve != "" && !plan.Approves(o.Approve, inverse.Approval()):
			err = &StaleError{[]event.Difference{{Detail: fmt.Sprintf("run %s has progressed since its rollback was shown", run.ID)}}}
		case o.Keep > 0 && inverse.Empty() && ended(run):
			err = errNothingLeft
		}
		return true, err
	})
}

// errNothingLeft reports that a run is already as requested.
var errNothingLeft = errors.New("nothing left to roll back")

// Undoable reports whether Rollback would undo a run once nothing holds the site, as far as the store alone shows: not when the
// run is already undone or did what cannot be undone exactly, when a later run has changed what it left, nor while another run is
// open. It returns false where that cannot be known.
func Undoable(ctx context.Context, store *state.Store, run state.Run) bool {
	p, _, err := planOf(ctx, store, run)
	if err != nil {
		return false
	}
	sum, err := sumOf(ctx, store, run, len(p.Steps))
	if err != nil {
		return false
	}
	if _, err := undoing(run, p, sum, 0); err != nil {
		return false
	}
	if u, err := since(ctx, store, run, p, sum); err != nil || len(u.refusals) > 0 {
		return false
	}
	open, err := openBeside(ctx, store, run.ID)
	return err == nil && open == nil
}

// inverse returns what is left to undo of a run after the first keep steps, or why it cannot be undone, as far as the plan, the
// journal, the records and the site show.
func (e *Engine) inverse(ctx context.Context, run state.Run, p *plan.Plan, sum journal.Replay, keep int) (*plan.Plan, error) {
	if keep > 0 && run.Confirm > 0 && !sum.Confirmed {
		return nil, &RefusedError{[]plan.Refusal{plan.Refuse(schema.Ref{}, "run "+run.ID+" was not confirmed: guards undo what its first steps have changed", "roll all of it back")}}
	}
	inverse, err := undoing(run, p, sum, keep)
	if err == nil {
		err = Settled(ctx, e.o.Store, run.ID)
	}
	if err != nil {
		return nil, err
	}
	sum.Keep = keep
	refused, err := e.since(ctx, run, p, sum)
	if err == nil && len(refused) > 0 {
		err = &RefusedError{refused}
	}
	return inverse, err
}

// writeAnew is the remedy where something cannot be undone.
const writeAnew = "write a document that describes what you want now, and apply it"

// undoing is [Engine.inverse] as far as the plan and the journal show.
func undoing(run state.Run, p *plan.Plan, sum journal.Replay, keep int) (*plan.Plan, error) {
	if run.Status == state.RunReverted {
		return nil, fmt.Errorf("run %s is already reverted", run.ID)
	}
	if err := keeps(run, p, sum, keep); err != nil {
		return nil, fmt.Errorf("run %s cannot be rolled back to step %d: %w", run.ID, keep, err)
	}
	var refused []plan.Refusal
	for _, s := range p.Irreversible() {
		if s.ID >= keep && sum.Forward[s.ID].Effect() {
			refused = append(refused, plan.Refuse(s.Ref, fmt.Sprintf("its %s step cannot be undone exactly: %s", s.Action, s.Undo.Meaning()), writeAnew))
		}
	}
	if len(refused) > 0 {
		return nil, &RefusedError{refused}
	}
	sum.Keep = keep
	return p.Inverse(run.ID, keep, sum.Left), nil
}

// keeps returns why the first keep steps of a run cannot be kept while the others are undone; nil when they can.
func keeps(run state.Run, p *plan.Plan, sum journal.Replay, keep int) error {
	if keep < 0 {
		return errors.New("steps are numbered from 1; step 0 means the whole run")
	}
	if n := len(p.Steps); keep > n {
		return remedy.For(fmt.Errorf("that is beyond its last step, %d", n), remedy.Say("show its steps", remedy.Of(remedy.ShowRun, run.ID)))
	}
	for i := range min(keep, len(p.Steps)) {
		s := &p.Steps[i]
		switch {
		case !sum.Forward[i].Finished():
			return remedy.For(fmt.Errorf("step %d, %s %s, is not done; every step that is kept must be done", i+1, s.Action, s.Ref), remedy.Say("resume the run", remedy.Of(remedy.Resume, run.ID)))
		case sum.Undo[i].Effect():
			return fmt.Errorf("step %d, %s %s, has already been reverted, fully or partly", i+1, s.Action, s.Ref)
		}
	}
	if keep >= len(p.Steps) && !ended(run) {
		return remedy.For(errors.New("no step comes after it"), remedy.Say("finish the run", remedy.Of(remedy.Resume, run.ID)))
	}
	if below, above := p.Whole(keep); below < keep {
		return fmt.Errorf("%s is changed by more than one step, and these must be kept or rolled back together: roll back to step %d or %d", p.Steps[below].Ref, below, above)
	}
	return nil
}

func ended(run state.Run) bool {
	return run.Status != state.RunOpen && run.Status != state.RunPartial
}
