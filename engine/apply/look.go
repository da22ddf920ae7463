package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/providers"
)

// A Look reads things of a kind once.
type Look func(ctx context.Context) ([]providers.Thing, error)

// All is the look at all things of a kind.
func All(k providers.Kind) Look {
	return func(ctx context.Context) ([]providers.Thing, error) { return providers.Collect(k.List(ctx)) }
}

// Some is the look at the things with the given ids.
func Some(k providers.Kind, ids ...string) Look {
	return func(ctx context.Context) ([]providers.Thing, error) { return k.Get(ctx, ids) }
}

// Again looks again and again while that fails in ways that may pass.
func (look Look) Again(ctx context.Context, r Retry) (things []providers.Thing, err error) {
	r = r.defaults()
	policy := r.calls("look")
	policy.Tries = r.Attempts
	err = policy.Do(ctx, func() (over bool, err error) {
		things, err = look(ctx)
		return err == nil || ctx.Err() != nil || !passing(err), err
	})
	return things, err
}

// passing reports whether a look that failed may succeed later. Looking has no effect, so an unknown outcome is no reason
// not to look again.
func passing(err error) bool {
	class := providers.ClassOf(err)
	return class.Retryable() || class == providers.Unknown
}

// An unreachable error ends a step, and leaves its run open, because the far side could not be seen for as long as the step
// had time. It says nothing about what is there, so nothing is undone because of it.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// errDropped is why a step stopped waiting. What came of its call is found out by whoever continues the run.
var errDropped = fmt.Errorf("%w: it is no longer waited for", ErrInterrupted)

// longestLook is between two looks while the far side cannot be seen.
const longestLook = 10 * time.Second

// patient looks for something that waits for what is seen. As long as that fails in ways that may pass it goes
// on until the time of ctx is over: a far side that restarts is no reason to undo what is healthy. It then fails as
// unreachable. Away says that some looks failed so: whoever waits has lost that time. Key spreads the looks of those who wait
// at the same time, and wait pauses between them.
func (look Look) patient(ctx context.Context, r Retry, key string, wait func(context.Context, time.Duration) error, say func(string)) (things []providers.Thing, away bool, err error) {
	next := r.calls(key).Pauses()
	for try := 1; ; try++ {
		things, err := look(ctx)
		if err == nil || !passing(err) {
			return things, try > 1, err
		}
		if try >= r.Attempts {
			say("it cannot be seen: " + err.Error())
		}
		if perr := wait(ctx, min(next(), longestLook)); perr != nil {
			return nil, true, timedOut(perr, err)
		}
	}
}

// timedOut is why a pause ended early: the run is to stop, the lock was lost, or the time of the step is over and the far
// side was silent to the end, as cause says.
func timedOut(perr, cause error) error {
	if errors.Is(perr, context.DeadlineExceeded) {
		return unreachable{cause}
	}
	return perr
}

// pause waits, unless the run is asked to stop: what is only waited for can be dropped at once.
func pause(ctx context.Context, d time.Duration, halt <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-halt:
		return errDropped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// until is pause for those who wait with no turn.
func until(halt <-chan struct{}) func(context.Context, time.Duration) error {
	return func(ctx context.Context, d time.Duration) error { return pause(ctx, d, halt) }
}

// errAway is why a step that lost time to an outage has none left.
var errAway = errors.New("the far side was away for much of the time that there was")

// idle waits as [pause] does, and gives the step's turn to others meanwhile if it may.
func (w *worker) idle(ctx context.Context, d time.Duration) error {
	if w.turns != nil && !w.disturbs {
		w.turns.give()
		defer w.turns.take()
	}
	return pause(ctx, d, w.halt)
}

// pause waits as idle does. A step that lost time to an outage is not to blame when it has none left.
func (w *worker) pause(ctx context.Context, d time.Duration) error {
	err := w.idle(ctx, d)
	if !w.away.IsZero() {
		err = timedOut(err, errAway)
	}
	return err
}

// look looks for as long as the step has time.
func (w *worker) look(ctx context.Context, look Look) ([]providers.Thing, error) {
	things, away, err := look.patient(ctx, w.retry, w.key()+"/look", w.idle, func(why string) { w.note(event.Waiting, why, 0) })
	if away {
		w.away = time.Now()
	}
	return things, err
}

// reached waits until the provider's far side is there again, and does what it is asked. A call that it did not even get is
// no try, and what it has not done yet may come when it is back.
func (w *worker) reached(ctx context.Context) (waited bool, err error) {
	p := w.provider
	if p == nil || p.Health == nil {
		return false, nil
	}
	for next := w.retry.polls(); ; {
		down := p.Health(ctx).Down
		if down == nil {
			return waited, nil
		}
		waited, w.away = true, time.Now()
		w.note(event.Waiting, fmt.Sprintf("%s is away: %v", p.Name, down), 0)
		if err := w.idle(ctx, next()); err != nil {
			return waited, timedOut(err, down)
		}
	}
}

// elsewhere looks for a thing that is not to be seen under its id although it may have been made: a far side may have
// chosen another id and not told us. Our mark tells. From then on that id is the thing's.
func (w *worker) elsewhere(ctx context.Context) (*providers.Thing, error) {
	if !w.traits.Mark {
		return nil, nil
	}
	things, err := w.look(ctx, All(w.served.Kind))
	if err != nil {
		return nil, err
	}
	mark := providers.Mark{Site: w.site, Ref: w.step.Ref, Incarnation: max(w.incarnation, 1)}
	for i := range things {
		if things[i].Mark == mark && things[i].Phase != providers.Leaving {
			w.id = things[i].ID
			w.kind.Normalize(things[i].Spec)
			return &things[i], nil
		}
	}
	return nil, nil
}
