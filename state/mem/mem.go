// Package mem keeps a store in the memory of the process, for tests and experiments.
//
// It obeys the laws of package internal/statetest exactly as etcd does, and can do on command what etcd cannot: fail a
// given call before or after its effect ([Options]), and stop keeping leases alive as if the process stood still
// ([KV.Pause]). It starts no goroutine and reads the time from package time only, so that a test in a bubble of
// testing/synctest decides when a lease runs out.
package mem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/state"
)

// A Call is one use of the backend, as a fault hook sees it.
type Call struct {
	Name string   // get, list, commit, lease or watch
	Keys []string // the key, the prefix, or the keys of all operations
	Done bool     // the call has had its effect; what remains is the reply
}

// Options configure a KV. The zero value is usable.
type Options struct {
	// Fault is called twice for each call, before its effect and, when it succeeded, after it. An error that it returns
	// becomes the result of the call. For a lost reply of a commit it wraps state.ErrUnknown.
	// It may use other clients of the same store, and so control what happens in between.
	Fault func(Call) error
}

// KV is one client of a store in memory. Several may share the same keys; see [KV.Connect].
type KV struct {
	db     *db
	fault  func(Call) error
	closed bool
	paused bool
	seen   time.Time // the last time at which its leases were kept alive, once closed or paused
}

// db is what all clients share.
type db struct {
	mu       sync.Mutex
	revision int64
	items    map[string]entry
	leases   map[*lease]bool
	watchers map[*watcher]bool
}

type entry struct {
	state.Item
	lease *lease
}

// New creates an empty store and its first client.
func New(o Options) *KV {
	return &KV{db: &db{revision: 1, items: map[string]entry{}, leases: map[*lease]bool{}, watchers: map[*watcher]bool{}}, fault: o.Fault}
}

// Connect returns another client of the same keys, as a second process would have. Closing or pausing one does not affect
// the other.
func (kv *KV) Connect(o Options) *KV { return &KV{db: kv.db, fault: o.Fault} }

var errClosed = errors.New("the store is closed")

// call runs one use of the backend between its faults.
func (kv *KV) call(ctx context.Context, c Call, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if kv.fault != nil {
		if err := kv.fault(c); err != nil {
			return err
		}
	}
	if err := kv.locked(do); err != nil {
		return err
	}
	if kv.fault != nil {
		c.Done = true
		return kv.fault(c)
	}
	return nil
}

func (kv *KV) locked(do func() error) error {
	kv.db.mu.Lock()
	defer kv.db.mu.Unlock()
	if kv.closed {
		return errClosed
	}
	kv.db.expire()
	return do()
}

// Get implements state.KV.
func (kv *KV) Get(ctx context.Context, key string) (it state.Item, err error) {
	err = kv.call(ctx, Call{Name: "get", Keys: []string{key}}, func() error {
		it = clone(kv.db.items[key].Item)
		return nil
	})
	return it, err
}

// List implements state.KV.
func (kv *KV) List(ctx context.Context, prefix string) (items []state.Item, err error) {
	err = kv.call(ctx, Call{Name: "list", Keys: []string{prefix}}, func() error {
		for key, e := range kv.db.items {
			if strings.HasPrefix(key, prefix) {
				items = append(items, clone(e.Item))
			}
		}
		return nil
	})
	slices.SortFunc(items, func(a, b state.Item) int { return strings.Compare(a.Key, b.Key) })
	return items, err
}

// Below implements state.KV.
func (kv *KV) Below(ctx context.Context, prefix string) (words []string, err error) {
	err = kv.call(ctx, Call{Name: "list", Keys: []string{prefix}}, func() error {
		for key := range kv.db.items {
			if rest, ok := strings.CutPrefix(key, prefix); ok {
				word, _, _ := strings.Cut(rest, "/")
				words = append(words, word)
			}
		}
		return nil
	})
	slices.Sort(words)
	return slices.Compact(words), err
}

// Commit implements state.KV.
func (kv *KV) Commit(ctx context.Context, guards []state.Guard, ops []state.Op) (revision int64, err error) {
	if err := state.Check(guards, ops); err != nil {
		return 0, err
	}
	keys := make([]string, len(ops))
	for i, op := range ops {
		keys[i] = op.Key
	}
	err = kv.call(ctx, Call{Name: "commit", Keys: keys}, func() error {
		revision, err = kv.db.commit(guards, ops)
		return err
	})
	if err != nil {
		return 0, err
	}
	return revision, nil
}

func (db *db) commit(guards []state.Guard, ops []state.Op) (int64, error) {
	for _, g := range guards {
		have := db.items[g.Key].Modified
		if g.Created {
			have = db.items[g.Key].Created
		}
		if have != g.Revision {
			return 0, fmt.Errorf("%s: %w", g.Key, state.ErrGuard)
		}
	}
	for _, op := range ops {
		if l, ok := op.Lease.(*lease); ok && !db.leases[l] {
			return 0, fmt.Errorf("put %s: the lease has expired", op.Key)
		}
	}
	var changes []state.Change
	for _, op := range ops {
		changes = append(changes, db.do(op, db.revision+1)...)
	}
	db.changed(changes)
	return db.revision, nil
}

// changed counts the changes as one revision, and notifies the watchers.
func (db *db) changed(changes []state.Change) {
	if len(changes) > 0 {
		db.revision++
		db.tell(changes)
	}
}

// remove deletes the chosen keys, and returns which they were.
func (db *db) remove(chosen func(key string, e entry) bool) (changes []state.Change) {
	for key, e := range db.items {
		if chosen(key, e) {
			delete(db.items, key)
			changes = append(changes, state.Change{Item: state.Item{Key: key, Modified: db.revision + 1}, Gone: true})
		}
	}
	return changes
}

// do carries out one operation and returns what it changed.
func (db *db) do(op state.Op, revision int64) []state.Change {
	switch {
	case op.Delete && op.Prefix:
		return db.remove(func(key string, _ entry) bool { return strings.HasPrefix(key, op.Key) })
	case op.Delete:
		if _, ok := db.items[op.Key]; !ok {
			return nil
		}
		delete(db.items, op.Key)
		return []state.Change{{Item: state.Item{Key: op.Key, Modified: revision}, Gone: true}}
	}
	e := entry{Item: state.Item{Key: op.Key, Value: slices.Clone(op.Value), Created: revision, Modified: revision}}
	if old, ok := db.items[op.Key]; ok {
		e.Created = old.Created
	}
	e.lease, _ = op.Lease.(*lease)
	db.items[op.Key] = e
	return []state.Change{{Item: e.Item}}
}

// Close implements state.KV.
func (kv *KV) Close() error {
	kv.db.mu.Lock()
	defer kv.db.mu.Unlock()
	kv.db.expire()
	if !kv.closed && !kv.paused {
		kv.seen = time.Now()
	}
	kv.closed = true
	kv.db.rouse()
	return nil
}

func clone(it state.Item) state.Item {
	it.Value = slices.Clone(it.Value)
	return it
}
