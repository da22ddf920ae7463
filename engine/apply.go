package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/providers"
	"converge.dev/converge/state"
)

// Apply carries out a plan under the site lock, exactly as it is, and trusts nothing that the plan says about itself: what
// can be derived again is, before anything is done. It fails with a *RefusedError, *UnknownError,
// *ApprovalError, *HeldError, *StaleError, *SpentError or *state.LockedError when nothing was changed, and with state.ErrGuard when a
// guard of the options did not hold, so that nothing was begun; with ErrInterrupted or another error when the run is open. How the run
// ended otherwise is in the result.
func (e *Engine) Apply(ctx context.Context, p *plan.Plan, o ApplyOptions) (Result, error) {
	saved, err := p.Encode()
	if err != nil {
		return Result{}, err
	}
	if err := e.acceptable(p, saved.Approval, o); err != nil {
		return Result{}, err
	}
	if run, spent, err := e.o.Store.Spent(ctx, saved.Digest); err != nil {
		return Result{}, err
	} else if spent {
		return Result{}, &SpentError{run}
	}
	op := "apply"
	if p.Destroy {
		op = "destroy"
	}
	return e.locked(ctx, op, func(ctx context.Context, lock *state.Lock) (Result, error) {
		return e.fenced(ctx, lock, "", p, 0, checks{
			recorded: func(recorded []state.Record) error { return e.admissible(ctx, p, recorded) },
			served:   func(set *providers.Set, recorded []state.Record) error { return e.honest(set, p, recorded) },
		}, func(set *providers.Set, recorded []state.Record) (Result, error) {
			if err := e.fresh(ctx, set, p, recorded); err != nil {
				return Result{}, err
			}
			if err := e.rememberServers(ctx, lock, p); err != nil {
				return Result{}, err
			}
			run, log, err := e.begin(ctx, lock, p, op, saved, o)
			if err != nil || p.Empty() {
				return Result{Run: run}, err
			}
			return e.run(ctx, set, lock, p, run, log, recorded, o, false)
		})
	})
}

// acceptable refuses what the plan itself shows, and the options do not allow.
func (e *Engine) acceptable(p *plan.Plan, approval string, o ApplyOptions) error {
	for _, check := range []func() error{p.Check, p.CheckDocument} {
		if err := check(); err != nil {
			return err
		}
	}
	if o.Confirm > 0 && o.OnFailure != "" && o.OnFailure != apply.Rollback {
		return fmt.Errorf("a run that is undone unless it is confirmed cannot also %s when a step fails", o.OnFailure)
	}
	if len(p.Refusals) > 0 {
		return &RefusedError{p.Refusals}
	}
	if !p.Author.Own {
		if err := e.checkSecrets(p); err != nil {
			return err
		}
	}
	if p.Partial() && !o.AllowPartial {
		return &UnknownError{Unknown: p.Unknown, Omitted: p.Omitted}
	}
	if steps := p.Irreversible(); (len(steps) > 0 || o.Approve != "" && !p.Empty()) && !plan.Approves(o.Approve, approval) {
		return &ApprovalError{Approval: approval, Given: o.Approve, Steps: steps}
	}
	return nil
}

// checks are those that only a new plan has to pass on its way to the site. Nil ones are left out.
type checks struct {
	recorded func([]state.Record) error                 // against what is recorded
	served   func(*providers.Set, []state.Record) error // against what the far sides serve, too
}

// fenced calls do once what a plan touches, from the given step on, is free, within reach, and closed to earlier holders of the
// lock. Run is the run that is taken up again; empty when the plan is new.
//
// The order matters:
//
//  1. Nothing is in the way: no open run, no freeze, no hold. The store alone shows that.
//  2. The secrets of the records and of the plan are known before any text can mention them.
//  3. What the records show against the plan is found before any provider is opened: what is refused reaches no far side.
//  4. The providers are opened, and bound to the lock: what waits within one begins nothing after the lock was lost.
//  5. All of them are reachable: a far side that is missing would look like one that serves something else.
//  6. What they serve bears the plan out.
//  7. They are the right servers: the fence, which comes next, writes to them.
//  8. The fence stands before anything is observed: otherwise an earlier holder could still change what was seen.
func (e *Engine) fenced(ctx context.Context, lock *state.Lock, run string, p *plan.Plan, from int, c checks, do func(*providers.Set, []state.Record) (Result, error)) (Result, error) {
	touched := *p
	touched.Steps = p.Steps[from:]
	if err := e.free(ctx, run, &touched); err != nil {
		return Result{}, err
	}
	recorded, err := e.o.Store.Records(ctx)
	if err != nil {
		return Result{}, err
	}
	e.register(ctx, recorded, p)
	if c.recorded != nil {
		if err := c.recorded(recorded); err != nil {
			return Result{}, err
		}
	}
	set, err := e.connect(ctx, p.Site, needs(places(neededRefs(&touched))))
	if err != nil {
		return Result{}, err
	}
	defer set.Bind(lock.Held)()
	if err := reachable(set, &touched); err != nil {
		return Result{}, err
	}
	if c.served != nil {
		if err := c.served(set, recorded); err != nil {
			return Result{}, err
		}
	}
	if err := e.sameServers(ctx, set, p); err != nil {
		return Result{}, err
	}
	if err := e.fence(ctx, set, lock, &touched); err != nil {
		return Result{}, err
	}
	return do(set, recorded)
}

