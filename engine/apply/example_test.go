package apply_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// The second step of a plan fails, so the first one is undone. Package engine does all this, and more, for a command.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	kinds := schema.Kinds{"lab.vm": {Name: "lab.vm"}}
	world := fake.New(kinds)
	check(world.Fail(fake.Fault{Op: "create", Ref: "site/lab.vm/web", Class: providers.Invalid}))
	set, err := providers.NewSet(world.Provider("lab", schema.ScopeSite))
	check(err)
	db, web := schema.Ref{Scope: "site", Kind: "lab.vm", Name: "db"}, schema.Ref{Scope: "site", Kind: "lab.vm", Name: "web"}
	p, err := plan.Make(plan.Input{
		Kinds: kinds,
		Document: &schema.Document{
			Site:      schema.Site{Name: "fra1", ID: "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"},
			Resources: []schema.Resource{{Ref: db}, {Ref: web, After: []schema.Ref{db}}},
		},
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{{Scope: "site", Kind: "lab.vm"}: nil}},
		Traits:   func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
	})
	check(err)

	store := state.New(mem.New(mem.Options{}), "fra1")
	lock, err := store.Lock(ctx, state.LockInfo{Operation: "apply"}, state.LockOptions{})
	check(err)
	defer lock.Close()
	run := state.Run{ID: "run-1", Status: state.RunOpen, Plan: "digest of the plan", Steps: len(p.Steps)}
	begun, err := journal.Start(ctx, store, lock, run.ID, run.Plan, nil, []state.Op{store.PutRunOp(run)})
	check(err)
	run, _, err = apply.Carry(ctx, apply.Options{
		Kinds: kinds, Providers: set, Store: store, Lock: lock, Plan: p, Run: run, Log: begun,
		OnFailure: apply.Rollback, Parallelism: 1, Emit: func(event.Event) {}, Logger: slog.New(slog.DiscardHandler),
	})
	for _, c := range world.Log() {
		fmt.Println(c.Op, c.Call.Ref, c.Err)
	}
	fmt.Println(run.Status, err)
	// Output:
	// create site/lab.vm/db <nil>
	// create site/lab.vm/web create site/lab.vm/web: injected fault of class invalid
	// delete site/lab.vm/db <nil>
	// reverted <nil>
}
