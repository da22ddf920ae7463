package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// judge compares what is there right before a call with what the call expects. Over means that no call is to be made.
func (w *worker) judge(ctx context.Context, have *providers.Thing) (res result, over bool) {
	here := have != nil && have.Phase != providers.Leaving
	var taken []string
	if here {
		taken = w.taken(have)
	}
	switch w.action {
	case plan.Delete:
		switch {
		case have == nil && w.lost && w.served.Traits.Create == providers.Blind:
			return w.partial(errBlind, nil), true
		case have == nil && w.missing:
			return w.partial(errMissing, nil), true
		case have == nil:
			return w.finish(nil), true
		case !here:
			return w.await(ctx)
		case w.undo && w.served.Traits.ID == "" && w.stranger(have):
			return w.partial(w.conflict(errTaken), have), true
		case w.undo && !w.ours(have) && w.lost:
			return w.partial(errCollision, nil), true
		case w.undo && !w.ours(have) && !(w.finished && (w.served.Traits.UsedOnce() || have.Spec.Digest() == w.seen)):
			return w.finish(nil), true // nothing of ours is there
		case w.undo:
			switch altered, err := w.altered(ctx, have); {
			case err != nil:
				return w.failed(err), true
			case len(altered) > 0:
				return w.partial(w.conflict("somebody has changed "+strings.Join(altered, ", ")+" since the run made it"), nil), true
			}
		case !w.undo && w.stranger(have):
			return w.refuse(w.conflict(errTaken)), true
		case len(taken) > 0:
			return w.partial(w.conflict("somebody has changed "+strings.Join(taken, ", ")+" since the run began to delete it"), nil), true
		case w.before != nil && !w.unsure && have.Spec.Digest() != w.before.Digest():
			return w.refuse(w.conflict("it changed since the plan was made")), true
		case w.step.Called != "" && !w.unsure && have.Name != w.step.Called:
			return w.refuse(w.renamed(have)), true
		}
	case plan.Create:
		switch {
		case have == nil && w.unsure && !w.undo && w.served.Traits.Create == providers.Blind:
			return w.unknown(errBlind), true
		case have == nil && w.unsure && w.called && w.served.Traits.Create == providers.Blind:
			return w.partial(errBlind, nil), true
		case !here:
		case len(w.unmet(have)) == 0 && w.ours(have):
			return w.await(ctx)
		case w.half(have), w.later(have):
		case w.unsure && w.ours(have):
			return w.partial(w.conflict("it was created, but differs: "+strings.Join(w.unmet(have), ", ")), nil), true // as others left it
		default:
			return w.failed(&providers.Error{Op: "create", Ref: w.step.Ref, Class: providers.Exists, Err: errors.New("it is there already and was not made by this step")}), true
		}
	case plan.Update:
		switch {
		case !here:
			return w.failed(w.conflict("it is gone")), true
		case w.stranger(have):
			return w.failed(w.conflict(errTaken)), true
		case len(w.unmet(have)) == 0:
			return w.await(ctx)
		case len(taken) > 0: // what is there now is not how the step left it
			return w.partial(w.conflict("somebody has changed "+strings.Join(taken, ", ")+" since the run did"), nil), true
		case w.unsure:
		case w.name != "" && have.Name != w.unnamed:
			return w.refuse(w.renamed(have)), true
		case w.before != nil && have.Spec.Digest() != w.before.Digest():
			return w.refuse(w.conflict("it changed since the plan was made")), true
		}
	}
	return result{}, false
}

func (w *worker) renamed(have *providers.Thing) error {
	return w.conflict(fmt.Sprintf("it is called %q since the plan was made", have.Name))
}

// errTaken is why a thing is left alone that bears another mark than it did.
const errTaken = "it changed hands since the plan was made"

// half reports whether a create that broke off has made a part of the thing, and the rest is a change that can be made in
// place. It is made then, in the same step: what is healthy need not go because a far side was away for a moment. A value that
// is there and is another one is no part of ours.
func (w *worker) half(have *providers.Thing) bool {
	if w.action != plan.Create || !w.unsure || have == nil || have.Phase == providers.Leaving || have.Phase == providers.Failed || !w.ours(have) {
		return false
	}
	missing := w.missed(have)
	return len(missing) > 0 && !slices.ContainsFunc(missing, func(c diff.Change) bool {
		if f := w.kind.Field(c.Field()); c.Before == nil || f != nil && diff.Same(schema.Object{c.Path: c.Before}, schema.Object{c.Path: f.Default}) {
			return c.Replaces
		}
		return c.Replaces || !slices.Contains(w.served.Traits.Itself, c.Field())
	})
}

