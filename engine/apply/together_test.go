package apply

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// gets is a kind of which only Get is called.
type gets struct {
	providers.Kind
	get func(ctx context.Context, ids []string) ([]providers.Thing, error)
}

func (k gets) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	return k.get(ctx, ids)
}

func idsOf(group []*glance) (ids []string) {
	for _, g := range group {
		ids = append(ids, g.id)
	}
	return ids
}

// A step looks for itself and for those that have waited for half of their pauses; of two for the same thing, one at a time.
func TestWhoIsLookedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all glances
		old, short, leaves := all.join(schema.Place{}, "old", 2*time.Second), all.join(schema.Place{}, "short", time.Second), all.join(schema.Place{}, "leaves", 0)
		other := all.join(schema.Place{Kind: "other"}, "other", 0)
		if !all.leave(schema.Place{}, leaves) || all.leave(schema.Place{}, leaves) {
			t.Error("who waits can leave, once")
		}
		time.Sleep(900 * time.Millisecond)
		first := all.join(schema.Place{}, "new", 20*time.Millisecond)
		if ids := idsOf(all.take(schema.Place{}, first)); !slices.Equal(ids, []string{"new", "short"}) {
			t.Errorf("a newcomer looks for %q, want itself and the one that is nearly due", ids)
		}
		if all.take(schema.Place{}, short) != nil || all.leave(schema.Place{}, short) {
			t.Error("it is looked for twice")
		}
		time.Sleep(100 * time.Millisecond)
		second := all.join(schema.Place{}, "old", 0)
		if ids := idsOf(all.take(schema.Place{}, second)); !slices.Equal(ids, []string{"old"}) {
			t.Errorf("it looks for %q", ids)
		}
		if ids := idsOf(all.take(schema.Place{}, old)); !slices.Equal(ids, []string{"old"}) {
			t.Errorf("the other one looks for %q", ids)
		}
		if ids := idsOf(all.take(schema.Place{Kind: "other"}, other)); !slices.Equal(ids, []string{"other"}) {
			t.Errorf("of another kind it looks for %q", ids)
		}
	})
}

// Each step gets what there is of its own thing, or the error. What may not be its own fault it finds out by itself.
func TestWhatALookTogetherShows(t *testing.T) {
	away := &providers.Error{Op: "observe", Class: providers.Transient, Err: errors.New("away")}
	broken := &providers.Error{Op: "observe", Class: providers.Invalid, Err: errors.New("one of them is broken")}
	for name, c := range map[string]struct {
		get func(context.Context, []string) ([]providers.Thing, error)
		own bool
		err error
	}{
		"some":         {func(context.Context, []string) ([]providers.Thing, error) { return []providers.Thing{{ID: "b"}}, nil }, false, nil},
		"away":         {func(context.Context, []string) ([]providers.Thing, error) { return nil, away }, false, away},
		"one broken":   {func(context.Context, []string) ([]providers.Thing, error) { return nil, broken }, true, nil},
		"panic":        {func(context.Context, []string) ([]providers.Thing, error) { panic("oh") }, true, nil},
		"no more time": {func(ctx context.Context, _ []string) ([]providers.Thing, error) { <-ctx.Done(); return nil, away }, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				var all glances
				b, a := all.join(schema.Place{}, "b", 0), all.join(schema.Place{}, "a", 0)
				func() {
					defer func() { _ = recover() }()
					all.look(ctx, gets{get: c.get}, all.take(schema.Place{}, b))
				}()
				for _, g := range []*glance{a, b} {
					<-g.done
					if g.own != c.own || g.err != c.err {
						t.Errorf("%s: looks by itself %t, %v", g.id, g.own, g.err)
					}
				}
				if there := len(b.things) == 1; there != (name == "some") || len(a.things) > 0 {
					t.Errorf("of b there is %v, of a %v", b.things, a.things)
				}
			})
		})
	}
}
