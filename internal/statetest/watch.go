package statetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/state"
)

// patience is how long a law waits for a notification, which comes at once where all is well.
const patience = 20 * time.Second

// follow returns the next batch of a watch, and ends the watch with the test.
func follow(t *testing.T, kv state.KV, p string) func() state.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	next, stop := iter.Pull2(kv.Watch(ctx, p))
	t.Cleanup(stop)
	return func() state.Batch {
		t.Helper()
		b, err, ok := next()
		if err != nil || !ok {
			t.Fatalf("the watch ends (%t): %v", ok, err)
		}
		return b
	}
}

// watch: what exists comes first, and then each commit in one piece.
func watch(t *testing.T, kv state.KV) {
	p := prefix()
	put(t, kv, p+"a", "1")
	there := put(t, kv, p+"b", "2")
	a, b := list(t, kv, p)[0], list(t, kv, p)[1]
	next := follow(t, kv, p)
	got := next()
	if !got.Whole || got.Revision < there || !cmp.Equal(got.Changes, []state.Change{{Item: a}, {Item: b}}) {
		t.Errorf("it begins with %+v", got)
	}
	put(t, kv, prefix()+"elsewhere", "x")
	revision := commit(t, kv, nil, []state.Op{{Key: p + "c", Value: []byte("3")}, {Key: p + "a", Delete: true}, {Key: p + "b", Value: []byte("4")}})
	want := state.Batch{Revision: revision, Changes: []state.Change{
		{Item: state.Item{Key: p + "a", Modified: revision}, Gone: true},
		{Item: state.Item{Key: p + "b", Value: []byte("4"), Created: b.Created, Modified: revision}},
		{Item: state.Item{Key: p + "c", Value: []byte("3"), Created: revision, Modified: revision}},
	}}
	if got := next(); !cmp.Equal(got, want) {
		t.Errorf("a commit is told as %+v\nwant %+v", got, want)
	}
	commit(t, kv, nil, []state.Op{{Key: p + "absent", Delete: true}})
	if _, err := kv.Commit(t.Context(), []state.Guard{{Key: p + "c"}}, []state.Op{{Key: p + "d"}}); !errors.Is(err, state.ErrGuard) {
		t.Fatal(err)
	}
	commit(t, kv, nil, []state.Op{{Key: p, Delete: true, Prefix: true}})
	if got := next(); len(got.Changes) != 2 || !got.Changes[0].Gone || !got.Changes[1].Gone || got.Changes[1].Key != p+"c" {
		t.Errorf("what changed nothing is told, or the end of all is not: %+v", got)
	}
}

// watchNothing: where there is nothing yet, the first key is reported.
func watchNothing(t *testing.T, kv state.KV) {
	p := prefix()
	next := follow(t, kv, p)
	if got := next(); !got.Whole || len(got.Changes) > 0 {
		t.Errorf("it begins with %+v", got)
	}
	put(t, kv, p+"a", "1")
	if got := next(); got.Whole || len(got.Changes) != 1 || got.Changes[0].Key != p+"a" {
		t.Errorf("then comes %+v", got)
	}
}

// watchLease: a key that vanishes with its lease is reported like a deleted one.
func watchLease(t *testing.T, kv state.KV) {
	p := prefix()
	l := newLease(t, kv)
	commit(t, kv, nil, []state.Op{{Key: p + "a", Lease: l}, {Key: p + "b"}})
	next := follow(t, kv, p)
	next()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := next(); len(got.Changes) != 1 || !got.Changes[0].Gone || got.Changes[0].Key != p+"a" {
		t.Errorf("the end of a lease is told as %+v", got)
	}
}

// watchEnds: a watch ends with its context, and says so.
func watchEnds(t *testing.T, kv state.KV) {
	p := prefix()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("enough")
	n := 0
	for b, err := range kv.Watch(ctx, p) {
		switch n++; {
		case n == 1 && (err != nil || !b.Whole), n > 2:
			t.Fatalf("%d: %+v, %v", n, b, err)
		case n == 2 && !errors.Is(err, why):
			t.Errorf("it ends with %v", err)
		}
		cancel(why)
	}
	if n != 2 {
		t.Errorf("it ends without a word, after %d", n)
	}
}

// watchAll: a watcher that begins during writes sees nothing twice and misses nothing: what it assembles is the contents as of
// every revision that it received.
func watchAll(t *testing.T, kv state.KV) {
	const writers, each = 4, 40
	p := prefix()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for range each {
				ops := []state.Op{{Key: fmt.Sprintf("%s%d", p, rng.IntN(20)), Value: fmt.Append(nil, rng.Int())}, {Key: fmt.Sprintf("%sx%d", p, rng.IntN(20)), Delete: true}}
				if rng.IntN(2) == 0 {
					ops[0].Delete, ops[1].Delete = true, false
				}
				if _, err := kv.Commit(t.Context(), nil, ops); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var watching sync.WaitGroup
	for range 3 {
		watching.Go(func() {
			have, last := map[string]state.Item{}, int64(0)
			for b, err := range kv.Watch(ctx, p) {
				if err != nil {
					t.Error(err)
					return
				}
				if b.Revision <= last || b.Whole != (last == 0) {
					t.Errorf("revision %d, whole %t, comes after %d", b.Revision, b.Whole, last)
				}
				last = b.Revision
				for _, c := range b.Changes {
					if !b.Whole && c.Modified != b.Revision {
						t.Errorf("%s changed at %d, and is told at %d", c.Key, c.Modified, b.Revision)
					}
					if have[c.Key] = c.Item; c.Gone {
						delete(have, c.Key)
					}
				}
				if _, over := have[p+"over"]; over {
					break
				}
			}
			for _, it := range list(t, kv, p) {
				if !cmp.Equal(have[it.Key], it) {
					t.Errorf("%s is %+v, and was told as %+v", it.Key, it, have[it.Key])
				}
				delete(have, it.Key)
			}
			if len(have) > 0 {
				t.Errorf("told and not there: %v", have)
			}
		})
	}
	writing.Wait()
	put(t, kv, p+"over", "")
	watching.Wait()
}

// WatchClosed is a law of a client of its own, which it closes: that ends its watches.
func WatchClosed(t *testing.T, kv state.KV) {
	next, stop := iter.Pull2(kv.Watch(t.Context(), prefix()))
	defer stop()
	next()
	var closing sync.WaitGroup
	closing.Go(func() {
		if err := kv.Close(); err != nil {
			t.Error(err)
		}
	})
	if b, err, ok := next(); err == nil || !ok {
		t.Errorf("it goes on (%t) with %+v", ok, b)
	}
	closing.Wait()
}
