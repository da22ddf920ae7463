package engine_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
)

// machines is a kind whose things have to be off, which is a size of 7, while they are changed, and are created so; or that are made anew
// to be changed. A call is cut while they are so, once.
type machines struct {
	providers.Kind
	anew bool
	cut  *atomic.Bool
	died func()
}

func (k machines) Create(ctx context.Context, c providers.Call) error {
	if err := k.Kind.Create(ctx, off(c)); err != nil || k.over() {
		return cutShort("create", c, err)
	}
	return k.resize(ctx, "create", c)
}

func (k machines) Update(ctx context.Context, c providers.Call) error {
	if k.anew {
		if err := k.Kind.Delete(ctx, c); err != nil || k.over() {
			return cutShort("update", c, err)
		}
		return k.Kind.Create(ctx, c)
	}
	if err := k.resize(ctx, "update", off(c)); err != nil || k.over() {
		return cutShort("update", c, err)
	}
	return k.resize(ctx, "update", c)
}

func (k machines) Delete(ctx context.Context, c providers.Call) error {
	shut := c
	shut.Want = c.Have
	if err := k.resize(ctx, "delete", off(shut)); err != nil || k.over() {
		return cutShort("delete", c, err)
	}
	things, err := k.Get(ctx, []string{c.ID})
	if err != nil || len(things) == 0 {
		return err
	}
	c.Version = things[0].Version
	return k.Kind.Delete(ctx, c)
}

func off(c providers.Call) providers.Call {
	c.Want = c.Want.Clone()
	c.Want["size"] = int64(7)
	return c
}

func (k machines) resize(ctx context.Context, op string, c providers.Call) error {
	things, err := k.Get(ctx, []string{c.ID})
	if err != nil || len(things) == 0 {
		return errors.Join(err, fmt.Errorf("%s: there are %d", op, len(things)))
	}
	c.Version, c.Have = things[0].Version, things[0].Spec
	return k.Kind.Update(ctx, c)
}

// over reports whether the call ends here.
func (k machines) over() bool {
	if !k.cut.CompareAndSwap(true, false) {
		return false
	}
	k.died()
	return true
}

func cutShort(op string, c providers.Call, err error) error {
	if err != nil {
		return err
	}
	return &providers.Error{Op: op, Ref: c.Ref, Class: providers.Unknown, Over: true, Err: errors.New("the connection is lost")}
}

// What a call sets last may have any value after it was cut, by the end of its process or its connection: that is nobody else's change.
// The run goes on, or back.
func TestCutBeforeTheLast(t *testing.T) {
	const guard = "site/far.guard/g"
	mark := regexp.MustCompile(`\s*"mark": "[^"]*far.guard/g#1",`)
	others := func(spec string) map[string]string {
		m := map[string]string{"site/far.net/n": `{}`}
		if spec != "" {
			m[guard] = spec
		}
		return m
	}
	on := func(cut *atomic.Bool, died func()) func(o *engine.Options) {
		return func(o *engine.Options) {
			around(o, "far.guard", func(k providers.Served) providers.Kind { return machines{k.Kind, k.Traits.Vanishes, cut, died} })
		}
	}
	const one, two = `{"labels": {"a": "1"}, "size": 3}`, `{"labels": {"a": "2"}, "size": 3}`
	for name, c := range map[string]struct {
		from, to string
		vanishes bool
	}{
		"create": {"", one, false},
		"update": {one, two, false},
		"anew":   {one, two, true},
		"delete": {one, "", false},
	} {
		for i := range 6 {
			how, marked := []string{"goes on", "is resumed", "is rolled back"}[i%3], i < 3
			t.Run(fmt.Sprintf("%s %s, marked %t", name, how, marked), func(t *testing.T) {
				s := enginetest.New()
				traits := fake.NodeTraits()
				traits.SetLast, traits.Vanishes, traits.Mark = []string{"size"}, c.vanishes, marked
				s.World.Traits = map[string]providers.Traits{"far.guard": traits}
				s.Converge(t, s.Document(t, others(c.from)))
				dump := func() string {
					if marked {
						return s.World.Dump()
					}
					return mark.ReplaceAllString(s.World.Dump(), "") // the simulated kind has a place for it all the same
				}
				before := dump()
				cut := &atomic.Bool{}
				steady := on(cut, func() {})
				first := s.Engine(steady)
				p, err := first.Plan(t.Context(), s.Document(t, others(c.to)), plan.Options{})
				first.Close()
				if err != nil {
					t.Fatal(err)
				}
				cut.Store(true)
				var end *atomic.Bool
				e, kv, died := dying(s, 1<<30, false, on(cut, func() { end.Store(how != "goes on") }))
				end = died
				res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
				e.Close()
				if cut.Load() {
					t.Fatalf("no call was cut: %v %v\n%s", res.Run.Status, err, enginetest.Text(p))
				}
				want := state.RunApplied
				switch how {
				case "is resumed":
					kv.Lapse()
					e := s.Engine(steady)
					defer e.Close()
					res, err = e.Resume(t.Context(), "", engine.ApplyOptions{})
				case "is rolled back":
					kv.Lapse()
					want = state.RunReverted
					if undoOpen(t, s, name, steady) != 1 {
						t.Error("there was no open run")
					}
					if is := dump(); is != before {
						t.Errorf("the world was\n%s\nand is\n%s", before, is)
					}
					return
				}
				if err != nil || res.Run.Status != want {
					t.Fatalf("the run ended %s: %s, %v, %v", res.Run.Status, res.Run.Message, res.Differences, err)
				}
				e = s.Engine(steady)
				defer e.Close()
				if left, err := e.Plan(t.Context(), s.Document(t, others(c.to)), plan.Options{}); err != nil || !left.Empty() {
					t.Errorf("the site is not as desired: %v\n%s", err, enginetest.Text(left))
				}
			})
		}
	}
}

