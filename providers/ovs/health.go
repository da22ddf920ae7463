package ovs

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// health is the state of the switch as its calls show it. An ovsdb-server that cannot be reached, or does not answer, makes
// it bad, and any answer makes that good again. An ovs-vswitchd that owes a configuration and applies none for a while also
// makes it bad. It may be slow, or others may keep requesting more: as long as it applies any it is healthy. While nothing is
// requested of it, nothing is known, and it counts as healthy.
type health struct {
	idle  time.Duration // time in which a running ovs-vswitchd applies a configuration
	mu    sync.Mutex
	down  error      // why there was no connection or no answer the last time; nil: there was
	cur   int        // the last applied configuration, as last observed
	next  int        // the requested configuration
	owed  time.Time  // since when cur is behind next; zero: nothing is owed
	probe sync.Mutex // held by the caller that checks whether it is good again
}

// acts takes into account how far ovs-vswitchd has got.
func (h *health) acts(cur, next int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case cur >= next:
		h.owed = time.Time{}
	case cur != h.cur || h.owed.IsZero():
		h.owed = time.Now()
	}
	h.cur, h.next = cur, next
}

// note takes a connection attempt or a transaction into account: err means that there was no connection or no answer. Calls
// that the caller gave up show nothing.
func (h *health) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = err
}

// now returns why the switch is unavailable.
func (h *health) now() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since := time.Since(h.owed); h.down == nil && !h.owed.IsZero() && since >= h.idle {
		return fmt.Errorf("ovs-vswitchd is not applying changes: it is at configuration %d, but %d was requested at least %s ago", h.cur, h.next, since.Round(time.Second))
	}
	return h.down
}

// healthy is the provider's Health. While it is bad, the first caller checks again, and the others get the last known state.
func (d *db) healthy(ctx context.Context) error {
	known := d.health.now()
	if known == nil || !d.health.probe.TryLock() {
		return known
	}
	defer d.health.probe.Unlock()
	_, _ = d.view(ctx, nil, nil) // it notes its own result
	return d.health.now()
}
