package site

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// InventoryOptions make an [Inventory]. All are required unless they say otherwise.
type InventoryOptions struct {
	// Engine returns one that is used for one look, and then closed.
	Engine func() (*engine.Engine, error)
	Site   schema.Site
	// Reached lists the providers that can be reached now: what they serve is recorded.
	Reached func() []providers.Need
	// Taken is told of each time: what could not be observed, and why the rest was not recorded either. Optional.
	Taken func(unknown []plan.Unknown, err error)

	Every  time.Duration // how often everything is observed
	Logger *slog.Logger
}

// An Inventory records what a site has, whether converge has made it or not, so that whoever follows the inventory in the store learns of
// every change; see [engine.Engine.Inventory]. It changes nothing at the site.
type Inventory struct {
	o    InventoryOptions
	soon chan struct{} // has an element while something is known to have changed
}

// NewInventory makes one.
func NewInventory(o InventoryOptions) *Inventory {
	return &Inventory{o: o, soon: make(chan struct{}, 1)}
}

// After a look nothing is looked at for so many times as long as the look took, within these bounds: what is looked at costs servers and
// nodes little, and a small site learns soon what a run has made.
const (
	restFor     = 20
	restAtLeast = 5 * time.Second
	restAtMost  = time.Minute // also how soon it is tried again after a failure
)

// restAfter returns how long it is at least from a look, which took this long, to the next.
func restAfter(took time.Duration) time.Duration {
	return min(max(restFor*took, restAtLeast), restAtMost)
}

// Soon says that something has changed at the site, so that it is not only recorded at the next time. It may be called at any time.
func (i *Inventory) Soon() {
	select {
	case i.soon <- struct{}{}:
	default:
	}
}

// Run records the inventory until ctx is done.
func (i *Inventory) Run(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		select { // what has changed until now is seen
		case <-i.soon:
		default:
		}
		began := time.Now()
		unknown, err := i.take(ctx)
		if ctx.Err() != nil {
			return
		}
		if i.o.Taken != nil {
			i.o.Taken(unknown, err)
		}
		least := restAfter(time.Since(began))
		pause := max(i.o.Every-rand.N(i.o.Every/10+1), least) // not at the same time at all sites
		text := ""
		if err != nil {
			text, least, pause = err.Error(), restAtMost, restAtMost
		}
		if text != said && err != nil {
			i.o.Logger.Warn("the inventory could not be recorded", "error", err, "again_in", pause)
		}
		said = text
		if retry.Sleep(ctx, least) != nil {
			return
		}
		select {
		case <-i.soon:
		case <-time.After(pause - least):
		case <-ctx.Done():
		}
	}
}

// take observes the site once.
func (i *Inventory) take(ctx context.Context) (unknown []plan.Unknown, err error) {
	needs := i.o.Reached()
	if len(needs) == 0 { // nothing can be said, which does not mean that there is nothing
		return nil, nil
	}
	e, err := i.o.Engine()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	inv, err := e.Inventory(ctx, i.o.Site, needs, 0)
	if err != nil {
		return nil, err
	}
	return inv.Unknown, nil
}
