package engine_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/loadtest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

// From one revision of a document to the next and to its plan, nothing is read or decided again that stays as it is; the plan is
// that of the whole document.
func TestPlanOfRevisions(t *testing.T) {
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	current, ds := load.NewCurrent(t.Context(), s, load.Source{Name: "site.json", Data: loadtest.Site(120)})
	if current == nil {
		t.Fatal(ds)
	}
	in := plan.Input{
		ID: "p", Kinds: s.Kinds(), Document: current.Document(),
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{}},
		Traits:   func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
	}
	for _, r := range in.Document.Resources {
		in.Observed.Things[r.Ref.Place()] = nil
	}
	planner, _, err := plan.NewPlanner(in)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	removed := 0
	for n := range 24 {
		refs := current.Document().Resources
		was := refs[rnd.IntN(len(refs))]
		edit, remove := fmt.Sprintf(`{"carbide": {"vpc": {"vpc-%d": {"tenant": "tenant-0"}}}}`, 1000+n), []schema.Ref{was.Ref}
		if n%3 == 0 {
			remove = nil
		}
		rev, ds := current.Revise(t.Context(), load.Source{Name: "edit.json", Data: []byte(edit)}, remove...)
		if rev == nil { // something refers to it
			if !strings.Contains(fmt.Sprint(ds), "CV1101") {
				t.Fatal(ds)
			}
			continue
		}
		got, err := planner.Plan(plan.Changes{ID: "p", Document: rev.Document, Resources: rev.Resources})
		if err != nil {
			t.Fatal(err)
		}
		in.Document = current.Document()
		want, err := plan.Make(in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("revision %d (-want +got):\n%s", n, diff)
		}
		removed += len(remove)
	}
	if removed == 0 {
		t.Error("nothing was removed")
	}
}
