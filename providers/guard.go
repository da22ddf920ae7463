package providers

import (
	"context"
	"errors"
	"iter"

	"golang.org/x/sync/errgroup"
)

// guarded wraps every kind of a provider and makes the common checks, so that no kind has to and none can forget: it refuses a
// verb that the traits exclude, a call whose context has ended, and one whose permit has ended. Each verb has one of the
// provider's slots while it runs.
type guarded struct {
	kind Kind
	of   Served
	at   *Provider
}

var errNever = errors.New("the remote system does not support this call")

// enter waits for one of the provider's slots, or for own, which may be nil. What may have changed during that wait is checked
// after it: the context and the permit. leave releases the slot.
func (p *Provider) enter(ctx context.Context, own chan struct{}) (leave func(), err error) {
	leave = func() {}
	if slots := p.slots(); slots != nil {
		select {
		case slots <- struct{}{}:
			leave = func() { <-slots }
		case own <- struct{}{}:
			leave = func() { <-own }
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if ctx.Err() != nil {
		leave()
		return nil, context.Cause(ctx)
	}
	if err := p.Permit.Check(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// Together makes n calls to the far side for one verb, several at the same time: one in the slot that the verb has, the others
// in slots that are free or get free meanwhile. So the calls of all verbs stay within Limit, and a verb goes on when it gets no
// other slot. A call may call Together too. It returns the first error, after which no call begins; the context of those
// that run is cancelled.
func (p *Provider) Together(ctx context.Context, n int, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	own := make(chan struct{}, 1) // the slot of the verb

	if n == 1 { // a goroutine would have to grow its stack anew
		leave, err := p.enter(ctx, own)
		if err != nil {
			return err
		}
		defer leave()
		return call(ctx, 0)
	}
	var g errgroup.Group
	for i := range n {
		leave, err := p.enter(ctx, own)
		if err != nil {
			g.Go(func() error { return err })
			break
		}
		g.Go(func() error {
			defer leave()
			err := call(ctx, i)
			if err != nil {
				cancel(err) // before another call gets the slot
			}
			return err
		})
	}
	return g.Wait()
}

// enter lets a verb begin.
func (g guarded) enter(ctx context.Context, op string, c Call) (leave func(), err error) {
	if leave, err = g.at.enter(ctx, nil); err != nil {
		return nil, &Error{Op: op, Ref: c.Ref, Kind: g.of.Name, Class: Transient, Err: err}
	}
	return leave, nil
}

func (g guarded) List(ctx context.Context) iter.Seq2[Thing, error] {
	return func(yield func(Thing, error) bool) {
		leave, err := g.enter(ctx, "observe", Call{})
		if err != nil {
			yield(Thing{}, err)
			return
		}
		defer leave()
		g.kind.List(ctx)(yield)
	}
}

// Get makes no call when there are no ids.
func (g guarded) Get(ctx context.Context, ids []string) ([]Thing, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	leave, err := g.enter(ctx, "observe", Call{})
	if err != nil {
		return nil, err
	}
	defer leave()
	return g.kind.Get(ctx, ids)
}

func (g guarded) Create(ctx context.Context, c Call) error {
	return g.change(ctx, "create", g.of.Traits.Create, c, g.kind.Create)
}

func (g guarded) Update(ctx context.Context, c Call) error {
	return g.change(ctx, "update", g.of.Traits.Update, c, g.kind.Update)
}

func (g guarded) Delete(ctx context.Context, c Call) error {
	return g.change(ctx, "delete", g.of.Traits.Delete, c, g.kind.Delete)
}

func (g guarded) change(ctx context.Context, op string, mode Mode, c Call, call func(context.Context, Call) error) error {
	if mode == Never {
		return &Error{Op: op, Ref: c.Ref, Kind: g.of.Name, Class: Unsupported, Err: errNever}
	}
	leave, err := g.enter(ctx, op, c)
	if err != nil {
		return err
	}
	defer leave()
	return call(ctx, c)
}
