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

// All returns the look at all things of a kind.
func All(k providers.Kind) Look {
	return func(ctx context.Context) ([]providers.Thing, error) { return providers.Collect(k.List(ctx)) }
}

// Some returns the look at the things with the given ids.
func Some(k providers.Kind, ids ...string) Look {
	return func(ctx context.Context) ([]providers.Thing, error) { return k.Get(ctx, ids) }
}

// Again repeats the look while it fails in ways that may pass.
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

// passing reports whether a failed look may succeed later. Looking has no effect, so it may be repeated even after an
// unknown outcome.
func passing(err error) bool {
	class := providers.ClassOf(err)
	return class.Retryable() || class == providers.Unknown
}

// An unreachable error ends a step, and leaves its run open, because the far side could not be observed in all the time
// that the step had. It says nothing about what is there, so nothing is undone because of it.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// errDropped is why a step stopped waiting. What its call did is found out when the run is continued.
var errDropped = fmt.Errorf("%w: no longer waiting for it", ErrInterrupted)

// longestLook is the longest pause between two looks while the far side cannot be observed.
const longestLook = 10 * time.Second

// patient looks on behalf of a caller that waits for the result. While the look fails in ways that may pass, it is repeated
// until ctx expires, and then fails as unreachable: a far side that restarts is no reason to undo what is healthy. Away
// reports that some looks failed so, which cost the caller that time. Key spreads the looks of concurrent waiters, and wait
// pauses between them.
func (look Look) patient(ctx context.Context, r Retry, key string, wait func(context.Context, time.Duration) error, say func(string)) (things []providers.Thing, away bool, err error) {
	next := r.calls(key).Pauses()
	for try := 1; ; try++ {
		things, err := look(ctx)
		if err == nil || !passing(err) {
			return things, try > 1, err
		}
		if try >= r.Attempts {
			say("could not be observed: " + err.Error())
		}
		if perr := wait(ctx, min(next(), longestLook)); perr != nil {
			return nil, true, timedOut(perr, err)
		}
	}
}

// timedOut returns why a pause ended early: the run is to stop, the lock was lost, or the step has timed out and the far
// side was silent to the end, as cause says.
func timedOut(perr, cause error) error {
	if errors.Is(perr, context.DeadlineExceeded) {
		return unreachable{cause}
	}
	return perr
}

// pause waits, unless the run is asked to stop: a mere wait can end at once.
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

// until is pause for a caller that holds no turn.
func until(halt <-chan struct{}) func(context.Context, time.Duration) error {
	return func(ctx context.Context, d time.Duration) error { return pause(ctx, d, halt) }
}

// errAway is why a step that lost time to an outage ran out of time.
var errAway = errors.New("the remote system was unavailable for much of the time allowed")

// lend gives the step's turn to others, where that is allowed; back takes one again.
func (w *worker) lend() (back func()) {
	if w.turns != nil && !w.disturbs {
		w.turns.give()
		return w.turns.take
	}
	return func() {}
}

// idle waits as [pause] does, and lends the step's turn meanwhile.
func (w *worker) idle(ctx context.Context, d time.Duration) error {
	defer w.lend()()
	return pause(ctx, d, w.halt)
}

// pause waits as idle does. A step that lost time to an outage is not to blame for running out of it.
func (w *worker) pause(ctx context.Context, d time.Duration) error {
	return w.blameless(w.idle(ctx, d))
}

func (w *worker) blameless(err error) error {
	if !w.away.IsZero() {
		err = timedOut(err, errAway)
	}
	return err
}

// look repeats a look for as long as the step has time.
func (w *worker) look(ctx context.Context, look Look) ([]providers.Thing, error) {
	things, away, err := look.patient(ctx, w.retry, w.key()+"/look", w.idle, func(why string) { w.note(event.Waiting, why, 0) })
	if away {
		w.away = time.Now()
	}
	return things, err
}

// reached waits until the provider's far side is available again and accepts calls. A call that never reached it does not
// count as a try, and what it has not done yet may still come when it is back.
func (w *worker) reached(ctx context.Context) (waited bool, err error) {
	p := w.provider
	if p == nil || p.Health == nil {
		return false, nil
	}
	for next := w.retry.polls(); ; {
		down := p.Health(ctx)
		if down == nil {
			return waited, nil
		}
		waited, w.away = true, time.Now()
		w.note(event.Waiting, fmt.Sprintf("%s is unavailable: %v", p.Name, down), 0)
		if err := w.idle(ctx, next()); err != nil {
			return waited, timedOut(err, down)
		}
	}
}

// elsewhere looks for a thing that is not found under its id although it may have been made: a far side may have chosen
// another id without reporting it. Our mark identifies it. From then on the thing has that id.
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
		if things[i].Mark == mark && things[i].Phase != providers.Deleting {
			w.id = things[i].ID
			return &things[i], nil
		}
	}
	return nil, nil
}
