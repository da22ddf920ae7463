package engine_test

import (
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

var (
	theNet       = schema.Ref{Scope: "site", Kind: "far.net", Name: "n"}
	anotherSites = providers.Mark{Site: "22222222-2222-4222-8222-222222222222", Ref: theNet, Incarnation: 1}
)

// take makes another site mark the net as its own.
func take(t *testing.T, s *enginetest.Site) {
	t.Helper()
	thing := thingOf(t, s, theNet.Scope, theNet.Kind, plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil))
	thing.Mark = anotherSites
	if err := s.World.Put(theNet.Scope, theNet.Kind, thing); err != nil {
		t.Fatal(err)
	}
}

// What another site takes during a run is neither changed, nor deleted, nor recorded as ours.
func TestTakenWhileAtWork(t *testing.T) {
	made := map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/24"}`}
	failing := `{"size":1}` // as site/far.guard/g, whose creation fails
	for name, c := range map[string]struct {
		before, after map[string]string
		forget        bool // the net is removed from the records, so that the run adopts it
		when          func(event.Event) bool
		ends          state.RunStatus
		recorded      bool
	}{
		"before its creation is undone": {
			nil, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/24"}`, "site/far.guard/g": failing}, false, done, state.RunPartial, true,
		},
		"before the look that proves that it was left as ours": {
			made, map[string]string{"site/far.net/n": `{"external": true}`, "site/far.guard/g": failing}, false, done, state.RunPartial, true,
		},
		"before it is adopted": {made, made, true, started, state.RunReverted, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			if c.before != nil {
				s.Converge(t, s.Document(t, c.before))
			}
			if c.forget {
				if _, err := s.Store.Commit(t.Context(), nil, []state.Op{s.Store.ForgetOp(theNet)}); err != nil {
					t.Fatal(err)
				}
			}
			doc := s.Document(t, c.after)
			for i := range doc.Resources { // the net first
				if doc.Resources[i].Ref.Kind == "far.guard" {
					doc.Resources[i].After = []schema.Ref{theNet}
				}
			}
			p := s.Plan(t, doc, plan.Options{})
			if err := s.World.Fail(fake.Fault{Op: "create", Ref: "far.guard", Class: providers.Invalid}); err != nil {
				t.Fatal(err)
			}
			e := s.Engine(func(o *engine.Options) {
				o.Emit = func(ev event.Event) {
					if c.when(ev) {
						take(t, s)
					}
				}
			})
			defer e.Close()
			res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
			if err != nil || res.Run.Status != c.ends {
				t.Errorf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
			}
			if got := thingOf(t, s, theNet.Scope, theNet.Kind, plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil)); got.Mark != anotherSites {
				t.Errorf("it is marked %v", got.Mark)
			}
			if _, err := s.Store.Record(t.Context(), theNet); (err == nil) != c.recorded {
				t.Errorf("recorded: %v", err)
			}
		})
	}
}

func started(ev event.Event) bool {
	_, ok := ev.(event.RunStarted)
	return ok
}

func done(ev event.Event) bool {
	d, ok := ev.(event.StepDone)
	return ok && !d.Undo && d.Step.Ref == theNet
}

func TestTakenIsDrift(t *testing.T) {
	s := enginetest.New()
	doc := s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/24"}`})
	s.Converge(t, doc)
	take(t, s)
	e := s.Engine(nil)
	defer e.Close()
	report, err := e.Drift(t.Context(), doc.Site)
	if err != nil || report.Clean() || len(report.Drifted) != 1 || report.Drifted[0].Ref != theNet || report.Drifted[0].TakenBy != anotherSites {
		t.Errorf("%+v, %v", report, err)
	}
	if p := s.Plan(t, doc, plan.Options{}); len(p.Drift) > 0 || len(p.Refusals) != 1 {
		t.Errorf("the plan says it once:\n%s", enginetest.Text(p))
	}
}
