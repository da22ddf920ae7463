package statetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// whole compares the contents of two inventories.
var whole = cmp.Options{cmpopts.IgnoreUnexported(state.Inventory{}, state.InventoryPlace{}), cmpopts.EquateEmpty()}

// inventory: what is put is read, each change with its revision, and what did not change is not written.
func inventory(t *testing.T, kv state.KV, site string) {
	s, ctx, at := state.New(kv, site), t.Context(), time.Unix(1_700_000_000, 0).UTC()
	const places, each = 300, 3 // more than one transaction takes
	read := func() state.Inventory {
		t.Helper()
		inv, err := s.Inventory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return inv
	}
	put := func(was state.Inventory, next []state.InventoryPlace, oldest int64) state.Inventory {
		t.Helper()
		now, err := s.PutInventory(ctx, was, next, oldest, at)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(); !cmp.Equal(got, now, whole) {
			t.Fatalf("it is read as it was not put:\n%s", cmp.Diff(now, got, whole))
		}
		return now
	}
	if inv := read(); inv.Revision != 0 || len(inv.Places) > 0 {
		t.Errorf("it begins with %+v", inv)
	}
	var next []state.InventoryPlace
	for i := range places {
		p := state.InventoryPlace{Place: schema.Place{Scope: fmt.Sprintf("n%03d", i), Kind: "a.b"}}
		for j := range each {
			p.Items = append(p.Items, state.InventoryItem{ID: fmt.Sprint(j), Digest: "d"})
		}
		next = append(next, p)
	}
	next[7].Items = nil
	for j := range 20_000 {
		it := state.InventoryItem{ID: fmt.Sprintf("%06d", j), Digest: fmt.Sprintf("%064d", j)}
		if j%100 == 0 {
			it.Shown = fmt.Appendf(nil, `{"id":"%06d","name":"n%d"}`, j, j)
		}
		next[7].Items = append(next[7].Items, it)
	}
	first := put(read(), next, 0)
	for _, p := range first.Places {
		for _, it := range p.Items {
			if it.Revision < 1 || it.Revision > first.Revision {
				t.Fatalf("%s of %s changed at %d of %d", it.ID, p.Scope, it.Revision, first.Revision)
			}
		}
	}
	if len(first.Places) != places || next[0].Items[0].Revision != 0 {
		t.Errorf("%d places, want %d; what was given is changed: %t", len(first.Places), places, next[0].Items[0].Revision != 0)
	}

	// One item in the middle of the large place, and a place that ends.
	keys := func() map[string]int64 {
		m := map[string]int64{}
		for _, it := range list(t, kv, "/converge/"+site+"/inventory/") {
			m[it.Key] = it.Modified
		}
		return m
	}
	had := keys()
	next = slices.Clone(first.Places)
	next[7].Items = slices.Clone(next[7].Items)
	next[7].Items[9_999] = state.InventoryItem{ID: next[7].Items[9_999].ID, Deleted: &at}
	next[9].Items = nil
	second := put(read(), next, first.Revision)
	if it := second.Places[7].Items[9_999]; second.Revision != first.Revision+1 || second.Oldest != first.Revision || it.Revision != second.Revision || !it.Deleted.Equal(at) {
		t.Errorf("revision %d after %d, oldest %d: %+v", second.Revision, first.Revision, second.Oldest, it)
	}
	if len(second.Places) != places-1 {
		t.Errorf("%d places, want one less than %d", len(second.Places), places)
	}
	changed := 0
	for key, modified := range keys() {
		if had[key] != modified {
			changed++
		}
		delete(had, key)
	}
	if changed > 5 || len(had) > 5 { // the head, the place, and what is around the item; as much is removed, and the place that ended
		t.Errorf("%d keys were written and %d removed for two changes", changed, len(had))
	}

	// A writer that has not read the newest cannot write.
	if _, err := s.PutInventory(ctx, first, next, 0, at); !errors.Is(err, state.ErrGuard) {
		t.Errorf("an older one is continued: %v", err)
	}
	// What late writers have left behind is removed by the next.
	next = slices.Clone(second.Places)
	next[0].Items = slices.Clone(next[0].Items)
	next[0].Items[0].Revision = 0
	last := put(read(), next, 0)
	chunks := 0
	for _, it := range list(t, kv, "/converge/"+site+"/inventory/at/") {
		chunks += strings.Count(string(it.Value), `"`)/2 - 4 // v, its checksum with two, and the name of the list
	}
	if got := len(list(t, kv, "/converge/"+site+"/inventory/chunk/")); got != chunks {
		t.Errorf("%d chunks are there, %d are of a place (revision %d)", got, chunks, last.Revision)
	}
}

// inventoryRace: many write at the same time, each what it sees; a reader that asks for the changes since the last revision that
// it received misses nothing.
func inventoryRace(t *testing.T, kv state.KV, site string) {
	s, ctx, at := state.New(kv, site), t.Context(), time.Unix(1_700_000_000, 0).UTC()
	const writers, each, places = 3, 3, 100
	told := func(have map[string]state.InventoryItem, inv state.Inventory, since int64) {
		for _, p := range inv.Places {
			for _, it := range p.Items {
				if it.Revision > since {
					have[p.Scope+"/"+it.ID] = it
				}
			}
		}
	}
	check := func(have map[string]state.InventoryItem, inv state.Inventory) {
		all := map[string]state.InventoryItem{}
		told(all, inv, 0)
		if !cmp.Equal(have, all) {
			t.Errorf("what was told bit by bit is not what is there:\n%s", cmp.Diff(all, have))
		}
	}
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(w)))
			have, since := map[string]state.InventoryItem{}, int64(0)
			for n := 0; n < each; {
				inv, err := s.Inventory(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				next := make([]state.InventoryPlace, places)
				was := map[string]state.InventoryPlace{}
				for _, p := range inv.Places {
					was[p.Scope] = p
				}
				for i := range next {
					next[i] = state.InventoryPlace{Place: schema.Place{Scope: fmt.Sprintf("n%03d", i), Kind: "a.b"}}
					next[i].Items = slices.Clone(was[next[i].Scope].Items)
					switch {
					case len(next[i].Items) == 0:
						next[i].Items = []state.InventoryItem{{ID: "x", Digest: fmt.Sprint(rng.Int())}}
					case n%2 == 0 || rng.IntN(50) == 0: // everything changes, or a little
						next[i].Items[0] = state.InventoryItem{ID: "x", Digest: fmt.Sprint(rng.Int())}
					}
				}
				now, err := s.PutInventory(ctx, inv, next, 0, at)
				if errors.Is(err, state.ErrGuard) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				n++
				told(have, now, since)
				since = now.Revision
				check(have, now)
			}
		})
	}
	over := make(chan struct{})
	var reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			have, since := map[string]state.InventoryItem{}, int64(0)
			for last := false; ; {
				inv, err := s.Inventory(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				told(have, inv, since)
				since = inv.Revision
				if check(have, inv); last {
					return
				}
				select {
				case <-over:
					last = true
				default:
				}
			}
		})
	}
	writing.Wait()
	close(over)
	reading.Wait()
}
