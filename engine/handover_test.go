package engine_test

import (
	"context"
	"maps"
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

// The far side refuses to delete what is in use. A guard is replaced all the same: the host moves to the new one first. When
// the host does not, nothing was lost.
func TestReplaceHandsOver(t *testing.T) {
	ref := schema.Ref{Scope: "site", Kind: "far.guard", Name: "g"}
	prepare := func(t *testing.T) (*enginetest.Site, *plan.Plan, string) {
		s := enginetest.New()
		d := s.Document(t, map[string]string{
			"site/far.net/n": `{"cidr": "10.0.0.0/24"}`, "site/far.guard/g": `{"size": 1}`, "site/far.host/h": `{"net": "n", "guard": "g"}`,
		})
		s.Converge(t, d)
		r, err := s.Store.Record(context.Background(), ref)
		if err != nil {
			t.Fatal(err)
		}
		return s, s.Plan(t, d, plan.Options{Replace: []string{"site/far.guard/g"}}), r.ID
	}
	t.Run("applied", func(t *testing.T) {
		s, p, old := prepare(t)
		res, err := s.Apply(p, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunApplied {
			t.Fatal(res, err)
		}
		r, err := s.Store.Record(context.Background(), ref)
		if err != nil || r.ID == old || r.Gone || r.Incarnation != 2 {
			t.Fatalf("recorded %+v (%v), want another incarnation than %s", r, err, old)
		}
		host, err := s.Store.Record(context.Background(), schema.Ref{Scope: "site", Kind: "far.host", Name: "h"})
		if err != nil {
			t.Fatal(err)
		}
		if got := thingOf(t, s, "site", "far.host", host.ID).Spec["guard"]; got != r.ID {
			t.Errorf("the host has the guard %v, want %s", got, r.ID)
		}
		if again := s.Plan(t, s.Document(t, map[string]string{
			"site/far.net/n": `{"cidr": "10.0.0.0/24"}`, "site/far.guard/g": `{"size": 1}`, "site/far.host/h": `{"net": "n", "guard": "g"}`,
		}), plan.Options{}); !again.Empty() || len(again.Unmanaged) > 0 {
			t.Errorf("not converged:\n%s", enginetest.Text(again))
		}
	})
	t.Run("reverted", func(t *testing.T) {
		s, p, old := prepare(t)
		before := s.World.Dump()
		if err := s.World.Fail(fake.Fault{Op: "update", Ref: "site/far.host/h", Class: providers.Invalid}); err != nil {
			t.Fatal(err)
		}
		res, err := s.Apply(p, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunReverted {
			t.Fatal(res, err)
		}
		if r, err := s.Store.Record(context.Background(), ref); err != nil || r.ID != old {
			t.Errorf("recorded %+v (%v), want %s", r, err, old)
		}
		if after := s.World.Dump(); after != before {
			t.Errorf("the world was\n%s\nand is\n%s", before, after)
		}
	})
	t.Run("resumed", func(t *testing.T) { // when the new one is already recorded, and what referred to the old one is deleted
		s, _, _ := prepare(t)
		without := map[string]string{"site/far.net/n": `{"cidr": "10.0.0.0/24"}`, "site/far.guard/g": `{"size": 1}`, "site/far.host/h": `{"net": "n", "guard": "g"}`}
		with := maps.Clone(without)
		with["site/far.host/leaves"] = `{"net": "n", "guard": "g"}`
		s.Converge(t, s.Document(t, with))
		if err := s.World.Fail(fake.Fault{Op: "delete", Ref: "site/far.host/leaves", Times: 1, Class: providers.Denied}); err != nil {
			t.Fatal(err)
		}
		res, err := s.Apply(s.Plan(t, s.Document(t, without), plan.Options{Replace: []string{"site/far.guard/g"}}), engine.ApplyOptions{OnFailure: apply.Stop})
		if err != nil || res.Run.Status != state.RunOpen {
			t.Fatal(res, err)
		}
		e := s.Engine(nil)
		defer e.Close()
		if res, err = e.Resume(context.Background(), res.Run.ID, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
			t.Fatalf("the run ended %s: %s (%v)", res.Run.Status, res.Run.Message, err)
		}
	})
}
