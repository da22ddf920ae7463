package event_test

import (
	"context"
	"fmt"
	"log"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A view is a sink that shows the events it knows, and skips all others.
func Example() {
	ctx := context.Background()
	kinds, err := kinds.New()
	if err != nil {
		log.Fatal(err)
	}
	doc, problems := load.Document(ctx, kinds, load.Options{}, load.Source{Name: "site.cue", Data: []byte(`
apiVersion: "converge.dev/v1"
site: {name: "fra1", id: "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"}
carbide: tenant: acme: {}`)})
	if err := problems.Err(); err != nil {
		log.Fatal(err)
	}
	world := fake.New(kinds.Kinds())
	e := engine.New(engine.Options{
		Kinds: kinds.Kinds(), Store: state.New(mem.New(mem.Options{}), doc.Site.Name),
		Open: func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			return providers.NewSet(world.Provider("carbide", schema.ScopeSite))
		},
		Emit: func(e event.Event) {
			switch e := e.(type) {
			case event.RunStarted:
				fmt.Println("steps:", len(e.Plan.Steps))
			case event.StepStarted:
				fmt.Println(e.Step.Action, e.Step.Ref)
			case event.StepDone:
				fmt.Println("done and seen:", e.Step.Ref)
			case event.RunEnded:
				fmt.Println(e.Run.Status)
			}
		},
	})
	defer e.Close()
	p, err := e.Plan(ctx, doc, plan.Options{})
	if err == nil {
		_, err = e.Apply(ctx, p, engine.ApplyOptions{})
	}
	fmt.Println(err)
	// Output:
	// steps: 1
	// create site/carbide.tenant/acme
	// done and seen: site/carbide.tenant/acme
	// applied
	// <nil>
}
