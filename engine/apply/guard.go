package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/state"
)

// guards are what the far sides of a run undo by themselves. Either each step has a guard of its own, which ends before the step does;
// or the whole run has one in each provider, which ends when somebody confirms the run.
type guards struct {
	deadline time.Time // of a run that has to be confirmed, until it is; zero: each step has its own guard

	mu   sync.Mutex
	open map[*providers.Provider]bool // with a guard of the run
}

func newGuards(o Options) *guards {
	g := &guards{open: map[*providers.Provider]bool{}}
	if o.Confirm > 0 {
		g.deadline = time.Now().Add(o.Confirm)
	}
	return g
}

// whole reports whether the run has one guard.
func (g *guards) whole() bool { return !g.deadline.IsZero() }

// lapsed reports whether the guard of the run in a provider has undone what it guards because its time was over.
func (g *guards) lapsed(p *providers.Provider) bool {
	if !g.whole() || time.Now().Before(g.deadline) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open[p]
}

// margin is how long before the end of a guard it is too late to keep what it guards: otherwise both could happen.
func margin(within time.Duration) time.Duration { return max(10*time.Second, within/5) }

// grace is how long after its end a guard may take to undo what it guards and to say so.
const grace = 30 * time.Second

// A CutOffError says that a change was undone by its guard, because what it may have cut off was not reached anew.
type CutOffError struct {
	On  string
	Err error // why the last attempt to keep the change failed; nil when there was none
}

// Error implements error.
func (e *CutOffError) Error() string {
	if e.Err == nil {
		return e.On + " was not reached anew after the change, and has undone it by itself"
	}
	return e.On + " has undone it by itself, because it could not be kept in time: " + e.Err.Error()
}

// An UnconfirmedError says that a run is undone because nobody has confirmed it.
type UnconfirmedError struct{ Why string }

// Error implements error.
func (e *UnconfirmedError) Error() string { return "the run was not confirmed: " + e.Why }

// guarding returns the guard of the next call; the zero guard when there is none. The undo of what this process has done has none: it leads
// back to where the far side could be reached a moment ago.
func (w *worker) guarding() (providers.Guard, error) {
	switch {
	case w.undo && !w.old || !w.traits.CutsOff || w.provider.Settle == nil:
		return providers.Guard{}, nil
	case w.guards.whole():
		left := time.Until(w.guards.deadline)
		if left <= margin(0) {
			return providers.Guard{}, &UnconfirmedError{"its time was over before all of its steps were done"}
		}
		return providers.Guard{ID: w.run, Within: left}, nil
	case w.guard == "": // the same for all attempts of this process; what an earlier one has left is undone by the fence
		w.guard = fmt.Sprintf("%s/%d", w.key(), w.epoch)
	}
	return providers.Guard{ID: w.guard, Within: w.retry.Guard}, nil
}

// arms takes note of a call that had a guard; had is what was there right before it.
func (w *worker) arms(g providers.Guard, armed bool, had *providers.Thing, err error) {
	unsure := err != nil && providers.ClassOf(err) == providers.Unknown
	switch {
	case g.IsZero() || !armed && !unsure:
	case w.guards.whole():
		w.guards.mu.Lock()
		defer w.guards.mu.Unlock()
		w.guards.open[w.provider] = true
	case !w.armed:
		w.armed, w.had = true, had
	}
}

// keep ends the guard of what the step has changed, so that it stays. When the far side cannot be reached anew, its guard undoes the
// change: then the step has failed, and changed nothing.
func (w *worker) keep() (res result, over bool) {
	if !w.armed {
		return result{}, false
	}
	ctx, cancel := context.WithTimeout(w.effects, w.retry.Guard+grace)
	defer cancel()
	w.note(event.Guarded, "it is undone unless "+w.far()+" can be reached anew", 0)
	cut, err := settled(ctx, w.provider, providers.Settling{ID: w.guard, Epoch: w.epoch, Keep: true}, func() error { return w.pause(ctx, time.Second) })
	switch {
	case err != nil:
		w.armed = false // it has undone the change by now, or cannot
		return w.unknown(fmt.Errorf("find out whether the guard has undone the change: %w", err)), true
	case cut == nil:
		w.armed = false
		return result{}, false
	}
	w.armed, w.unsure, w.sent, w.doubt, w.acted = false, false, false, time.Time{}, time.Time{}
	cause := &providers.Error{Op: string(w.action), Ref: w.step.Ref, Class: providers.Denied, Code: "guard", Err: cut}
	have, err := w.see(ctx, 0)
	switch {
	case err != nil:
		return w.unknown(errors.Join(cause, err)), true
	case w.moved(w.had, have):
		return w.partial(cause, have), true
	}
	return w.refuse(cause), true
}

