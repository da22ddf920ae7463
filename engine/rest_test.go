package engine_test

import (
	"context"
	"slices"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Drift reports what strangers changed of what the document does not state, since the last step that touched the thing:
// whether a create, an update, an adoption, an undo or a continued run left it so.
func TestDriftOfUnstatedFields(t *testing.T) {
	ctx := context.Background()
	ref := schema.Ref{Scope: "site", Kind: "far.guard", Name: "g"}
	doc := func(s *enginetest.Site, spec string) *schema.Document {
		return s.Document(t, map[string]string{ref.String(): spec})
	}
	look := func(t *testing.T, s *enginetest.Site) *drift.Report {
		t.Helper()
		e := s.Engine(nil)
		defer e.Close()
		r, err := e.Drift(ctx, schema.Site{Name: "test", ID: enginetest.SiteID})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	stranger := func(t *testing.T, s *enginetest.Site, field string, value any) {
		t.Helper()
		r, err := s.Store.Record(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		th := thingOf(t, s, "site", "far.guard", r.ID)
		if th.Spec[field] = value; value == nil {
			delete(th.Spec, field)
		}
		if err := s.World.Put("site", "far.guard", th); err != nil {
			t.Fatal(err)
		}
	}
	drifts := func(t *testing.T, s *enginetest.Site, paths ...string) {
		t.Helper()
		r := look(t, s)
		var got []string
		for _, it := range r.Unstated {
			for _, c := range it.Changes {
				got = append(got, c.Path)
			}
		}
		if !slices.Equal(got, paths) || len(r.Drifted) > 0 || r.Clean() != (len(paths) == 0) {
			t.Errorf("unstated drift of %q, drift of %+v, clean=%t; want %q", got, r.Drifted, r.Clean(), paths)
		}
		if p := s.Plan(t, doc(s, `{"size": 1}`), plan.Options{}); !p.Empty() {
			t.Errorf("it is planned to undo it:\n%s", enginetest.Text(p))
		}
	}
	made := func(t *testing.T) *enginetest.Site {
		s := enginetest.New()
		s.Converge(t, doc(s, `{"size": 1}`))
		return s
	}
	t.Run("create", func(t *testing.T) {
		s := made(t)
		drifts(t, s)
		stranger(t, s, "labels", map[string]any{"who": "stranger"})
		drifts(t, s, "labels.who")
	})
	t.Run("update and adopt", func(t *testing.T) {
		s := made(t)
		stranger(t, s, "labels", map[string]any{"who": "stranger"})
		s.Converge(t, doc(s, `{"size": 2}`))
		s.Converge(t, doc(s, `{"size": 1}`))
		drifts(t, s) // it was left so
		stranger(t, s, "labels", map[string]any{"who": "another"})
		drifts(t, s, "labels.who")
		s.Converge(t, doc(s, `{"size": 1, "labels": {"who": "another"}}`)) // adopted
		s.Converge(t, doc(s, `{"size": 1}`))                               // and unset
		drifts(t, s)
	})
	t.Run("undone", func(t *testing.T) {
		s := made(t)
		stranger(t, s, "labels", map[string]any{"who": "stranger"})
		d := s.Document(t, map[string]string{ref.String(): `{"size": 2}`, "site/far.net/n": `{"cidr": "10.0.0.0/24"}`, "site/far.host/h": `{"net": "n", "guard": "g"}`})
		if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.host/h", Class: providers.Invalid}); err != nil {
			t.Fatal(err)
		}
		res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunReverted {
			t.Fatal(res, err)
		}
		s.Release(t)
		drifts(t, s)
		stranger(t, s, "labels", nil)
		drifts(t, s, "labels.who")
	})
	t.Run("resumed", func(t *testing.T) {
		s := enginetest.New()
		if err := s.World.Fail(fake.Fault{Op: "create", Ref: ref.String(), Times: 1, Class: providers.Denied}); err != nil {
			t.Fatal(err)
		}
		res, err := s.Apply(s.Plan(t, doc(s, `{"size": 1}`), plan.Options{}), engine.ApplyOptions{OnFailure: apply.Stop})
		if err != nil || res.Run.Status != state.RunOpen {
			t.Fatal(res, err)
		}
		e := s.Engine(nil)
		defer e.Close()
		if _, err := e.Resume(ctx, res.Run.ID, engine.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		drifts(t, s)
		stranger(t, s, "labels", map[string]any{"who": "stranger"})
		drifts(t, s, "labels.who")
	})
}
