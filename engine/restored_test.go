package engine_test

import (
	"context"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A record that was known only by its mark is so again once the following run is undone: what converge left there is as
// little known as before.
func TestUndoRestoresRecordKnownByMark(t *testing.T) {
	s, ctx := enginetest.New(), context.Background()
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "far.guard", Name: "g"}
	s.Converge(t, s.Document(t, map[string]string{ref.String(): `{"size": 1}`}))
	r, err := s.Store.Record(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	when := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	mark := state.Record{Ref: ref, ID: r.ID, Incarnation: r.Incarnation, Spec: schema.Object{}, At: when}
	if _, err := s.KV.Commit(ctx, nil, []state.Op{s.Store.RecordOp(mark)}); err != nil {
		t.Fatal(err)
	}
	p := s.Converge(t, s.Document(t, map[string]string{ref.String(): `{"size": 2}`}))
	e := s.Engine(nil)
	defer e.Close()
	if res, err := e.Rollback(ctx, "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	if r, err = s.Store.Record(ctx, ref); err != nil || r.Run != "" || !r.At.Equal(when) || r.Rest != nil {
		t.Errorf("recorded: %+v (%v), want what is known only by its mark", r, err)
	}
	if d := driftOf(t, s, p.Site); d.Marked == nil || d.Marked.Resources != 1 || !d.Clean() {
		t.Errorf("drift: %+v", d)
	}
}

// What an open run has created, and has not recorded, is left aside with the rest of that run: it is no stray.
func TestDriftLeavesAsideWhatAnOpenRunMade(t *testing.T) {
	s, ctx := enginetest.New(), context.Background()
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "far.guard", Name: "g"}
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: ref.String(), Effect: fake.EffectFailed}); err != nil {
		t.Fatal(err)
	}
	p := s.Plan(t, s.Document(t, map[string]string{ref.String(): `{"size": 1}`}), plan.Options{})
	if res, err := s.Apply(p, engine.ApplyOptions{OnFailure: apply.Stop}); err != nil || res.Run.Status != state.RunOpen {
		t.Fatal(res.Run.Status, err)
	}
	if _, err := s.KV.Commit(ctx, nil, []state.Op{s.Store.ForgetOp(ref)}); err != nil { // as if it had crashed before it was recorded
		t.Fatal(err)
	}
	if d := driftOf(t, s, p.Site); !d.Clean() || len(d.Begun) != 1 || d.Begun[0] != ref {
		t.Errorf("strays %v, drifted %v, left aside %v", d.Strays, d.Drifted, d.Begun)
	}
	other := providers.Thing{ID: "lost", Name: "lost", Spec: schema.Object{}, Phase: providers.Ready, Mark: providers.Mark{
		Site: p.Site.ID, Ref: schema.Ref{Scope: ref.Scope, Kind: ref.Kind, Name: "lost"}, Incarnation: 1}}
	if err := s.World.Put(ref.Scope, ref.Kind, other); err != nil {
		t.Fatal(err)
	}
	if d := driftOf(t, s, p.Site); len(d.Strays) != 1 || d.Strays[0].ID != "lost" {
		t.Errorf("strays %v, want the other one", d.Strays)
	}
}
