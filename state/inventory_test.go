package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// Between the transactions of a large update, a reader that asks for changes gets what is stored by then, and later the rest:
// nothing is stored at a revision that a reader already knows.
func TestInventoryIsWholeInTheMiddle(t *testing.T) {
	var other *state.Store
	have, since, times := map[string]string{}, int64(0), 0
	ask := func() {
		inv, err := other.Inventory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		times++
		all := 0
		for _, p := range inv.Places {
			for _, it := range p.Items {
				if it.Revision > since {
					have[p.Scope] = it.Digest
				}
				if all++; have[p.Scope] != it.Digest {
					t.Fatalf("what changed in %s at revision %d was not told to who knew %d", p.Scope, it.Revision, since)
				}
			}
		}
		if since = inv.Revision; all != len(have) {
			t.Fatalf("%d items, %d were told", all, len(have))
		}
	}
	kv := mem.New(mem.Options{Fault: func(c mem.Call) error {
		if c.Done && c.Name == "commit" && slices.ContainsFunc(c.Keys, func(k string) bool { return strings.HasSuffix(k, "/inventory/head") }) {
			ask()
		}
		return nil
	}})
	s := state.New(kv, "fra1")
	other = state.New(kv.Connect(mem.Options{}), "fra1")
	for round := range 2 {
		was, err := s.Inventory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var next []state.InventoryPlace
		for i := range 300 {
			next = append(next, state.InventoryPlace{Place: schema.Place{Scope: fmt.Sprintf("n%03d", i), Kind: "a.b"}, Items: []state.InventoryItem{{ID: "x", Digest: fmt.Sprint(round)}}})
		}
		if _, err := s.PutInventory(t.Context(), was, next, 0, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if times < 6 || len(have) != 300 {
		t.Errorf("asked %d times, and told of %d", times, len(have))
	}
}
