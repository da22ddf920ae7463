package engine_test

import (
	"context"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A resource that is recorded under another name is marked with it by the next run, so that the records can be rebuilt from
// the marks. Another resource may then have the old name, and gets a thing of its own.
func TestMoved(t *testing.T) {
	ctx := context.Background()
	s := enginetest.New()
	old, now := schema.Ref{Scope: "site", Kind: "far.guard", Name: "old"}, schema.Ref{Scope: "site", Kind: "far.guard", Name: "new"}
	s.Converge(t, s.Document(t, map[string]string{old.String(): `{"size": 1}`}))
	r, err := s.Store.Record(ctx, old)
	if err != nil {
		t.Fatal(err)
	}
	forget := s.Store.ForgetOp(old)
	r.Move(now)
	if _, err := s.Store.Commit(ctx, nil, []state.Op{forget, s.Store.RecordOp(r)}); err != nil {
		t.Fatal(err)
	}
	doc := s.Document(t, map[string]string{old.String(): `{"size": 2}`, now.String(): `{"size": 1}`})
	s.Converge(t, doc)
	if again := s.Plan(t, doc, plan.Options{}); !again.Empty() || len(again.Unmanaged) > 0 {
		t.Errorf("not converged:\n%s", enginetest.Text(again))
	}
	if th := thingOf(t, s, "site", "far.guard", r.ID); th.Mark.Ref != now || th.Spec["size"] != int64(1) {
		t.Errorf("the thing is marked as %s and is %v", th.Mark.Ref, th.Spec)
	}
	records, err := s.Store.Records(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var lost []state.Op
	for _, r := range records {
		lost = append(lost, s.Store.ForgetOp(r.Ref))
	}
	if _, err := s.Store.Commit(ctx, nil, lost); err != nil {
		t.Fatal(err)
	}
	for _, st := range s.Plan(t, doc, plan.Options{}).Steps { // nothing is known but the marks
		if st.Action != plan.Adopt {
			t.Errorf("%s %s: %s", st.Action, st.Ref, st.Reason)
		}
	}
}
