package ovs

import (
	"context"
	"sync"
	"time"

	"converge.dev/converge/providers"
)

// health is what the calls tell of the connection. Only that ovsdb-server cannot be reached, or does not answer, makes it
// bad; what it answers does not, and any answer makes it good.
type health struct {
	mu    sync.Mutex
	seen  providers.Health
	probe sync.Mutex // held by the one who asks whether it is good again
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
	return h.seen
}

// healthy is the provider's Health. While the connection is bad the first to ask tries it, and the others get what is known.
func (d *db) healthy(ctx context.Context) providers.Health {
	known := d.health.now()
	if known.Down == nil || !d.health.probe.TryLock() {
		return known
	}
	defer d.health.probe.Unlock()
	_, _ = d.view(ctx, nil, nil) // it notes itself what came of it
	return d.health.now()
}