// lapsed returns why a step failed whose guard, that of the whole run, has undone what it did: its time was over before the step could be
// seen done. Otherwise it returns err.
func (w *worker) lapsed(err error) error {
	if w.undo || !w.guards.lapsed(w.provider) {
		return err
	}
	return &UnconfirmedError{w.far() + " was not reached before its time was over, and its guard has undone what was changed there"}
}

// drop makes the guard of a step that was given up undo what the step has changed. When it cannot be reached it does so in its time.
func (w *worker) drop() {
	if !w.armed || w.effects.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.effects, grace)
	defer cancel()
	if _, err := settled(ctx, w.provider, providers.Settling{ID: w.guard, Epoch: w.epoch}, func() error { return w.pause(ctx, time.Second) }); err != nil {
		w.log.Warn("a guard could not be told to undo what it protects; it does so by itself", "run", w.run, "ref", w.step.Ref.String(), "error", err)
	}
}

// far names what a change may cut off.
func (w *worker) far() string { return "node " + w.step.Ref.Scope }

// settled ends a guard, however often that has to be asked for. A guard that is not there has nothing to undo. Cut is set when the guard has
// undone what was to be kept.
func settled(ctx context.Context, p *providers.Provider, s providers.Settling, pause func() error) (cut *CutOffError, err error) {
	var last error
	for {
		kept, err := p.Settle(ctx, s)
		switch {
		case err == nil && s.Keep && !kept:
			return &CutOffError{"node " + p.Scope, last}, nil
		case err == nil:
			return nil, nil
		}
		last = err
		var told *providers.Error
		if errors.As(err, &told) {
			switch told.Class {
			case providers.Absent:
				return nil, nil
			case providers.Denied, providers.Invalid, providers.Unsupported:
				return nil, err
			}
		}
		if perr := pause(); perr != nil {
			return nil, errors.Join(err, perr)
		}
	}
}

// confirmWithin is how long nodes may take, once the run is confirmed, to be reached anew.
const confirmWithin = time.Minute

// Confirming is how the description of the lock begins while a run waits to be confirmed.
const Confirming = "waiting for the confirmation of"

// confirmPause is how often it is looked whether the run is confirmed.
const confirmPause = time.Second

// confirmed waits until somebody confirms what the run has done, and then keeps it. A failure means that it is to be undone.
func (r *run) confirmed(ctx context.Context) (*failure, error) {
	if !r.guards.whole() || r.sum.Confirmed {
		return nil, nil
	}
	within := time.Until(r.guards.deadline) - margin(r.Options.Confirm)
	early, err := r.asked() // by somebody who has not seen what came of it
	if err != nil {
		return nil, err
	}
	r.describe(Confirming)
	r.Emit(event.ConfirmWait{Run: r.Run.ID, Within: max(within, 0)})
	over, tick := time.NewTimer(within), time.NewTicker(confirmPause)
	defer over.Stop()
	defer tick.Stop()
	for last, interrupted := false, false; ; {
		select {
		case <-over.C:
			last = true // who has asked by now was in time
		case <-r.effects.Done():
			return nil, context.Cause(r.effects)
		case <-ctx.Done():
			interrupted = true
		case <-r.Interrupt:
			interrupted = true
		case <-tick.C:
		}
		if interrupted {
			r.stop(ctx)
			r.giveUp()
			return nil, r.unsettled(fmt.Errorf("run %s was %w before it was confirmed; its guards have undone what they protect, or will", r.Run.ID, ErrInterrupted))
		}
		asked, err := r.asked()
		if err != nil {
			r.Logger.Warn("failed to check whether the run is confirmed", "run", r.Run.ID, "error", err)
		}
		switch {
		case asked != nil && (early == nil || *asked != *early):
			return r.accept(asked.By)
		case last:
			return r.unconfirmed("nobody did so in time"), nil
		}
	}
}

