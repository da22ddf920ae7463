// Package journal records what a run is about to do before it does it, and the outcome afterwards. Recovery
// reads nothing else.
//
// # Words
//
// A [Record] is one line of a run's journal. An intent says that a call is about to be made; an outcome says what was
// observed afterwards. An intent without an outcome is unknown: it is settled by observing, never by guessing.
//
// # Promises
//
// When [Journal.Append] returns without error, its record is durable, in order, and was written while the site lock was
// held; an intent, moreover, while neither a freeze nor a hold stopped its resource. The transaction guarantees both.
// Records form a hash chain, and the head of the journal holds the hash of the last one, so that none can be changed,
// dropped or cut off unnoticed. Concurrent appends are written together, in one transaction, so that many steps in
// flight cost one fsync; none of them returns before that.
//
// A record names things and holds digests, never a spec and never a secret: the specs before and after a step are in
// the plan, whose digest the first record holds.
package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Version is the version of the records. A record of another version stops everything.
const Version = 2

// Kind says what a record is about.
type Kind string

// The kinds of records.
const (
	Begin    Kind = "begin"     // the run is opened for the plan with this digest
	Intent   Kind = "intent"    // a call is about to be made
	Outcome  Kind = "outcome"   // what was observed after the call
	NoReturn Kind = "no-return" // from here on steps cannot be undone exactly
	Confirm  Kind = "confirm"   // somebody has confirmed what the run has done so far: its guards are ended
	Kept     Kind = "kept"      // they are: what was confirmed stays
	Revert   Kind = "revert"    // from here on steps are undone
	End      Kind = "end"       // the run is closed
)

// Result is what an outcome says.
type Result string

// Results.
const (
	Done    Result = "done"    // observed as it should be
	Refused Result = "refused" // nothing was changed
	Partial Result = "partial" // something was changed, but is not as it should be
)

