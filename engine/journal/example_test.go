package journal_test

import (
	"context"
	"fmt"
	"log"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A process dies in its second step: the journal shows that the first is done, and that the outcome of the second is
// unknown.
func Example() {
	ctx := context.Background()
	store := state.New(mem.New(mem.Options{}), "fra1")
	lock, err := store.Lock(ctx, state.LockInfo{Operation: "apply"}, state.LockOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Close()
	begun, err := journal.Start(ctx, store, lock, "run-1", "digest of the plan", nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	j, err := journal.Open(ctx, store, lock, "run-1", begun)
	if err != nil {
		log.Fatal(err)
	}
	vpc := schema.Ref{Scope: "site", Kind: "carbide.vpc", Name: "prod"}
	segment := schema.Ref{Scope: "site", Kind: "carbide.network_segment", Name: "prod-a"}
	for _, r := range []journal.Record{
		{Kind: journal.Intent, Step: 0, Action: plan.Create, Ref: vpc},
		{Kind: journal.Outcome, Step: 0, Ref: vpc, Result: journal.Done},
		{Kind: journal.Intent, Step: 1, Action: plan.Create, Ref: segment},
	} {
		if err := j.Append(ctx, r); err != nil {
			log.Fatal(err)
		}
	}
	j.Close()

	written, err := journal.Read(ctx, store, "run-1")
	if err != nil {
		log.Fatal(err)
	}
	sum, err := journal.Sum(written.Records, 2)
	fmt.Println(len(written.Records), "records", err)
	fmt.Println("the first step is done:", sum.Forward[0].Finished())
	fmt.Println("to find out about:", sum.Forward[1].Open.Action, sum.Forward[1].Open.Ref)
	// Output:
	// 4 records <nil>
	// the first step is done: true
	// to find out about: create site/carbide.network_segment/prod-a
}
