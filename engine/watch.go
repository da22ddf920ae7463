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
	Needs func() []providers.Need // asked again whenever anything makes it yield
	Want  func(schema.Place) bool // optional: of what the needs serve; everything when nil
	Full  time.Duration           // how often everything is yielded, because not every provider reports every change; zero: never
	Wake  <-chan struct{}         // optional: each element makes it yield, maybe nothing
}

// Changed is a place at which something may have changed.
type Changed struct {
	schema.Place
	IDs []string // of the things that may have; none: any
}

// Watch yields the places at which something may have changed: at first all of them, after that those for which a provider reports a
// change, and all of them from time to time. What is reported while the caller looks comes next, once. A place whose provider cannot
// report at the moment is yielded then, and again when it reports anew; so is one that has not been watched before. Nothing is changed.
// The caller may use the engine in the loop. It ends with an error: the cause of ctx, once that is done.
func (e *Engine) Watch(ctx context.Context, site schema.Site, what Watching) iter.Seq2[[]Changed, error] {
	return func(yield func([]Changed, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		w := watcher{changed: map[schema.Place]ids{}, watched: map[schema.Place]watched{}, more: make(chan struct{}, 1)}
		defer w.running.Wait()
		defer stop()
		var full <-chan time.Time
		if what.Full > 0 {
			tick := time.NewTicker(what.Full)
			defer tick.Stop()
			full = tick.C
		}
		var needs []providers.Need
		for everything := true; ; {
			if now := what.Needs(); everything || !slices.Equal(needs, now) {
				needs = now
				if _, err := e.connect(ctx, site, needs); err != nil {
					yield(nil, err)
					return
				}
			}
			all := served(e.set, needs, what.Want)
			w.watch(ctx, e.set, all)
			if everything {
				for _, at := range all {
					w.add(at)
				}
				everything = false
				if len(all) == 0 {
					w.wake()
				}
			}
			select {
			case <-ctx.Done():
			case <-full:
				everything = true
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

// toStart is how long it is waited for watches to begin.
const toStart = 5 * time.Second

// rewatch is how soon a watch that ended begins anew.
var rewatch = retry.Policy{First: 100 * time.Millisecond, Cap: 10 * time.Second}

// A watcher collects what the watches of several places report.
type watcher struct {
	mu      sync.Mutex
	changed map[schema.Place]ids
	more    chan struct{} // has an element while something has changed
	watched map[schema.Place]watched
	running sync.WaitGroup
}

// A watched place is followed until stop is called.
type watched struct {
	by   *providers.Provider
	stop context.CancelFunc
}

// watch watches these places and no others. It returns once everything that changes from now on is reported, where a provider reports
// anything, and does not hang.
func (w *watcher) watch(ctx context.Context, set *providers.Set, places []schema.Place) {
	var starting sync.WaitGroup
	here := make(map[schema.Place]bool, len(places))
	for _, p := range places {
		here[p] = true
		k, by, ok := set.Find(p.Scope, p.Kind)
		had, is := w.watched[p]
		if is && had.by == by {
			continue
		}
		if is { // by a provider that was closed
			had.stop()
			delete(w.watched, p)
		}
		if !ok {
			continue
		}
		until, stop := context.WithCancel(ctx)
		if w.watched[p] = (watched{by, stop}); k.Watch == nil {
			w.add(p) // it begins to be there
			continue
		}
		starting.Add(1)
		started := sync.OnceFunc(starting.Done)
		w.running.Go(func() {
			defer started()
			w.follow(until, p, k.Watch, started)
		})
	}
	for p, had := range w.watched {
		if !here[p] {
			had.stop()
			delete(w.watched, p)
		}
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
		for which, err := range watch(ctx) {
			if ctx.Err() != nil { // that it ends is no change
				return
			}
			if err == nil {
				pause = rewatch.Pauses()
			} else {
				which = nil
			}
			w.add(p, which...)
			started()
		}
		select {
		case <-time.After(pause()):
		case <-ctx.Done():
		}
	}
}

// add reports a change of some things at a place; of any when none are named.
func (w *watcher) add(p schema.Place, which ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[p] = w.changed[p].and(which)
	w.wake()
}

func (w *watcher) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take returns what has changed since the last call, by place.
func (w *watcher) take() (changes []Changed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select { // reported since
	case <-w.more:
	default:
	}
	for _, p := range slices.SortedFunc(maps.Keys(w.changed), schema.Place.Compare) {
		changes = append(changes, Changed{p, slices.Sorted(maps.Keys(w.changed[p]))})
	}
	clear(w.changed)
	return changes
}
