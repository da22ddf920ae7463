package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// What a run left half done, or its undo half undone, is its own doing: drift blames nobody else for it, and still reports what
// others change afterwards.
func TestDriftKnowsWhatRunsLeft(t *testing.T) {
	const (
		g    = "site/far.guard/g"
		one  = `{"size":1,"labels":{"a":"1"}}`
		two  = `{"size":2,"labels":{"a":"2"}}`
		trip = "site/far.net/trip" // is refused, so that the rest is undone
	)
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "far.guard", Name: "g"}
	guard := func(spec string) map[string]string {
		d := map[string]string{"site/far.guard/keep": `{}`}
		if spec != "" {
			d[g] = spec
		}
		return d
	}
	tripping := func(d map[string]string) map[string]string {
		d[trip] = `{"cidr":"10.0.0.0/24"}`
		return d
	}
	refused := fake.Fault{Op: "create", Ref: trip, Class: providers.Invalid}
	slow := fake.Fault{Op: "delete", Ref: g, Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour), Times: gridAlways}
	for name, c := range map[string]struct {
		first, last map[string]string
		faults      []fake.Fault
		half        bool   // g: an update that makes its labels as b creates only those labels, or with "" only the size
		labels      string // which
		policy      apply.OnFailure
		interrupt   bool // as soon as something is waited for
		end         state.RunStatus
	}{
		"an update, undone in part":    {first: guard(one), last: tripping(guard(two)), faults: []fake.Fault{refused}, half: true, labels: "1", end: state.RunPartial},
		"an update, made in part":      {first: guard(one), last: guard(two), half: true, labels: "2", policy: apply.Continue, end: state.RunPartial},
		"the same, and stopped":        {first: guard(one), last: guard(two), half: true, labels: "2", policy: apply.Stop, end: state.RunOpen},
		"a delete, the undo refused":   {first: guard(one), last: tripping(guard("")), faults: []fake.Fault{refused, {Op: "create", Ref: g, Class: providers.Invalid}}, end: state.RunPartial},
		"a create that fails":          {first: guard(""), last: guard(one), faults: []fake.Fault{{Op: "create", Ref: g, Effect: fake.EffectFailed}}, policy: apply.Continue, end: state.RunPartial},
		"the same, the undo refused":   {first: guard(""), last: guard(one), faults: []fake.Fault{{Op: "create", Ref: g, Effect: fake.EffectFailed}, {Op: "delete", Ref: g, Class: providers.Invalid, Times: gridAlways}}, end: state.RunPartial},
		"a delete that never ends":     {first: guard(one), last: guard(""), faults: []fake.Fault{slow}, policy: apply.Continue, end: state.RunPartial},
		"a delete, interrupted":        {first: guard(one), last: guard(""), faults: []fake.Fault{slow}, interrupt: true, end: state.RunOpen},
		"an undone create, never gone": {first: guard(""), last: tripping(guard(one)), faults: []fake.Fault{refused, slow}, end: state.RunPartial},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			traits := fake.NodeTraits()
			traits.GoneWithin = 20 * time.Millisecond
			if c.interrupt {
				traits.GoneWithin = time.Hour
			}
			s.World.Traits = map[string]providers.Traits{"far.guard": traits, "far.net": fake.NodeTraits()}
			s.Converge(t, s.Document(t, c.first))
			p := s.Plan(t, s.Document(t, c.last), plan.Options{})
			for _, f := range c.faults {
				if err := s.World.Fail(f); err != nil {
					t.Fatal(err)
				}
			}
			before := map[string]any{}
			if c.half {
				s.World.Hook = func(op string, at fake.Moment, call providers.Call) {
					if op != "update" || call.Ref != ref {
						return
					}
					thing := thingOf(t, s, ref.Scope, ref.Kind, "g")
					if at == fake.Before {
						before["labels"] = thing.Spec["labels"]
					} else if thing.Spec["labels"].(map[string]any)["a"] == c.labels {
						thing.Spec["labels"] = before["labels"]
						if err := s.World.Put(ref.Scope, ref.Kind, thing); err != nil {
							t.Error(err)
						}
					}
				}
			}
			interrupt := make(chan struct{})
			stop := sync.OnceFunc(func() { close(interrupt) })
			e := s.Engine(func(o *engine.Options) {
				emit := o.Emit
				o.Parallelism = 1
				o.Emit = func(ev event.Event) {
					if w, ok := ev.(event.StepProgress); ok && w.Phase == event.Waiting && c.interrupt {
						stop()
					}
					emit(ev)
				}
			})
			defer e.Close()
			res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval(), OnFailure: c.policy, Interrupt: interrupt})
			if res.Run.Status != c.end || err != nil && !errors.Is(err, engine.ErrInterrupted) {
				t.Fatalf("it ended %s: %s %v (%v), want %s", res.Run.Status, res.Run.Message, res.Differences, err, c.end)
			}
			s.World.Hook = nil
			if r := driftOf(t, s, p.Site); len(r.Drifted)+len(r.Unstated) > 0 {
				t.Errorf("somebody else is blamed: %+v %+v\n%s", r.Drifted, r.Unstated, s.World.Dump())
			}
			if r := driftOf(t, s, p.Site); (len(r.Begun) > 0) != (c.end == state.RunOpen) {
				t.Errorf("left aside: %v", r.Begun)
			}
			if again := s.Plan(t, s.Document(t, c.last), plan.Options{}); len(again.Drift) > 0 {
				t.Errorf("a plan blames somebody else: %+v", again.Drift)
			}
			if c.half && c.end == state.RunPartial {
				thing := thingOf(t, s, ref.Scope, ref.Kind, "g")
				thing.Spec["labels"] = map[string]any{"a": "theirs"}
				if err := s.World.Put(ref.Scope, ref.Kind, thing); err != nil {
					t.Fatal(err)
				}
				if r := driftOf(t, s, p.Site); len(r.Drifted) != 1 || len(r.Drifted[0].Changes) != 1 || r.Drifted[0].Changes[0].Path != "labels.a" {
					t.Errorf("what others changed since is told as %+v", r.Drifted)
				}
			}
		})
	}
}

// Nobody is blamed for what a killed process did, neither before nor after its run is resumed.
func TestDriftAfterKill(t *testing.T) {
	s := enginetest.New()
	c := gridCell{T: t, Site: s, fault: gridFault{killed: fake.After}}
	s.Converge(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size":1}`, "site/far.guard/h": `{}`}))
	d := s.Document(t, map[string]string{"site/far.guard/g": `{"size":2}`})
	store, kv := c.mortal()
	s.World.Hook = func(op string, at fake.Moment, call providers.Call) {
		if (op == "update" || op == "delete") && at == fake.After {
			c.died.Store(true)
		}
	}
	e := c.process(store)
	p, err := e.Plan(context.Background(), d, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()}); err == nil {
		t.Fatal("it was to die")
	}
	e.Close()
	kv.Lapse()
	s.World.Hook = nil
	c.died.Store(false)
	if r := driftOf(t, s, p.Site); len(r.Drifted)+len(r.Unstated) > 0 {
		t.Errorf("before it is resumed: %+v", r.Drifted)
	}
	if res, err := c.resume(); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("resumed, it ended %s: %v", res.Run.Status, err)
	}
	if r := driftOf(t, s, p.Site); !r.Clean() {
		t.Errorf("after it was resumed: %+v", r)
	}
}

func driftOf(t testing.TB, s *enginetest.Site, site schema.Site) *drift.Report {
	t.Helper()
	e := s.Engine(nil)
	defer e.Close()
	r, err := e.Drift(context.Background(), site)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
