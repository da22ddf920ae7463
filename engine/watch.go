package engine

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Watching says what is watched, and what else makes [Engine.Watch] yield.
type Watching struct {
	Needs []providers.Need
	Want  func(schema.Place) bool // optional: of what the needs serve; everything when nil
	Full  time.Duration           // how often everything is yielded, because not every provider reports every change; required
	Wake  <-chan struct{}         // optional: each element makes it yield, maybe no place
}

// Watch yields the places at which something may have changed: at first all of them, after that those for which a provider reports a
// change, and all of them from time to time. What is reported while the caller looks comes next, once. A place whose provider cannot
// report at the moment is yielded then, and again when it reports anew. Nothing is changed. The caller may use the engine in the
// loop. It ends with an error: the cause of ctx, once that is done.
func (e *Engine) Watch(ctx context.Context, site schema.Site, what Watching) iter.Seq2[[]schema.Place, error] {
	return func(yield func([]schema.Place, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		w := watcher{changed: map[schema.Place]bool{}, watched: map[schema.Place]bool{}, more: make(chan struct{}, 1)}
		defer w.running.Wait()
		defer stop()
		tick := time.NewTicker(what.Full)
		defer tick.Stop()
		for {
			set, err := e.connect(ctx, site, what.Needs)
			if err != nil {
				yield(nil, err)
				return
			}
			all := served(set, what.Needs, what.Want)
			w.watch(ctx, set, all)
			w.add(all...)
			for again := false; !again; {
				select {
				case <-ctx.Done():
					yield(nil, context.Cause(ctx))
					return
				case <-tick.C:
					again = true
					continue
				case <-what.Wake:
				case <-w.more:
				}
				if ctx.Err() != nil { // both may be so
					yield(nil, context.Cause(ctx))
					return
				}
				if !yield(w.take(), nil) {
					return
				}
			}
		}
	}
}

// toStart is how long it is waited for watches to begin.
const toStart = 5 * time.Second

// rewatch is how soon a watch that ended begins anew.
var rewatch = retry.Policy{First: 100 * time.Millisecond, Cap: 10 * time.Second}

// A watcher collects what the watches of several places report.
type watcher struct {
	mu      sync.Mutex
	changed map[schema.Place]bool
	more    chan struct{} // has an element while something has changed
	watched map[schema.Place]bool
	running sync.WaitGroup
}

// watch watches the places that are not watched yet. It returns once everything that changes from now on is reported, where a provider
// reports anything, and does not hang.
func (w *watcher) watch(ctx context.Context, set *providers.Set, places []schema.Place) {
	var starting sync.WaitGroup
	for _, p := range places {
		k, _, ok := set.Find(p.Scope, p.Kind)
		if w.watched[p] || !ok || k.Watch == nil {
			continue
		}
		w.watched[p] = true
		starting.Add(1)
		started := sync.OnceFunc(starting.Done)
		w.running.Go(func() {
			defer started()
			w.follow(ctx, p, k.Watch, started)
		})
	}
	started := make(chan struct{})
	w.running.Go(func() {
		starting.Wait()
		close(started)
	})
	late := time.NewTimer(toStart)
	defer late.Stop()
	select {
	case <-started:
	case <-late.C: // what these watches miss until they have begun shows when they do: that counts as a change
	case <-ctx.Done():
	}
}

// follow reports changes at a place until ctx is done. It calls started when the watch has begun, or could not.
func (w *watcher) follow(ctx context.Context, p schema.Place, watch providers.Watch, started func()) {
	pause := rewatch.Pauses()
	for ctx.Err() == nil {
		for _, err := range watch(ctx) {
			if ctx.Err() != nil { // that it ends is no change
				return
			}
			if err == nil {
				pause = rewatch.Pauses()
			}
			w.add(p)
			started()
		}
		select {
		case <-time.After(pause()):
		case <-ctx.Done():
		}
	}
}

// add reports changes.
func (w *watcher) add(places ...schema.Place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range places {
		w.changed[p] = true
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take returns the places that have changed since the last call.
func (w *watcher) take() []schema.Place {
	w.mu.Lock()
	defer w.mu.Unlock()
	select { // reported since
	case <-w.more:
	default:
	}
	places := slices.SortedFunc(maps.Keys(w.changed), schema.Place.Compare)
	clear(w.changed)
	return places
}