// admissible refuses a plan that what is recorded does not allow any more, and one whose secrets are not those it was made with.
func (e *Engine) admissible(ctx context.Context, p *plan.Plan, recorded []state.Record) error {
	head, err := e.o.Store.Head(ctx)
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return err
	}
	refusals, err := e.forbidden(ctx, p, state.Live(recorded), head) // a saved plan may be old
	if err != nil {
		return err
	}
	if len(refusals) > 0 {
		return &RefusedError{refusals}
	}
	return e.unchanged(ctx, p)
}

// begin stores the document and the plan, marks the plan as spent, and opens the run with the first record of its journal, in
// this order: a crash in between leaves nothing that another run could trip over.
func (e *Engine) begin(ctx context.Context, lock *state.Lock, p *plan.Plan, op string, saved plan.Saved, o ApplyOptions) (run state.Run, log *journal.Log, err error) {
	if err := lock.Held(); err != nil { // a process that stood still since it took the lock writes nothing, not even what needs no lock
		return run, nil, err
	}
	worked, err := e.worked(ctx) // the plan does not know what another run has done since
	if err != nil {
		return run, nil, err
	}
	now := e.o.Now()
	run = state.Run{
		ID: e.o.NewID(now), Op: op, Status: state.RunOpen, Plan: saved.Digest, Serial: p.Site.Serial, By: e.o.Who, ApprovedBy: o.ApprovedBy,
		Epoch: lock.Epoch(), Started: now.UTC(), Steps: len(p.Steps), OnFail: string(o.OnFailure), Confirm: int(o.Confirm / time.Second), Complete: p.Complete() && p.Worked == worked,
	}
	if !p.Destroy && len(p.Document) > 0 {
		if err := failpoint.At("document.put.before"); err != nil {
			return run, nil, err
		}
		// It goes on top of the revision that the plan was made for: a process that lost the lock must not bring back its
		// document.
		head, err := e.o.Store.PutDocument(ctx, p.Document, p.Digest, p.Site.Serial, e.o.Who, p.Revision)
		if err == nil {
			err = failpoint.At("document.put.after")
		}
		if err != nil {
			return run, nil, err
		}
		run.Serial = head.Serial
	}
	if p.Empty() {
		run.Status = state.RunApplied
		return run, nil, nil
	}
	if run.Body, err = e.o.Store.PutBlob(ctx, saved.Data); err != nil {
		return run, nil, err
	}
	for _, point := range []string{"plan.put.after", "run.open.before"} {
		if err := failpoint.At(point); err != nil {
			return run, nil, err
		}
	}
	log, err = journal.Start(ctx, e.o.Store, lock, run.ID, saved.Digest,
		append(slices.Clone(o.Guards), e.o.Store.UnspentGuard(saved.Digest)), []state.Op{e.o.Store.SpentOp(saved.Digest, run.ID), e.o.Store.PutRunOp(run)})
	if errors.Is(err, state.ErrGuard) {
		if by, spent, serr := e.o.Store.Spent(ctx, saved.Digest); serr == nil && spent {
			return run, nil, &SpentError{by}
		}
	}
	if err == nil {
		err = failpoint.At("run.open.after")
	}
	if err != nil {
		return run, nil, fmt.Errorf("open run %s: %w", run.ID, err)
	}
	return run, log, nil
}

// run hands a run to package apply.
func (e *Engine) run(ctx context.Context, set *providers.Set, lock *state.Lock, p *plan.Plan, run state.Run, log *journal.Log, recorded []state.Record, o ApplyOptions, undo bool) (Result, error) {
	if o.OnFailure == "" {
		o.OnFailure = apply.Rollback
	}
	carried, release := e.cancellable(ctx, lock)
	defer release()
	run, ds, err := apply.Carry(carried, apply.Options{
		Kinds: e.o.Kinds, Providers: set, Store: e.o.Store, Lock: lock, Plan: p, Run: run, Log: log, Recorded: recorded,
		Undo: undo, Keep: o.Keep, OnFailure: o.OnFailure, Confirm: o.Confirm, Parallelism: e.o.Parallelism, Retry: e.o.Retry, Interrupt: o.Interrupt,
		Emit: e.o.Emit, Logger: e.o.Logger,
	})
	if err == nil && run.Status != state.RunOpen {
		if perr := e.prune(ctx, lock); perr != nil { // nothing depends on pruning, and the next run tries again
			e.o.Logger.Warn("failed to remove old runs", "error", perr)
		}
	}
	return Result{run, ds}, err
}
