package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

func open(t *testing.T, kv state.KV) (*state.Store, *state.Lock) {
	t.Helper()
	s := state.New(kv, "test")
	lock, err := s.Lock(context.Background(), state.LockInfo{}, state.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	return s, lock
}

// begin opens the journal of run r, or continues it.
func begin(t *testing.T, s *state.Store, lock *state.Lock) *journal.Journal {
	t.Helper()
	log, err := journal.Read(context.Background(), s, "r")
	if err == nil && len(log.Records) == 0 {
		log, err = journal.Start(context.Background(), s, lock, "r", "digest", nil, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(context.Background(), s, lock, "r", log)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func read(t *testing.T, s *state.Store) []journal.Record {
	t.Helper()
	log, err := journal.Read(context.Background(), s, "r")
	if err != nil {
		t.Fatal(err)
	}
	return log.Records
}

// write writes the first record and n intents.
func write(t *testing.T, s *state.Store, lock *state.Lock, n int) {
	t.Helper()
	j := begin(t, s, lock)
	defer j.Close()
	for i := range n {
		if err := j.Append(context.Background(), journal.Record{Kind: journal.Intent, Step: i}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordsComeBackInOrderAcrossOpens(t *testing.T) {
	s, lock := open(t, mem.New(mem.Options{}))
	write(t, s, lock, 3)
	write(t, s, lock, 4)
	records := read(t, s)
	if len(records) != 8 {
		t.Fatal(len(records))
	}
	for i, r := range records {
		if r.Seq != int64(i)+1 || (i > 0) != (r.Prev != "") {
			t.Fatalf("record %d: %+v", i, r)
		}
	}
}

// W8: what is missing, changed or newer is never misread.
func TestDamageIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(body string) (string, bool) // false: delete
		want   string
	}{
		"gap":     {func(string) (string, bool) { return "", false }, "does not follow"},
		"changed": {func(b string) (string, bool) { return strings.Replace(b, `"step":0`, `"step":2`, 1), true }, "does not follow"},
		"torn":    {func(b string) (string, bool) { return b[:len(b)/2], true }, "corrupt"},
		"newer":   {func(b string) (string, bool) { return strings.Replace(b, `"v":2`, `"v":3`, 1), true }, "version 3"},
		"unknown": {func(b string) (string, bool) { return strings.Replace(b, `"v":2`, `"v":2,"w":2`, 1), true }, "corrupt"},
		"twice":   {func(b string) (string, bool) { return strings.Replace(b, `"v":2`, `"v":2,"v":2`, 1), true }, "corrupt"},
		"case":    {func(b string) (string, bool) { return strings.Replace(b, `"seq"`, `"Seq"`, 1), true }, "corrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			kv := mem.New(mem.Options{})
			s, lock := open(t, kv)
			write(t, s, lock, 4)
			key := s.JournalKey("r", 2)
			item, err := kv.Get(context.Background(), key)
			if err != nil {
				t.Fatal(err)
			}
			body, keep := c.damage(string(item.Value))
			if _, err := kv.Commit(context.Background(), nil, []state.Op{{Key: key, Value: []byte(body), Delete: !keep}}); err != nil {
				t.Fatal(err)
			}
			_, err = journal.Read(context.Background(), s, "r")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

// W1: a write whose result is unknown is settled by reading: written once, whether it had its effect or not.
func TestUnknownResultIsSettled(t *testing.T) {
	for _, effect := range []bool{false, true} {
		var calls atomic.Int64
		inner := mem.New(mem.Options{})
		s0, lock0 := open(t, inner)
		lock0.Close()
		_ = s0
		kv := inner.Connect(mem.Options{Fault: func(c mem.Call) error {
			if c.Name == "commit" && c.Done == effect && strings.Contains(fmt.Sprint(c.Keys), "journal/") && calls.Add(1) == 2 {
				return fmt.Errorf("%w: the reply was lost", state.ErrUnknown)
			}
			return nil
		}})
		s, lock := open(t, kv)
		write(t, s, lock, 3)
		if n := len(read(t, s)); n != 4 {
			t.Fatalf("effect=%v: %d records", effect, n)
		}
	}
}

func TestFencedJournalWritesNothingMore(t *testing.T) {
	kv := mem.New(mem.Options{})
	client := kv.Connect(mem.Options{})
	s, lock := open(t, client)
	j := begin(t, s, lock)
	defer j.Close()
	if err := j.Append(context.Background(), journal.Record{Kind: journal.Intent}); err != nil {
		t.Fatal(err)
	}
	client.Lapse()
	open(t, kv) // another holder
	for range 2 {
		if err := j.Append(context.Background(), journal.Record{Kind: journal.Outcome}); !errors.Is(err, state.ErrFenced) {
			t.Fatalf("got %v, want ErrFenced", err)
		}
	}
	if n := len(read(t, s)); n != 2 {
		t.Fatal(n)
	}
}

// Records are written in the order of the line, and what one of them cannot have, none behind it has.
func TestTheLineKeepsItsOrder(t *testing.T) {
	broken := errors.New("the disk is full")
	for _, full := range []bool{false, true} {
		var now atomic.Bool
		s, lock := open(t, mem.New(mem.Options{Fault: func(c mem.Call) error {
			if c.Name == "commit" && !c.Done && now.CompareAndSwap(true, false) {
				return broken
			}
			return nil
		}}))
		j := begin(t, s, lock)
		now.Store(full)
		var written []func() error
		for i := range 100 {
			written = append(written, j.Queue(t.Context(), journal.Record{Kind: journal.Outcome, Step: i}))
		}
		for i := range written { // in the opposite order, because none needs that another one waits
			if err := written[len(written)-1-i](); full != errors.Is(err, broken) {
				t.Fatalf("full %v: %v", full, err)
			}
		}
		j.Close()
		recs := read(t, s)[1:]
		if full && len(recs) > 0 || !full && len(recs) != len(written) {
			t.Fatalf("full %v: %d records", full, len(recs))
		}
		for i, rec := range recs {
			if rec.Step != i {
				t.Fatalf("record %d is of step %d", i, rec.Step)
			}
		}
	}
}

// Concurrent appends cost fewer transactions than there are records.
func TestAppendsAreGrouped(t *testing.T) {
	const n = 200
	var commits atomic.Int64
	gate := make(chan struct{})
	kv := mem.New(mem.Options{Fault: func(c mem.Call) error {
		if c.Name == "commit" && !c.Done && strings.Contains(fmt.Sprint(c.Keys), "journal/") && commits.Add(1) == 2 { // the first one starts the journal
			<-gate
		}
		return nil
	}})
	s, lock := open(t, kv)
	j := begin(t, s, lock)
	var wg sync.WaitGroup
	var queued atomic.Int64
	for i := range n {
		wg.Go(func() {
			if queued.Add(1) == n {
				close(gate)
			}
			if err := j.Append(context.Background(), journal.Record{Kind: journal.Intent, Step: i}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	j.Close()
	if got := len(read(t, s)); got != n+1 {
		t.Fatal(got)
	}
	if c := commits.Load(); c >= n/2 {
		t.Errorf("%d records took %d transactions", n, c)
	}
}

// The end of a journal cannot be cut off: its head records how far it went.
func TestCutEndIsFound(t *testing.T) {
	for name, last := range map[string]string{"the last record": "0000000004", "the head": "head"} {
		kv := mem.New(mem.Options{})
		s, lock := open(t, kv)
		write(t, s, lock, 3)
		if _, err := kv.Commit(context.Background(), nil, []state.Op{{Key: s.JournalPrefix("r") + last, Delete: true}}); err != nil {
			t.Fatal(err)
		}
		if log, err := journal.Read(context.Background(), s, "r"); err == nil {
			t.Errorf("without %s it is read, with %d records", name, len(log.Records))
		}
	}
}

// W5: while a hold or a freeze applies, no intent is written, whenever it was set; what was done is still recorded, and
// what is not held continues.
func TestIntentObeysHolds(t *testing.T) {
	ctx := context.Background()
	kv := mem.New(mem.Options{})
	s, lock := open(t, kv)
	j := begin(t, s, lock)
	defer j.Close()
	node := schema.Ref{Scope: "n1", Kind: "near.bridge", Name: "b"}
	other := schema.Ref{Scope: "n2", Kind: "near.bridge", Name: "b"}
	try := func(kind journal.Kind, ref schema.Ref, want bool) {
		t.Helper()
		err := j.Append(ctx, journal.Record{Kind: kind, Ref: ref})
		var held *journal.StoppedError
		if want && err != nil || !want && !errors.As(err, &held) {
			t.Errorf("%s of %s: %v; written is wanted: %v", kind, ref, err, want)
		}
	}
	try(journal.Intent, node, true)
	for scope, alsoOther := range map[string]bool{"n1": true, node.String(): true, schema.ScopeSite: false} {
		if err := s.Hold(ctx, scope, "ann", "wait"); err != nil {
			t.Fatal(err)
		}
		try(journal.Intent, node, false)
		try(journal.Intent, other, alsoOther)
		try(journal.Outcome, node, true)
		if err := s.Release(ctx, scope, "ann", "go on"); err != nil {
			t.Fatal(err)
		}
		try(journal.Intent, node, true)
	}
	if err := s.SetFreeze(ctx, true, "ann", "fire"); err != nil {
		t.Fatal(err)
	}
	try(journal.Intent, other, false)
	try(journal.End, node, true)
	if _, err := kv.Commit(ctx, nil, []state.Op{s.ThawOp(), s.HoldOp(state.Hold{Scope: "n1", Run: "r"})}); err != nil {
		t.Fatal(err)
	}
	try(journal.Intent, node, true) // its own
	read(t, s)
}

// A journal that says nothing of steps that are kept, as older ones do not, means all of the run. The last record counts, and one
// that is impossible for the plan is damage.
func TestHowFarBack(t *testing.T) {
	sum := func(kept ...int) (journal.Replay, error) {
		records := []journal.Record{{Kind: journal.Begin, Step: -1}}
		for i := range 3 {
			records = append(records, journal.Record{Kind: journal.Outcome, Step: i, Result: journal.Done})
		}
		for _, n := range kept {
			records = append(records, journal.Record{Kind: journal.Revert, Step: -1, Keep: n})
		}
		return journal.Sum(records, 3)
	}
	for _, c := range []struct {
		kept []int
		left int
	}{{[]int{0}, 3}, {[]int{2}, 1}, {[]int{2, 1}, 2}, {[]int{2, 0}, 3}, {[]int{3}, 0}} {
		if got, err := sum(c.kept...); err != nil || !got.Reverting || got.Count() != c.left {
			t.Errorf("%v: %d are left to undo, want %d: %v", c.kept, got.Count(), c.left, err)
		}
	}
	for _, n := range []int{-1, 4} {
		if _, err := sum(n); err == nil {
			t.Errorf("%d of 3 steps are kept", n)
		}
	}
}
