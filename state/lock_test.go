package state_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

func take(t *testing.T, kv state.KV) *state.Lock {
	t.Helper()
	l, err := state.New(kv, "s").Lock(t.Context(), state.LockInfo{Who: "ann@host"}, state.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestPaused proves F2: a process that was paused for longer than its lease has stopped all work before any other can have
// the lock, and writes nothing when it wakes up.
func TestPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := mem.New(mem.Options{})
		there := here.Connect(mem.Options{})
		old := take(t, here)
		work := old.Context(t.Context())

		time.Sleep(time.Hour) // kept alive for as long as it answers
		if err := work.Err(); err != nil {
			t.Fatalf("after a quiet hour: %v", context.Cause(work))
		}
		paused := time.Now()
		here.Pause()
		<-work.Done()
		stopped := time.Since(paused)
		if cause := context.Cause(work); !errors.Is(cause, state.ErrFenced) {
			t.Errorf("the work ended with %v", cause)
		}
		if _, err := old.Commit(t.Context(), nil, []state.Op{{Key: "/early"}}); !errors.Is(err, state.ErrFenced) {
			t.Errorf("a commit that the store would still take: %v", err)
		}
		next, err := state.New(there, "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		taken := time.Since(paused)
		if stopped > state.DefaultTTL-2*time.Second || taken < state.DefaultTTL || taken > state.DefaultTTL+time.Second {
			t.Errorf("stopped after %v, taken over after %v; the lease has %v", stopped, taken, state.DefaultTTL)
		}
		if next.Epoch() != old.Epoch()+1 {
			t.Errorf("epoch %d after %d", next.Epoch(), old.Epoch())
		}
		if _, err := old.Commit(t.Context(), nil, []state.Op{{Key: "/a"}}); !errors.Is(err, state.ErrFenced) {
			t.Errorf("the old holder writes: %v", err)
		}
		_ = old.Close()
		if _, err := next.Commit(t.Context(), nil, []state.Op{{Key: "/b"}}); err != nil {
			t.Errorf("the new holder: %v", err)
		}
		_ = next.Close()
	})
}

// TestLapsed: the lease is gone, the holder does not know, and the store prevents its writes all the same.
func TestLapsed(t *testing.T) {
	here := mem.New(mem.Options{})
	there := here.Connect(mem.Options{})
	old := take(t, here)
	here.Lapse()
	op := []state.Op{{Key: "/a"}}
	if _, err := old.Commit(t.Context(), nil, op); !errors.Is(err, state.ErrFenced) {
		t.Errorf("before a successor: %v", err)
	}
	old = take(t, here)
	here.Lapse()
	next := take(t, there)
	if _, err := old.Commit(t.Context(), []state.Guard{{Key: "/no", Revision: 9}}, op); !errors.Is(err, state.ErrFenced) {
		t.Errorf("with a successor, and a guard that does not hold: %v", err)
	}
	if items, _ := there.List(t.Context(), "/a"); len(items) != 0 {
		t.Error("it wrote")
	}
	if err := errors.Join(old.Close(), next.Close()); err != nil {
		t.Error(err)
	}
}

// TestForced: a holder that writes nothing notices within a third of its ttl that its lock was broken.
func TestForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := mem.New(mem.Options{})
		l := take(t, kv)
		work := l.Context(t.Context())
		time.Sleep(time.Minute)
		start := time.Now()
		if err := state.New(kv, "s").ForceUnlock(t.Context(), l.Info().ID, "bob", "test"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-work.Done():
		case <-time.After(time.Hour):
		}
		if !errors.Is(context.Cause(work), state.ErrFenced) || time.Since(start) > state.DefaultTTL/3+time.Second {
			t.Errorf("it ended after %v with %v", time.Since(start), context.Cause(work))
		}
		_ = l.Close()
	})
}

// TestWaitEnds: a wait has an end, and its error says for which holder.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := mem.New(mem.Options{})
		l := take(t, kv)
		defer l.Close()
		start := time.Now()
		_, err := state.New(kv, "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{Wait: 25 * time.Second})
		var locked *state.LockedError
		if !errors.As(err, &locked) || locked.Info.Who != "ann@host" || !strings.Contains(err.Error(), "(25s ago)") {
			t.Errorf("got %v", err)
		}
		if waited := time.Since(start); waited != 25*time.Second {
			t.Errorf("waited for %v", waited)
		}
	})
}

