package apply

import (
	"context"
	"fmt"
	"sync"
	"time"

	"converge.dev/converge/providers"
)

// A gate holds steps back while the calls of their provider do not get through. Begun, they would fail one after the other,
// and what was done would be undone, in vain too. Steps that have begun are not its business: they have to find out what
// came of their calls.
type gate struct {
	mu   sync.Mutex
	down map[*providers.Provider]time.Time // since when, for those that are
}

// longestPause is between two questions whether calls get through again.
const longestPause = 2 * time.Second

// pass waits until a step of the provider may begin. It is patient for Retry.Within in one run, however many steps wait, and
// then lets the steps find out. It fails when the run stops meanwhile.
func (g *gate) pass(ctx context.Context, p *providers.Provider, retry Retry, stop <-chan struct{}, say func(string)) error {
	if p == nil || p.Health == nil {
		return nil
	}
	for pause := retry.Poll; ; pause = min(pause*2, longestPause) {
		err := p.Health(ctx).Down
		if g.over(p, err, retry.Within) {
			return nil
		}
		err = fmt.Errorf("%s in scope %s cannot be called: %w", p.Name, p.Scope, err)
		say(err.Error())
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
			continue
		case <-stop:
		case <-ctx.Done():
		}
		wait.Stop()
		return fmt.Errorf("it was not begun: %w", err)
	}
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
