package survey_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// of returns a survey in which these things are observed. With a run, each is recorded as made by it.
func of(run string, things map[string][]providers.Thing) *survey.Survey {
	s := &survey.Survey{
		Site:     schema.Site{Name: "test", ID: enginetest.SiteID},
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{}},
		Traits:   func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
	}
	for kind, list := range things {
		s.Observed.Things[schema.Place{Scope: schema.ScopeSite, Kind: kind}] = list
		for i := range list {
			if t := &list[i]; run != "" {
				ref := schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: t.Name}
				t.Mark = providers.Mark{Site: s.Site.ID, Ref: ref, Incarnation: 1}
				s.Recorded = append(s.Recorded, state.Record{Ref: ref, ID: t.ID, Incarnation: 1, Spec: t.Spec, Run: run})
			}
		}
	}
	return s
}

// resources writes what a survey found, by ref.
func resources(s *survey.Survey, o survey.Choice) (map[string]survey.Discovered, error) {
	finds, _, err := s.Resources(enginetest.Kinds(), o, func(schema.Ref, schema.Object) error { return nil })
	byRef := map[string]survey.Discovered{}
	for _, f := range finds {
		byRef[f.Ref.String()] = f
	}
	return byRef, err
}

// The caller of an import chooses what others manage.
func TestChosenExternals(t *testing.T) {
	s := of("run-1", map[string][]providers.Thing{
		"far.net":  {{ID: "net-1", Name: "n", Spec: schema.Object{"cidr": "10.0.0.0/8"}}, {ID: "net-2", Name: "alone", Spec: schema.Object{"cidr": "10.1.0.0/16"}}},
		"far.host": {{ID: "host-1", Name: "h", Spec: schema.Object{"net": "net-1"}}},
	})
	finds, err := resources(s, survey.Choice{External: []string{"site/far.net/*"}})
	if err != nil || len(finds) != 2 || finds["site/far.net/n"].External == nil || finds["site/far.host/h"].External != nil {
		t.Errorf("%+v, %v", finds, err)
	}
	finds, err = resources(s, survey.Choice{Kinds: []string{"far.host"}, External: []string{"site/far.net/alone"}})
	if err != nil || len(finds) != 2 || finds["site/far.net/n"].External != nil {
		t.Errorf("%+v, %v", finds, err)
	}
	var unmatched *plan.UnmatchedError
	if _, err = resources(s, survey.Choice{External: []string{"site/far.nte/*"}}); !errors.As(err, &unmatched) || unmatched.Option != "external" {
		t.Errorf("a pattern that matches nothing: %v", err)
	}
}

// What no document can describe may still be referred to.
func TestWhatCannotBeDescribed(t *testing.T) {
	s := of("", map[string][]providers.Thing{
		"far.net":  {{ID: "net-1", Name: "theirs", Spec: schema.Object{"cidr": "10.0.0.0/8"}}},
		"far.host": {{ID: "host-1", Name: "h", Spec: schema.Object{"net": "net-1"}}},
	})
	finds, left, err := s.Resources(enginetest.Kinds(), survey.Choice{}, func(ref schema.Ref, spec schema.Object) error {
		if ref.Kind == "far.net" && spec["external"] == nil {
			return errors.New("it is the site's own")
		}
		return nil
	})
	if err != nil || len(finds) != 2 || finds[1].External == nil || len(left) != 0 {
		t.Errorf("%+v, left out: %+v, %v", finds, left, err)
	}
}

// What somebody else will take away, or what the step that marks it would wait for in vain, is left out; what is managed stays in the document.
func TestLeftOut(t *testing.T) {
	unready := func() map[string][]providers.Thing {
		return map[string][]providers.Thing{
			"far.net":   {{ID: "net-1", Name: "passing", Spec: schema.Object{}, Passing: "it goes"}},
			"far.guard": {{ID: "guard-1", Name: "failed", Spec: schema.Object{}, Phase: providers.Failed, Detail: "no disk"}},
			"far.host":  {{ID: "host-1", Name: "h", Spec: schema.Object{"net": "net-1"}, Phase: providers.Pending, Detail: "it boots"}},
			"far.subnet": {
				{ID: "subnet-1", Name: "sub", Spec: schema.Object{"net": "net-1"}, Phase: providers.Ready},
				{ID: "subnet-2", Name: "lost", Spec: schema.Object{"net": "net-9"}, Phase: providers.Ready},
			},
		}
	}
	fits := func(_ schema.Ref, spec schema.Object) error {
		if spec["net"] == "net-9" {
			return errors.New("that is no name")
		}
		return nil
	}
	leave := func(s *survey.Survey) (finds []survey.Discovered, left map[string]string) {
		t.Helper()
		finds, all, err := s.Resources(enginetest.Kinds(), survey.Choice{}, fits)
		if err != nil {
			t.Fatal(err)
		}
		left = map[string]string{}
		for _, l := range all {
			left[l.Name] = l.Reason
		}
		return finds, left
	}
	finds, left := leave(of("", unready()))
	want := map[string]string{"failed": "it has failed: no disk", "h": "it is not ready: it boots", "lost": "it refers to the far.net net-9, which was not found"}
	if !maps.Equal(left, want) || len(finds) != 2 || finds[0].External == nil || finds[0].Why != "it goes" || finds[1].Ref.Name != "sub" {
		t.Errorf("left out: %q; found: %+v", left, finds)
	}

	s := of("", unready())
	s.Observed.Unknown = map[schema.Place]string{{Scope: schema.ScopeSite, Kind: "far.*"}: "it does not answer"}
	if _, left = leave(s); left["lost"] != "it refers to the far.net net-9, and these could not be observed: it does not answer" {
		t.Errorf("left out: %q", left)
	}
	if finds, left = leave(of("run-1", unready())); len(finds) != 4 || len(left) != 1 || left["lost"] != "that is no name" {
		t.Errorf("of what is managed, left out: %q; found: %+v", left, finds)
	}
	s = of("", unready())
	s.Traits = func(string, string) (providers.Traits, bool) {
		return providers.Traits{Update: providers.Versioned}, true
	}
	if _, left = leave(s); len(left) != 1 { // nothing is marked, so nothing waits
		t.Errorf("left out: %q", left)
	}
}

// Nobody has asked the far side to do what it does by itself, and a document that states it would. Empty maps say nothing.
func TestUnasked(t *testing.T) {
	kinds := enginetest.Kinds()
	k := *kinds["far.host"]
	k.Fields = append(slices.Clone(k.Fields), schema.Field{Name: "power", Type: schema.String, Kept: true}, schema.Field{Name: "fresh", Type: schema.Bool, Default: true})
	kinds["far.host"] = &k
	spec := schema.Object{"power": "on", "fresh": false, "size": int64(1), "labels": map[string]any{}}
	for run, want := range map[string]schema.Object{"": {"size": int64(1)}, "run-1": spec} {
		s := of(run, map[string][]providers.Thing{"far.host": {{ID: "host-1", Name: "h", Spec: spec}}})
		s.Traits = func(string, string) (providers.Traits, bool) {
			t := fake.SiteTraits()
			t.SelfChanging = []string{"power", "fresh"}
			return t, true
		}
		finds, _, err := s.Resources(kinds, survey.Choice{}, func(schema.Ref, schema.Object) error { return nil })
		if err != nil || !finds[0].Spec.Equal(want) || (finds[0].Seen["power"] == "on") != (run == "") || slices.Equal(finds[0].Lifecycle.Ignore, []string{"fresh"}) != (run == "") {
			t.Errorf("made by run %q: %+v, %v", run, finds, err)
		}
	}
}
