package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
)

// errBlind is why a create of a kind that checks nothing cannot be settled by looking.
var errBlind = errors.New("it is unknown whether it was created: it was not found, and its kind has no ids that would let a second create detect the first")

// errCollision is why a create of unknown outcome cannot be settled: something else has its place.
var errCollision = errors.New("it is unknown whether it was created: another object is in its place")

// errMissing is why a create cannot be undone: the far side accepted it, but shows nothing that could be removed.
var errMissing = errors.New("the remote system accepted the create, but no object with its id or ownership mark was found: it is unknown whether it exists")

// unwritten wraps the error of an intent that could not be made durable: its call is not made.
type unwritten struct{ error }

// repeatable reports whether a create of unknown outcome is settled by making it again: the far side then says whether the
// id is taken, and once the thing is deleted a call still in flight cannot bring it back, because the id is burned.
func repeatable(t providers.Traits) bool {
	return t.IDsNotReusable && t.Create == providers.Conditional && t.EffectWithin > 0
}

// confirmCreate settles a create of unknown outcome whose thing is not found: by making it again until the answer is definite,
// where that is possible, and by looking for long enough. It returns what is there in the end.
func (w *worker) confirmCreate(ctx context.Context) (*providers.Thing, error) {
	if have, err := w.elsewhere(ctx); err != nil || have != nil {
		return have, err
	}
	if w.again != nil {
		definite, err := w.repeat(ctx)
		if err != nil {
			return nil, err
		}
		if !definite {
			w.note(event.Settling, "a call with an unknown outcome may still take effect", 0)
			if err := w.pause(ctx, shown(w.traits)); err != nil {
				return nil, err
			}
		}
	} else if t := w.traits; t.Create == providers.Blind {
		if err := w.late(ctx); err != nil {
			return nil, err
		}
	} else if !t.Eventual {
		return nil, nil // it was looked for, and repeating the same create is the best test
	}
	return w.lookFor(ctx)
}

// lookFor looks for a thing that may exist although it is not listed: twice, or where a list may lag, for as long
// as the kind may need to show what was made.
func (w *worker) lookFor(ctx context.Context) (*providers.Thing, error) {
	limit, next := time.Now(), w.retry.polls()
	if w.traits.Eventual {
		limit = limit.Add(w.traits.ReadyWithin)
	}
	for after := time.Duration(0); ; after = next() {
		have, err := w.see(ctx, after)
		if err != nil || have != nil || after > 0 && !time.Now().Before(limit) {
			return have, err
		}
	}
}

// shown returns the time after which a look shows whether a call of unknown outcome has had its effect.
func shown(t providers.Traits) time.Duration {
	if t.Eventual {
		return t.EffectWithin + t.ReadyWithin
	}
	return t.EffectWithin
}

// late waits until the last call of unknown outcome has had its effect, if it will ever have one. From then on looking settles it.
func (w *worker) late(ctx context.Context) error {
	err := w.outlast(ctx)
	if err == nil {
		w.doubt = time.Time{}
	}
	return err
}

// outlast waits as late does, and leaves the outcome in doubt.
func (w *worker) outlast(ctx context.Context) error {
	rest := time.Until(w.doubt.Add(shown(w.traits)))
	if w.doubt.IsZero() || rest <= 0 {
		return nil
	}
	w.note(event.Settling, fmt.Sprintf("a call with an unknown outcome may still take effect within %s", short(rest.Round(time.Second))), 0)
	return w.pause(ctx, rest)
}

// awaitLate waits before another call while a call of unknown outcome could still do harm: once the other call settles the
// step, nothing would wait for the first. A late call is harmless when the far side will refuse it: a create of an id
// that is taken or burned, a change under a version that has moved, a delete of an id that never comes back. It reports
// whether time has passed.
func (w *worker) awaitLate(ctx context.Context, absent bool) (waited bool, err error) {
	t, action := w.traits, w.action
	if absent && action == plan.Update { // what has vanished is created
		action = plan.Create
	}
	harmless := !t.Eventual && map[plan.Action]bool{
		plan.Create: t.Create == providers.Conditional && t.IDsNotReusable,
		plan.Update: t.Update == providers.Versioned,
		plan.Delete: t.Delete == providers.Versioned || t.ID == "" && !t.UndoDelete.Reversible(), // its undo makes the same thing again
	}[action]
	if w.doubt.IsZero() || harmless {
		return false, nil
	}
	return true, w.late(ctx)
}

// refused ends a step whose call was refused. A far side may report that although it has carried the call out, so the
// thing is observed once more; had is what was there right before the call. Where an earlier call may have changed something,
// and nothing more can come, that look settles it as well.
func (w *worker) refused(ctx context.Context, cause error, had *providers.Thing) result {
	limit, next := time.Now(), w.retry.polls()
	if w.traits.Eventual { // what it shows now may be older than the call
		limit = limit.Add(w.traits.ReadyWithin)
	}
	over := w.action == plan.Update && !w.undo && w.unsure && w.doubt.IsZero() && w.before != nil && had != nil
	if over {
		planned := *had
		planned.Spec, planned.Mark = w.before, w.step.Mark
		if w.name != "" {
			planned.Name = w.unnamed
		}
		had = &planned
	}
	var have *providers.Thing
	for after := time.Duration(0); ; after = next() {
		var err error
		if have, err = w.see(ctx, after); err != nil {
			w.unsure = true
			return w.failed(errors.Join(cause, err))
		}
		if w.moved(had, have) {
			break
		}
		if !time.Now().Before(limit) {
			if over && have != nil && have.Phase != providers.Deleting {
				return w.refuse(cause)
			}
			return w.failed(cause)
		}
	}
	w.unsure = true
	if res, over := w.judge(ctx, have); over {
		return res
	}
	return w.partial(cause, have)
}

// moved reports whether a refused call seems to have had its effect all the same.
func (w *worker) moved(had, have *providers.Thing) bool {
	here := have != nil && have.Phase != providers.Deleting
	switch w.action {
	case plan.Create:
		return here && w.ours(have)
	case plan.Delete:
		return !here
	}
	return here && had != nil && (!have.Spec.Equal(had.Spec) || have.Mark != had.Mark || have.Name != had.Name)
}

// repeat makes a create of unknown outcome again until the answer is definite: accepted, or its id is taken. It returns
// false when the far side refuses it for another reason: then only waiting is left.
func (w *worker) repeat(ctx context.Context) (definite bool, err error) {
	next := w.retry.calls(w.key() + "/repeat").Pauses()
	for try := 1; try <= w.retry.Attempts; try++ {
		if err := w.intend(plan.Create, nil); err != nil {
			return false, unwritten{err}
		}
		err := w.call(ctx, plan.Create, w.again, nil)
		switch class := providers.ClassOf(err); {
		case err == nil, class == providers.Exists:
			return true, nil
		case class != providers.Unknown && !class.Retryable():
			return false, nil
		}
		w.note(event.Settling, err.Error(), try)
		if err := w.pause(ctx, next()); err != nil {
			return false, err
		}
	}
	return false, nil
}
