package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"converge.dev/converge/internal/cluster"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

const (
	// writesBack is the promise: a write succeeds within this time after a majority can talk again.
	writesBack = 5 * time.Second
	// effectsBack is that for the holder of the lock, which may have to be succeeded first.
	effectsBack = ttl + writesBack
	// patience is how long a test waits for what nothing promises.
	patience = 60 * time.Second
)

// sampled are the faults that are tried in every run of the tests.
var sampled = []string{"leader-killed", "leader-apart", "no-space"}

// faults returns the faults to try.
func faults() []cluster.Fault {
	all := cluster.Faults()
	if torture.Full() {
		return all
	}
	return slices.DeleteFunc(all, func(f cluster.Fault) bool { return !slices.Contains(sampled, f.Name) })
}

// TestTortureCluster proves C: whatever happens to the members, no effect is without a durable intent, at most one holder
// acts, acknowledged writes exist, and writes resume soon after there is a majority.
func TestTortureCluster(t *testing.T) {
	rounds := torture.Scale(1, 1, 30)
	var names []string
	for _, f := range faults() {
		names = append(names, f.Name)
	}
	cover := torture.Cover(t, "faults", names)
	outcomes := torture.Cover(t, "outcomes", []string{"effect", "lock passed on", "lock refused", "record unknown or refused", "document", "read"})
	var sum verdict
	var slowest, effectless time.Duration
	for round := range rounds {
		c := start(t)
		for _, f := range faults() {
			t.Run(fmt.Sprintf("%s/%d", f.Name, round+1), func(t *testing.T) {
				r := endure(t, c, f)
				if t.Failed() {
					return
				}
				cover.Reach(f.Name)
				for name, n := range map[string]int{
					"effect": r.effects, "lock passed on": r.holders - 1, "lock refused": r.lockRefused,
					"record unknown or refused": r.unknown + r.refused, "document": r.documents, "read": r.reads,
				} {
					if n > 0 {
						outcomes.Reach(name)
					}
				}
				sum.effects += r.effects
				sum.holders += r.holders
				sum.records += r.records
				sum.unknown += r.unknown
				sum.refused += r.refused
				slowest, effectless = max(slowest, r.writes), max(effectless, r.effectless)
			})
			if t.Failed() {
				return // the cluster may still be broken
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	torture.Report(t, "C", "%d rounds of %d faults: %d effects by %d holders, %d records whole, %d unknown, %d refused; "+
		"no write for %v at the most, no effect for %v",
		rounds, len(names), sum.effects, sum.holders, sum.records, sum.unknown, sum.refused,
		slowest.Round(time.Millisecond), effectless.Round(time.Millisecond))
}

// A result is the outcome of one fault.
type result struct {
	verdict
	documents, reads, lockRefused int
	writes, effectless            time.Duration // longest times without a write and without an effect
}

// endure runs the workload before, during and after a fault, and checks everything that was promised.
func endure(t *testing.T, c *cluster.Cluster, f cluster.Fault) (r result) {
	lasting := 3 * time.Second
	if torture.Full() {
		lasting = max(lasting, f.Lasting)
	}
	run := strings.ReplaceAll(t.Name(), "/", "-")
	w := newWorkload(t, c, "site", run)
	defer func() {
		if t.Failed() {
			t.Logf("what happened:\n%s", &w.diary)
		}
	}()
	var more errgroup.Group
	if f.Name == "compaction" {
		more.Go(func() error { return listWhole(open(t, c), w.stop) })
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			w.end()
			if err := more.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
	defer end()

	// flows waits until there are writes and effects again after a moment, and until a while has passed. It checks the longest
	// time without them against the promise.
	flows := func(what string, since time.Time, while time.Duration) {
		t.Helper()
		poll(t, patience, func() bool {
			return time.Since(since) > while && len(w.prober.moments(since)) > 0 && len(w.world.moments(since)) > 0
		})
		now := time.Now()
		writes, effects := gap(since, now, w.prober.moments(since)), gap(since, now, w.world.moments(since))
		// A machine that tests a push is busy with other things, and its disk may delay a member by seconds.
		noise := time.Duration(torture.Scale(4, 4, 1))
		if writes > noise*writesBack || effects > noise*effectsBack {
			t.Errorf("%s: no write for %v, no effect for %v; %v and %v are promised", what, writes, effects, writesBack, effectsBack)
		}
		w.diary.note("%s: no write for %v, no effect for %v", what, writes, effects)
		r.writes, r.effectless = max(r.writes, writes), max(r.effectless, effects)
	}
	if flows("before the fault", time.Now(), 0); t.Failed() {
		return r
	}
	var writers errgroup.Group
	full := make(chan struct{})
	if f.Name == "no-space" {
		kv := open(t, c)
		writers.Go(func() error { return neverDenied(kv, full) })
	}
	broken := time.Now()
	w.diary.note("%s", f.Name)
	fault, err := f.Inject(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if f.Writable {
		flows("during the fault", broken, lasting)
	}
	// What a fault has to affect need not exist at once.
	if !poll(t, patience, func() bool { return fault.Hit(t.Context()) == nil }) {
		t.Errorf("the fault hurts nothing: %v", fault.Hit(t.Context()))
	}
	poll(t, patience, func() bool { return time.Since(broken) > lasting })
	close(full) // or they would fill it once more
	if err := writers.Wait(); err != nil {
		t.Error(err)
	}
	w.diary.note("heal")
	quorum, err := fault.Heal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flows("after the fault", quorum, time.Second)
	end()

	var errs []error
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	recs, err := records(ctx, w.store, run)
	if err != nil {
		t.Fatal(err)
	}
	r.verdict, errs = w.world.check(recs)
	for _, err := range errs {
		t.Error(err)
	}
	r.documents, r.reads, r.lockRefused = w.checkDocuments(ctx), int(w.reads.Load()), int(w.refusal.Load())
	if err := c.Consistent(ctx); err != nil {
		t.Error(err)
	}
	// The members have little room, which all faults share. A fast machine would fill it before its turn.
	if !poll(t, patience, func() bool {
		if _, err = w.store.Commit(ctx, nil, w.store.DropRunOps(run)); err == nil {
			err = c.Compact(ctx)
		}
		return err == nil
	}) {
		t.Fatal(err)
	}
	t.Logf("no write for %v, no effect for %v; %+v", r.writes, r.effectless, r)
	return r
}

// poll asks until it is true, and reports whether it became so in time.
func poll(t *testing.T, limit time.Duration, ask func() bool) bool {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		if <-tick.C; time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// listWhole lists a few pages of keys repeatedly. The first and the last are always written together, which would reveal a list
// from two revisions.
func listWhole(kv state.KV, stop <-chan struct{}) error {
	const keys = 9000 // three pages
	var ops []state.Op
	for i := range keys {
		if ops = append(ops, state.Op{Key: fmt.Sprintf("/bulk/%05d", i), Value: []byte("0")}); len(ops) < 100 {
			continue
		}
		ctx, cancel := within(callLimit)
		_, err := kv.Commit(ctx, nil, ops)
		cancel()
		if err != nil {
			return fmt.Errorf("fill the list: %w", err)
		}
		ops = nil
	}
	var all errgroup.Group
	all.Go(func() error {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return nil
			default:
			}
			ctx, cancel := within(callLimit)
			_, _ = kv.Commit(ctx, nil, []state.Op{
				{Key: "/bulk/00000", Value: fmt.Append(nil, i)}, {Key: fmt.Sprintf("/bulk/%05d", keys-1), Value: fmt.Append(nil, i)},
			})
			cancel()
		}
	})
	lists, begun := 0, time.Now()
	all.Go(func() error {
		for {
			select {
			case <-stop:
				if lists > 0 || time.Since(begun) > patience {
					return nil
				} // on a busy machine the first takes longer than the fault
			default:
			}
			ctx, cancel := within(2 * callLimit)
			items, err := kv.List(ctx, "/bulk/")
			cancel()
			switch {
			case err != nil && !errors.Is(err, context.DeadlineExceeded):
				return fmt.Errorf("a list during compactions: %w", err)
			case err != nil:
			case len(items) != keys || string(items[0].Value) != string(items[keys-1].Value):
				return fmt.Errorf("a list has %d keys and is of the writes %s and %s", len(items), items[0].Value, items[len(items)-1].Value)
			default:
				lists++
			}
		}
	})
	if err := all.Wait(); err != nil {
		return err
	}
	if lists == 0 {
		return errors.New("no list came through")
	}
	return nil
}

// neverDenied writes until the space is used up, or stop is closed: a write that was reported as refused does not exist. The
// space runs out between two checks by etcd, so it writes some and refuses them nevertheless.
func neverDenied(kv state.KV, stop <-chan struct{}) error {
	body := make([]byte, 256<<10)
	var all errgroup.Group
	for writer := range 8 {
		all.Go(func() error {
			key := fmt.Sprint("/ballast-of-ours/", writer)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				mark := fmt.Sprintf("%d ", i)
				ctx, cancel := within(callLimit)
				_, err := kv.Commit(ctx, nil, []state.Op{{Key: key, Value: append([]byte(mark), body...)}})
				cancel()
				if err == nil {
					continue
				}
				if errors.Is(err, state.ErrUnknown) {
					return nil
				}
				ctx, cancel = within(callLimit)
				defer cancel()
				it, rerr := kv.Get(ctx, key)
				if rerr == nil && strings.HasPrefix(string(it.Value), mark) {
					return fmt.Errorf("%s is there after a failure that does not say unknown: %w", key, err)
				}
				return nil
			}
		})
	}
	return all.Wait()
}
