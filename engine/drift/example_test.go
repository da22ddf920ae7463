package drift_test

import (
	"fmt"
	"log"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Of three bridges that converge created, another client changed one and removed another.
func Example() {
	at := schema.Place{Scope: "gpu-01", Kind: "ovs.bridge"}
	secure := schema.Object{"fail_mode": "secure"}
	made := func(name string) state.Record {
		return state.Record{Ref: schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: name}, ID: name, Incarnation: 1, Spec: secure, Run: "run-1"}
	}
	seen := func(name string, spec schema.Object) providers.Thing {
		return providers.Thing{ID: name, Name: name, Spec: spec, Phase: providers.Ready}
	}
	report, err := drift.Compare(plan.Input{
		Kinds:    schema.Kinds{at.Kind: {Name: at.Kind, Node: true, Fields: []schema.Field{{Name: "fail_mode", Type: schema.String}}}},
		Document: &schema.Document{Site: schema.Site{Name: "fra1", ID: "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"}},
		Recorded: []state.Record{made("br-a"), made("br-b"), made("br-c")},
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{at: {
			seen("br-a", secure), seen("br-b", schema.Object{"fail_mode": "standalone"}),
		}}},
		Traits: func(string, string) (providers.Traits, bool) { return fake.NodeTraits(), true },
	}, time.Now())
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range report.Drifted {
		fmt.Println(d.Ref, "missing:", d.Missing)
		for _, c := range d.Changes {
			fmt.Println(" ", c.Path, c.Before, "→", c.After)
		}
	}
	fmt.Println(len(report.Drifted), "of", report.Recorded, "drifted; all was seen:", report.Complete)
	// Output:
	// gpu-01/ovs.bridge/br-b missing: false
	//   fail_mode secure → standalone
	// gpu-01/ovs.bridge/br-c missing: true
	// 2 of 3 drifted; all was seen: true
}
