package apply

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// glances lets steps that wait for things of the same kind look together, however many they are. When the pause of one of them
// is over, it looks for all those that have waited for at least half of theirs. So nobody waits longer than its own pause, a step
// that has just begun to wait does not make the others look as often as it does itself, and those that wait with equal pauses are
// soon in step.
type glances struct {
	mu      sync.Mutex
	waiting map[schema.Place][]*glance
}

// A glance is the next look of a step that waits.
type glance struct {
	id   string
	ripe time.Time     // from when on another step may look for it
	done chan struct{} // closed when somebody has looked

	// The following are set before done is closed.
	things []providers.Thing
	err    error
	own    bool          // the step has to look by itself: what went wrong may have nothing to do with it
	after  time.Duration // a nanosecond for each that goes on before it: on a simulated clock all then has one order
}

func (s *glances) join(at schema.Place, id string, after time.Duration) *glance {
	g := &glance{id: id, ripe: time.Now().Add(after / 2), done: make(chan struct{}), own: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[schema.Place][]*glance{}
	}
	s.waiting[at] = append(s.waiting[at], g)
	return g
}

// leave reports whether nobody looks for the step yet; then nobody will.
func (s *glances) leave(at schema.Place, g *glance) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[at], g)
	if i < 0 {
		return false
	}
	s.waiting[at] = slices.Delete(s.waiting[at], i, i+1)
	return true
}

// take returns those for whom the step of first is to look, in the order of their ids, each of which is there once; none when
// another step already looks for it.
func (s *glances) take(at schema.Place, first *glance) []*glance {
	if !s.leave(at, first) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	group, now := []*glance{first}, time.Now()
	ids := map[string]bool{first.id: true}
	s.waiting[at] = slices.DeleteFunc(s.waiting[at], func(g *glance) bool {
		if ids[g.id] || now.Before(g.ripe) {
			return false
		}
		ids[g.id] = true
		group = append(group, g)
		return true
	})
	slices.SortFunc(group, func(a, b *glance) int { return strings.Compare(a.id, b.id) })
	return group
}

// look looks for a group. When that fails for good, or because the step that looks has no more time, the others look by themselves.
func (s *glances) look(ctx context.Context, k providers.Kind, group []*glance) {
	defer func() { // also when the provider panics
		for _, g := range group {
			close(g.done)
		}
	}()
	ids := make([]string, len(group))
	for i, g := range group {
		ids[i], g.after = g.id, time.Duration(i)
	}
	things, err := k.Get(ctx, ids)
	if err != nil && len(group) > 1 && (ctx.Err() != nil || !passing(err)) {
		return
	}
	for _, g := range group {
		g.own, g.err = false, err
	}
	for i := range things {
		if at, ok := slices.BinarySearchFunc(group, things[i].ID, func(g *glance, id string) int { return strings.Compare(g.id, id) }); ok {
			group[at].things = append(group[at].things, things[i])
		}
	}
}

// glance waits until the step's thing is looked at, which is after a pause at the latest, and lends its turn meanwhile.
func (w *worker) glance(ctx context.Context, after time.Duration) (*glance, error) {
	defer w.lend()()
	at, halt := w.step.Ref.Place(), w.halt
	g := w.glances.join(at, w.id, after)
	t := time.NewTimer(after)
	defer t.Stop()
	for {
		select {
		case <-g.done:
			_ = pause(ctx, g.after, nil) // what was seen counts in any case
			return g, nil
		case <-t.C:
			if group := w.glances.take(at, g); group != nil {
				w.glances.look(ctx, w.served.Kind, group)
			}
		case <-halt:
			if w.glances.leave(at, g) {
				return nil, errDropped
			}
			halt = nil // a look that is under way may show that the step is done
		case <-ctx.Done():
			w.glances.leave(at, g)
			return nil, context.Cause(ctx)
		}
	}
}

// first returns a look that begins with what the glance has shown.
func (g *glance) first(look Look) Look {
	shown := !g.own
	return func(ctx context.Context) ([]providers.Thing, error) {
		if shown {
			shown = false
			return g.things, g.err
		}
		return look(ctx)
	}
}
