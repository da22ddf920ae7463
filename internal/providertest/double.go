package providertest

import (
	"context"
	"iter"

	"converge.dev/converge/providers"
)

// A Look combines both ways to read a kind in one function, for test doubles: ids are nil for a list.
type Look func(ctx context.Context, ids []string) ([]providers.Thing, error)

// List is the list that the look returns.
func (l Look) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return l(ctx, nil) })
}

// Of returns the look at a kind.
func Of(k providers.Kind) Look {
	return func(ctx context.Context, ids []string) ([]providers.Thing, error) {
		if ids == nil {
			return providers.Collect(k.List(ctx))
		}
		return k.Get(ctx, ids)
	}
}
