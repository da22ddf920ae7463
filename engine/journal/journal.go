// Package journal writes down what a run is about to do before it does it, and what came of it afterwards. Recovery
// reads nothing else.
//
// # Words
//
// A [Record] is one line of a run's journal. An intent says that a call is about to be made; an outcome says what was
// seen afterwards. An intent without an outcome is unknown: it is settled by observing, never by guessing.
//
// # Promises
//
// When [Journal.Append] returns without error its record is durable, in order, and was written while the site lock was
// held. Records form a hash chain. Appends that come together are written together, in one transaction, so that many
// steps in flight cost one fsync; none of them returns before that.
package journal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Version of the records. A record of another version stops everything.
const Version = 1

// Kind says what a record tells.
type Kind string

// Kinds of records.
const (
	Intent   Kind = "intent"    // a call is about to be made
	Outcome  Kind = "outcome"   // what was seen afterwards
	NoReturn Kind = "no-return" // from here on steps cannot be undone exactly
	Revert   Kind = "revert"    // from here on steps are undone
	End      Kind = "end"       // the run is closed
)

// Result is what an outcome says.
type Result string

// Results.
const (
	Done    Result = "done"    // seen as it should be
	Refused Result = "refused" // nothing was changed
	Partial Result = "partial" // something was changed, but it is not as it should be
)

// A Record is one line of the journal.
type Record struct {
	V       int       `json:"v"`
	Run     string    `json:"run"`
	Seq     int64     `json:"seq"`
	Kind    Kind      `json:"kind"`
	Epoch   int64     `json:"epoch"`
	Wall    time.Time `json:"wall"`
	Prev    string    `json:"prev"` // hex SHA-256 of the record before; empty in the first
	Step    int       `json:"step"` // of the plan; -1 when the record is about the whole run
	Undo    bool      `json:"undo,omitempty"`
	Attempt int       `json:"attempt,omitempty"`

	Action      plan.Action `json:"action,omitempty"`
	Ref         schema.Ref  `json:"ref,omitzero"`
	ExternalID  string      `json:"external_id,omitempty"`
	Incarnation int         `json:"incarnation,omitempty"`
	Key         string      `json:"key,omitempty"`     // idempotency key, the same for all attempts
	Before      string      `json:"before,omitempty"`  // digest of what was seen right before
	Want        string      `json:"want,omitempty"`    // digest of what is to be seen afterwards
	Version     string      `json:"version,omitempty"` // token sent

	Result  Result          `json:"result,omitempty"`
	Class   providers.Class `json:"class,omitempty"`
	Message string          `json:"message,omitempty"` // at most maxMessage bytes
	Seen    string          `json:"seen,omitempty"`    // digest of what was seen afterwards
}

const maxMessage = 2048

// maxBatch records are written in one transaction at the most; each may bring one more operation.
const maxBatch = state.MaxOps / 2

// Journal writes the records of one run. Append may be called from many goroutines.
type Journal struct {
	run   string
	lock  *state.Lock
	store *state.Store
	queue chan request
	done  chan struct{}

	seq  int64  // of the last record; owned by the writer
	prev string // its hash
	err  error  // after which nothing can be written
}

type request struct {
	ctx  context.Context
	rec  Record
	ops  []state.Op
	done chan error
}

// Open continues the journal of a run after its records so far (none for a new run). Close must be called.
func Open(store *state.Store, lock *state.Lock, run string, records []Record) (*Journal, error) {
	j := &Journal{run: run, lock: lock, store: store, queue: make(chan request), done: make(chan struct{})}
	if n := len(records); n > 0 {
		b, err := json.Marshal(records[n-1])
		if err != nil {
			return nil, err
		}
		j.seq, j.prev = records[n-1].Seq, hash(b)
	}
	go j.write()
	return j, nil
}

