package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// staged is a kind whose things are created with a size of 1, and get another one only by an update that changes nothing else,
// once they are ready.
type staged struct{ providers.Kind }

func (k staged) Create(ctx context.Context, c providers.Call) error {
	c.Want = c.Want.Clone()
	c.Want["size"] = int64(1)
	return k.Kind.Create(ctx, c)
}

func (k staged) Update(ctx context.Context, c providers.Call) error {
	rest := func(o schema.Object) schema.Object {
		o = o.Clone()
		delete(o, "size")
		return o
	}
	if rest(c.Want).Digest() == rest(c.Have).Digest() {
		if things, err := k.Get(ctx, []string{c.ID}); err != nil || len(things) > 0 && things[0].Phase == providers.Pending {
			return &providers.Error{Op: "update", Ref: c.Ref, Class: providers.Invalid, Err: errors.New("it is not ready for a size")}
		}
		return k.Kind.Update(ctx, c)
	}
	size, had := c.Have["size"]
	if c.Want = rest(c.Want); had {
		c.Want["size"] = size
	}
	return k.Kind.Update(ctx, c)
}

// stage makes far.guard such a kind.
func stage(o *engine.Options) {
	open := o.Open
	o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
		set, err := open(ctx, site, needs)
		if err != nil {
			return nil, err
		}
		var all []*providers.Provider
		for _, p := range set.All() {
			for i := range p.Kinds {
				if k := &p.Kinds[i]; k.Name == "far.guard" {
					k.Kind, k.Traits.Later, k.Traits.ReadyWithin = staged{k.Kind}, []string{"size"}, time.Minute
				}
			}
			all = append(all, p)
		}
		return providers.NewSet(all...)
	}
}

// What a thing can get only once it has the rest is requested then, in the same step, by whichever process carries the run on, and
// also when the step is undone.
func TestWhatComesLater(t *testing.T) {
	for name, c := range map[string]struct {
		from, to map[string]string
		last     int // the update that brings the size, from 1
	}{
		"made":    {map[string]string{}, map[string]string{"site/far.guard/g": `{"labels": {"a": "1"}, "size": 3}`}, 1},
		"changed": {map[string]string{"site/far.guard/g": `{"labels": {"a": "1"}, "size": 3}`}, map[string]string{"site/far.guard/g": `{"labels": {"a": "2"}, "size": 4}`}, 2},
		"resized": {map[string]string{"site/far.guard/g": `{"size": 3}`}, map[string]string{"site/far.guard/g": `{"size": 4}`}, 1},
	} {
		faults := map[string][]fake.Fault{
			"nothing, but slowly": {
				{Op: "create", Ref: "site/far.guard/g", Effect: fake.EffectSlow, Times: -1, Delay: fake.Duration(30 * time.Second)},
				{Op: "update", Ref: "site/far.guard/g", Effect: fake.EffectSlow, Times: -1, Delay: fake.Duration(30 * time.Second)},
			},
			"":                {},
			"what comes then": {{Op: "create", Ref: "site/far.host/h", Class: providers.Invalid}},
			"the last update": {{Op: "update", Ref: "site/far.guard/g", Class: providers.Invalid, Nth: c.last}},
			"its answers":     {{Op: "update", Ref: "site/far.guard/g", Class: providers.Unknown, Nth: c.last, Times: 5}},
		}
		for failing, all := range faults {
			fails, again := len(all) == 1, len(all) == 1 && all[0].Op == "update"
			for _, after := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					for n := int64(1); ; n++ {
						at := fmt.Sprintf("%s, write %d, after=%v, failing: %s", name, n, after, failing)
						s := enginetest.New()
						start := s.Engine(stage)
						p, err := start.Plan(t.Context(), s.Document(t, c.from), plan.Options{})
						if err != nil {
							t.Fatal(err)
						}
						if res, err := start.Apply(t.Context(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
							t.Fatalf("%s: the run ended %s: %s, %v", at, res.Run.Status, res.Run.Message, err)
						}
						start.Close()
						before := s.World.Dump()
						to := maps.Clone(c.to)
						to["site/far.host/h"] = `{"guard": "g", "net": "n"}` // is created last
						to["site/far.net/n"] = `{}`
						to["site/far.subnet/s"] = `{"net": "n"}` // is created while the guard is not ready
						planner := s.Engine(stage)
						p, err = planner.Plan(t.Context(), s.Document(t, to), plan.Options{})
						if err != nil {
							t.Fatal(err)
						}
						planner.Close()
						for _, f := range all {
							if err := s.World.Fail(f); err != nil {
								t.Fatal(err)
							}
						}
						e, kv, died := dying(s, n, after, stage)
						res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
						e.Close()
						if !died.Load() {
							want := state.RunApplied
							if fails {
								want = state.RunReverted
							}
							if err != nil || res.Run.Status != want {
								t.Fatalf("%s: the run ended %s: %s, %v, %v", at, res.Run.Status, res.Run.Message, res.Differences, err)
							}
							break
						}
						kv.Lapse()
						if n%2 == 0 && !again { // or it might hit what undoes it
							undoOpen(t, s, at, stage)
						}
						settleRun(t, s, at, stage)
						desired := to
						if s.World.Dump() == before {
							desired = c.from
						}
						next := s.Engine(stage)
						if left, err := next.Plan(t.Context(), s.Document(t, desired), plan.Options{}); err != nil || !left.Empty() || len(left.Unmanaged) > 0 {
							t.Fatalf("%s: the site is neither as desired nor as before: %v\n%s\n%s", at, err, enginetest.Text(left), s.World.Dump())
						}
						next.Close()
					}
				})
			}
		}
	}
}
