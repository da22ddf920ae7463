package mem

import (
	"context"
	"time"

	"converge.dev/converge/state"
)

// lease is alive by definition while its client is neither closed nor paused, so nothing needs to run.
type lease struct {
	kv   *KV
	ttl  time.Duration
	done chan struct{}
}

// Lease implements state.KV.
func (kv *KV) Lease(ctx context.Context, ttl time.Duration) (state.Lease, error) {
	l := &lease{kv: kv, ttl: ttl, done: make(chan struct{})}
	err := kv.call(ctx, Call{Name: "lease"}, func() error {
		kv.db.leases[l] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Pause stops keeping this client's leases alive, as if its process stood still; they run out when their ttl has passed.
// Calls still work, as they do when the process wakes up.
func (kv *KV) Pause() {
	kv.db.mu.Lock()
	defer kv.db.mu.Unlock()
	kv.db.expire()
	if !kv.closed && !kv.paused {
		kv.seen = time.Now()
	}
	kv.paused = true
	kv.db.rouse()
}

// Lapse makes all leases of this client run out at once, on the far side only: the client does not know it yet.
func (kv *KV) Lapse() {
	kv.db.mu.Lock()
	defer kv.db.mu.Unlock()
	for l := range kv.db.leases {
		if l.kv == kv {
			kv.db.drop(l)
		}
	}
}

// answered returns the last time at which the client's leases were kept alive.
func (kv *KV) answered() time.Time {
	if kv.closed || kv.paused {
		return kv.seen
	}
	return time.Now()
}

// Until implements state.Lease.
func (l *lease) Until() time.Time {
	l.kv.db.mu.Lock()
	defer l.kv.db.mu.Unlock()
	return l.kv.answered().Add(l.ttl - state.Margin(l.ttl))
}

// Done implements state.Lease. It is closed by the first use of the store after the lease has run out: nothing notices it earlier.
func (l *lease) Done() <-chan struct{} { return l.done }

// Close implements state.Lease. A closed client no longer reaches the far side: its leases run out.
func (l *lease) Close() error {
	l.kv.db.mu.Lock()
	defer l.kv.db.mu.Unlock()
	l.kv.db.expire()
	if l.kv.closed {
		return errClosed
	}
	l.kv.db.end(l)
	return nil
}

// expire ends the leases that were not kept alive. The caller holds the lock.
func (db *db) expire() {
	now := time.Now()
	for l := range db.leases {
		if now.Sub(l.kv.answered()) >= l.ttl {
			db.end(l)
		}
	}
}

// end drops a lease and notifies its client.
func (db *db) end(l *lease) {
	if db.leases[l] {
		db.drop(l)
	}
	select {
	case <-l.done:
	default:
		close(l.done)
	}
}

// drop removes a lease with its keys.
func (db *db) drop(l *lease) {
	delete(db.leases, l)
	db.changed(db.remove(func(_ string, e entry) bool { return e.lease == l }))
}