// later reports whether what is there, made or changed by this step, lacks nothing but what can be asked for only once all
// else is done.
func (w *worker) later(have *providers.Thing) bool {
	if len(w.served.Traits.Later) == 0 || !w.unsure && !w.sent || w.action == plan.Delete || have == nil || have.Phase == providers.Leaving || have.Phase == providers.Failed || !w.ours(have) {
		return false
	}
	missing := w.missed(have)
	return len(missing) > 0 && !slices.ContainsFunc(missing, func(c diff.Change) bool {
		return c.Replaces || !slices.Contains(w.served.Traits.Later, c.Field())
	})
}

// unsettled reports whether what is seen after a call of unknown outcome does not tell what came of it: a create has made a
// part, and may make the rest yet; an update shows what the far side may have brought about by itself. Nothing is concluded
// from it while the call may still have its effect.
func (w *worker) unsettled(have *providers.Thing) bool {
	if have == nil || have.Phase == providers.Leaving || w.doubt.IsZero() {
		return false
	}
	switch w.action {
	case plan.Create:
		return w.ours(have) && len(w.unmet(have)) > 0
	case plan.Delete: // what others have changed is not deleted again, and may be gone yet
		return len(w.taken(have)) > 0
	case plan.Update:
		return slices.ContainsFunc(w.step.Changes, func(c diff.Change) bool { return slices.Contains(w.served.Traits.Itself, c.Field()) })
	}
	return false
}

// ours reports whether a thing found under our id was made by us. An id that we chose says so by itself.
func (w *worker) ours(have *providers.Thing) bool {
	if w.served.Traits.ID == "" {
		return true
	}
	if w.served.Traits.Mark {
		return have.Mark == w.mark
	}
	switch { // nothing tells but what it is like
	case w.action == plan.Create:
		return (w.unsure || w.called) && len(w.unmet(have)) == 0
	case w.lost:
		return diff.Same(have.Spec, w.made)
	}
	return w.unsure
}

// stranger reports whether a thing is no longer whose it was when the plan was made, nor ours.
func (w *worker) stranger(have *providers.Thing) bool {
	mine := providers.Mark{Site: w.site, Ref: w.step.Ref, Incarnation: max(w.incarnation, 1)}
	return w.served.Traits.Mark && have.Mark != w.step.Mark && have.Mark != mine
}

// collide resolves a create whose id is said to be taken: by an earlier attempt of ours, by somebody else, or by a thing
// that was deleted long ago and whose id cannot be used again.
func (w *worker) collide(ctx context.Context, cause error) (result, bool) {
	have, err := w.lookFor(ctx) // what was made a moment ago may not be listed yet
	switch {
	case err != nil:
		return w.failed(err), true
	case have != nil && w.ours(have):
		w.unsure = true
		return w.judge(ctx, have)
	case have != nil:
		return w.refuse(cause), true
	case w.served.Traits.Burned && w.served.Traits.ID == "":
		w.incarnation++
		w.mark.Incarnation = w.incarnation
		w.id = plan.ExternalID(w.site, w.served.Traits, w.step.Ref, w.incarnation, nil)
		if w.record != nil {
			r := *w.record
			r.ID, r.Incarnation = w.id, w.incarnation
			w.record = &r
		}
		w.unsure = false
		return result{}, false
	}
	return w.failed(cause), true // a name is taken by something else
}

// lookAgain settles a refusal that says that the thing is not what the call expected.
func (w *worker) lookAgain(ctx context.Context, cause error) (result, bool) {
	if w.action == plan.Create { // what it refers to is not there
		return w.refused(ctx, cause, nil), true
	}
	have, err := w.see(ctx)
	if err != nil {
		return w.failed(err), true
	}
	if w.action == plan.Update && have != nil && w.before != nil && have.Spec.Digest() == w.before.Digest() {
		return result{}, false // only the token moved: the same change, with the new one
	}
	if res, over := w.judge(ctx, have); over {
		return res, true
	}
	return result{}, w.action == plan.Update && !w.undo
}
