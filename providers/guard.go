package providers

import (
	"context"
	"errors"
	"iter"
)

// guarded wraps every kind of a provider and makes the common checks, so that no kind has to and none can forget: it refuses a
// verb that the traits exclude, a call whose context has ended, and one whose permit has ended. It lets at most Provider.Limit
// calls run at the same time; what may change during that wait is checked after it.
type guarded struct {
	kind Kind
	of   Served
	at   *Provider
}

var errNever = errors.New("the far side has no such call")

// enter waits for a slot and makes the common checks; leave releases the slot.
func (g guarded) enter(ctx context.Context, op string, c Call) (leave func(), err error) {
	fail := func(class Class, err error) (func(), error) {
		return nil, &Error{Op: op, Ref: c.Ref, Kind: g.of.Name, Class: class, Err: err}
	}
	leave = func() {}
	if slots := g.at.slots(); slots != nil {
		select {
		case slots <- struct{}{}:
			leave = func() { <-slots }
		case <-ctx.Done():
			return fail(Transient, context.Cause(ctx))
		}
	}
	if ctx.Err() != nil {
		leave()
		return fail(Transient, context.Cause(ctx))
	}
	if err := g.at.Permit.Check(); err != nil {
		leave()
		return fail(Transient, err)
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
