package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
)

// A gate holds steps back while the far side of their provider is away. Begun, they would fail one after the other,
// and what was done would be undone, in vain too. Steps that have begun are not its business: they have to find out what
// came of their calls. Those that wait take no part in what may be done at the same time, so that the rest of the site
// goes on; for each provider one goroutine asks whether it is there again.
type gate struct {
	mu   sync.Mutex
	down map[*providers.Provider]time.Time // since when, for those that are

	// Owned by the run's goroutine.
	waiting map[*providers.Provider][]*plan.Step
	ready   []*plan.Step        // waited, and are to be started before others
	told    map[*plan.Step]bool // wait, or have waited, and were said to start
	opened  chan opening
}

// An opening is the end of waiting for a provider: its steps may begin, or with an error, the run stops before.
type opening struct {
	provider *providers.Provider
	err      error
}

// errNotBegun is what becomes of a step that waited until the run stopped.
var errNotBegun = errors.New("it was not begun: the run stopped before its provider was there")

func newGate() *gate {
	return &gate{
		down: map[*providers.Provider]time.Time{}, waiting: map[*providers.Provider][]*plan.Step{}, told: map[*plan.Step]bool{},
		opened: make(chan opening),
	}
}

// shut lets a step be the first that waits for its provider.
func (g *gate) shut(s *plan.Step, p *providers.Provider) { g.waiting[p] = []*plan.Step{s} }

// join lets a step wait where others of its provider wait already; it reports whether any do.
func (g *gate) join(s *plan.Step, p *providers.Provider) bool {
	steps, shut := g.waiting[p]
	if shut {
		g.waiting[p] = append(steps, s)
	}
	return shut
}

// open ends the waiting for a provider.
func (g *gate) open(p *providers.Provider) {
	g.ready = append(g.ready, g.waiting[p]...)
	delete(g.waiting, p)
}

// pop returns the next step that has waited; nil when there is none.
func (g *gate) pop() *plan.Step {
	if len(g.ready) == 0 {
		return nil
	}
	s := g.ready[0]
	g.ready = g.ready[1:]
	return s
}

// ask returns why a step of the provider may not begin; nil when it may.
func (g *gate) ask(ctx context.Context, p *providers.Provider, patience time.Duration) error {
	if p == nil || p.Health == nil {
		return nil
	}
	down := p.Health(ctx).Down
	if g.over(p, down, patience) {
		return nil
	}
	return fmt.Errorf("%s in scope %s is away: %w", p.Name, p.Scope, down)
}

// pass waits until steps of the provider may begin. It is patient for Retry.Within in one run, however many steps wait, and
// then lets the steps find out. It fails when the run stops meanwhile.
func (g *gate) pass(ctx context.Context, p *providers.Provider, retry Retry, stop <-chan struct{}, why error, say func(error)) error {
	for next := retry.polls(); why != nil; {
		say(why)
		wait := time.NewTimer(next())
		select {
		case <-wait.C:
			why = g.ask(ctx, p, retry.Within)
			continue
		case <-stop:
		case <-ctx.Done():
		}
		wait.Stop()
		return fmt.Errorf("it was not begun: %w", why)
	}
	return nil
}

// over reports whether nobody has to wait: the provider is not down, or has been for too long.
func (g *gate) over(p *providers.Provider, down error, patience time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if down == nil {
		delete(g.down, p)
		return true
	}
	since, known := g.down[p]
	if !known {
		since = time.Now()
		g.down[p] = since
	}
	return time.Since(since) >= patience
}
