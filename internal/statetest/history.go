package statetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

const ttl = 2 * time.Second

// randomHistory: after any series of transactions a backend holds what the map in memory holds, down to the revisions.
func randomHistory(t *testing.T, kv state.KV) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		p := prefix()
		model := mem.New(mem.Options{})
		base := make([]int64, 2) // where each begins to count
		for i, b := range []state.KV{kv, model} {
			revision, err := b.Commit(ctx, nil, []state.Op{{Key: p + "start"}})
			if err != nil {
				t.Fatal(err)
			}
			base[i] = revision
		}
		key := rapid.SampledFrom([]string{"a", "a/1", "a/2", "b", "b/1"})
		for range rapid.IntRange(1, 15).Draw(t, "transactions") {
			var gs []state.Guard
			for range rapid.IntRange(0, 2).Draw(t, "guards") {
				// A revision that exists, most of the time.
				g := state.Guard{Key: p + key.Draw(t, "guarded"), Created: rapid.Bool().Draw(t, "created")}
				it, err := model.Get(ctx, g.Key)
				if err != nil {
					t.Fatal(err)
				}
				if g.Revision = it.Modified; g.Created {
					g.Revision = it.Created
				}
				if rapid.IntRange(0, 5).Draw(t, "wrong") == 0 {
					g.Revision = base[1]
				}
				gs = append(gs, g)
			}
			var ops []state.Op
			for i, k := range rapid.SliceOfNDistinct(key, 0, 4, rapid.ID[string]).Draw(t, "keys") {
				switch rapid.IntRange(0, 3).Draw(t, "op") {
				case 0:
					ops = append(ops, state.Op{Key: p + k, Delete: true})
				case 1:
					ops = append(ops, state.Op{Key: p + k, Delete: true, Prefix: true})
				default:
					ops = append(ops, state.Op{Key: p + k, Value: fmt.Append(nil, i)})
				}
			}
			wantRevision, wantErr := model.Commit(ctx, gs, ops)
			for i := range gs { // the same moment, as the other counts
				if gs[i].Revision != 0 {
					gs[i].Revision += base[0] - base[1]
				}
			}
			revision, err := kv.Commit(ctx, gs, ops)
			for _, class := range []error{state.ErrGuard, state.ErrInvalid} {
				if errors.Is(err, class) != errors.Is(wantErr, class) {
					t.Fatalf("got %v, want %v", err, wantErr)
				}
			}
			if err == nil && revision-base[0] != wantRevision-base[1] {
				t.Fatalf("revision %d after the start, want %d", revision-base[0], wantRevision-base[1])
			}
		}
		got, err := kv.List(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := model.List(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(shifted(wanted, base[1]), shifted(got, base[0])); diff != "" {
			t.Fatalf("the model and the backend differ:\n%s", diff)
		}
	})
}

// shifted counts revisions from base.
func shifted(items []state.Item, base int64) []state.Item {
	for i := range items {
		items[i].Created -= base
		items[i].Modified -= base
		if len(items[i].Value) == 0 {
			items[i].Value = nil
		}
	}
	return items
}

func newLease(t *testing.T, kv state.KV) state.Lease {
	t.Helper()
	l, err := kv.Lease(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func commit(t *testing.T, kv state.KV, guards []state.Guard, ops []state.Op) int64 {
	t.Helper()
	revision, err := kv.Commit(t.Context(), guards, ops)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func put(t *testing.T, kv state.KV, key, value string) int64 {
	t.Helper()
	return commit(t, kv, nil, []state.Op{{Key: key, Value: []byte(value)}})
}

func remove(t *testing.T, kv state.KV, key string) {
	t.Helper()
	commit(t, kv, nil, []state.Op{{Key: key, Delete: true}})
}

// fill puts keys, each with itself as its value.
func fill(t *testing.T, kv state.KV, keys []string) {
	t.Helper()
	for len(keys) > 0 {
		n := min(len(keys), state.MaxOps)
		var ops []state.Op
		for _, k := range keys[:n] {
			ops = append(ops, state.Op{Key: k, Value: []byte(k)})
		}
		commit(t, kv, nil, ops)
		keys = keys[n:]
	}
}

func list(t *testing.T, kv state.KV, prefix string) []state.Item {
	t.Helper()
	items, err := kv.List(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func want(t *testing.T, kv state.KV, it state.Item) {
	t.Helper()
	got, err := kv.Get(t.Context(), it.Key)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(shifted([]state.Item{it}, 0), shifted([]state.Item{got}, 0)); diff != "" {
		t.Errorf("%s:\n%s", it.Key, diff)
	}
}
