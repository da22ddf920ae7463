package mem

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/state"
)

// watcher follows a prefix: it holds what was committed and not yet yielded.
type watcher struct {
	prefix string
	queue  []state.Batch
	wake   chan struct{} // has room for one
}

// Watch implements state.KV. Like everything here it starts no goroutine: the loop waits by itself.
func (kv *KV) Watch(ctx context.Context, prefix string) iter.Seq2[state.Batch, error] {
	return func(yield func(state.Batch, error) bool) {
		w := &watcher{prefix: prefix, wake: make(chan struct{}, 1)}
		defer func() {
			kv.db.mu.Lock()
			defer kv.db.mu.Unlock()
			delete(kv.db.watchers, w)
		}()
		err := kv.call(ctx, Call{Name: "watch", Keys: []string{prefix}}, func() error {
			kv.db.watchers[w] = true
			whole := state.Batch{Whole: true, Revision: kv.db.revision}
			for key, e := range kv.db.items {
				if strings.HasPrefix(key, prefix) {
					whole.Changes = append(whole.Changes, state.Change{Item: clone(e.Item)})
				}
			}
			sortChanges(whole.Changes)
			w.queue = []state.Batch{whole}
			return nil
		})
		for err == nil {
			var news []state.Batch
			var expiry <-chan time.Time
			err = kv.locked(func() error {
				news, w.queue = w.queue, nil
				expiry = kv.db.expiry()
				return nil
			})
			for _, b := range news {
				if !yield(b, nil) {
					return
				}
			}
			if err != nil || len(news) > 0 {
				continue
			}
			select {
			case <-w.wake:
			case <-expiry:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		yield(state.Batch{}, err)
	}
}

// tell notifies the watchers of what changed. The caller holds the lock.
func (db *db) tell(changes []state.Change) {
	sortChanges(changes)
	for w := range db.watchers {
		b := state.Batch{Revision: db.revision}
		for _, c := range changes {
			if strings.HasPrefix(c.Key, w.prefix) {
				c.Item = clone(c.Item)
				b.Changes = append(b.Changes, c)
			}
		}
		if len(b.Changes) > 0 {
			w.queue = append(w.queue, b)
			w.rouse()
		}
	}
}

// rouse makes all watchers check again: a client was closed, or leases now run out that did not before. The caller holds the lock.
func (db *db) rouse() {
	for w := range db.watchers {
		w.rouse()
	}
}

func (w *watcher) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// expiry returns a channel that fires when the next lease runs out that is not kept alive; nil when there is none. The
// caller holds the lock.
func (db *db) expiry() <-chan time.Time {
	var first time.Time
	for l := range db.leases {
		if at := l.kv.seen.Add(l.ttl); (l.kv.closed || l.kv.paused) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(time.Until(first))
}

func sortChanges(cs []state.Change) {
	slices.SortFunc(cs, func(a, b state.Change) int { return strings.Compare(a.Key, b.Key) })
}
