package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/state"
)

// A world is the outside: it takes effects, in an order, and remembers what was promised about them.
type world struct {
	mu      sync.Mutex
	effects []effect
	keys    map[string]effect
	told    map[string]error // per record: what Append returned
	holders map[int64]string // of an epoch
}

type effect struct {
	key   string
	epoch int64
	at    time.Time
}

func newWorld() *world {
	return &world{keys: map[string]effect{}, told: map[string]error{}, holders: map[int64]string{}}
}

// act has the effect, unless the lock is lost: that is checked at the last moment, as for a call to the outside.
func (w *world) act(ctx context.Context, epoch int64, key string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.effects = append(w.effects, effect{key, epoch, time.Now()})
	w.keys[key] = w.effects[len(w.effects)-1]
	return nil
}

// tell records what Append returned for a record.
func (w *world) tell(kind journal.Kind, key string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told[string(kind)+" "+key] = err
}

// hold records which holder has an epoch.
func (w *world) hold(t *testing.T, epoch int64, holder string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if other, taken := w.holders[epoch]; taken {
		t.Errorf("%s and %s both hold the lock with the epoch %d", other, holder, epoch)
	}
	w.holders[epoch] = holder
}

// moments returns when there was an effect after since.
func (w *world) moments(since time.Time) (at []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.effects {
		if e.at.After(since) {
			at = append(at, e.at)
		}
	}
	return at
}

// A verdict is how many records were found of each sort.
type verdict struct {
	effects, holders, records, unknown, refused int
}

// check compares the world with the journal that is read now.
func (w *world) check(records []journal.Record) (v verdict, errs []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrong := func(format string, args ...any) {
		if len(errs) < 10 {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	written := map[string]journal.Record{}
	epoch := int64(0)
	for _, r := range records {
		if r.Epoch < epoch {
			wrong("F: record %d is of epoch %d and follows one of epoch %d", r.Seq, r.Epoch, epoch)
		}
		epoch = r.Epoch
		if r.Key == "" {
			continue
		}
		id := string(r.Kind) + " " + r.Key
		if first, twice := written[id]; twice {
			wrong("%s was written twice, as records %d and %d", id, first.Seq, r.Seq)
		}
		written[id] = r
	}
	epoch = 0
	for _, e := range w.effects {
		r, ok := written[string(journal.Intent)+" "+e.key]
		if !ok {
			wrong("W1: the effect %s has no intent", e.key)
		} else if r.Epoch != e.epoch {
			wrong("W2: the effect %s is of epoch %d, its intent of epoch %d", e.key, e.epoch, r.Epoch)
		}
		if e.epoch < epoch {
			wrong("F: the effect %s of epoch %d comes after one of epoch %d", e.key, e.epoch, epoch)
		}
		epoch = e.epoch
	}
	for id, err := range w.told {
		_, ok := written[id]
		switch {
		case err == nil && !ok:
			wrong("%s was said to be durable, and is not in the journal", id)
		case err != nil && errors.Is(err, state.ErrUnknown):
			v.unknown++
		case err != nil:
			v.refused++
			if ok {
				wrong("%s was said not to be written, and is in the journal; the error was: %v", id, err)
			}
		}
	}
	v.effects, v.holders, v.records = len(w.effects), len(w.holders), len(records)
	return v, errs
}
