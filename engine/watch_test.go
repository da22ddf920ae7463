package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

var farNeeds = []providers.Need{{Scope: schema.ScopeSite, Provider: "far"}}

// made puts a thing into the world of a site.
func made(t *testing.T, s *enginetest.Site, kind, id string) {
	t.Helper()
	if err := s.World.Put(schema.ScopeSite, kind, providers.Thing{ID: id, Name: id, Spec: schema.Object{}, Phase: providers.Ready}); err != nil {
		t.Fatal(err)
	}
}

// watched returns an engine whose providers were changed by wrap.
func watched(t *testing.T, s *enginetest.Site, wrap func(*providers.Served)) *engine.Engine {
	e := s.Engine(func(o *engine.Options) {
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			far := s.World.Provider("far", schema.ScopeSite)
			for i := range far.Kinds {
				wrap(&far.Kinds[i])
			}
			return providers.NewSet(far)
		}
	})
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// Everything is to be looked at first; then what changed, also while the caller looked, and nothing else.
func TestWatch(t *testing.T) {
	s := enginetest.New()
	e := watched(t, s, func(*providers.Served) {})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	over := errors.New("it is over")
	var told []string
	for places, err := range e.Watch(ctx, schema.Site{Name: "test", ID: enginetest.SiteID}, engine.Watching{Needs: func() []providers.Need { return farNeeds }, Full: time.Hour}) {
		if err != nil {
			if !errors.Is(err, over) {
				t.Errorf("it ended with: %v", err)
			}
			break
		}
		told = append(told, fmt.Sprint(placesOf(places)))
		switch len(told) {
		case 1:
			if len(places) < 2 {
				t.Fatalf("first there were only %v", places)
			}
			made(t, s, "far.net", "a")
		case 2:
			made(t, s, "far.net", "b")
			made(t, s, "far.host", "c")
		case 3, 4: // the two may come together
			if slices.ContainsFunc(places, func(c engine.Changed) bool { return c.Kind == "far.host" }) {
				cancel(over)
			}
		default:
			t.Fatalf("too much was told: %v", told)
		}
	}
	if told[1] != "[site/far.net]" {
		t.Errorf("after the first change: %s", told[1])
	}
}

// Only what is wanted is watched.
func TestWatchOfSome(t *testing.T) {
	s := enginetest.New()
	e := watched(t, s, func(k *providers.Served) {
		if k.Name != "far.net" {
			k.Watch = func(context.Context) iter.Seq2[[]string, error] { panic("nobody wanted " + k.Name) }
		}
	})
	for places, err := range e.Watch(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, engine.Watching{Needs: func() []providers.Need { return farNeeds }, Want: func(p schema.Place) bool { return p.Kind == "far.net" }, Full: time.Hour}) {
		if err != nil || fmt.Sprint(placesOf(places)) != "[site/far.net]" {
			t.Errorf("%v, %v", places, err)
		}
		break
	}
}

// A watch that ends may have missed something, and begins anew; so may a provider that tells nothing, which is asked again.
func TestWatchThatEnds(t *testing.T) {
	s := enginetest.New()
	net := schema.Place{Scope: schema.ScopeSite, Kind: "far.net"}
	wanted := func(p schema.Place) bool { return p == net }
	var begun atomic.Int32
	e := watched(t, s, func(k *providers.Served) {
		watch := k.Watch
		k.Watch = func(ctx context.Context) iter.Seq2[[]string, error] {
			if n := begun.Add(1); n <= 3 { // at the second it does not even begin
				return func(yield func([]string, error) bool) {
					if n == 2 || yield(nil, nil) {
						yield(nil, errors.New("the connection is lost"))
					}
				}
			}
			return watch(ctx)
		}
	})
	for places, err := range e.Watch(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, engine.Watching{Needs: func() []providers.Need { return farNeeds }, Want: wanted, Full: time.Hour}) {
		if err != nil || len(places) != 1 {
			t.Fatalf("%v, %v", places, err)
		}
		if begun.Load() == 4 {
			break
		}
	}
	silent := watched(t, s, func(k *providers.Served) { k.Watch = nil })
	looks := 0
	for range silent.Watch(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, engine.Watching{Needs: func() []providers.Need { return farNeeds }, Want: wanted, Full: time.Millisecond}) {
		if looks++; looks == 3 {
			break
		}
	}
}

// A provider that cannot be opened is tried again, and watched once it can.
func TestWatchOfWhatIsAway(t *testing.T) {
	s := enginetest.New()
	var away atomic.Bool
	away.Store(true)
	e := s.Engine(func(o *engine.Options) {
		open := o.Open
		o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			if !away.Load() {
				return open(ctx, site, needs)
			}
			set, err := open(ctx, site, nil)
			if err == nil {
				set.Fail(schema.ScopeSite, "far", errors.New("it is away"))
			}
			return set, err
		}
	})
	defer e.Close()
	for places, err := range e.Watch(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, engine.Watching{Needs: func() []providers.Need { return farNeeds }, Full: time.Millisecond}) {
		if err != nil {
			t.Fatal(err)
		}
		if away.Swap(false) == (len(places) > 0) {
			t.Fatalf("%v", places)
		}
		if len(places) > 0 {
			return
		}
	}
}

func placesOf(changes []engine.Changed) (places []schema.Place) {
	for _, c := range changes {
		places = append(places, c.Place)
	}
	return places
}
