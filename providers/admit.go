package providers

import "context"

// admitted stands before every kind of a provider: it lets at most cap(slots) calls run at the same time, and none begin
// once the provider's permit has ended. The permit is checked after the wait for a slot, for the wait may have been long.
// It wraps the contract once, here, so that no provider has to count and none can forget.
type admitted struct {
	kind   Kind
	name   string
	slots  chan struct{} // nil: no limit
	permit *Permit
}

// enter waits for a slot and checks the permit; leave gives the slot back.
func (a admitted) enter(ctx context.Context, op string, c Call) (leave func(), err error) {
	leave = func() {}
	if a.slots != nil {
		select {
		case a.slots <- struct{}{}:
			leave = func() { <-a.slots }
		case <-ctx.Done():
			return nil, &Error{Op: op, Ref: c.Ref, Kind: a.name, Class: Transient, Err: context.Cause(ctx)}
		}
	}
	if err := a.permit.Check(); err != nil {
		leave()
		return nil, &Error{Op: op, Ref: c.Ref, Kind: a.name, Class: Transient, Err: err}
	}
	return leave, nil
}

func (a admitted) Observe(ctx context.Context, ids []string) ([]Thing, error) {
	leave, err := a.enter(ctx, "observe", Call{})
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.kind.Observe(ctx, ids)
}

func (a admitted) Create(ctx context.Context, c Call) error {
	leave, err := a.enter(ctx, "create", c)
	if err != nil {
		return err
	}
	defer leave()
	return a.kind.Create(ctx, c)
}

func (a admitted) Update(ctx context.Context, c Call) error {
	leave, err := a.enter(ctx, "update", c)
	if err != nil {
		return err
	}
	defer leave()
	return a.kind.Update(ctx, c)
}

func (a admitted) Delete(ctx context.Context, c Call) error {
	leave, err := a.enter(ctx, "delete", c)
	if err != nil {
		return err
	}
	defer leave()
	return a.kind.Delete(ctx, c)
}
