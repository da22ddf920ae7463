package engine_test

import (
	"slices"
	"testing"

	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// surveyed returns what exists on a site, by ref.
func surveyed(t *testing.T, s *enginetest.Site) map[string]survey.Discovered {
	t.Helper()
	e := s.Engine(nil)
	defer e.Close()
	seen, err := e.Survey(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, []providers.Need{{Scope: schema.ScopeSite, Provider: "far"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	finds, _, err := seen.Resources(s.Kinds, survey.Choice{}, func(schema.Ref, schema.Object) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	byRef := map[string]survey.Discovered{}
	for _, f := range finds {
		byRef[f.Ref.String()] = f
	}
	return byRef
}

// What the document only refers to comes back as that, and not as something to adopt.
func TestSurveyOfWhatIsExternal(t *testing.T) {
	s, doc := external(t)
	s.Converge(t, doc)
	finds := surveyed(t, s)
	net, host := finds["site/far.net/theirs"], finds["site/far.host/h"]
	if net.External == nil || *net.External != (schema.External{}) || len(net.Spec) > 0 || net.Lifecycle.Adopt != "" {
		t.Errorf("the net: %+v", net)
	}
	if host.Spec["net"] != "theirs" || !slices.Contains(host.After, net.Ref) {
		t.Errorf("the host: %+v", host)
	}
}

// What another site has created is referred to by name, and declared as external where something needs it.
func TestSurveyOfWhatAnotherSiteMade(t *testing.T) {
	s, doc := external(t)
	s.Converge(t, doc)
	other := schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: "x"}
	put := func(kind, id, name string, mark providers.Mark, spec schema.Object) {
		if err := s.World.Put(schema.ScopeSite, kind, providers.Thing{ID: id, Name: name, Mark: mark, Spec: spec, Phase: providers.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	const id = "11111111-0000-4000-8000-000000000002"
	put("far.net", id, "theirs", providers.Mark{Site: "another", Ref: other, Incarnation: 1}, schema.Object{"cidr": "10.1.0.0/16"}) // a second one with this name
	put("far.net", "11111111-0000-4000-8000-000000000003", "unused", providers.Mark{Site: "another", Ref: other, Incarnation: 1}, schema.Object{"cidr": "10.2.0.0/16"})
	put("far.host", "11111111-0000-4000-8000-000000000004", "stray", providers.Mark{}, schema.Object{"net": id})
	finds := surveyed(t, s)
	for ref, of := range map[string]string{"site/far.net/theirs": theirs, "site/far.net/theirs-2": id} {
		if x := finds[ref].External; x == nil || x.ID != of {
			t.Errorf("%s: %+v", ref, finds[ref])
		}
	}
	if net := finds["site/far.host/stray"].Spec["net"]; net != "theirs-2" {
		t.Errorf("the host refers to %v", net)
	}
	if _, there := finds["site/far.net/unused"]; there {
		t.Error("what nothing refers to is written")
	}
}
