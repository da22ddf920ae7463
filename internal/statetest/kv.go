// Package statetest holds the laws that every backend of a store obeys, and those of the store derived from it, as suites
// that run on any of them. What holds for the map in memory holds for a cluster.
package statetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/state"
)

// names makes the keys of every law unique, so that laws may share a server.
var names atomic.Int64

func prefix() string { return fmt.Sprintf("/law/%d-%d/", time.Now().UnixNano(), names.Add(1)) }

// KV runs the laws of a backend. Open is called once for each.
func KV(t *testing.T, open func(t *testing.T) state.KV) {
	for name, law := range map[string]func(*testing.T, state.KV){
		"Absent":        absent,
		"Revisions":     revisions,
		"Guards":        guards,
		"Atomic":        atomicity,
		"Order":         order,
		"Prefix":        deletePrefix,
		"Below":         below,
		"Snapshot":      snapshot,
		"Limits":        limits,
		"Counter":       counter,
		"Lease":         lease,
		"LeaseDetach":   leaseDetach,
		"Cancelled":     cancelled,
		"Isolated":      isolated,
		"Watch":         watch,
		"WatchNothing":  watchNothing,
		"WatchLease":    watchLease,
		"WatchEnds":     watchEnds,
		"WatchAll":      watchAll,
		"RandomHistory": randomHistory,
	} {
		t.Run(name, func(t *testing.T) { law(t, open(t)) })
	}
}

func absent(t *testing.T, kv state.KV) {
	p := prefix()
	it, err := kv.Get(t.Context(), p+"a")
	if err != nil || it.Key != "" || it.Modified != 0 || it.Created != 0 || it.Value != nil {
		t.Errorf("Get of what is absent: %+v, %v", it, err)
	}
	items, err := kv.List(t.Context(), p)
	if err != nil || len(items) != 0 {
		t.Errorf("List of what is absent: %v, %v", items, err)
	}
	if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: p + "a", Delete: true}, {Key: p + "b/", Delete: true, Prefix: true}}); err != nil {
		t.Errorf("delete of what is absent: %v", err)
	}
}

func revisions(t *testing.T, kv state.KV) {
	key := prefix() + "a"
	first := put(t, kv, key, "1")
	want(t, kv, state.Item{Key: key, Value: []byte("1"), Created: first, Modified: first})
	second := put(t, kv, key, "2")
	if second <= first {
		t.Errorf("revision %d after %d", second, first)
	}
	want(t, kv, state.Item{Key: key, Value: []byte("2"), Created: first, Modified: second})
	remove(t, kv, key)
	third := put(t, kv, key, "")
	want(t, kv, state.Item{Key: key, Created: third, Modified: third})
	if got := commit(t, kv, []state.Guard{{Key: key, Revision: third}}, nil); got < third {
		t.Errorf("a transaction without operations is at revision %d, before %d", got, third)
	}
}

func guards(t *testing.T, kv state.KV) {
	p := prefix()
	created := put(t, kv, p+"a", "1")
	modified := put(t, kv, p+"a", "2")
	for name, c := range map[string]struct {
		guards []state.Guard
		holds  bool
	}{
		"none":                {nil, true},
		"modified":            {[]state.Guard{{Key: p + "a", Revision: modified}}, true},
		"modified before":     {[]state.Guard{{Key: p + "a", Revision: created}}, false},
		"created":             {[]state.Guard{{Key: p + "a", Created: true, Revision: created}}, true},
		"created later":       {[]state.Guard{{Key: p + "a", Created: true, Revision: modified}}, false},
		"absent":              {[]state.Guard{{Key: p + "b"}}, true},
		"absent by creation":  {[]state.Guard{{Key: p + "b", Created: true}}, true},
		"present, not absent": {[]state.Guard{{Key: p + "a"}}, false},
		"absent, not present": {[]state.Guard{{Key: p + "b", Revision: modified}}, false},
		"both":                {[]state.Guard{{Key: p + "a", Revision: modified}, {Key: p + "b"}}, true},
		"first fails":         {[]state.Guard{{Key: p + "a"}, {Key: p + "b"}}, false},
		"last fails":          {[]state.Guard{{Key: p + "b"}, {Key: p + "a"}}, false},
	} {
		_, err := kv.Commit(t.Context(), c.guards, []state.Op{{Key: p + "other/" + name, Value: []byte("x")}})
		it, gerr := kv.Get(t.Context(), p+"other/"+name)
		if gerr != nil {
			t.Fatal(gerr)
		}
		switch {
		case c.holds && (err != nil || it.Modified == 0):
			t.Errorf("%s: %v, written: %t; want it written", name, err, it.Modified != 0)
		case !c.holds && (!errors.Is(err, state.ErrGuard) || errors.Is(err, state.ErrUnknown) || it.Modified != 0):
			t.Errorf("%s: %v, written: %t; want ErrGuard", name, err, it.Modified != 0)
		}
	}
}

