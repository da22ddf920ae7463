package carbide

import (
	"context"
	"slices"
	"sync"

	"converge.dev/converge/providers"
)

// A whole wire has no call for ids: it reads all objects at once. Several readers may share the same objects, so none
// may change them.
type whole[O, S any] interface {
	wire[O, S]
	all(ctx context.Context) ([]O, error)
}

func serveWhole[O, S any](s *service, noun string, t providers.Traits, means refusals, w whole[O, S]) providers.Served {
	r := &reader[O]{wire: w}
	pages := func(_ context.Context, ids []string) ([][]string, error) {
		if ids != nil && len(ids) == 0 {
			return nil, nil
		}
		return [][]string{ids}, nil
	}
	get := func(ctx context.Context, ids []string) ([]O, error) {
		l, err := r.read(ctx)
		switch {
		case err != nil:
			return nil, err
		case ids == nil:
			return slices.Clone(l.objects), nil
		}
		var found []O
		for _, id := range ids {
			if o, ok := l.byID[id]; ok {
				found = append(found, o)
			}
		}
		return found, nil
	}
	return served(&kind[O, S]{s, Name + "." + noun, t, means, w, pages, get})
}

// A reader reads a whole wire for many callers at once: the steps of a run observe one object each, and would each fetch
// all of them. Callers that ask while a list is in progress share the next one; it is begun after they asked, so it
// includes what they did before.
type reader[O any] struct {
	wire interface {
		thing(o O) providers.Thing
		all(ctx context.Context) ([]O, error)
	}

	mu   sync.Mutex
	next *listing[O] // not yet begun
	busy bool        // one is in progress
}

// A listing is one read of all objects.
type listing[O any] struct {
	ctx     context.Context // ends when nothing waits for it any more
	cancel  context.CancelFunc
	waiting int

	done    chan struct{}
	objects []O
	byID    map[string]O
	err     error
}

func (r *reader[O]) read(ctx context.Context) (*listing[O], error) {
	r.mu.Lock()
	l := r.next
	if l == nil {
		l = &listing[O]{done: make(chan struct{})}
		l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
		r.next = l
	}
	l.waiting++
	if !r.busy {
		r.busy = true
		go r.work()
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			l.cancel()
			if r.next == l {
				r.next = nil
			}
		}
	}()
	select {
	case <-l.done:
		return l, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// work fetches one list after the other while there are callers.
func (r *reader[O]) work() {
	for {
		r.mu.Lock()
		l := r.next
		r.next, r.busy = nil, l != nil
		r.mu.Unlock()
		if l == nil {
			return
		}
		l.objects, l.err = r.wire.all(l.ctx)
		l.byID = make(map[string]O, len(l.objects))
		for _, o := range l.objects {
			l.byID[r.wire.thing(o).ID] = o
		}
		close(l.done)
	}
}
