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

// A gate holds steps back while the far side of their provider is unavailable. If begun, they would fail one after the
// other, and what was done would be undone, also in vain. Steps that have begun are not its business: they have to find
// out what their calls did. Waiting steps take no turn, so that the rest of the site goes on; for each provider one
// goroutine checks whether it is available again.
type gate struct {
	mu   sync.Mutex
	down map[*providers.Provider]time.Time // since when each unavailable provider has been down

	// The following are owned by the run's goroutine.
	waiting   map[*providers.Provider][]*plan.Step
	ready     []*plan.Step        // have waited, and are started before others
	announced map[*plan.Step]bool // wait, or have waited, and were announced as started; until they are
	opened    chan opening
}

// An opening ends the wait for a provider: its steps may begin or, with an error, the run stopped first.
type opening struct {
	provider *providers.Provider
	err      error
}

// errNotBegun is the error of a step that was announced and never begun.
var errNotBegun = errors.New("it was not started: the run stopped before its turn")

func newGate() *gate {
	return &gate{
		down: map[*providers.Provider]time.Time{}, waiting: map[*providers.Provider][]*plan.Step{}, announced: map[*plan.Step]bool{},
		opened: make(chan opening),
	}
}

// begin makes a step the first that waits for its provider.
func (g *gate) begin(s *plan.Step, p *providers.Provider) { g.waiting[p] = []*plan.Step{s} }

// join lets a step wait when others already wait for its provider, and reports whether any do.
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

// ask returns why steps of the provider may not begin; nil when they may.
func (g *gate) ask(ctx context.Context, p *providers.Provider, patience time.Duration) error {
	if p == nil || p.Health == nil {
		return nil
	}
	down := p.Health(ctx)
	if g.over(p, down, patience) {
		return nil
	}
	return fmt.Errorf("%s in scope %s is unavailable: %w", p.Name, p.Scope, down)
}

// pass waits until steps of the provider may begin. It waits for at most Retry.Within in one run, however many steps wait,
// and then lets the steps try. It fails when the run stops meanwhile.
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
		return fmt.Errorf("it was not started: %w", why)
	}
	return nil
}

// over reports whether waiting is over: the provider is not down, or has been down for too long.
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
