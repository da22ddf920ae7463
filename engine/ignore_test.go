package engine_test

import (
	"slices"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/enginetest"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// What a document ignores is nobody's drift: neither where it states a value nor where it states none, neither in a report
// nor in a plan, and an import does not ask for it either.
func TestIgnoredIsNoDrift(t *testing.T) {
	const spec = `{"size": 1, "labels": {"fra1.example/who": "us", "ours": "yes"}, "lifecycle": {"ignore": ["size", "labels.fra1.example/who", "labels.unstated", "guard"]}}`
	s := enginetest.New()
	net, guard := `{"cidr": "10.0.0.0/8"}`, `{"size": 1}`
	document := func(host string) *schema.Document {
		return s.Document(t, map[string]string{"site/far.net/n": net, "site/far.guard/g": guard, "site/far.host/h": host})
	}
	host := `{"net": "n", ` + spec[1:]
	s.Converge(t, document(host))
	thing := func(kind, name string) providers.Thing {
		t.Helper()
		r, err := s.Store.Record(t.Context(), schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return thingOf(t, s, schema.ScopeSite, kind, r.ID)
	}
	stranger := func(changes map[string]any) {
		t.Helper()
		th := thing("far.host", "h")
		for field, v := range changes {
			th.Spec[field] = v
		}
		if err := s.World.Put(schema.ScopeSite, "far.host", th); err != nil {
			t.Fatal(err)
		}
	}
	labels := map[string]any{"fra1.example/who": "a stranger", "ours": "yes", "unstated": "too"}
	stranger(map[string]any{"size": int64(7), "guard": thing("far.guard", "g").ID, "labels": labels})
	e := s.Engine(nil)
	defer e.Close()
	report, err := e.Drift(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID})
	if err != nil || !report.Clean() {
		t.Errorf("drift %+v, unstated %+v, %v", report.Drifted, report.Unstated, err)
	}
	if p := s.Plan(t, document(host), plan.Options{}); !p.Empty() || len(p.Drift) > 0 {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	finds, _, err := surveyed(t, s, engine.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	found := s.Document(t, nil)
	for _, f := range finds {
		found.Resources = append(found.Resources, f.Resource)
	}
	slices.SortFunc(found.Resources, func(a, b schema.Resource) int { return a.Ref.Compare(b.Ref) })
	if p := s.Plan(t, found, plan.Options{}); !p.Empty() {
		t.Errorf("of what is imported:\n%s", enginetest.Text(p))
	}

	// What differs beside it is drift, and mending that leaves alone what is ignored.
	labels["ours"] = "no"
	stranger(map[string]any{"labels": labels})
	p := s.Plan(t, document(host), plan.Options{})
	if len(p.Drift) != 1 || len(p.Drift[0].Changes) != 1 || p.Drift[0].Changes[0].Path != "labels.ours" {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	s.Converge(t, document(host))
	if have := thing("far.host", "h"); have.Spec["size"] != int64(7) || have.Spec["labels"].(map[string]any)["fra1.example/who"] != "a stranger" {
		t.Errorf("left as %v", have.Spec)
	}

	// It is drift again once nothing is ignored; until that is applied, the report goes by what was applied.
	bare := `{"net": "n", "size": 1, "labels": {"fra1.example/who": "us", "ours": "yes"}}`
	if p := s.Plan(t, document(bare), plan.Options{}); len(p.Steps) != 1 || len(p.Steps[0].Changes) != 2 {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	s.Converge(t, document(bare))
	stranger(map[string]any{"size": int64(9)})
	if report, err = e.Drift(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}); err != nil || len(report.Drifted) != 1 {
		t.Errorf("drift %+v, %v", report, err)
	}
}

// That something is ignored from now on is remembered, although nothing changes.
func TestIgnoringIsRemembered(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1}`}))
	p := s.Converge(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1, "lifecycle": {"ignore": ["size", "labels"]}}`}))
	if len(p.Steps) != 1 || p.Steps[0].Action != plan.Adopt {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	if p := s.Plan(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1, "lifecycle": {"ignore": ["labels", "size"]}}`}), plan.Options{}); !p.Empty() {
		t.Errorf("in another order:\n%s", enginetest.Text(p))
	}
}
