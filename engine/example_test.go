package engine_test

import (
	"context"
	"fmt"
	"log"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A document becomes a plan, the plan a run; after that there is nothing left to do.
func Example() {
	ctx := context.Background()
	kinds, err := kinds.New()
	if err != nil {
		log.Fatal(err)
	}
	doc, problems := load.Document(ctx, kinds, load.Options{}, load.Source{Name: "site.cue", Data: []byte(`
apiVersion: "converge.dev/v1"
site: {name: "fra1", id: "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"}
nodes: "gpu-01": ovs: {
	bridge: "br-slice": fail_mode: "secure"
	port: "vm-web": {bridge: "br-slice", tag: 20}
}`)})
	if err := problems.Err(); err != nil {
		log.Fatal(err)
	}

	world := fake.New(kinds.Kinds())
	e := engine.New(engine.Options{
		Kinds: kinds.Kinds(), Store: state.New(mem.New(mem.Options{}), doc.Site.Name),
		Open: func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			return providers.NewSet(world.Provider("ovs", "gpu-01")) // in practice: those that are needed
		},
	})
	defer e.Close()

	p, err := e.Plan(ctx, doc, plan.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range p.Steps {
		fmt.Println(s.Action, s.Ref)
	}
	done, err := e.Apply(ctx, p, engine.ApplyOptions{})
	fmt.Println(done.Run.Status, err)
	p, err = e.Plan(ctx, doc, plan.Options{})
	fmt.Println("nothing to do:", p.Empty(), err)
	// Output:
	// create gpu-01/ovs.bridge/br-slice
	// create gpu-01/ovs.port/vm-web
	// applied <nil>
	// nothing to do: true <nil>
}
