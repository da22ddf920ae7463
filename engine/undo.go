package engine

import (
	"context"
	"fmt"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/state"
)

// Undoing gives what a rollback of the run with that id would do, as a plan to look at. It changes nothing, and fails as
// Rollback does where that would not begin.
func (e *Engine) Undoing(ctx context.Context, id string) (*plan.Plan, error) {
	look := func(ctx context.Context) (*plan.Plan, error) {
		run, p, body, err := e.choose(ctx, "rollback", id)
		if err != nil {
			return nil, err
		}
		_, sum, err := e.journalOf(ctx, run, p, body)
		if err != nil {
			return nil, err
		}
		return e.undoing(ctx, run, p, sum)
	}
	if holder, err := e.o.Store.LockInfo(ctx); err != nil {
		return nil, err
	} else if holder == nil {
		return look(ctx)
	}
	var inverse *plan.Plan // who is at work may be at work on this very run
	_, err := e.locked(ctx, "look", func(ctx context.Context, _ *state.Lock) (res Result, err error) {
		inverse, err = look(ctx)
		return res, err
	})
	return inverse, err
}

// Rollback undoes the run with that id, or the newest when id is empty. It refuses when the run did something that cannot
// be undone exactly. When the options hold the approval of a plan from Undoing, it fails with a *StaleError if it is
// something else by now that would be undone.
func (e *Engine) Rollback(ctx context.Context, id string, o ApplyOptions) (Result, error) {
	return e.again(ctx, "rollback", id, o, func(run state.Run, p *plan.Plan, sum journal.Replay) (undo bool, err error) {
		inverse, err := e.undoing(ctx, run, p, sum)
		if err == nil && o.Approve != "" && !inverse.ApprovedBy(o.Approve) {
			err = &StaleError{[]event.Difference{{Detail: fmt.Sprintf("run %s went on since it was shown what would be undone", run.ID)}}}
		}
		return true, err
	})
}

// undoing gives what is left to undo of a run, or says why it cannot be undone.
func (e *Engine) undoing(ctx context.Context, run state.Run, p *plan.Plan, sum journal.Replay) (*plan.Plan, error) {
	if run.Status == state.RunReverted {
		return nil, fmt.Errorf("run %s is reverted already", run.ID)
	}
	var refused []plan.Refusal
	for i := range p.Steps {
		if s := &p.Steps[i]; !s.Undo.Reversible() && sum.Forward[i].Effect() {
			refused = append(refused, plan.Refusal{
				Ref:    s.Ref,
				Reason: fmt.Sprintf("the run did %s it, which cannot be undone exactly: %s", s.Action, s.Undo.Meaning()),
				Remedy: "write a document that describes what you want now, and apply that",
			})
		}
	}
	left := func(i int) bool { return sum.Forward[i].Effect() && !sum.Undo[i].Finished() }
	since, err := e.since(ctx, run, p, left)
	if err != nil {
		return nil, err
	}
	if refused = append(refused, since...); len(refused) > 0 {
		return nil, &RefusedError{refused}
	}
	return p.Inverse(run.ID, left), nil
}