func atomicity(t *testing.T, kv state.KV) {
	p := prefix()
	put(t, kv, p+"old", "x")
	var ops []state.Op
	for i := range state.MaxOps - 1 {
		ops = append(ops, state.Op{Key: fmt.Sprintf("%snew/%03d", p, i), Value: []byte("x")})
	}
	ops = append(ops, state.Op{Key: p + "old", Delete: true})
	if _, err := kv.Commit(t.Context(), []state.Guard{{Key: p + "old"}}, ops); !errors.Is(err, state.ErrGuard) {
		t.Fatalf("got %v, want ErrGuard", err)
	}
	if got := list(t, kv, p); len(got) != 1 {
		t.Fatalf("a refused transaction left %d keys, want 1", len(got))
	}
	revision := commit(t, kv, nil, ops)
	got := list(t, kv, p)
	if len(got) != state.MaxOps-1 {
		t.Fatalf("%d keys, want %d", len(got), state.MaxOps-1)
	}
	for _, it := range got {
		if it.Created != revision || it.Modified != revision {
			t.Errorf("%s has the revisions %d and %d, want %d", it.Key, it.Created, it.Modified, revision)
		}
	}
}

// order: any number of keys, whatever the page size, in the order of their bytes, and none of a neighbour.
func order(t *testing.T, kv state.KV) {
	p := prefix()
	const n = 10000
	var wanted []string
	for i := range n {
		wanted = append(wanted, fmt.Sprintf("%sin/%d", p, i))
	}
	wanted = append(wanted, p+"in/\xff\xff", p+"in/ü", p+"in/")
	fill(t, kv, wanted)
	fill(t, kv, []string{p + "in", p + "im/9", p + "in0", p + "io"})
	slices.Sort(wanted)
	for i, it := range list(t, kv, p+"in/") {
		if i >= len(wanted) || it.Key != wanted[i] || string(it.Value) != it.Key || it.Modified == 0 {
			t.Fatalf("place %d holds %q with the value %q", i, it.Key, it.Value)
		}
		if i == n+2 {
			return
		}
	}
	t.Errorf("List stopped before %d keys", n+3)
}

// below: each word once and in order, however the slash sorts and however many keys a word has.
func below(t *testing.T, kv state.KV) {
	p := prefix()
	fill(t, kv, []string{p + "b/1", p + "b/2/3", p + "b-x/1", p + "b0", p + "a", p + "a/1", p + "c"})
	if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: p[:len(p)-1] + "0", Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	got, err := kv.Below(t.Context(), p)
	if err != nil || !slices.Equal(got, []string{"a", "b", "b-x", "b0", "c"}) {
		t.Errorf("Below gives %q, %v", got, err)
	}
	if got, err := kv.Below(t.Context(), p+"none/"); err != nil || len(got) != 0 {
		t.Errorf("Below what is absent gives %q, %v", got, err)
	}
}

