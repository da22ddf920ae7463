package engine_test

import (
	"errors"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A thing that others renamed is drift, is shown before it is named again, and gets their name back when that is undone. A rename
// during a run is not overruled.
func TestRenamedOutside(t *testing.T) {
	id := plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil)
	rename := func(t *testing.T, s *enginetest.Site, name string) {
		t.Helper()
		thing := thingOf(t, s, theNet.Scope, theNet.Kind, id)
		thing.Name = name
		if err := s.World.Put(theNet.Scope, theNet.Kind, thing); err != nil {
			t.Error(err)
		}
	}
	called := func(t *testing.T, s *enginetest.Site) string {
		t.Helper()
		return thingOf(t, s, theNet.Scope, theNet.Kind, id).Name
	}
	site := func(t *testing.T) (*enginetest.Site, *schema.Document) {
		s := enginetest.New()
		s.Converge(t, s.Document(t, map[string]string{theNet.String(): `{"size":1}`}))
		rename(t, s, "theirs")
		doc := s.Document(t, map[string]string{theNet.String(): `{"size":2}`, "site/far.guard/g": `{}`})
		doc.Resources[0].After = []schema.Ref{theNet}
		return s, doc
	}
	during := func(t *testing.T, s *enginetest.Site, p *plan.Plan, when func(event.Event) bool, name string) engine.Result {
		t.Helper()
		e := s.Engine(func(o *engine.Options) {
			o.Emit = func(ev event.Event) {
				if when(ev) {
					rename(t, s, name)
				}
			}
		})
		defer e.Close()
		if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.guard/g", Class: providers.Invalid}); err != nil {
			t.Fatal(err)
		}
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	done := func(ev event.Event) bool {
		d, ok := ev.(event.StepDone)
		return ok && !d.Undo && d.Step.Ref == theNet
	}

	t.Run("drift, plan, apply, rollback", func(t *testing.T) {
		s, doc := site(t)
		e := s.Engine(nil)
		defer e.Close()
		r, err := e.Drift(t.Context(), doc.Site)
		if err != nil || len(r.Drifted) != 1 || len(r.Drifted[0].Changes) != 1 || r.Drifted[0].Changes[0].Path != plan.NamePath || r.Drifted[0].Changes[0].After != "theirs" {
			t.Fatalf("drift: %+v, %v", r, err)
		}
		p := s.Plan(t, doc, plan.Options{})
		if c := p.Steps[0].Renames(); c == nil || c.Before != "theirs" || c.After != "n" {
			t.Fatalf("planned:\n%s", enginetest.Text(p))
		}
		res, err := s.Apply(p, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunApplied || called(t, s) != "n" {
			t.Fatalf("%s, called %q, %v", res.Run.Status, called(t, s), err)
		}
		if res, err = e.Rollback(t.Context(), res.Run.ID, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted || called(t, s) != "theirs" {
			t.Errorf("undone: %s, called %q, %v", res.Run.Status, called(t, s), err)
		}
	})
	t.Run("the name alone", func(t *testing.T) {
		s, _ := site(t)
		s.Converge(t, s.Document(t, map[string]string{theNet.String(): `{"size":1}`}))
		if called(t, s) != "n" {
			t.Errorf("it is called %q", called(t, s))
		}
	})
	t.Run("after the plan", func(t *testing.T) {
		s, doc := site(t)
		p := s.Plan(t, doc, plan.Options{})
		rename(t, s, "again")
		if res, err := s.Apply(p, engine.ApplyOptions{}); err == nil && res.Run.Status == state.RunApplied || called(t, s) != "again" {
			t.Errorf("%s, called %q, %v", res.Run.Status, called(t, s), err)
		}
	})
	t.Run("by a step that only changes a field", func(t *testing.T) {
		s, doc := site(t)
		rename(t, s, "n")
		p := s.Plan(t, doc, plan.Options{})
		rename(t, s, "late")
		if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || called(t, s) != "late" {
			t.Errorf("%s, called %q, %v", res.Run.Status, called(t, s), err)
		}
	})
	for when, begins := range map[string]func(event.Event) bool{
		"before it": nil,
		"during it": func(ev event.Event) bool { _, ok := ev.(event.StepStarted); return ok },
	} {
		t.Run("to be deleted, by a plan from "+when, func(t *testing.T) {
			s, _ := site(t)
			s.Converge(t, s.Document(t, map[string]string{theNet.String(): `{"size":1}`, "site/far.host/h": `{"net":"n"}`, "site/far.guard/g": `{}`}))
			p := s.Plan(t, s.Document(t, map[string]string{"site/far.guard/g": `{}`}), plan.Options{Unlimited: true})
			if begins == nil {
				rename(t, s, "late")
				var stale *engine.StaleError
				if res, err := s.Apply(p, engine.ApplyOptions{}); !errors.As(err, &stale) || !strings.Contains(err.Error(), `now named "late"`) || called(t, s) != "late" {
					t.Errorf("%s, called %q, %v", res.Run.Status, called(t, s), err)
				}
				return
			}
			e := s.Engine(func(o *engine.Options) {
				o.Emit = func(ev event.Event) {
					if begins(ev) { // the host is deleted first, and comes back as another one
						rename(t, s, "late")
					}
				}
			})
			defer e.Close()
			res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
			if err != nil || res.Run.Status != state.RunPartial || called(t, s) != "late" {
				t.Errorf("%s, called %q, %v", res.Run.Status, called(t, s), err)
			}
		})
	}
	t.Run("before it is undone", func(t *testing.T) {
		s, doc := site(t)
		res := during(t, s, s.Plan(t, doc, plan.Options{}), done, "again")
		if res.Run.Status != state.RunPartial || len(res.Differences) != 1 || !strings.Contains(res.Differences[0].Detail, "another client changed name after the run did") || called(t, s) != "again" {
			t.Errorf("%s %v, called %q", res.Run.Status, res.Differences, called(t, s))
		}
	})
	t.Run("undone in the run", func(t *testing.T) {
		s, doc := site(t)
		res := during(t, s, s.Plan(t, doc, plan.Options{}), func(event.Event) bool { return false }, "")
		if res.Run.Status != state.RunReverted || called(t, s) != "theirs" {
			t.Errorf("%s %v, called %q", res.Run.Status, res.Differences, called(t, s))
		}
	})
}
