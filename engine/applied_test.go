package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
)

// TestAppliedRevision: only what the newest run has completely applied is something to start from.
func TestAppliedRevision(t *testing.T) {
	s := enginetest.New()
	ctx := context.Background()
	applied := func() string {
		t.Helper()
		e := s.Engine(nil)
		defer e.Close()
		serial, err := e.Applied(ctx)
		if whole := (*engine.WholeError)(nil); errors.As(err, &whole) {
			return whole.Reason
		} else if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(serial)
	}
	expect := func(want string) {
		t.Helper()
		if got := applied(); !strings.Contains(got, want) {
			t.Errorf("applied: %s, want %s", got, want)
		}
	}
	do := func(o plan.Options, resources map[string]string) engine.Result {
		t.Helper()
		res, err := s.Apply(s.Plan(t, s.Document(t, resources), o), engine.ApplyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	net := func(size string) map[string]string {
		return map[string]string{"site/far.net/a": `{"cidr":"10.0.0.0/8","labels":{"size":"` + size + `"}}`, "site/far.net/b": `{"cidr":"10.0.0.0/8","labels":{"size":"` + size + `"}}`, "site/far.guard/g": `{}`}
	}
	expect("no revision")
	do(plan.Options{}, net("1"))
	expect("1")
	if err := s.World.Fail(fake.Fault{Op: "update", Ref: "site/far.net/b", Times: 9, Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	if res := do(plan.Options{}, net("2")); res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status)
	}
	expect("1") // proved
	if err := s.World.Mend(); err != nil {
		t.Fatal(err)
	}
	do(plan.Options{Target: []string{"site/far.net/a"}}, net("3"))
	expect("did not apply the whole document")
	do(plan.Options{}, net("3"))
	expect("3")
	late := s.Plan(t, s.Document(t, net("4")), plan.Options{})
	do(plan.Options{Destroy: true, Target: []string{"site/far.guard/*"}, Unlimited: true}, nil)
	if _, err := s.Apply(late, engine.ApplyOptions{}); err != nil { // about nothing that the previous run was about
		t.Fatal(err)
	}
	expect("did not apply the whole document")
	older := do(plan.Options{}, net("5")).Run.ID
	expect("5")
	if res := do(plan.Options{}, map[string]string{"site/far.guard/g": `{}`, "site/far.guard/h": `{}`, "site/far.net/a": net("5")["site/far.net/a"], "site/far.net/b": net("5")["site/far.net/b"]}); res.Run.Serial != 6 {
		t.Fatal(res.Run.Serial)
	}
	expect("6")
	if _, err := rollback(s, older, 0); err != nil { // about which the newer run says nothing
		t.Fatal(err)
	}
	expect("was resumed or rolled back after it")
	do(plan.Options{}, net("5"))
	expect("7")
	runs, err := s.Store.Runs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	amend := func(epoch int64) {
		if _, err := s.KV.Commit(ctx, nil, []state.Op{s.Store.AmendedOp(state.Amended{Epoch: epoch, Action: "state mv"})}); err != nil {
			t.Fatal(err)
		}
	}
	amend(runs[0].Epoch + 1)
	expect("changed outside of any run (state mv)")
	amend(runs[0].Epoch - 1)
	expect("7")
	do(plan.Options{Destroy: true, Unlimited: true}, net("5"))
	expect("did not apply the whole document")
}

// A plan does not know what an open run does after the plan was made: no run of such a plan is complete.
func TestNoRunIsCompleteBesideAnOpenOne(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, map[string]string{"site/far.guard/g": `{}`}))
	runs, err := s.Store.Runs(t.Context())
	if err != nil || len(runs) != 1 || !runs[0].Complete {
		t.Fatal(runs, err)
	}
	set := func(status state.RunStatus) {
		runs[0].Status = status
		if _, err := s.KV.Commit(t.Context(), nil, []state.Op{s.Store.PutRunOp(runs[0])}); err != nil {
			t.Fatal(err)
		}
	}
	set(state.RunOpen)
	p := s.Plan(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size":1}`}), plan.Options{})
	set(state.RunApplied)
	if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied || res.Run.Complete {
		t.Errorf("%+v %v", res.Run, err)
	}
}

// A run that was undone after a newer one was applied says so until something is applied again, however many have failed since.
func TestWhatWasUndoneSinceIsKept(t *testing.T) {
	s := enginetest.New()
	put := func(id string, epoch int64) {
		r := state.Run{ID: id, Op: "apply", Status: state.RunReverted, Epoch: epoch}
		if _, err := s.KV.Commit(t.Context(), nil, []state.Op{s.Store.PutRunOp(r)}); err != nil {
			t.Fatal(err)
		}
	}
	const since, before = "20000101-000000.000-000001", "20000101-000000.000-000000"
	put(before, 0)
	put(since, 0)
	s.Converge(t, s.Document(t, map[string]string{"site/far.guard/g": `{}`, "site/far.guard/h": `{}`}))
	runs, err := s.Store.Runs(t.Context())
	if err != nil || len(runs) != 3 {
		t.Fatal(runs, err)
	}
	base := runs[0]
	put(since, base.Epoch+1)
	for i := range 120 {
		put(fmt.Sprintf("%s-%03d", base.ID, i), base.Epoch+2+int64(i))
	}
	if _, err := s.Apply(s.Plan(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size":1}`, "site/far.guard/h": `{}`}), plan.Options{Target: []string{"site/far.guard/g"}}), engine.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	runs, err = s.Store.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, r := range runs {
		ids[r.ID] = true
	}
	if len(runs) > 105 || !ids[base.ID] || !ids[since] || ids[before] {
		t.Errorf("%d runs are kept, that which was undone since: %t, that which was undone before: %t", len(runs), ids[since], ids[before])
	}
}
