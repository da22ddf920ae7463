package providers

import "context"

// limited lets at most cap(slots) calls to one provider run at the same time. It wraps the contract once, here, so that
// no provider has to count.
type limited struct {
	kind  Kind
	name  string
	slots chan struct{}
}

func (l limited) enter(ctx context.Context, op string, c Call) error {
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &Error{Op: op, Ref: c.Ref, Kind: l.name, Class: Transient, Err: context.Cause(ctx)}
	}
}

func (l limited) Observe(ctx context.Context, ids []string) ([]Thing, error) {
	if err := l.enter(ctx, "observe", Call{}); err != nil {
		return nil, err
	}
	defer func() { <-l.slots }()
	return l.kind.Observe(ctx, ids)
}

func (l limited) Create(ctx context.Context, c Call) error {
	return l.do(ctx, "create", c, l.kind.Create)
}
func (l limited) Update(ctx context.Context, c Call) error {
	return l.do(ctx, "update", c, l.kind.Update)
}
func (l limited) Delete(ctx context.Context, c Call) error {
	return l.do(ctx, "delete", c, l.kind.Delete)
}

func (l limited) do(ctx context.Context, op string, c Call, call func(context.Context, Call) error) error {
	if err := l.enter(ctx, op, c); err != nil {
		return err
	}
	defer func() { <-l.slots }()
	return call(ctx, c)
}
