package engine

import (
	"context"
	"errors"
	"slices"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// errLooks is a mistake of the caller.
var errLooks = errors.New("engine: a read-only engine can neither save plans nor work on a site")

// Free returns why nothing new may be applied to the site: *state.LockedError when another process still works on it
// after the wait for the lock, *HeldError when a run is open or the site is held. Other holds matter only once there is a plan.
func (e *Engine) Free(ctx context.Context) error {
	holder, err := e.o.Store.LockInfo(ctx)
	switch {
	case err == nil && holder == nil:
		return e.free(ctx, "", nil)
	case err != nil && e.o.LockWait <= 0:
		return err
	}
	_, err = e.locked(ctx, "look", func(ctx context.Context, _ *state.Lock) (Result, error) { return Result{}, e.free(ctx, "", nil) })
	return err
}

// Held returns, without waiting, why a plan could not be applied now; nil while a process works on the site, because the
// outcome is still open.
func (e *Engine) Held(ctx context.Context, p *plan.Plan) error {
	if holder, err := e.o.Store.LockInfo(ctx); err != nil || holder != nil {
		return err
	}
	return e.free(ctx, p.Undoes, p)
}

// free refuses to work while an open run, a freeze, or a hold of the site, of what the plan changes or of its revision of
// the document is in the way; those of the run that is being resumed do not count. Without a plan only the whole site counts.
func (e *Engine) free(ctx context.Context, run string, p *plan.Plan) error {
	stops, err := e.o.Store.Stops(ctx)
	if err != nil {
		return err
	}
	refs := []schema.Ref{{Scope: schema.ScopeSite}}
	if p != nil {
		refs = append(refs, stepRefs(p)...)
	}
	var holds []state.Hold
	for _, r := range refs {
		for _, h := range stops.On(r, run) {
			if !slices.Contains(holds, h) {
				holds = append(holds, h)
			}
		}
	}
	if p != nil && run == "" && p.Digest != "" {
		head, err := e.o.Store.Head(ctx)
		if err != nil && !errors.Is(err, state.ErrNotFound) {
			return err
		}
		if i := slices.IndexFunc(stops.Holds, func(h state.Hold) bool { return h.Scope == state.SerialScope(head.Serial) }); i >= 0 && head.Digest == p.Digest && !p.Empty() {
			holds = append(holds, stops.Holds[i])
		}
	}
	if len(holds) > 0 {
		held := &HeldError{Holds: holds}
		for _, h := range holds {
			if r, err := e.o.Store.Run(ctx, h.Run); h.Run != "" && err == nil && Undoable(ctx, e.o.Store, r) {
				held.Undoable = append(held.Undoable, h.Run)
			}
		}
		return held
	}
	return Settled(ctx, e.o.Store, run)
}

// Settled fails with a *HeldError while a run other than the given one is open.
func Settled(ctx context.Context, store *state.Store, run string) error {
	open, err := openBeside(ctx, store, run)
	if err != nil || open == nil {
		return err
	}
	held := &HeldError{Open: open.ID}
	if Undoable(ctx, store, *open) {
		held.Undoable = []string{open.ID}
	}
	return held
}

// openBeside returns an open run; nil when the given run itself is open.
func openBeside(ctx context.Context, store *state.Store, run string) (*state.Run, error) {
	runs, err := store.Runs(ctx)
	if err != nil {
		return nil, err
	}
	var open *state.Run
	for i := range runs {
		if runs[i].Status == state.RunOpen {
			if open = &runs[i]; open.ID == run {
				return nil, nil
			}
		}
	}
	return open, nil
}

// Amend calls do while the site lock is held and no run is open, for a change of what is recorded that no plan makes. It fails with a
// *state.LockedError or a *HeldError when nothing was done.
func (e *Engine) Amend(ctx context.Context, op string, do func(context.Context, *state.Lock) error) error {
	_, err := e.locked(ctx, op, func(ctx context.Context, lock *state.Lock) (Result, error) {
		if err := Settled(ctx, e.o.Store, ""); err != nil {
			return Result{}, err
		}
		return Result{}, do(ctx, lock)
	})
	return err
}

// locked calls do while the site lock is held.
func (e *Engine) locked(ctx context.Context, op string, do func(context.Context, *state.Lock) (Result, error)) (res Result, err error) {
	if e.o.Looks {
		return Result{}, errLooks
	}
	info := state.LockInfo{Operation: op, Who: e.o.Who, PID: e.o.PID, Version: e.o.Version}
	lock, err := e.o.Store.Lock(ctx, info, state.LockOptions{
		TTL: e.o.LockTTL, Wait: e.o.LockWait, OnWait: func(i state.LockInfo) { e.o.Emit(event.LockWait{Holder: i}) },
	})
	if err != nil {
		return Result{}, err
	}
	e.o.Logger.Debug("site lock acquired", "operation", op, "epoch", lock.Epoch())
	defer func() {
		cerr := lock.Close()
		if cerr != nil && err == nil {
			e.o.Logger.Warn("failed to release the site lock", "error", cerr)
		}
		e.o.Logger.Debug("site lock released", "operation", op, "epoch", lock.Epoch(), "clean", cerr == nil)
	}()
	res, err = do(ctx, lock)
	var unknown *UnknownError
	if errors.As(err, &unknown) && ctx.Err() != nil { // nothing could be observed because ctx was cancelled
		err = context.Cause(ctx)
	}
	return res, err
}
