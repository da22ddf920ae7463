package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/providers"
	"converge.dev/converge/state"
)

// Resume continues the open or partial run with that id; the only such run when id is empty. A run that was being
// undone goes on being undone, as far as was requested; any other goes on forward.
func (e *Engine) Resume(ctx context.Context, id string, o ApplyOptions) (Result, error) {
	return e.continueRun(ctx, "resume", id, o, func(run state.Run, p *plan.Plan, sum journal.Replay) (undo bool, err error) {
		if run.Status != state.RunOpen && run.Status != state.RunPartial {
			return false, fmt.Errorf("run %s ended %s: there is nothing to resume", run.ID, run.Stands())
		}
		return false, passed(ctx, e.o.Store, run, p, sum)
	})
}

// continueRun continues an existing run.
func (e *Engine) continueRun(ctx context.Context, op, id string, o ApplyOptions, decide func(state.Run, *plan.Plan, journal.Replay) (bool, error)) (Result, error) {
	run, p, body, err := e.choose(ctx, op, id)
	if err != nil {
		return Result{}, err
	}
	return e.locked(ctx, op, func(ctx context.Context, lock *state.Lock) (Result, error) {
		log, sum, err := e.journalOf(ctx, run, p, body)
		if err != nil {
			return Result{}, err
		}
		// The stored run may be newer than what was read before the lock was taken.
		if run, err = e.o.Store.Run(ctx, run.ID); err != nil {
			return Result{}, err
		}
		undo, err := decide(run, p, sum)
		if errors.Is(err, errNothingLeft) {
			return Result{Run: run}, nil
		}
		if err != nil {
			return Result{Run: run}, err
		}
		from := 0
		switch { // a rollback makes no calls for what it keeps, which need be neither free nor reachable
		case undo:
			from = o.Keep
		case sum.Reverting:
			from = sum.Keep
		}
		return e.fenced(ctx, lock, run.ID, p, from, checks{}, func(set *providers.Set, recorded []state.Record) (Result, error) {
			run.Status, run.Kept, run.Ended, run.Epoch = state.RunOpen, 0, nil, lock.Epoch()
			if !undo { // otherwise the revert record opens it: a crash in between must not leave it open to go forward again
				if _, err := lock.Commit(ctx, nil, []state.Op{e.o.Store.PutRunOp(run)}); err != nil {
					return Result{}, fmt.Errorf("open run %s: %w", run.ID, err)
				}
			}
			if o.OnFailure == "" {
				o.OnFailure = apply.OnFailure(run.OnFail)
			}
			return e.run(ctx, set, lock, p, run, log, recorded, o, undo)
		})
	})
}

// choose returns the requested run, and its plan.
func (e *Engine) choose(ctx context.Context, op, id string) (state.Run, *plan.Plan, []byte, error) {
	run, err := e.pick(ctx, op, id)
	if err != nil {
		return run, nil, nil, err
	}
	p, body, err := planOf(ctx, e.o.Store, run)
	return run, p, body, err
}

// pick returns the requested run.
func (e *Engine) pick(ctx context.Context, op, id string) (state.Run, error) {
	if id != "" {
		run, err := e.o.Store.Run(ctx, id)
		if errors.Is(err, state.ErrNotFound) {
			return run, remedy.For(fmt.Errorf("there is no run %s", id), remedy.Say("list the runs", remedy.Action{Verb: remedy.Runs}))
		}
		return run, err
	}
	runs, err := e.o.Store.Runs(ctx)
	if err != nil {
		return state.Run{}, err
	}
	i := slices.IndexFunc(runs, func(r state.Run) bool {
		return r.Status == state.RunOpen || r.Status == state.RunPartial || (op == "rollback" && r.Status != state.RunReverted)
	})
	if i < 0 {
		return state.Run{}, fmt.Errorf("there is no run to %s", op)
	}
	return runs[i], nil
}

// planOf reads the plan of a run, and the bytes that its digest covers.
func planOf(ctx context.Context, store *state.Store, run state.Run) (p *plan.Plan, body []byte, err error) {
	if body, err = store.Blob(ctx, run.Body); err != nil {
		return nil, nil, fmt.Errorf("read the plan of run %s: %w", run.ID, err)
	}
	if p, err = plan.Decode(body); err != nil {
		return nil, nil, fmt.Errorf("run %s: %w", run.ID, err)
	}
	return p, body, nil
}

// journalOf reads the journal of a run and what it adds up to.
func (e *Engine) journalOf(ctx context.Context, run state.Run, p *plan.Plan, body []byte) (*journal.Log, journal.Replay, error) {
	log, err := journal.Read(ctx, e.o.Store, run.ID)
	if err != nil {
		return nil, journal.Replay{}, err
	}
	sum, err := journal.Sum(log.Records, len(p.Steps))
	if err != nil {
		return nil, sum, err
	}
	digest := sha256.Sum256(body)
	if got := hex.EncodeToString(digest[:]); sum.Plan != got {
		return nil, sum, fmt.Errorf("run %s: its journal is for plan %.12s, but the plan in the store is %.12s: the store is corrupt", run.ID, sum.Plan, got)
	}
	return log, sum, nil
}

// sumOf reads what the journal of a run with so many steps adds up to.
func sumOf(ctx context.Context, store *state.Store, run state.Run, steps int) (journal.Replay, error) {
	log, err := journal.Read(ctx, store, run.ID)
	if err != nil {
		return journal.Replay{}, err
	}
	return journal.Sum(log.Records, steps)
}
