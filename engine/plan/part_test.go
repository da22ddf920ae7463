package plan_test

import (
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// A thing of a resource that the inputs leave out cannot be adopted by another.
func TestPartTakesNothingFromOthers(t *testing.T) {
	at := schema.Place{Scope: "site", Kind: "far.guard"}
	other := schema.Ref{Scope: "site", Kind: "far.guard", Name: "other"}
	for _, part := range []*plan.Part{nil, {Declared: 2, Of: 2, Since: 7, Owners: map[schema.Place]map[string]schema.Ref{at: {"x": other}}}} {
		p, err := plan.Make(plan.Input{
			ID: "p", Kinds: enginetest.Kinds(), Part: part,
			Document: &schema.Document{Site: schema.Site{Name: "s", ID: enginetest.SiteID}, Resources: []schema.Resource{
				{Ref: schema.Ref{Scope: "site", Kind: "far.guard", Name: "g"}, Spec: schema.Object{}, Lifecycle: schema.Lifecycle{Adopt: schema.AdoptMatch}},
			}},
			Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{at: {{ID: "x", Name: "g", Spec: schema.Object{}, Phase: providers.Ready}}}},
			Traits:   func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
		})
		if err != nil {
			t.Fatal(err)
		}
		want := plan.Update // adopted, and marked
		if part != nil {
			want = plan.Create
		}
		if len(p.Steps) != 1 || p.Steps[0].Action != want {
			t.Errorf("with %+v: %+v", part, p.Steps)
		}
		if part != nil && (p.Narrowed == nil || *p.Narrowed != plan.Narrowed{Resources: 1, Of: 2, Since: 7} || len(p.Unmanaged) > 0) {
			t.Errorf("it says %+v, and lists %v", p.Narrowed, p.Unmanaged)
		}
	}
}
