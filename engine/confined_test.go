package engine_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// fencing returns a site with a plan for two nodes, whose providers are changed before each of them is fenced.
func fencing(t *testing.T, change func(*providers.Provider)) (*enginetest.Site, *engine.Engine, *plan.Plan) {
	s := enginetest.New()
	e := s.Engine(func(o *engine.Options) {
		open := o.Open
		o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			set, err := open(ctx, site, needs)
			if err == nil {
				for _, p := range set.All() {
					change(p)
				}
			}
			return set, err
		}
	})
	t.Cleanup(func() { _ = e.Close() })
	p, err := e.Plan(t.Context(), s.Document(t, map[string]string{"n1/near.bridge/a": `{}`, "n2/near.bridge/b": `{}`}), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s, e, p
}

// One node that says that it knows a newer lock holder is held itself; only what others say as well, or a far side that is not
// confined, holds the site.
func TestConfined(t *testing.T) {
	for name, c := range map[string]struct {
		liars    []string
		confined bool
		held     string
	}{
		"one":          {[]string{"n2"}, true, "n2"},
		"two":          {[]string{"n1", "n2"}, true, schema.ScopeSite},
		"not confined": {[]string{"n2"}, false, schema.ScopeSite},
	} {
		t.Run(name, func(t *testing.T) {
			s, e, p := fencing(t, func(p *providers.Provider) {
				for _, liar := range c.liars {
					if p.Scope == liar {
						p.Confined = c.confined
						p.Fence = func(_ context.Context, epoch int64) error {
							return &providers.Error{Op: "fence", Class: providers.Denied, Err: &providers.OutdatedError{On: "it", Stored: epoch + 998, Epoch: epoch}}
						}
					}
				}
			})
			_, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
			var held *engine.HeldError
			if !errors.As(err, &held) || len(held.Holds) != 1 || held.Holds[0].Scope != c.held {
				t.Fatalf("%v, want a hold on %s", err, c.held)
			}
			holds, err := s.Store.Holds(t.Context())
			if err != nil || len(holds) != 1 || holds[0].Scope != c.held || holds[0].Older != (c.held == schema.ScopeSite) {
				t.Errorf("%+v, %v", holds, err)
			}
		})
	}
}

// A node that does not answer when it is fenced is unknown after a while, and the lock is free again.
func TestFenceWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e, p := fencing(t, func(p *providers.Provider) {
			if p.Scope == "n2" {
				p.Fence = func(ctx context.Context, _ int64) error { <-ctx.Done(); return context.Cause(ctx) }
			}
		})
		_, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
		var unknown *engine.UnknownError
		if !errors.As(err, &unknown) || len(unknown.Unknown) != 1 || unknown.Unknown[0].Scope != "n2" {
			t.Errorf("%v", err)
		}
		if info, err := s.Store.LockInfo(t.Context()); info != nil || err != nil {
			t.Errorf("the lock is held: %+v, %v", info, err)
		}
	})
}

// Watches that do not begin keep nobody waiting for long.
func TestWatchThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		e := watched(t, s, func(k *providers.Served) {
			k.Watch = func(ctx context.Context) iter.Seq2[[]string, error] {
				return func(yield func([]string, error) bool) {
					<-ctx.Done()
					yield(nil, context.Cause(ctx))
				}
			}
		})
		for places, err := range e.Watch(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, engine.Watching{Needs: func() []providers.Need { return farNeeds }, Full: time.Hour}) {
			if err != nil || len(places) == 0 {
				t.Errorf("%v, %v", places, err)
			}
			break
		}
	})
}
