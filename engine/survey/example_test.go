package survey_test

import (
	"fmt"
	"log"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A bridge that somebody made by hand becomes a resource that takes it over, and an item of the inventory.
func Example() {
	at := schema.Place{Scope: "gpu-01", Kind: "ovs.bridge"}
	kinds := schema.Kinds{at.Kind: {Name: at.Kind, Node: true, Fields: []schema.Field{{Name: "fail_mode", Type: schema.String}}}}
	seen := survey.Survey{
		Site: schema.Site{Name: "fra1", ID: "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"},
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{at: {
			{ID: "br-a", Name: "br-a", Spec: schema.Object{"fail_mode": "secure"}, Phase: providers.Ready},
		}}},
		Traits: func(string, string) (providers.Traits, bool) { return fake.NodeTraits(), true },
	}
	finds, _, err := seen.Resources(kinds, survey.Choice{}, func(schema.Ref, schema.Object) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range finds {
		fmt.Println(f.Ref, f.Spec, "adopt:", f.Lifecycle.Adopt)
	}
	inv, _, _, _ := seen.Inventory(kinds, state.Inventory{}, time.Now(), nil)
	for _, i := range inv.Items {
		fmt.Println(i.Scope, i.Kind, i.Name, i.Health)
	}
	// Output:
	// gpu-01/ovs.bridge/br-a map[fail_mode:secure] adopt: match
	// gpu-01 ovs.bridge br-a ok
}