// A Record is one line of the journal.
type Record struct {
	V       int       `json:"v"`
	Run     string    `json:"run"`
	Seq     int64     `json:"seq"`
	Kind    Kind      `json:"kind"`
	Epoch   int64     `json:"epoch"`
	Holder  string    `json:"holder"` // id of the lock
	Wall    time.Time `json:"wall"`
	Prev    string    `json:"prev"` // hex SHA-256 of the record before; empty in the first
	Step    int       `json:"step"` // of the plan; -1 when the record is about the whole run
	Undo    bool      `json:"undo,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	Plan    string    `json:"plan,omitempty"` // digest of the plan; in the first record
	Keep    int       `json:"keep,omitempty"` // how many of the first steps are not undone; in a revert

	Action      plan.Action      `json:"action,omitempty"`
	Class       providers.Revert `json:"undo_class,omitempty"` // how the call could be undone
	Ref         schema.Ref       `json:"ref,omitzero"`
	ExternalID  string           `json:"external_id,omitempty"`
	Incarnation int              `json:"incarnation,omitempty"`
	Key         string           `json:"key,omitempty"`     // idempotency key, the same for all attempts
	Before      string           `json:"before,omitempty"`  // digest of what was observed right before
	Want        string           `json:"want,omitempty"`    // digest of what should be observed afterwards
	Version     string           `json:"version,omitempty"` // version token that was sent

	Result  Result          `json:"result,omitempty"`
	Error   providers.Class `json:"class,omitempty"`
	Message string          `json:"message,omitempty"` // at most maxMessage bytes
	Seen    string          `json:"seen,omitempty"`    // digest of what was observed afterwards
}

const (
	maxMessage = 2 << 10
	// MaxRecord is the maximum size of a record in bytes.
	MaxRecord = 16 << 10
)

// maxBatch is the maximum number of records in one transaction. Each may add one more operation, and two guards.
const maxBatch = (state.MaxOps - 16) / 2

// A StoppedError says that a step may not begin, because a freeze or a hold stops it.
type StoppedError struct {
	Ref   schema.Ref
	Holds []state.Hold
}

// Error names the resource and what stops it.
func (e *StoppedError) Error() string {
	h := e.Holds[0]
	return fmt.Sprintf("%s was left unchanged: %s is on hold: %s", e.Ref, h.Scope, h.Reason)
}

// Journal writes the records of one run. Append may be called from many goroutines.
type Journal struct {
	run   string
	held  context.Context // of all writes; ends when the lock is lost
	end   func()          // of held
	lock  *state.Lock
	store *state.Store
	queue chan request
	done  chan struct{}

	log   Log          // what has been written; owned by the writer, without records
	stops *state.Stops // as last read; owned by the writer
	err   error        // once set, nothing more can be written
}

type request struct {
	rec  Record
	ops  []state.Op
	done chan error
}

// Start opens a run's journal with its first record, in one transaction with ops and under guards. It fails with
// state.ErrGuard when a guard does not hold.
func Start(ctx context.Context, store *state.Store, lock *state.Lock, run, plan string, guards []state.Guard, ops []state.Op) (*Log, error) {
	log := &Log{}
	rec := Record{Kind: Begin, Step: -1, Plan: plan}
	b, err := log.next(run, lock, []*Record{&rec})
	if err != nil {
		return nil, err
	}
	all := append(slices.Clone(guards), state.Guard{Key: store.JournalHead(run)})
	if err := b.write(ctx, store, lock, all, ops); err != nil {
		return nil, fmt.Errorf("start the journal of run %s: %w", run, err)
	}
	b.log.Records = []Record{rec}
	return &b.log, nil
}

// Open continues the journal of a run. Close must be called.
func Open(ctx context.Context, store *state.Store, lock *state.Lock, run string, log *Log) (*Journal, error) {
	stops, err := store.Stops(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the journal of run %s: %w", run, err)
	}
	j := &Journal{run: run, lock: lock, store: store, stops: stops, queue: make(chan request, maxBatch), done: make(chan struct{}), log: *log}
	j.log.Records = nil
	// The writer serves many callers: it must not stop half-way because one of them is cancelled, only when the lock is lost.
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	j.held, j.end = lock.Context(own), end
	go j.serve()
	return j, nil
}

// Append writes a record, together with ops, and returns once both are durable. Run, Seq, Epoch, Holder, Wall and Prev
// are filled in. An intent that a hold or a freeze stops fails with a *StoppedError, and the journal stays usable; a hold that
// this run has set itself does not stop it. After any error the record was not written, unless the error wraps
// [state.ErrUnknown].
func (j *Journal) Append(ctx context.Context, rec Record, ops ...state.Op) error {
	return j.Queue(ctx, rec, ops...)()
}

// Queue is the first half of Append: it puts a record in line. What it returns waits until the record is durable, and must be
// called. Records become durable in the order of the line: once Queue has returned, nothing that is queued later is durable without
// this one, unless a hold or a freeze stops it.
func (j *Journal) Queue(ctx context.Context, rec Record, ops ...state.Op) (written func() error) {
	if len(rec.Message) > maxMessage {
		rec.Message = rec.Message[:maxMessage] + "…"
	}
	at := func(when string) error {
		if rec.Kind == Confirm || rec.Kind == Kept { // which only a person brings about
			return nil
		}
		return failpoint.At("journal." + string(rec.Kind) + when)
	}
	if err := at(".before"); err != nil {
		return func() error { return err }
	}
	r := request{rec, ops, make(chan error, 1)}
	select {
	case j.queue <- r:
		return func() error {
			if err := <-r.done; err != nil {
				return err
			}
			return at(".after")
		}
	case <-ctx.Done():
		return func() error { return context.Cause(ctx) }
	}
}

// Close waits for pending writes. Append must not be called afterwards.
func (j *Journal) Close() {
	close(j.queue)
	<-j.done
	j.end()
}

// serve takes all requests that wait in the queue and writes them in one transaction.
func (j *Journal) serve() {
	defer close(j.done)
	for first := range j.queue {
		batch := []request{first}
		size := len(first.ops) + 1
		for open := true; open && len(batch) < maxBatch && size < 2*maxBatch; {
			select {
			case r, ok := <-j.queue:
				if open = ok; ok {
					batch = append(batch, r)
					size += len(r.ops) + 1
				}
				continue
			default:
			}
			break
		}
		if j.err == nil {
			j.err = j.commit(batch)
			continue
		}
		for _, r := range batch {
			r.done <- j.err
		}
	}
}

// commit writes a batch and answers its requests. A request that a hold or a freeze stops is answered and left out. An
// error means that nothing more can be written.
func (j *Journal) commit(all []request) (err error) {
	ctx, left := j.held, all
	defer func() {
		if err != nil {
			err = fmt.Errorf("write journal of run %s: %w", j.run, err)
		}
		for _, r := range left {
			r.done <- err
		}
	}()
	const tries = 20 // each retry means that a hold or a freeze was set or released meanwhile
	for range tries {
		if left, err = j.free(ctx, left); err != nil || len(left) == 0 {
			return err
		}
		guards := []state.Guard{{Key: j.store.JournalHead(j.run), Revision: j.log.revision}}
		var ops []state.Op
		records := make([]*Record, len(left))
		for i := range left {
			records[i] = &left[i].rec
			ops = append(ops, left[i].ops...)
			if left[i].rec.Kind == Intent {
				guards = j.stops.Guard(guards, left[i].rec.Ref, j.run)
			}
		}
		b, berr := j.log.next(j.run, j.lock, records)
		if berr != nil {
			return berr
		}
		err = b.write(ctx, j.store, j.lock, guards, ops)
		if err == nil {
			j.log = b.log
			return nil
		}
		if !errors.Is(err, state.ErrGuard) {
			return err
		}
		// Either another process wrote a record, and the lock was not really ours; or something is held now that was free.
		head, rerr := j.store.Get(ctx, j.store.JournalHead(j.run))
		if rerr != nil {
			return fmt.Errorf("%w (reading it back failed: %w)", err, rerr)
		}
		if head.Modified != j.log.revision {
			return fmt.Errorf("%w: another process wrote to the journal", state.ErrFenced)
		}
		if j.stops, rerr = j.store.Stops(ctx); rerr != nil {
			return fmt.Errorf("%w (reading the holds failed: %w)", err, rerr)
		}
	}
	return err
}

// free answers the intents that a hold or a freeze stops, and returns the other requests.
func (j *Journal) free(ctx context.Context, all []request) ([]request, error) {
	stopped := func(r request) []state.Hold {
		if r.rec.Kind != Intent {
			return nil // outcomes are written, whatever was stopped meanwhile
		}
		return j.stops.On(r.rec.Ref, j.run)
	}
	if !slices.ContainsFunc(all, func(r request) bool { return len(stopped(r)) > 0 }) {
		return all, nil
	}
	stops, err := j.store.Stops(ctx) // it may have been released
	if err != nil {
		return all, err
	}
	j.stops = stops
	left := make([]request, 0, len(all))
	for _, r := range all {
		if holds := stopped(r); len(holds) > 0 {
			r.done <- &StoppedError{Ref: r.rec.Ref, Holds: holds}
		} else {
			left = append(left, r)
		}
	}
	return left, nil
}