// asked returns the request to confirm this run; nil when there is none.
func (r *run) asked() (*state.Request, error) {
	ctx, cancel := context.WithTimeout(r.effects, confirmPause)
	defer cancel()
	asked, err := r.Lock.Asked(ctx, state.ToConfirm)
	if asked != nil && asked.Run != r.Run.ID {
		return nil, nil
	}
	return asked, err
}

// accept writes that the run is confirmed, and ends its guards. Where one has undone what it guards after all, the run has failed.
func (r *run) accept(by string) (*failure, error) {
	if err := r.journal.Append(r.effects, journal.Record{Kind: journal.Confirm, Step: -1, Message: by}); err != nil {
		return nil, err
	}
	r.Emit(event.Confirmed{By: by})
	cut, errs := r.endGuards(true)
	switch {
	case r.effects.Err() != nil:
		return nil, context.Cause(r.effects)
	case cut != nil:
		return cut, nil
	case len(errs) > 0:
		return r.unconfirmed(fmt.Sprintf("it is not known whether a guard has undone what was confirmed: %v", errs[0])), nil
	}
	if err := r.journal.Append(r.effects, journal.Record{Kind: journal.Kept, Step: -1}); err != nil {
		return nil, err
	}
	r.sum.Confirmed, r.guards.deadline = true, time.Time{}
	return nil, nil
}

// endGuards ends the guards of the run, concurrently, and asks for a while. Cut is set when one has undone what was to be kept.
func (r *run) endGuards(keep bool) (cut *failure, errs []error) {
	r.guards.mu.Lock()
	open := slices.SortedFunc(maps.Keys(r.guards.open), func(a, b *providers.Provider) int {
		return strings.Compare(a.Scope+"/"+a.Name, b.Scope+"/"+b.Name)
	})
	r.guards.open = map[*providers.Provider]bool{}
	r.guards.mu.Unlock()
	limit := time.Now().Add(grace)
	if keep { // one that hangs keeps the others waiting for no longer than this
		limit = limit.Add(confirmWithin)
	}
	ctx, cancel := context.WithDeadline(r.effects, limit)
	defer cancel()
	type end struct {
		cut *CutOffError
		err error
	}
	ends := make([]end, len(open))
	var wg sync.WaitGroup
	for i, p := range open {
		wg.Go(func() {
			cut, err := settled(ctx, p, providers.Settling{ID: r.Run.ID, Epoch: r.Lock.Epoch(), Keep: keep}, func() error { return pause(ctx, time.Second, nil) })
			ends[i] = end{cut, err}
		})
	}
	wg.Wait()
	for i, e := range ends {
		switch {
		case e.err != nil:
			errs = append(errs, fmt.Errorf("node %s: %w", open[i].Scope, e.err))
		case e.cut != nil && cut == nil:
			cut = &failure{r.first(open[i]), e.cut}
		}
	}
	return cut, errs
}

// first returns the first step of a provider.
func (r *run) first(of *providers.Provider) *plan.Step {
	for i := range r.Plan.Steps {
		if s := &r.Plan.Steps[i]; r.provider(s) == of {
			return s
		}
	}
	return &r.Plan.Steps[0]
}

// unconfirmed is the failure of a run that is not confirmed.
func (r *run) unconfirmed(why string) *failure {
	return &failure{&r.Plan.Steps[0], &UnconfirmedError{why}}
}

// giveUp makes the guards of the run undo what they protect, before the rest is undone. One that cannot be reached does so in its time.
func (r *run) giveUp() {
	if _, errs := r.endGuards(false); len(errs) > 0 {
		r.Logger.Warn("a guard could not be told to undo what it protects; it does so by itself", "run", r.Run.ID, "error", errors.Join(errs...))
	}
}
