package engine_test

import (
	"errors"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A run begins only while the guards of its options hold; otherwise nothing is begun, and the plan is not spent.
func TestApplyUnderGuards(t *testing.T) {
	s := enginetest.New()
	ctx := t.Context()
	p := s.Plan(t, s.Document(t, map[string]string{"n1/near.bridge/br": `{}`}), plan.Options{})
	w := state.Waiting{Approval: p.Approval(), Plan: "p", Needs: 1}
	if err := s.Store.SetWaiting(ctx, &w, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	approve := func(by string) []state.Guard {
		if err := s.Store.Approve(ctx, w, by, time.Now()); err != nil {
			t.Fatal(err)
		}
		given, err := s.Store.Approvals(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s.Store.WaitingGuards(w, given)
	}
	guards := approve("ada@lab")
	for _, change := range []func() error{
		func() error { return s.Store.Unapprove(ctx, w, "ada@lab", time.Now()) },
		func() error { return s.Store.Approve(ctx, w, "ada@desk", time.Now()) }, // which may not count
		func() error { return s.Store.SetWaiting(ctx, nil, nil) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if res, err := s.Apply(p, engine.ApplyOptions{Guards: guards}); !errors.Is(err, state.ErrGuard) {
			t.Errorf("it ended with %v, %+v", err, res)
		}
		if runs, err := s.Store.Runs(ctx); len(runs) > 0 || err != nil || len(s.World.Log()) > 0 {
			t.Fatalf("it was begun: %+v, %v", runs, err)
		}
	}
	if err := s.Store.SetWaiting(ctx, &w, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Apply(p, engine.ApplyOptions{Guards: approve("ada@lab")}); err != nil || res.Run.Status != state.RunApplied {
		t.Errorf("it ended with %v, %+v", err, res)
	}
}

// What is left out by its ref is that alone, with what needs it, whatever it is called; a ref of nothing is no error.
func TestPlanWithoutRefs(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, map[string]string{
		"n1/near.bridge/a[b]": `{}`, "n1/near.bridge/ab": `{}`, "n1/near.bridge/[": `{}`, "n1/near.port/p": `{"bridge": "a[b]", "tag": 1}`,
	})
	ref := func(name string) schema.Ref { return schema.Ref{Scope: "n1", Kind: "near.bridge", Name: name} }
	p := s.Plan(t, d, plan.Options{ExcludeRefs: map[schema.Ref]bool{ref("a[b]"): true, ref("["): true, ref("nowhere"): true, ref("ab"): false}})
	if len(p.Steps) != 1 || p.Steps[0].Ref != ref("ab") || p.Narrowed == nil || p.Narrowed.Resources != 1 {
		t.Errorf("%+v, %+v", p.Steps, p.Narrowed)
	}
}
