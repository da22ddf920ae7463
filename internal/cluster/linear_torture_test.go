package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/internal/cluster"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
	"converge.dev/converge/state/mem"
)

// clients is the number of concurrent clients of the keys, and as many of the lock.
const clients = 6

// lossy returns clients of one store in memory, in which now and then a call is refused or its reply is lost.
func lossy(n int) (backends []state.KV) {
	var calls atomic.Int64
	first := mem.New(mem.Options{})
	for range n {
		backends = append(backends, first.Connect(mem.Options{Fault: func(c mem.Call) error {
			runtime.Gosched() // so that others interleave
			switch rand.IntN(200) {
			case 0:
				if c.Done {
					return fmt.Errorf("the answer to call %d was lost: %w", calls.Add(1), state.ErrUnknown)
				}
				return fmt.Errorf("call %d was refused", calls.Add(1))
			case 1, 2, 3:
				runtime.Gosched()
			}
			return nil
		}}))
	}
	return backends
}

// patient returns a limit that no call reaches.
func patient() time.Duration { return callLimit }

// TestTortureLinearMem proves O on the store in memory, which other tests build on.
func TestTortureLinearMem(t *testing.T) {
	limit := time.Duration(torture.Scale(500, 4000, 80000)) * time.Millisecond
	keys := startKV(countOutcomes(t, "outcomes of keys", kvOutcomes), lossy(clients), patient)
	pause(nil, limit)
	keys.outcomes.all(t)
	keys.end()
	kvOps := keys.history.check(t, kvModel)
	locks := startLocks(countOutcomes(t, "outcomes of locks", lockOutcomes), lossy(clients), time.Minute, false)
	pause(nil, limit)
	locks.outcomes.all(t)
	locks.end()
	lockOps := locks.history.check(t, lockModel(false))
	torture.Report(t, "O", "memory: %d calls on keys and %d on the lock are linearizable", kvOps, lockOps)
}

// TestTortureLinearEmbedded proves O on the embedded member. Here, the unknown calls are those that the caller gives up.
func TestTortureLinearEmbedded(t *testing.T) {
	if !torture.Full() {
		t.Skip("a sample runs in memory only: set CONVERGE_TORTURE")
	}
	kv, err := etcd.Open(t.Context(), etcd.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	all := slices.Repeat([]state.KV{kv}, clients)
	limit := time.Duration(torture.Scale(0, 6, 120)) * time.Second
	keys := startKV(countOutcomes(t, "outcomes of keys", kvOutcomes, "commit: refused"), all, func() time.Duration {
		if rand.IntN(100) == 0 {
			return time.Duration(rand.IntN(3000)) * time.Microsecond
		}
		return callLimit
	})
	pause(nil, limit)
	keys.outcomes.all(t)
	keys.end()
	kvOps := keys.history.check(t, kvModel)
	locks := startLocks(countOutcomes(t, "outcomes of locks", lockOutcomes, "commit: unknown", "lapse"), all, time.Minute, false)
	pause(nil, limit)
	locks.outcomes.all(t)
	locks.end()
	lockOps := locks.history.check(t, lockModel(false))
	torture.Report(t, "O", "embedded etcd: %d calls on keys and %d on the lock are linearizable", kvOps, lockOps)
}

// TestTortureLinearCluster proves O on three members while they break.
func TestTortureLinearCluster(t *testing.T) {
	if !torture.Full() {
		t.Skip("a sample runs in memory only: set CONVERGE_TORTURE")
	}
	rounds := torture.Scale(0, 1, 20)
	var chosen []cluster.Fault
	for _, f := range cluster.Faults() {
		switch f.Name {
		case "leader-killed", "leader-apart", "leader-paused", "loss", "quorum-lost":
			chosen = append(chosen, f)
		default:
			if rounds > 1 {
				chosen = append(chosen, f)
			}
		}
	}
	var names []string
	for _, f := range chosen {
		names = append(names, f.Name)
	}
	broken := torture.Cover(t, "faults", names)
	keyOutcomes := countOutcomes(t, "outcomes of keys", kvOutcomes, "commit: refused")
	lockOutcomes := countOutcomes(t, "outcomes of locks", lockOutcomes, "lapse", "commit: unknown") // whether a fault meets a commit is chance
	kvOps, lockOps := 0, 0
	for range rounds {
		c := start(t)
		for _, f := range chosen {
			var backends []state.KV
			for range 2 * clients {
				backends = append(backends, open(t, c))
			}
			keys := startKV(keyOutcomes, backends[:clients], func() time.Duration { return time.Second })
			locks := startLocks(lockOutcomes, backends[clients:], ttl, true)
			if !poll(t, patience, func() bool { return keys.history.size() > 300 && locks.history.size() > 100 }) {
				t.Fatalf("the clients do not get going: %d and %d calls", keys.history.size(), locks.history.size())
			}
			fault, err := f.Inject(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			pause(nil, 3*time.Second)
			if !poll(t, patience, func() bool { return fault.Hit(t.Context()) == nil }) {
				t.Errorf("%s hurts nothing: %v", f.Name, fault.Hit(t.Context()))
			}
			if _, err := fault.Heal(t.Context()); err != nil {
				t.Fatal(err)
			}
			pause(nil, time.Second)
			keys.end()
			locks.end()
			kvOps += keys.history.check(t, kvModel)
			lockOps += locks.history.check(t, lockModel(true))
			if t.Failed() {
				t.Fatalf("with %s", f.Name)
			}
			broken.Reach(f.Name)
			for _, kv := range backends {
				if err := kv.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	torture.Report(t, "O", "3 members, %d rounds of %d faults: %d calls on keys and %d on the lock are linearizable", rounds, len(chosen), kvOps, lockOps)
}
