package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"converge.dev/converge/state"
)

// A Log is the part of a journal that has been written.
type Log struct {
	Records []Record

	seq      int64  // of the last record
	hash     string // of the last record
	revision int64  // of the head in the store
}

// A head says how far a journal goes. It changes with every transaction, so that two writers cannot continue from the
// same record, and no record can be cut off at the end.
type head struct {
	V    int    `json:"v"`
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// A batch is a number of records as they will be stored.
type batch struct {
	log  Log // afterwards
	run  string
	ops  []state.Op
	seq  int64 // of the first record
	text []byte
}

// next makes a batch of records that follow the log.
func (l *Log) next(run string, lock *state.Lock, records []*Record) (*batch, error) {
	b := &batch{run: run, log: Log{seq: l.seq, hash: l.hash}, seq: l.seq + 1}
	for _, rec := range records {
		b.log.seq++
		rec.V, rec.Run, rec.Seq, rec.Epoch, rec.Holder, rec.Prev = Version, run, b.log.seq, lock.Epoch(), lock.Info().ID, b.log.hash
		rec.Wall = time.Now().UTC()
		text, err := json.Marshal(rec)
		if err == nil && len(text) > MaxRecord {
			err = fmt.Errorf("the record about %s has %d bytes; the limit is %d", rec.Ref, len(text), MaxRecord)
		}
		if err != nil {
			return nil, fmt.Errorf("journal of run %s: %w", run, err)
		}
		b.log.hash = hash(text)
		b.ops = append(b.ops, state.Op{Key: "", Value: text})
	}
	b.text = b.ops[0].Value
	return b, nil
}

// write stores the batch. A write of unknown outcome is settled by reading: our record is there; or it is not, and the
// same transaction is tried again; or another writer's is there, and we are fenced. It fails with state.ErrGuard, and has
// written nothing, when a guard does not hold.
func (b *batch) write(ctx context.Context, store *state.Store, lock *state.Lock, guards []state.Guard, more []state.Op) error {
	for i := range b.ops {
		b.ops[i].Key = store.JournalKey(b.run, b.seq+int64(i))
	}
	text, err := json.Marshal(head{Version, b.log.seq, b.log.hash})
	if err != nil {
		return err
	}
	ops := append(append(b.ops, state.Op{Key: store.JournalHead(b.run), Value: text}), more...)
	first := b.ops[0].Key
	guards = append(guards, state.Guard{Key: first})
	const tries = 5
	unknown := false // an earlier try may still be written, whatever a later one returns
	for try := 1; ; try++ {
		revision, err := lock.Commit(ctx, guards, ops)
		if err == nil {
			b.log.revision = revision
			return nil
		}
		if !errors.Is(err, state.ErrUnknown) && !(unknown && errors.Is(err, state.ErrGuard)) {
			if unknown {
				return fmt.Errorf("%w: %w", state.ErrUnknown, err)
			}
			return err
		}
		unknown = true
		item, rerr := store.Get(ctx, first)
		switch {
		case rerr != nil && errors.Is(context.Cause(ctx), state.ErrFenced):
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		case rerr != nil:
			return fmt.Errorf("%w (reading it back failed: %w)", err, rerr)
		case item.Modified != 0 && bytes.Equal(item.Value, b.text):
			b.log.revision = item.Modified
			return nil
		case item.Modified != 0:
			return fmt.Errorf("%w: another process wrote to the journal", state.ErrFenced)
		case errors.Is(err, state.ErrGuard) || try >= tries:
			return err
		}
	}
}

// strict accepts what this version writes and nothing else: no unknown, repeated or differently spelt names.
var strict = json.JoinOptions(json.RejectUnknownMembers(true))

// A DamagedError reports that a journal is not what converge wrote.
type DamagedError struct{ error }

// Read returns the records of a run, oldest first, and verifies that they are whole: a gap, a broken chain, a cut end or
// an unknown version is a *DamagedError that names the record.
func Read(ctx context.Context, store *state.Store, run string) (*Log, error) {
	fail := func(format string, args ...any) (*Log, error) {
		return nil, &DamagedError{fmt.Errorf("journal of run %s: "+format, append([]any{run}, args...)...)}
	}
	items, err := store.List(ctx, store.JournalPrefix(run))
	if err != nil {
		return nil, fmt.Errorf("journal of run %s: %w", run, err)
	}
	if len(items) == 0 {
		return &Log{}, nil
	}
	last := items[len(items)-1] // the head sorts after all numbers
	if last.Key != store.JournalHead(run) {
		return fail("its head %s is missing: the journal is corrupt", store.JournalHead(run))
	}
	items = items[:len(items)-1]
	log := &Log{Records: make([]Record, len(items)), revision: last.Modified}
	for i, item := range items {
		r := &log.Records[i]
		if err := version(item.Value); err != nil {
			return fail("record %s %w", item.Key, err)
		}
		if err := json.Unmarshal(item.Value, r, strict); err != nil {
			return fail("record %s is corrupt: %w", item.Key, err)
		}
		if r.Seq != int64(i)+1 || item.Key != store.JournalKey(run, r.Seq) || r.Run != run || r.Prev != log.hash {
			before := store.JournalKey(run, int64(i))
			return fail("record %s does not follow the previous one, %s: one of them is corrupt, or records are missing or were changed", item.Key, before)
		}
		log.seq, log.hash = r.Seq, hash(item.Value)
	}
	var h head
	if err := version(last.Value); err != nil {
		return fail("its head %s %w", last.Key, err)
	}
	if err := json.Unmarshal(last.Value, &h, strict); err != nil {
		return fail("its head %s is corrupt: %w", last.Key, err)
	}
	if h.Seq != log.seq || h.Hash != log.hash {
		return fail("it ends with record %s, but its head %s says %d: one of them is corrupt, or records are missing or were changed", store.JournalKey(run, log.seq), last.Key, h.Seq)
	}
	return log, nil
}

// Next reads the record that follows number seq, to watch a run; ok is false while there is none. Unlike Read it does not
// verify that the journal is whole.
func Next(ctx context.Context, store *state.Store, run string, seq int64) (r Record, ok bool, err error) {
	item, err := store.Get(ctx, store.JournalKey(run, seq+1))
	if err != nil || item.Modified == 0 {
		return r, false, err
	}
	if err := version(item.Value); err != nil {
		return r, false, fmt.Errorf("journal of run %s: record %s %w", run, item.Key, err)
	}
	if err := json.Unmarshal(item.Value, &r, strict); err != nil {
		return r, false, fmt.Errorf("journal of run %s: record %s is corrupt: %w", run, item.Key, err)
	}
	return r, true, nil
}

// version checks the version of a record before it is decoded.
func version(text []byte) error {
	var v struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("is corrupt: %w", err)
	}
	if v.V != Version {
		return fmt.Errorf("has version %d; this converge supports %d: use the converge that wrote it", v.V, Version)
	}
	return nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