// Append writes a record, together with ops, and returns once both are durable. Run, Seq, Epoch, Wall and Prev are
// filled in. After an error the record was not written, unless the error wraps [state.ErrUnknown].
func (j *Journal) Append(ctx context.Context, rec Record, ops ...state.Op) error {
	if len(rec.Message) > maxMessage {
		rec.Message = rec.Message[:maxMessage] + "…"
	}
	r := request{ctx, rec, ops, make(chan error, 1)}
	select {
	case j.queue <- r:
		return <-r.done
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close waits for what is being written. Append must not be called afterwards.
func (j *Journal) Close() {
	close(j.queue)
	<-j.done
}

// write takes whatever waits in the queue and writes it in one transaction.
func (j *Journal) write() {
	defer close(j.done)
	for first := range j.queue {
		batch := []request{first}
		size := len(first.ops) + 1
		open := true
		for open && len(batch) < maxBatch && size < state.MaxOps-4 {
			select {
			case r, ok := <-j.queue:
				if !ok {
					open = false
					break
				}
				batch = append(batch, r)
				size += len(r.ops) + 1
				continue
			default:
			}
			break
		}
		err := j.err
		if err == nil {
			err = j.commit(batch)
		}
		for _, r := range batch {
			r.done <- err
		}
	}
}

// commit writes a batch. A write whose result is unknown is settled by reading: our record is there, or it is not and
// the same transaction is tried again, or another's is there and we are fenced.
func (j *Journal) commit(batch []request) error {
	seq, prev := j.seq, j.prev
	var ops []state.Op
	var firstKey string
	var firstValue []byte
	for i := range batch {
		rec := &batch[i].rec
		seq++
		rec.V, rec.Run, rec.Seq, rec.Epoch, rec.Prev = Version, j.run, seq, j.lock.Epoch(), prev
		rec.Wall = time.Now().UTC()
		b, err := json.Marshal(rec)
		if err != nil {
			return fmt.Errorf("journal of run %s: %w", j.run, err)
		}
		prev = hash(b)
		key := j.store.JournalKey(j.run, seq)
		if i == 0 {
			firstKey, firstValue = key, b
		}
		ops = append(append(ops, state.Op{Key: key, Value: b}), batch[i].ops...)
	}
	// The writer serves many callers: it must not stop half-way because one of them has gone, only when the lock has.
	ctx := j.lock.Context(context.WithoutCancel(batch[0].ctx))
	const tries = 5
	for try := 1; ; try++ {
		_, err := j.lock.Commit(ctx, []state.Guard{{Key: firstKey}}, ops)
		if errors.Is(err, state.ErrUnknown) || (try > 1 && errors.Is(err, state.ErrGuard)) {
			item, rerr := j.store.Get(ctx, firstKey)
			switch {
			case rerr != nil && errors.Is(context.Cause(ctx), state.ErrFenced):
				err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
			case rerr != nil:
				err = fmt.Errorf("%w (reading it back: %w)", err, rerr)
			case item.Modified != 0 && string(item.Value) == string(firstValue):
				err = nil
			case item.Modified != 0:
				err = state.ErrFenced
			case try < tries:
				continue
			}
		}
		if err != nil {
			j.err = fmt.Errorf("write journal of run %s: %w", j.run, err)
			return j.err
		}
		j.seq, j.prev = seq, prev
		return nil
	}
}

// Read gives the records of a run, oldest first, and verifies that they are whole: a gap, a broken chain or an unknown
// version is an error that names the record.
func Read(ctx context.Context, store *state.Store, run string) ([]Record, error) {
	items, err := store.List(ctx, store.JournalPrefix(run))
	if err != nil {
		return nil, fmt.Errorf("read journal of run %s: %w", run, err)
	}
	records := make([]Record, len(items))
	prev := ""
	for i, item := range items {
		if err := json.Unmarshal(item.Value, &records[i]); err != nil {
			return nil, fmt.Errorf("journal of run %s: record %s is corrupt: %w", run, item.Key, err)
		}
		r := &records[i]
		switch {
		case r.V != Version:
			return nil, fmt.Errorf("journal of run %s: record %s has version %d; this converge knows %d: use the converge that wrote it", run, item.Key, r.V, Version)
		case r.Seq != int64(i)+1 || r.Run != run || r.Prev != prev:
			return nil, fmt.Errorf("journal of run %s: record %s does not follow the one before it: records are missing or were changed", run, item.Key)
		}
		prev = hash(item.Value)
	}
	return records, nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