// TestContext: a context of the lock ends with the caller's, for the caller's reason, and the lock continues.
func TestContext(t *testing.T) {
	l := take(t, mem.New(mem.Options{}))
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	work := l.Context(ctx)
	cancel(reason)
	<-work.Done()
	if got := context.Cause(work); !errors.Is(got, reason) || errors.Is(got, state.ErrFenced) {
		t.Errorf("ended with %v", got)
	}
	if _, err := l.Commit(work, nil, []state.Op{{Key: "/a"}}); !errors.Is(err, context.Canceled) || errors.Is(err, state.ErrFenced) {
		t.Errorf("a commit under it: %v", err)
	}
	if _, err := l.Commit(t.Context(), nil, []state.Op{{Key: "/a"}}); err != nil {
		t.Errorf("another commit: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// faults lists what can happen to one commit.
var faults = map[string]func(done bool) error{
	"never sent, unknown": func(done bool) error {
		if done {
			return nil
		}
		return state.ErrUnknown
	},
	"written, reply lost": func(done bool) error {
		if done {
			return state.ErrUnknown
		}
		return nil
	},
}

// eachCommit runs do once for every commit that it makes and every fault of it, until do makes no further commit.
func eachCommit(t *testing.T, do func(t *testing.T, kv, other *mem.KV)) {
	for name, fault := range faults {
		for at := 0; ; at++ {
			n := -1
			kv := mem.New(mem.Options{})
			faulty := kv.Connect(mem.Options{Fault: func(c mem.Call) error {
				if c.Name != "commit" {
					return nil
				}
				if !c.Done {
					n++
				}
				if n == at {
					return fault(c.Done)
				}
				return nil
			}})
			t.Run(name, func(t *testing.T) { do(t, faulty, kv) })
			if n < at {
				if at < 2 {
					t.Errorf("%s: only %d commits were made", name, at)
				}
				break
			}
		}
	}
}

// TestLockUnknown: whatever happens to one write, a lock that was taken is held, and its epoch is unique.
func TestLockUnknown(t *testing.T) {
	eachCommit(t, func(t *testing.T, kv, other *mem.KV) {
		first := take(t, other)
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		l := take(t, kv)
		if l.Epoch() <= first.Epoch() {
			t.Errorf("epoch %d after %d", l.Epoch(), first.Epoch())
		}
		info, err := state.New(other, "s").LockInfo(t.Context())
		if err != nil || info == nil || info.Epoch != l.Epoch() || info.ID != l.Info().ID {
			t.Errorf("others are told %+v, %v", info, err)
		}
		failed := 0
		for range 3 {
			if _, err := l.Commit(t.Context(), nil, []state.Op{{Key: "/a"}}); err != nil {
				failed++
				if !errors.Is(err, state.ErrUnknown) {
					t.Errorf("a commit: %v", err)
				}
			}
		}
		if failed > 1 {
			t.Errorf("%d commits failed after one fault", failed)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		take(t, other)
	})
}

// TestDocumentUnknown: whatever happens to one write, a document is written once.
func TestDocumentUnknown(t *testing.T) {
	body := slices.Repeat([]byte("0123456789abcdef"), 1<<14)
	eachCommit(t, func(t *testing.T, kv, other *mem.KV) {
		s := state.New(kv, "s")
		for i := range 2 {
			body := append(slices.Clone(body), byte(i))
			h, err := s.PutDocument(t.Context(), body, digest(body), 0, "ann", state.AnyRevision)
			if err != nil {
				t.Fatal(err)
			}
			if h.Serial != int64(i+1) {
				t.Errorf("serial %d, want %d", h.Serial, i+1)
			}
		}
		history, err := state.New(other, "s").History(t.Context())
		if err != nil || len(history) != 2 {
			t.Errorf("%d revisions, %v", len(history), err)
		}
		if _, got, err := s.Document(t.Context(), 2); err != nil || len(got) != len(body)+1 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		digests, err := s.PutBlob(t.Context(), body)
		if err != nil {
			t.Errorf("a blob: %v", err)
		}
		if got, err := s.Blob(t.Context(), digests); err != nil || len(got) != len(body) {
			t.Errorf("a blob of %d bytes, %v", len(got), err)
		}
	})
}

// F2: a lease that was not renewed in time does not count, by the clock alone: nothing is asked, and nothing is begun.
func TestLeaseThatWasNotRenewedDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := mem.New(mem.Options{})
		l, err := state.New(kv, "fra1").Lock(t.Context(), state.LockInfo{}, state.LockOptions{TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		work := l.Context(t.Context())
		kv.Pause()
		time.Sleep(8*time.Second - time.Millisecond) // the ttl less the margin
		if err := l.Held(); err != nil {
			t.Fatalf("too early: %v", err)
		}
		time.Sleep(time.Millisecond)
		if err := l.Held(); !errors.Is(err, state.ErrFenced) {
			t.Fatalf("it is held with a lease that nobody renewed: %v", err)
		}
		synctest.Wait()
		if !errors.Is(context.Cause(work), state.ErrFenced) {
			t.Errorf("what is under way goes on: %v", context.Cause(work))
		}
	})
}
