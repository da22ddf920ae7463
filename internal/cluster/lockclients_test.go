package cluster_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// lockOutcomes are the possible outcomes of calls.
var lockOutcomes = []string{
	"lock: got", "lock: held by another", "commit: written", "commit: fenced", "commit: unknown", "close", "force: done", "lapse", "read",
}

// A lockLoad is clients that take the site lock from each other, properly or by force, and write under it.
type lockLoad struct {
	history  *history
	outcomes outcomes
	ttl      time.Duration
	expires  bool // leases may expire

	site string
	done chan struct{}
	all  sync.WaitGroup
}

func startLocks(o outcomes, backends []state.KV, ttl time.Duration, expires bool) *lockLoad {
	l := &lockLoad{history: newHistory(300, 5), outcomes: o, ttl: ttl, expires: expires, done: make(chan struct{})}
	l.site = fmt.Sprintf("locks-%d", time.Now().UnixNano())
	for i, kv := range backends {
		l.all.Go(func() { l.client(kv, i) })
	}
	return l
}

func (l *lockLoad) end() {
	close(l.done)
	l.all.Wait()
}

func (l *lockLoad) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// client takes the lock, writes, and releases or loses it. Sometimes it breaks the lock of another.
func (l *lockLoad) client(kv state.KV, id int) {
	r := rand.New(rand.NewPCG(uint64(id), uint64(time.Now().UnixNano())))
	for !l.ended() {
		group := l.history.group()
		store := state.New(kv, fmt.Sprint(l.site, "-", group))
		if r.IntN(6) == 0 {
			l.force(store, group, id)
		}
		l.read(store, group, id)
		asked := l.history.now()
		ctx, cancel := within(callLimit)
		lock, err := store.Lock(ctx, state.LockInfo{Who: fmt.Sprint(id)}, state.LockOptions{TTL: l.ttl})
		cancel()
		if _, held := errors.AsType[*state.LockedError](err); held {
			l.outcomes.reach("lock: held by another")
			pause(l.done, time.Duration(r.IntN(3))*time.Millisecond)
			continue
		}
		if err != nil {
			l.history.add(group, id, asked, lockCall{op: "lock"}, lockAnswer{unknown: true}, true)
			pause(l.done, 50*time.Millisecond)
			continue
		}
		l.history.add(group, id, asked, lockCall{op: "lock"}, lockAnswer{epoch: lock.Epoch()}, false)
		l.outcomes.reach("lock: got")
		for n := range 1 + r.IntN(16) {
			if m, ok := kv.(*mem.KV); ok && r.IntN(8) == 0 { // the store forgets the lease; the holder does not know
				asked := l.history.now()
				m.Lapse()
				l.history.add(group, id, asked, lockCall{op: "lapse", epoch: lock.Epoch()}, lockAnswer{}, false)
				l.outcomes.reach("lapse")
			}
			l.commit(store, lock, group, id, n)
			if r.IntN(4) == 0 {
				l.read(store, group, id)
			}
		}
		asked = l.history.now()
		err = lock.Close()
		l.history.add(group, id, asked, lockCall{op: "close", epoch: lock.Epoch()}, lockAnswer{}, err != nil)
		l.outcomes.reach("close")
		// A process that does not know that it has lost the lock continues for a moment.
		l.commit(store, lock, group, id, 99)
	}
}

func turnKey(store *state.Store) string { return store.Path() + "/turn" }

func (l *lockLoad) commit(store *state.Store, lock *state.Lock, group, id, n int) {
	value := fmt.Sprint(lock.Epoch(), "/", n)
	asked := l.history.now()
	ctx, cancel := within(time.Second)
	defer cancel()
	_, err := lock.Commit(ctx, nil, []state.Op{{Key: turnKey(store), Value: []byte(value)}})
	in := lockCall{op: "commit", epoch: lock.Epoch(), value: value}
	switch {
	case err == nil:
		l.history.add(group, id, asked, in, lockAnswer{}, false)
		l.outcomes.reach("commit: written")
	case errors.Is(err, state.ErrUnknown):
		l.history.add(group, id, asked, in, lockAnswer{unknown: true}, true)
		l.outcomes.reach("commit: unknown")
	default: // nothing was written, as if it had not been requested
		l.outcomes.reach("commit: fenced")
	}
}

func (l *lockLoad) read(store *state.Store, group, id int) {
	asked := l.history.now()
	ctx, cancel := within(time.Second)
	defer cancel()
	it, err := store.Get(ctx, turnKey(store))
	if err != nil {
		return
	}
	l.history.add(group, id, asked, lockCall{op: "read", value: string(it.Value)}, lockAnswer{}, false)
	l.outcomes.reach("read")
}

// force breaks the lock of the current holder.
func (l *lockLoad) force(store *state.Store, group, id int) {
	ctx, cancel := within(callLimit)
	defer cancel()
	info, err := store.LockInfo(ctx)
	if err != nil || info == nil {
		return
	}
	asked := l.history.now()
	err = store.ForceUnlock(ctx, info.ID, "operator", "torture")
	switch {
	case err == nil:
		l.history.add(group, id, asked, lockCall{op: "force"}, lockAnswer{}, false)
		l.outcomes.reach("force: done")
	case errors.Is(err, state.ErrUnknown):
		l.history.add(group, id, asked, lockCall{op: "force"}, lockAnswer{}, true)
	}
}