func deletePrefix(t *testing.T, kv state.KV) {
	p := prefix()
	fill(t, kv, []string{p + "a", p + "a/", p + "a/b/c", p + "a/\xff", p + "a0", p + "b"})
	commit(t, kv, nil, []state.Op{{Key: p + "a/", Delete: true, Prefix: true}, {Key: p + "c", Value: []byte("x")}})
	var got []string
	for _, it := range list(t, kv, p) {
		got = append(got, strings.TrimPrefix(it.Key, p))
	}
	if !slices.Equal(got, []string{"a", "a0", "b", "c"}) {
		t.Errorf("%q remain", got)
	}
}

// snapshot: a List is as of one revision, even while a key that stands for the whole moves from the last page to the first.
func snapshot(t *testing.T, kv state.KV) {
	p := prefix()
	var keys []string
	for i := range 9000 {
		keys = append(keys, fmt.Sprintf("%sm%05d", p, i))
	}
	fill(t, kv, append(keys, p+"a"))
	ctx, stop := context.WithCancel(t.Context())
	var mover sync.WaitGroup
	mover.Go(func() {
		from, to := p+"a", p+"z"
		for ctx.Err() == nil {
			_, err := kv.Commit(ctx, nil, []state.Op{{Key: from, Delete: true}, {Key: to, Value: []byte("x")}})
			if err != nil && ctx.Err() == nil {
				t.Errorf("move: %v", err)
				return
			}
			from, to = to, from
		}
	})
	for range 10 {
		if got := list(t, kv, p); len(got) != len(keys)+1 {
			t.Errorf("List sees %d keys, want %d at every revision", len(got), len(keys)+1)
			break
		}
	}
	stop()
	mover.Wait()
}

func limits(t *testing.T, kv state.KV) {
	p := prefix()
	ops := func(n int) (ops []state.Op) {
		for i := range n {
			ops = append(ops, state.Op{Key: fmt.Sprintf("%s%d", p, i), Value: []byte("x")})
		}
		return ops
	}
	gs := make([]state.Guard, state.MaxOps+1)
	for i := range gs {
		gs[i].Key = fmt.Sprintf("%sg%d", p, i)
	}
	big := make([]byte, state.MaxBytes-len(p)-1)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	for name, c := range map[string]struct {
		guards []state.Guard
		ops    []state.Op
		ok     bool
	}{
		"most operations and guards": {gs[:state.MaxOps], ops(state.MaxOps), true},
		"too many operations":        {nil, ops(state.MaxOps + 1), false},
		"too many guards":            {gs, ops(1), false},
		"largest value":              {nil, []state.Op{{Key: p + "b", Value: big}}, true},
		"too large a value":          {nil, []state.Op{{Key: p + "bb", Value: big}}, false},
		"too large together":         {nil, []state.Op{{Key: p + "b", Value: big}, {Key: p + "c"}}, false},
		"one key twice":              {nil, []state.Op{{Key: p + "a"}, {Key: p + "a", Delete: true}}, false},
		"a key below a prefix":       {nil, []state.Op{{Key: p, Delete: true, Prefix: true}, {Key: p + "a"}}, false},
		"no key":                     {nil, []state.Op{{}}, false},
		"no key in a guard":          {make([]state.Guard, 1), nil, false},
	} {
		before := list(t, kv, p)
		_, err := kv.Commit(t.Context(), c.guards, c.ops)
		switch {
		case c.ok && err != nil:
			t.Errorf("%s: %v", name, err)
		case !c.ok && (!errors.Is(err, state.ErrInvalid) || errors.Is(err, state.ErrUnknown)):
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		case !c.ok && len(list(t, kv, p)) != len(before):
			t.Errorf("%s: it was refused and written", name)
		}
		commit(t, kv, nil, []state.Op{{Key: p, Delete: true, Prefix: true}})
	}
}

