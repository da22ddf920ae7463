package engine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

const theirs = "11111111-0000-4000-8000-000000000001"

// external returns a site in which others created a net, and a document that refers to it.
func external(t *testing.T) (*enginetest.Site, *schema.Document) {
	t.Helper()
	s := enginetest.New()
	err := s.World.Put(schema.ScopeSite, "far.net", providers.Thing{ID: theirs, Name: "theirs", Spec: schema.Object{"cidr": "10.0.0.0/8"}, Phase: providers.Ready})
	if err != nil {
		t.Fatal(err)
	}
	return s, s.Document(t, map[string]string{"site/far.net/theirs": `{"external": true}`, "site/far.host/h": `{"net": "theirs"}`})
}

func TestExternalIsNeitherRecordedNorChanged(t *testing.T) {
	s, doc := external(t)
	s.Converge(t, doc)
	if p := s.Plan(t, doc, plan.Options{}); !p.Empty() || p.Unchanged != 1 || len(p.Unmanaged) > 0 {
		t.Errorf("the second plan:\n%s", enginetest.Text(p))
	}
	records, err := s.Store.Records(t.Context())
	if err != nil || len(records) != 1 || records[0].Spec["net"] != theirs {
		t.Errorf("recorded: %v, %v", records, err)
	}
	p := s.Plan(t, doc, plan.Options{Destroy: true})
	if len(p.Steps) != 1 {
		t.Errorf("to destroy:\n%s", enginetest.Text(p))
	}
}

func TestExternalThatVanishedIsDrift(t *testing.T) {
	s, doc := external(t)
	s.Converge(t, doc)
	e := s.Engine(nil)
	defer e.Close()
	report, err := e.Drift(t.Context(), doc.Site)
	if err != nil || !report.Clean() {
		t.Fatalf("as it was left: %+v, %v", report, err)
	}
	if err := s.World.Remove(schema.ScopeSite, "far.net", theirs); err != nil {
		t.Fatal(err)
	}
	report, err = e.Drift(t.Context(), doc.Site)
	if err != nil || len(report.Drifted) != 1 || report.Drifted[0].ID != theirs || !report.Drifted[0].Missing {
		t.Errorf("without it: %+v, %v", report, err)
	}
	if p := s.Plan(t, doc, plan.Options{}); len(p.Refusals) != 1 || !p.Empty() {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
}

// What a plan refers to may vanish after it was observed, or its name may pass to something else: before the run, and right
// before the call.
func TestExternalIsLookedAtAgain(t *testing.T) {
	theirNet := providers.Thing{ID: theirs, Name: "another", Spec: schema.Object{"cidr": "10.0.0.0/8"}, Phase: providers.Ready}
	for name, change := range map[string]func(*enginetest.Site) error{
		"gone":    func(s *enginetest.Site) error { return s.World.Remove(schema.ScopeSite, "far.net", theirs) },
		"renamed": func(s *enginetest.Site) error { return s.World.Put(schema.ScopeSite, "far.net", theirNet) },
	} {
		t.Run(name, func(t *testing.T) {
			s, doc := external(t)
			p := s.Plan(t, doc, plan.Options{})
			e := s.Engine(func(o *engine.Options) {
				o.Emit = func(ev event.Event) {
					if _, ok := ev.(event.RunStarted); ok {
						if err := change(s); err != nil {
							t.Error(err)
						}
					}
				}
			})
			defer e.Close()
			res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
			if err != nil || res.Run.Status != state.RunReverted || !strings.Contains(res.Run.Message, "site/far.net/theirs") {
				t.Errorf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
			}
			if n := s.World.Count("create"); n != 0 {
				t.Errorf("%d creates were called", n)
			}

			s, doc = external(t)
			p = s.Plan(t, doc, plan.Options{})
			if err := change(s); err != nil {
				t.Fatal(err)
			}
			_, err = s.Apply(p, engine.ApplyOptions{})
			var stale *engine.StaleError
			if !errors.As(err, &stale) || !slices.ContainsFunc(stale.Reasons, func(d event.Difference) bool { return d.Ref.Name == "theirs" }) {
				t.Errorf("applied: %v", err)
			}
		})
	}
}
