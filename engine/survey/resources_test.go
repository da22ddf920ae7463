package survey_test

import (
	"errors"
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
