package plan_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// What is wrong with a thing that is as declared is a remark, also in a saved plan; what is not ready, not declared or replaced has none.
func TestRemarks(t *testing.T) {
	in := plan.Input{
		Kinds:    enginetest.Kinds(),
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{}},
		Traits:   func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
	}
	declared := map[string]string{}
	at := schema.Place{Scope: schema.ScopeSite, Kind: "far.net"}
	for name, of := range map[string]struct {
		phase      providers.Phase
		cidr       string
		undeclared bool
	}{
		"as-declared": {phase: providers.Ready}, "pending": {phase: providers.Pending}, "failed": {phase: providers.Failed},
		"replaced": {phase: providers.Ready, cidr: "10.0.0.0/8"}, "undeclared": {phase: providers.Ready, undeclared: true},
	} {
		ref := schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: name}
		spec := schema.Object{"cidr": "10.9.0.0/16"}
		id := plan.ExternalID(enginetest.SiteID, fake.SiteTraits(), ref, 1, spec)
		in.Recorded = append(in.Recorded, state.Record{Ref: ref, ID: id, Incarnation: 1, Spec: spec})
		in.Observed.Things[at] = append(in.Observed.Things[at], providers.Thing{
			ID: id, Name: name, Mark: providers.Mark{Site: enginetest.SiteID, Ref: ref, Incarnation: 1}, Spec: spec, Phase: of.phase, Detail: "it has crashed",
		})
		if of.undeclared {
			continue
		}
		declared[ref.String()] = fmt.Sprintf(`{"cidr":%q}`, cmp.Or(of.cidr, "10.9.0.0/16"))
	}
	in.Document = enginetest.New().Document(t, declared)
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := p.EncodeFile(nil)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := plan.DecodeFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []plan.Remark{{Ref: schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: "as-declared"}, Detail: "it has crashed"}}
	for how, is := range map[string][]plan.Remark{"made": p.Remarks, "read": saved.Plan.Remarks} {
		if !slices.Equal(is, want) {
			t.Errorf("%s: %+v", how, is)
		}
	}
}
