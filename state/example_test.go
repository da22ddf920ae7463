package state_test

import (
	"context"
	"errors"
	"fmt"

	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// One process holds the lock and records what it created; another one has to wait, and breaks the lock.
func Example() {
	ctx := context.Background()
	site := state.New(mem.New(mem.Options{}), "fra1")

	lock, err := site.Lock(ctx, state.LockInfo{Operation: "apply", Who: "ann@host"}, state.LockOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Close()
	vpc := schema.Ref{Scope: "site", Kind: "carbide.vpc", Name: "prod"}
	_, err = lock.Commit(ctx, nil, []state.Op{site.RecordOp(state.Record{Ref: vpc, ID: "7c0e"})})
	fmt.Println("epoch", lock.Epoch(), "recorded:", err == nil)

	_, err = site.Lock(ctx, state.LockInfo{Operation: "apply", Who: "bob@host"}, state.LockOptions{})
	var locked *state.LockedError
	fmt.Println("held by somebody else:", errors.As(err, &locked), locked.Info.Who)

	fmt.Println(site.ForceUnlock(ctx, locked.Info.ID, "bob@host", "ann's machine is gone"))
	_, err = lock.Commit(ctx, nil, []state.Op{site.ForgetOp(vpc)})
	fmt.Println("ann:", err)
	// Output:
	// epoch 1 recorded: true
	// held by somebody else: true ann@host
	// <nil>
	// ann: the site lock is no longer held
}
