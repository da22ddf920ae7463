package ovs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"converge.dev/converge/providers"
)

// health is what the calls tell of the switch. That ovsdb-server cannot be reached, or does not answer, makes it bad, and any
// answer makes that good again. So does an ovs-vswitchd that owes a configuration and takes none for a while. It may be slow,
// or others may ask for more all the time: as long as it takes any it is well. While nobody asks it for anything nothing is
// known of it, and nothing is held against it.
type health struct {
	idle  time.Duration // in which an ovs-vswitchd that is there takes a configuration
	mu    sync.Mutex
	seen  providers.Health
	cur   int        // the configuration that was taken last, as last seen
	next  int        // the one that is asked for
	owed  time.Time  // since when it is cur although it should be next; zero: nothing is owed
	probe sync.Mutex // held by the one who asks whether it is good again
}

// acts takes in how far ovs-vswitchd was seen to have come.
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

// note counts a try to connect, or a transaction: err says that there was no connection or no answer. Calls that the caller
// gave up tell nothing.
func (h *health) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.seen.Succeeded++
		h.seen.Down = nil
		return
	}
	h.seen.Failed++
	h.seen.Last, h.seen.LastAt, h.seen.Down = err, time.Now(), err
}

func (h *health) now() providers.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	if since := time.Since(h.owed); seen.Down == nil && !h.owed.IsZero() && since >= h.idle {
		seen.Down = fmt.Errorf("ovs-vswitchd does not act: it is at configuration %d, and was asked for %d at least %s ago", h.cur, h.next, since.Round(time.Second))
	}
	return seen
}

// healthy is the provider's Health. While it is bad the first to ask looks again, and the others get what is known.
func (d *db) healthy(ctx context.Context) providers.Health {
	known := d.health.now()
	if known.Down == nil || !d.health.probe.TryLock() {
		return known
	}
	defer d.health.probe.Unlock()
	_, _ = d.view(ctx, nil, nil) // it notes itself what came of it
	return d.health.now()
}
