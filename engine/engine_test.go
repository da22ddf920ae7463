package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// base is a site of two nets, a guard, hosts in both nets, and a bridge with ports on a node.
var base = map[string]string{
	"site/far.guard/web": `{"size":1}`,
	"site/far.host/a1":   `{"net":"a","guard":"web","size":1}`,
	"site/far.host/a2":   `{"net":"a","size":1}`,
	"site/far.host/b1":   `{"net":"b","size":1}`,
	"site/far.net/a":     `{"cidr":"10.0.0.0/24","labels":{"env":"prod"},"size":1}`,
	"site/far.net/b":     `{"cidr":"10.0.1.0/24","size":1}`,
	"n1/near.bridge/br0": `{"mode":"secure","size":1}`,
	"n1/near.port/p0":    `{"bridge":"br0","tag":10}`,
	"n1/near.port/p1":    `{"bridge":"br0","tag":11}`,
	"n2/near.bridge/br0": `{"mode":"secure","size":1}`,
}

func with(changes map[string]string) map[string]string {
	m := map[string]string{}
	for k, v := range base {
		m[k] = v
	}
	for k, v := range changes {
		if v == "" {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	return m
}

func TestConvergesAndSecondPlanIsEmpty(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	p := s.Converge(t, d)
	if p.Counts().Create != len(base) {
		t.Fatalf("created %+v, want %d\n%s", p.Counts(), len(base), enginetest.Text(p))
	}
	if again := s.Plan(t, d, plan.Options{}); !again.Empty() || again.Unchanged != len(base) {
		t.Fatalf("the second plan is not empty:\n%s", enginetest.Text(again))
	}
}

// twelve is a change of base whose plan has twelve steps, all of which can be undone: creates, updates and deletes.
var twelve = with(map[string]string{
	"site/far.guard/web": `{"size":2}`,
	"site/far.host/a1":   `{"net":"a","size":2}`,
	"site/far.host/a2":   `{"net":"a","guard":"new","size":1}`,
	"site/far.guard/new": `{"size":1}`,
	"site/far.net/a":     `{"cidr":"10.0.0.0/24","size":2}`,
	"site/far.net/c":     `{"cidr":"10.0.2.0/24"}`,
	"site/far.host/c1":   `{"net":"c"}`,
	"n1/near.port/p0":    `{"bridge":"br0","tag":20}`,
	"n1/near.port/p1":    "",
	"n2/near.bridge/br0": "",
	"n2/near.bridge/br1": `{"mode":"secure"}`,
	"n2/near.port/p9":    `{"bridge":"br1","tag":9}`,
})

// A failure at each position, before and after its effect, ends reverted, and the world is as it was.
func TestFailureAtEachPositionReverts(t *testing.T) {
	for position := range 12 {
		for _, effect := range []fake.Effect{fake.EffectBefore, fake.EffectFailed} {
			t.Run(fmt.Sprintf("%d/%s", position, effect), func(t *testing.T) {
				s := enginetest.New()
				s.Converge(t, s.Document(t, base))
				before := s.World.Dump()
				p := s.Plan(t, s.Document(t, twelve), plan.Options{})
				if len(p.Steps) != 12 || p.NoReturn != 12 {
					t.Fatalf("want 12 steps that can be undone:\n%s", enginetest.Text(p))
				}
				step := p.Steps[position]
				if step.Action == plan.Delete { // a deleted thing cannot have failed
					effect = fake.EffectBefore
				}
				err := s.World.Fail(fake.Fault{Op: string(step.Action), Ref: step.Ref.String(), Class: providers.Invalid, Effect: effect, Message: "no such luck"})
				if err != nil {
					t.Fatal(err)
				}
				res, err := s.Apply(p, engine.ApplyOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if res.Run.Status != state.RunReverted {
					t.Fatalf("ended %s, want reverted: %v", res.Run.Status, res.Differences)
				}
				if res.Run.Failed != step.Ref || !strings.Contains(res.Run.Message, "no such luck") {
					t.Errorf("the report names %s (%s), want %s", res.Run.Failed, res.Run.Message, step.Ref)
				}
				if after := s.World.Dump(); after != before {
					t.Errorf("the world is not as before.\nbefore: %s\nafter: %s", before, after)
				}
				if again := s.Plan(t, s.Document(t, base), plan.Options{}); !again.Empty() {
					t.Errorf("the records are not as before:\n%s", enginetest.Text(again))
				}
			})
		}
	}
}

// When the undo fails too, the run ends partial, reports what is not as before, and holds the site.
func TestFailedUndoIsPartial(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, twelve), plan.Options{})
	for _, f := range []fake.Fault{
		{Op: "create", Ref: "site/far.host/c1", Class: providers.Invalid},
		{Op: "delete", Ref: "site/far.net/c", Class: providers.Denied, Times: -1},
	} {
		if err := s.World.Fail(f); err != nil {
			t.Fatal(err)
		}
	}
	res, err := s.Apply(p, engine.ApplyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if res.Run.Status != state.RunPartial || len(res.Differences) != 1 || res.Differences[0].Ref.String() != "site/far.net/c" {
		t.Fatalf("ended %s with %v, want partial naming the net", res.Run.Status, res.Differences)
	}
	_, err = s.Apply(s.Plan(t, s.Document(t, base), plan.Options{}), engine.ApplyOptions{})
	var held *engine.HeldError
	if !errors.As(err, &held) || held.Holds[0].Run != res.Run.ID {
		t.Fatalf("the site is not held: %v", err)
	}
}

// fromFile returns the plan as read back from a plan file.
func fromFile(t *testing.T, p *plan.Plan) *plan.Plan {
	t.Helper()
	data, _, err := p.EncodeFile(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	file, err := plan.DecodeFile(data)
	if err != nil {
		t.Fatal(err)
	}
	return file.Plan
}

func TestSavedPlan(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":30}`})), plan.Options{})
	saved := fromFile(t, p)
	t.Run("stale", func(t *testing.T) {
		thing := thingOf(t, s, "n1", "near.port", "p0")
		changed := thing
		changed.Spec = thing.Spec.Clone()
		changed.Spec["tag"] = int64(99)
		if err := s.World.Put("n1", "near.port", changed); err != nil {
			t.Fatal(err)
		}
		_, err := s.Apply(saved, engine.ApplyOptions{})
		var stale *engine.StaleError
		if !errors.As(err, &stale) || stale.Reasons[0].Ref.String() != "n1/near.port/p0" {
			t.Fatalf("got %v, want a stale plan that names the port", err)
		}
		if err := s.World.Put("n1", "near.port", thing); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("spent", func(t *testing.T) {
		if res, err := s.Apply(saved, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
			t.Fatal(res, err)
		}
		_, err := s.Apply(saved, engine.ApplyOptions{})
		var spent *engine.SpentError
		if !errors.As(err, &spent) {
			t.Fatalf("got %v, want a spent plan", err)
		}
	})
}

func thingOf(t *testing.T, s *enginetest.Site, scope, kind, id string) providers.Thing {
	t.Helper()
	set, err := providers.NewSet(s.World.Provider(strings.Split(kind, ".")[0], scope))
	if err != nil {
		t.Fatal(err)
	}
	k, _, _ := set.Find(scope, kind)
	things, err := k.Kind.Get(context.Background(), []string{id})
	if err != nil || len(things) != 1 {
		t.Fatal(things, err)
	}
	return things[0]
}

// A lost reply, a late effect, and a temporary overload all end applied, with one thing each.
func TestUnknownOutcomes(t *testing.T) {
	for _, f := range []fake.Fault{
		{Op: "create", Effect: fake.EffectAfter, Times: 4},
		{Op: "create", Effect: fake.EffectBefore, Class: providers.Unknown, Times: 4},
		{Op: "create", Ref: "n1/near.bridge/br0", Class: providers.Unknown, Times: 4}, // all of one step's tries but the last
		{Op: "create", Class: providers.Transient, Times: 3},
		{Op: "create", Effect: fake.EffectSlow, Times: -1},
		{Op: "observe", Class: providers.Transient, Times: 3},
	} {
		t.Run(fmt.Sprintf("%s %s %s %s", f.Op, f.Ref, f.Effect, f.Class), func(t *testing.T) {
			s := enginetest.New()
			if err := s.World.Fail(f); err != nil {
				t.Fatal(err)
			}
			traits := fake.SiteTraits()
			traits.ReadyWithin = 1e9
			s.World.Traits = map[string]providers.Traits{"far.net": traits}
			d := s.Document(t, base)
			s.Converge(t, d)
			if p := s.Plan(t, d, plan.Options{}); !p.Empty() || len(p.Unmanaged) > 0 {
				t.Fatalf("not converged:\n%s", enginetest.Text(p))
			}
		})
	}
}

func TestOnFailureStopThenResume(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.host/b1", Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{OnFailure: apply.Stop})
	if err != nil || res.Run.Status != state.RunOpen {
		t.Fatal(res, err)
	}
	e := s.Engine(nil)
	defer e.Close()
	res, err = e.Resume(context.Background(), "", engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res, err)
	}
	if p := s.Plan(t, d, plan.Options{}); !p.Empty() {
		t.Fatalf("not converged:\n%s", enginetest.Text(p))
	}
}

func TestRollbackOfAnAppliedRun(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	before := s.World.Dump()
	s.Converge(t, s.Document(t, twelve))
	e := s.Engine(nil)
	defer e.Close()
	res, err := e.Rollback(context.Background(), "", engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, res.Differences, err)
	}
	if after := s.World.Dump(); after != before {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
}

func TestDriftIsReadOnly(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	s.Converge(t, d)
	thing := thingOf(t, s, "n1", "near.port", "p0")
	thing.Spec = thing.Spec.Clone()
	thing.Spec["tag"] = int64(99)
	if err := s.World.Put("n1", "near.port", thing); err != nil {
		t.Fatal(err)
	}
	before := s.World.Dump()
	e := s.Engine(nil)
	defer e.Close()
	r, err := e.Drift(context.Background(), d.Site)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Drifted) != 1 || r.Drifted[0].Changes[0].Path != "tag" || r.Drifted[0].Changes[0].After != int64(99) {
		t.Fatalf("%+v", r.Drifted)
	}
	if s.World.Dump() != before {
		t.Fatal("looking changed the world")
	}
}

// Adopted things are marked, even when nothing else differs, and unmarked again when the run is undone.
func TestAdoptionMarks(t *testing.T) {
	s := enginetest.New()
	found := providers.Thing{ID: "br0", Name: "br0", Spec: schema.Object{"mode": "secure"}, Phase: providers.Ready}
	if err := s.World.Put("n1", "near.bridge", found); err != nil {
		t.Fatal(err)
	}
	before := s.World.Dump()
	desired := map[string]string{
		"n1/near.bridge/br0": `{"mode":"secure","lifecycle":{"adopt":"match"}}`,
		"n1/near.port/p0":    `{"bridge":"br0","tag":1}`,
	}
	d := s.Document(t, desired)
	if err := s.World.Fail(fake.Fault{Op: "create", Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted || s.World.Dump() != before {
		t.Fatalf("%s %v %v\n%s", res.Run.Status, res.Differences, err, s.World.Dump())
	}
	s.Release(t)
	s.Converge(t, d)
	if m := thingOf(t, s, "n1", "near.bridge", "br0").Mark; m.Ref.Name != "br0" || m.Site != enginetest.SiteID {
		t.Fatalf("the bridge is marked %q", m)
	}
	if p := s.Plan(t, d, plan.Options{}); !p.Empty() {
		t.Fatal(enginetest.Text(p))
	}
	desired["site/far.guard/stays"] = `{}`
	delete(desired, "n1/near.port/p0")
	delete(desired, "n1/near.bridge/br0")
	s.Converge(t, s.Document(t, desired))
	if strings.Contains(s.World.Dump(), "br0") {
		t.Fatal("what was taken over was not deleted when it left the document")
	}
}

// What can never be deleted is adopted by its natural key, and an undo forgets it and reports that it remains.
func TestUndeletable(t *testing.T) {
	s := enginetest.New()
	traits := fake.NodeTraits()
	traits.Delete = providers.Never
	s.World.Traits = map[string]providers.Traits{"far.guard": traits}
	d := s.Document(t, map[string]string{"site/far.guard/org": `{"size":1}`, "site/far.net/n": `{"cidr":"10.0.0.0/24"}`})
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.net/n", Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
	defer e.Close()
	res, err := e.Apply(context.Background(), s.Plan(t, d, plan.Options{}), engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted || len(res.Run.Remains) != 1 || res.Run.Remains[0].Name != "org" {
		t.Fatalf("%s %v %v", res.Run.Status, res.Run.Remains, err)
	}
	if rs, err := s.Store.Records(context.Background()); err != nil || len(rs) != 0 {
		t.Fatalf("it is still remembered: %v %v", rs, err)
	}
	s.Release(t)
	p := s.Converge(t, d)
	if p.Counts().Create != 1 || p.Counts().Adopt != 1 {
		t.Fatal(enginetest.Text(p))
	}
	p = s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/24"}`}))
	if len(p.Steps) != 1 || p.Steps[0].Action != plan.Forget {
		t.Fatal(enginetest.Text(p))
	}
}