// counter: of all concurrent compare-and-swaps exactly one wins each round, and every reader sees what was committed before.
func counter(t *testing.T, kv state.KV) {
	key := prefix() + "n"
	put(t, kv, key, "0")
	const workers, each = 8, 25
	var seen sync.Map
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			last := int64(0)
			for done := 0; done < each; {
				it, err := kv.Get(t.Context(), key)
				if err != nil {
					t.Errorf("Get: %v", err)
					return
				}
				if it.Modified < last {
					t.Errorf("read revision %d after %d was committed", it.Modified, last)
				}
				var n int
				_, _ = fmt.Sscan(string(it.Value), &n)
				revision, err := kv.Commit(t.Context(), []state.Guard{{Key: key, Revision: it.Modified}},
					[]state.Op{{Key: key, Value: fmt.Append(nil, n+1)}})
				if errors.Is(err, state.ErrGuard) {
					continue
				}
				if err != nil {
					t.Errorf("Commit: %v", err)
					return
				}
				if _, twice := seen.LoadOrStore(revision, true); twice {
					t.Errorf("two commits at revision %d", revision)
				}
				last = revision
				done++
			}
		})
	}
	all.Wait()
	if it, _ := kv.Get(t.Context(), key); string(it.Value) != fmt.Sprint(workers*each) {
		t.Errorf("the counter is at %s, want %d", it.Value, workers*each)
	}
}

func lease(t *testing.T, kv state.KV) {
	p := prefix()
	l := newLease(t, kv)
	if rest := time.Until(l.Until()); rest <= 0 || rest > ttl {
		t.Errorf("a new lease is certain for %v, want between 0 and %v", rest, ttl)
	}
	commit(t, kv, nil, []state.Op{{Key: p + "a", Lease: l}, {Key: p + "b", Lease: l}, {Key: p + "c"}})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := list(t, kv, p); len(got) != 1 || got[0].Key != p+"c" {
		t.Errorf("%v remain after the lease was closed, want c alone", got)
	}
	_, err := kv.Commit(t.Context(), nil, []state.Op{{Key: p + "a", Lease: l}})
	if err == nil || errors.Is(err, state.ErrUnknown) {
		t.Errorf("a put with a closed lease: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("close twice: %v", err)
	}
}

// leaseDetach: the last put decides whether a key is bound.
func leaseDetach(t *testing.T, kv state.KV) {
	p := prefix()
	l := newLease(t, kv)
	commit(t, kv, nil, []state.Op{{Key: p + "a", Lease: l}, {Key: p + "b"}})
	commit(t, kv, nil, []state.Op{{Key: p + "a"}, {Key: p + "b", Lease: l}})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := list(t, kv, p); len(got) != 1 || got[0].Key != p+"a" {
		t.Errorf("%v remain, want a alone", got)
	}
}

func cancelled(t *testing.T, kv state.KV) {
	p := prefix()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := kv.Commit(ctx, nil, []state.Op{{Key: p + "a"}}); !errors.Is(err, context.Canceled) || errors.Is(err, state.ErrUnknown) {
		t.Errorf("Commit: %v, want a plain context.Canceled", err)
	}
	if _, err := kv.Get(ctx, p+"a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: %v", err)
	}
	if _, err := kv.List(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("List: %v", err)
	}
	if _, err := kv.Lease(ctx, ttl); !errors.Is(err, context.Canceled) {
		t.Errorf("Lease: %v", err)
	}
	if got := list(t, kv, p); len(got) != 0 {
		t.Errorf("a cancelled commit wrote %v", got)
	}
}

// isolated: what the caller later does with its bytes does not affect the store, nor the other way round.
func isolated(t *testing.T, kv state.KV) {
	key := prefix() + "a"
	value := []byte("before")
	commit(t, kv, nil, []state.Op{{Key: key, Value: value}})
	copy(value, "after!")
	it, err := kv.Get(t.Context(), key)
	if err != nil || string(it.Value) != "before" {
		t.Fatalf("got %q, %v", it.Value, err)
	}
	copy(it.Value, "after!")
	if it, _ := kv.Get(t.Context(), key); string(it.Value) != "before" {
		t.Errorf("got %q", it.Value)
	}
}