// The same holds for a call of an undo: the rollback of what was done goes on, in its process or the next.
func TestUndoCutBeforeTheLast(t *testing.T) {
	const guard = "site/far.guard/g"
	mark := regexp.MustCompile(`\s*"mark": "[^"]*far.guard/g#\d+",`) // what is made again has another one
	documents := func(spec string) map[string]string {
		m := map[string]string{"site/far.net/n": `{}`}
		if spec != "" {
			m[guard] = spec
		}
		return m
	}
	const one, two = `{"labels": {"a": "1"}, "size": 3}`, `{"labels": {"a": "2"}, "size": 3}`
	for name, c := range map[string]struct{ from, to string }{"create": {"", one}, "update": {one, two}, "delete": {one, ""}} {
		for i := range 4 {
			resumed, marked := i%2 == 0, i < 2
			t.Run(fmt.Sprintf("%s, resumed %t, marked %t", name, resumed, marked), func(t *testing.T) {
				s := enginetest.New()
				traits := fake.NodeTraits()
				traits.SetLast, traits.Mark = []string{"size"}, marked
				s.World.Traits = map[string]providers.Traits{"far.guard": traits}
				cut, end := &atomic.Bool{}, &atomic.Bool{}
				on := func(o *engine.Options) {
					around(o, "far.guard", func(k providers.Served) providers.Kind {
						return machines{k.Kind, false, cut, func() { end.Store(resumed) }}
					})
				}
				s.Converge(t, s.Document(t, documents(c.from)))
				dump := func() string { return mark.ReplaceAllString(s.World.Dump(), "") }
				before := dump()
				e := s.Engine(on)
				p, err := e.Plan(t.Context(), s.Document(t, documents(c.to)), plan.Options{})
				if err != nil {
					t.Fatal(err)
				}
				res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
				e.Close()
				if err != nil || res.Run.Status != state.RunApplied {
					t.Fatalf("%s: %v", res.Run.Status, err)
				}
				cut.Store(true)
				e, kv, died := dying(s, 1<<30, false, on)
				end = died
				back, err := e.Rollback(context.Background(), res.Run.ID, engine.ApplyOptions{})
				e.Close()
				if cut.Load() {
					t.Fatalf("no call was cut: %s", back.Run.Status)
				}
				if resumed {
					kv.Lapse()
					e := s.Engine(on)
					defer e.Close()
					back, err = e.Resume(t.Context(), "", engine.ApplyOptions{})
				}
				if err != nil || back.Run.Status != state.RunReverted {
					t.Errorf("the run ended %s: %s, %v, %v", back.Run.Status, back.Run.Message, back.Differences, err)
				}
				if is := dump(); is != before {
					t.Errorf("the world was\n%s\nand is\n%s", before, is)
				}
			})
		}
	}
}

// What another client made in the meantime is its own, also where nothing carries marks and it is exactly what was to be made: the
// answer that it exists says that the call made nothing.
func TestMadeByOthersMeanwhile(t *testing.T) {
	const guard = "site/far.guard/g"
	for _, marked := range []bool{true, false} {
		t.Run(fmt.Sprintf("marked %t", marked), func(t *testing.T) {
			s := enginetest.New()
			traits := fake.NodeTraits()
			traits.Mark = marked
			s.World.Traits = map[string]providers.Traits{"far.guard": traits}
			s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": `{}`}))
			p := s.Plan(t, s.Document(t, map[string]string{"site/far.net/n": `{}`, guard: `{"size": 3}`}), plan.Options{})
			var once atomic.Bool
			s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
				if op == "create" && at == fake.Before && once.CompareAndSwap(false, true) {
					if err := s.World.Put("site", "far.guard", providers.Thing{ID: c.ID, Name: c.ID, Spec: c.Want}); err != nil {
						t.Error(err)
					}
				}
			}
			res, err := s.Apply(p, engine.ApplyOptions{})
			if err != nil || res.Run.Status != state.RunReverted {
				t.Fatalf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
			}
			if thingOf(t, s, "site", "far.guard", "g").Spec["size"] != int64(3) {
				t.Error("what the other client made is gone")
			}
		})
	}
}
