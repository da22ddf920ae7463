package apply

import (
	"context"
	"errors"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/state"
)

// judge compares what is there with what the call expects. Over means that no call is made.
func (w *worker) judge(ctx context.Context, have *providers.Thing) (res result, over bool) {
	if err := w.readForUndo(ctx, have); err != nil {
		return w.failed(err), true
	}
	return w.follow(ctx, w.conclude(have))
}

// readForUndo reads the record of a thing that is to be deleted because its create is undone.
func (w *worker) readForUndo(ctx context.Context, have *providers.Thing) error {
	if !w.undo || w.action != plan.Delete || have == nil {
		return nil
	}
	r, err := w.store.Record(ctx, w.step.Ref)
	switch {
	case errors.Is(err, state.ErrNotFound):
		w.recorded = nil
	case err != nil:
		return err
	default:
		w.recorded = &r
	}
	return nil
}

// follow carries out a verdict other than to make a call. Over means that no call is made.
func (w *worker) follow(ctx context.Context, v verdict) (res result, over bool) {
	switch v.do {
	case awaits:
		return w.await(ctx)
	case finishes:
		return w.finish(nil), true
	case leaves:
		return w.partial(v.why, v.left), true
	case refuses:
		return w.refuse(v.why), true
	case fails:
		return w.failed(v.why), true
	case doubts:
		return w.unknown(v.why), true
	}
	return result{}, false
}

// collide resolves a create whose id is reported as taken: by an earlier attempt of ours, by somebody else, or by a
// thing that was deleted long ago and whose id cannot be reused.
func (w *worker) collide(ctx context.Context, cause error) (result, bool) {
	have, err := w.lookFor(ctx) // what was made a moment ago may not be listed yet
	if err != nil {
		return w.failed(err), true
	}
	if have != nil && w.ours(have) {
		w.unsure = true
	}
	if v := w.collides(have, cause); v.do != reincarnates {
		return w.follow(ctx, v)
	}
	w.incarnation++
	w.mark.Incarnation = w.incarnation
	w.id = plan.ExternalID(w.site, w.traits, w.step.Ref, w.incarnation, nil)
	if w.record != nil {
		r := *w.record
		r.ID, r.Incarnation = w.id, w.incarnation
		w.record = &r
	}
	w.unsure = false
	return result{}, false
}

// lookAgain settles a call that was refused because the thing was not what the call expected.
func (w *worker) lookAgain(ctx context.Context, cause error) (result, bool) {
	if w.action == plan.Create { // what it refers to does not exist
		return w.refused(ctx, cause, nil), true
	}
	have, err := w.see(ctx, 0)
	if err != nil {
		return w.failed(err), true
	}
	if w.action == plan.Update && have != nil && w.before != nil && have.Spec.Equal(w.before) {
		return result{}, false // only the version token changed: the same change again, with the new token
	}
	return w.judge(ctx, have)
}
