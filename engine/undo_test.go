package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/enginetest"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// What is shown before a rollback is what the rollback does, in its order, and to look at it changes nothing.
func TestUndoingShowsWhatRollbackDoes(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Converge(t, s.Document(t, twelve))
	applied := s.World.Dump()
	e := s.Engine(nil)
	defer e.Close()
	inverse, err := e.Undoing(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	if s.World.Dump() != applied {
		t.Fatal("looking changed the world")
	}
	did, undoes := map[schema.Ref]plan.Action{}, map[schema.Ref]plan.Action{}
	for i := range p.Steps {
		did[p.Steps[i].Ref] = p.Steps[i].Inverse()
	}
	for i := range inverse.Steps {
		st := &inverse.Steps[i]
		undoes[st.Ref] = st.Action
		if st.ID != i || slices.ContainsFunc(st.Needs, func(n int) bool { return n >= i }) {
			t.Errorf("step %d has the number %d and needs %v", i, st.ID, st.Needs)
		}
		for j := range p.Steps { // what was done after it is undone before it
			if later := &p.Steps[j]; slices.ContainsFunc(later.Needs, func(n int) bool { return p.Steps[n].Ref == st.Ref }) {
				if k := slices.IndexFunc(inverse.Steps, func(o plan.Step) bool { return o.Ref == later.Ref }); k > i {
					t.Errorf("%s is undone after %s", later.Ref, st.Ref)
				}
			}
		}
	}
	if len(did) == 0 || len(did) != len(undoes) {
		t.Fatalf("done %v, to be undone %v", did, undoes)
	}
	for ref, action := range did {
		if undoes[ref] != action {
			t.Errorf("%s: %s, want %s", ref, undoes[ref], action)
		}
	}
	if res, err := e.Rollback(context.Background(), "", engine.ApplyOptions{Approve: inverse.Approval()}); err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	if _, err := e.Undoing(context.Background(), inverse.Undoes); err == nil {
		t.Error("a run that is reverted could be undone")
	}
}

// A run that went on since it was shown what would be undone is not undone.
func TestRollbackOfMoreThanWasShown(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.host/b1", Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{OnFailure: apply.Stop}); err != nil || res.Run.Status != state.RunOpen {
		t.Fatal(res, err)
	}
	e := s.Engine(nil)
	defer e.Close()
	inverse, err := e.Undoing(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	if res, err := e.Resume(context.Background(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res, err)
	}
	applied := s.World.Dump()
	var stale *engine.StaleError
	if _, err := e.Rollback(context.Background(), inverse.Undoes, engine.ApplyOptions{Approve: inverse.Approval()}); !errors.As(err, &stale) {
		t.Fatalf("it was undone: %v", err)
	}
	if s.World.Dump() != applied {
		t.Error("the world was changed")
	}
}

// What the far side does not support is left out only when somebody says that it may be.
func TestOmittedNeedsAllowPartial(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/24"}`, "site/far.host/h": `{"net":"n"}`, "site/far.guard/g": `{}`})
	if err := s.World.Fail(fake.Fault{Op: "observe", Ref: "far.net", Times: -1, Class: providers.Unsupported}); err != nil {
		t.Fatal(err)
	}
	p := s.Plan(t, d, plan.Options{})
	var unknown *engine.UnknownError
	if _, err := s.Apply(p, engine.ApplyOptions{}); !errors.As(err, &unknown) || len(unknown.Omitted) != 2 {
		t.Fatalf("%v", err)
	}
	if runs, err := s.Store.Runs(context.Background()); err != nil || len(runs) != 0 {
		t.Fatal(runs, err)
	}
	if res, err := s.Apply(p, engine.ApplyOptions{AllowPartial: true}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res, err)
	}
}
