package fake

import (
	"context"
	"iter"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// watch implements [providers.Watch].
func (k *kind) watch(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		w, changes := k.world, providers.NewChanges()
		if err := w.join(changes, k.at); err != nil {
			yield(nil, err)
			return
		}
		defer w.leave(changes)
		changes.Each(ctx, yield)
	}
}

func (w *World) join(changes *providers.Changes, at schema.Place) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errClosed
	}
	w.watches[changes] = at
	w.await()
	return nil
}

func (w *World) leave(changes *providers.Changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watches, changes)
}

// shows tells those who watch that an observation may show something else of a thing from now on.
func (w *World) shows(at target) {
	for changes, of := range w.watches {
		if of == at.Place {
			changes.Add(at.id)
		}
	}
}

// await sees to it that what is in flight is completed when it is due. Without anybody who watches, the next call does that.
func (w *World) await() {
	if len(w.watches) == 0 {
		return
	}
	var next time.Time
	due := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, l := range w.late {
		due(l.Due)
	}
	for at := range w.passing {
		until := w.things[at.Place][at.id].Until
		if until == nil {
			now := w.now()
			until = &now
		}
		due(*until)
	}
	if w.alarm != nil {
		w.alarm.Stop()
	}
	if next.IsZero() {
		return
	}
	w.alarm = time.AfterFunc(next.Sub(w.now()), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ready() == nil {
			w.await()
		}
	})
}
