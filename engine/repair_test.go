package engine_test

import (
	"errors"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
)

// A run whose plan is intact in the store, but unreadable for this version, does not block the site for ever.
func TestUnreadablePlanIsGivenUp(t *testing.T) {
	s := enginetest.New()
	doc := s.Document(t, map[string]string{"site/far.net/a": `{}`})
	p := s.Plan(t, doc, plan.Options{})
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.net/a", Class: providers.Invalid, Times: 1}); err != nil {
		t.Fatal(err)
	}
	res, err := s.Apply(p, engine.ApplyOptions{OnFailure: "stop"})
	if err != nil || res.Run.Status != state.RunOpen {
		t.Fatalf("%+v, %v", res.Run, err)
	}
	run, err := s.Store.Run(t.Context(), res.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	if run.Body, err = s.Store.PutBlob(t.Context(), []byte(`{"format":1}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store.Commit(t.Context(), nil, []state.Op{s.Store.PutRunOp(run)}); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(nil)
	defer e.Close()
	if _, err := e.Resume(t.Context(), run.ID, engine.ApplyOptions{}); !errors.Is(err, plan.ErrFormat) {
		t.Fatalf("resumed: %v, want that its plan cannot be read", err)
	}
	repairs, err := e.Repair(t.Context(), engine.RepairOptions{})
	if err != nil || len(repairs) != 1 || !repairs[0].Left {
		t.Fatalf("repaired without leave to abandon: %+v, %v", repairs, err)
	}
	repairs, err = e.Repair(t.Context(), engine.RepairOptions{Abandon: true, Reason: "of another version"})
	if err != nil || len(repairs) != 1 || repairs[0].Left {
		t.Fatalf("abandoned: %+v, %v", repairs, err)
	}
	if _, err := s.Store.Run(t.Context(), run.ID); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("the run is kept: %v", err)
	}
}
