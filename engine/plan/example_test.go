package plan_test

import (
	"fmt"
	"log"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Desired, observed and recorded state make a plan. br-ex is not declared, so it is reported and left alone.
func Example() {
	kinds := schema.Kinds{
		"ovs.bridge": {Name: "ovs.bridge", Node: true, Fields: []schema.Field{{Name: "fail_mode", Type: schema.String}}},
		"ovs.port":   {Name: "ovs.port", Node: true, Fields: []schema.Field{{Name: "bridge", Type: schema.String, Ref: "ovs.bridge"}}},
	}
	bridge := schema.Ref{Scope: "gpu-01", Kind: "ovs.bridge", Name: "br-slice"}
	port := schema.Ref{Scope: "gpu-01", Kind: "ovs.port", Name: "vm-web"}
	was := schema.Object{"fail_mode": "standalone"}

	p, err := plan.Make(plan.Input{
		Kinds: kinds,
		Document: &schema.Document{
			Site: schema.Site{Name: "fra1", ID: "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"},
			Resources: []schema.Resource{
				{Ref: bridge, Spec: schema.Object{"fail_mode": "secure"}},
				{Ref: port, Spec: schema.Object{"bridge": "br-slice"}, After: []schema.Ref{bridge}},
			},
		},
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{
			{Scope: "gpu-01", Kind: "ovs.bridge"}: {
				{ID: "br-ex", Name: "br-ex", Phase: providers.Ready},
				{ID: "br-slice", Name: "br-slice", Spec: was, Phase: providers.Ready},
			},
			{Scope: "gpu-01", Kind: "ovs.port"}: nil, // observed, and there is none
		}},
		Recorded: []state.Record{{Ref: bridge, ID: "br-slice", Incarnation: 1, Spec: was}},
		Traits:   func(string, string) (providers.Traits, bool) { return fake.NodeTraits(), true },
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range p.Steps {
		fmt.Printf("%s %s, after steps %v\n", s.Action, s.Ref, s.Needs)
		for _, c := range s.Changes {
			fmt.Println(" ", c.Path, c.Before, "→", c.After)
		}
	}
	fmt.Println("unmanaged:", p.Unmanaged[0].Name)
	// Output:
	// update gpu-01/ovs.bridge/br-slice, after steps []
	//   fail_mode standalone → secure
	// create gpu-01/ovs.port/vm-web, after steps [0]
	// unmanaged: br-ex
}
