package engine_test

import (
	"errors"
	"slices"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// surveyed returns what exists on a site, by ref.
func surveyed(t *testing.T, s *enginetest.Site, o engine.Choice) (map[string]engine.Find, []engine.Leftover, error) {
	t.Helper()
	e := s.Engine(nil)
	defer e.Close()
	survey, err := e.Survey(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, []engine.Need{{Scope: schema.ScopeSite, Provider: "far"}})
	if err != nil {
		t.Fatal(err)
	}
	finds, left, err := survey.Resources(s.Kinds, o, func(schema.Ref, schema.Object) error { return nil })
	byRef := map[string]engine.Find{}
	for _, f := range finds {
		byRef[f.Ref.String()] = f
	}
	return byRef, left, err
}

// What the document only refers to comes back as that, and not as something to adopt.
func TestSurveyOfWhatIsExternal(t *testing.T) {
	s, doc := external(t)
	s.Converge(t, doc)
	finds, _, err := surveyed(t, s, engine.Choice{})
	if err != nil {
		t.Fatal(err)
	}
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
	finds, _, err := surveyed(t, s, engine.Choice{})
	if err != nil {
		t.Fatal(err)
	}
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

// The caller of an import chooses what others manage.
func TestSurveyWithChosenExternals(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, map[string]string{
		"site/far.net/n": `{"cidr": "10.0.0.0/8"}`, "site/far.net/alone": `{"cidr": "10.1.0.0/16"}`, "site/far.host/h": `{"net": "n"}`,
	}))
	finds, _, err := surveyed(t, s, engine.Choice{External: []string{"site/far.net/*"}})
	if err != nil || len(finds) != 2 || finds["site/far.net/n"].External == nil || finds["site/far.host/h"].External != nil {
		t.Errorf("%+v, %v", finds, err)
	}
	finds, _, err = surveyed(t, s, engine.Choice{Kinds: []string{"far.host"}, External: []string{"site/far.net/alone"}})
	if err != nil || len(finds) != 2 || finds["site/far.net/n"].External != nil {
		t.Errorf("%+v, %v", finds, err)
	}
	var unmatched *plan.UnmatchedError
	if _, _, err = surveyed(t, s, engine.Choice{External: []string{"site/far.nte/*"}}); !errors.As(err, &unmatched) || unmatched.Option != "external" {
		t.Errorf("a pattern that matches nothing: %v", err)
	}
}

// What no document can describe may still be referred to.
func TestSurveyOfWhatCannotBeDescribed(t *testing.T) {
	s, _ := external(t)
	if err := s.World.Put(schema.ScopeSite, "far.host", providers.Thing{ID: "11111111-0000-4000-8000-000000000004", Name: "h", Spec: schema.Object{"net": theirs}, Phase: providers.Ready}); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(nil)
	defer e.Close()
	survey, err := e.Survey(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, []engine.Need{{Scope: schema.ScopeSite, Provider: "far"}})
	if err != nil {
		t.Fatal(err)
	}
	finds, left, err := survey.Resources(s.Kinds, engine.Choice{}, func(ref schema.Ref, spec schema.Object) error {
		if ref.Kind == "far.net" && spec["external"] == nil {
			return errors.New("it is the site's own")
		}
		return nil
	})
	if err != nil || len(finds) != 2 || finds[1].External == nil || len(left) != 0 {
		t.Errorf("%+v, left out: %+v, %v", finds, left, err)
	}
}
