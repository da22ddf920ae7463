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

func write(t *testing.T, s *state.Store, lock *state.Lock, n int) {
	t.Helper()
	records, err := journal.Read(context.Background(), s, "r")
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(s, lock, "r", records)
	if err != nil {
		t.Fatal(err)
	}
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
	records, err := journal.Read(context.Background(), s, "r")
	if err != nil || len(records) != 7 {
		t.Fatal(len(records), err)
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
		"changed": {func(b string) (string, bool) { return strings.Replace(b, `"step":1`, `"step":2`, 1), true }, "does not follow"},
		"torn":    {func(b string) (string, bool) { return b[:len(b)/2], true }, "corrupt"},
		"newer":   {func(b string) (string, bool) { return strings.Replace(b, `"v":1`, `"v":2`, 1), true }, "version 2"},
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

// W1: a write whose result is unknown is settled by reading: written once, whether its effect came or not.
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
		records, err := journal.Read(context.Background(), s, "r")
		if err != nil || len(records) != 3 {
			t.Fatalf("effect=%v: %d records, %v", effect, len(records), err)
		}
	}
}

func TestFencedJournalWritesNothingMore(t *testing.T) {
	kv := mem.New(mem.Options{})
	client := kv.Connect(mem.Options{})
	s, lock := open(t, client)
	j, err := journal.Open(s, lock, "r", nil)
	if err != nil {
		t.Fatal(err)
	}
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
	if records, err := journal.Read(context.Background(), s, "r"); err != nil || len(records) != 1 {
		t.Fatal(len(records), err)
	}
}

// Appends that come together cost fewer transactions than there are records.
func TestAppendsAreGrouped(t *testing.T) {
	const n = 200
	var commits atomic.Int64
	gate := make(chan struct{})
	kv := mem.New(mem.Options{Fault: func(c mem.Call) error {
		if c.Name == "commit" && !c.Done && strings.Contains(fmt.Sprint(c.Keys), "journal/") && commits.Add(1) == 1 {
			<-gate
		}
		return nil
	}})
	s, lock := open(t, kv)
	j, err := journal.Open(s, lock, "r", nil)
	if err != nil {
		t.Fatal(err)
	}
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
	records, err := journal.Read(context.Background(), s, "r")
	if err != nil || len(records) != n {
		t.Fatal(len(records), err)
	}
	if c := commits.Load(); c >= n/2 {
		t.Errorf("%d records took %d transactions", n, c)
	}
}
