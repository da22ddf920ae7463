package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// dying returns an engine whose connection to the store dies with the nth commit, before or after its effect.
func dying(s *enginetest.Site, n int64, after bool, more ...func(*engine.Options)) (e *engine.Engine, kv *mem.KV, died *atomic.Bool) {
	var commits atomic.Int64
	died = &atomic.Bool{}
	kv = s.KV.Connect(mem.Options{Fault: func(c mem.Call) error {
		if died.Load() {
			return fmt.Errorf("%w: the process is dead", state.ErrUnknown)
		}
		if c.Name == "commit" && !c.Done {
			if commits.Add(1) == n && !after {
				died.Store(true)
			}
		}
		if c.Name == "commit" && c.Done && commits.Load() >= n && after {
			died.Store(true)
		}
		if died.Load() {
			return fmt.Errorf("%w: the process is dead", state.ErrUnknown)
		}
		return nil
	}})
	return s.Engine(func(o *engine.Options) {
		o.Store = state.New(kv, "test")
		for _, m := range more {
			m(o)
		}
	}), kv, died
}

// W1, W4: whichever write to the store is the last of a process, before or after its effect, the next process settles the
// run: the site ends as desired or as before, with every thing once.
func TestCrashAtEveryWriteIsResumed(t *testing.T) {
	ends := map[state.RunStatus]int{}
	for _, failing := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for n := int64(1); ; n++ {
				s := enginetest.New()
				s.Converge(t, s.Document(t, base))
				before := s.World.Dump()
				d := s.Document(t, twelve)
				p := s.Plan(t, d, plan.Options{})
				if failing {
					ref := p.Steps[len(p.Steps)-1].Ref.String()
					if err := s.World.Fail(fake.Fault{Op: string(p.Steps[len(p.Steps)-1].Action), Ref: ref, Class: providers.Invalid}); err != nil {
						t.Fatal(err)
					}
				}
				e, kv, died := dying(s, n, after)
				_, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
				e.Close()
				if !died.Load() {
					if err != nil {
						t.Fatal(err)
					}
					if n < 10 {
						t.Fatalf("the apply ended after %d writes: that is too few to be true", n)
					}
					break
				}
				kv.Lapse()
				name := fmt.Sprintf("write %d, after=%v, failing=%v", n, after, failing)
				ends[settleRun(t, s, name)]++
				desired := d
				if s.World.Dump() == before {
					desired = s.Document(t, base)
				}
				if left := s.Plan(t, desired, plan.Options{}); !left.Empty() || len(left.Unmanaged) > 0 {
					t.Fatalf("%s: the site is neither as desired nor as before:\n%s\n%s", name, enginetest.Text(left), s.World.Dump())
				}
			}
		}
	}
	t.Logf("ends: %v", ends)
	if ends[state.RunApplied] == 0 || ends[state.RunReverted] == 0 || ends[""] == 0 {
		t.Errorf("not every end was reached: %v", ends)
	}
}

// all combines several changes of options into one.
func all(changes []func(*engine.Options)) func(*engine.Options) {
	return func(o *engine.Options) {
		for _, c := range changes {
			c(o)
		}
	}
}

// Whichever write to the store is the last of a process, the run may also be undone instead of continued: the site is then as
// before, and what the run created last, and did not record, does not count as unmanaged. One step at a time makes sure that
// there is a write between any two.
func TestCrashAtEveryWriteIsUndone(t *testing.T) {
	for _, parallelism := range []int{1, 10} {
		undone := 0
		for _, after := range []bool{false, true} {
			for n := int64(1); ; n++ {
				s := enginetest.New()
				s.Converge(t, s.Document(t, base))
				p := s.Plan(t, s.Document(t, twelve), plan.Options{})
				e, kv, died := dying(s, n, after, func(o *engine.Options) { o.Parallelism = parallelism })
				_, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
				e.Close()
				if !died.Load() {
					if err != nil {
						t.Fatal(err)
					}
					break
				}
				kv.Lapse()
				name := fmt.Sprintf("%d at a time, write %d, after=%v", parallelism, n, after)
				if undoOpen(t, s, name) == 0 {
					continue // it had not begun, or was applied
				}
				undone++
				if left := s.Plan(t, s.Document(t, base), plan.Options{}); !left.Empty() || len(left.Unmanaged) > 0 {
					t.Fatalf("%s: the site is not as before:\n%s\n%s", name, enginetest.Text(left), s.World.Dump())
				}
			}
		}
		if undone < 10 {
			t.Errorf("%d runs were undone: that is too few to be true", undone)
		}
	}
}

// undoOpen undoes the run that died if it is still open, and returns how many it undid.
func undoOpen(t *testing.T, s *enginetest.Site, name string, change ...func(*engine.Options)) int {
	t.Helper()
	e := s.Engine(all(change))
	defer e.Close()
	runs, err := s.Store.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.Status != state.RunOpen {
			continue
		}
		res, err := e.Rollback(t.Context(), r.ID, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunReverted {
			t.Fatalf("%s: undone, the run ended %s: %s, %v, %v", name, res.Run.Status, res.Run.Message, res.Differences, err)
		}
		return 1
	}
	return 0
}

// settleRun does what an operator does after a crash; it returns how the run ended, "" when none had begun.
func settleRun(t *testing.T, s *enginetest.Site, name string, change ...func(*engine.Options)) state.RunStatus {
	t.Helper()
	e := s.Engine(all(change))
	defer e.Close()
	runs, err := s.Store.Runs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.Status != state.RunOpen && r.Status != state.RunPartial {
			continue
		}
		res, err := e.Resume(context.Background(), r.ID, engine.ApplyOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if res.Run.Status != state.RunApplied && res.Run.Status != state.RunReverted {
			t.Fatalf("%s: ended %s: %v", name, res.Run.Status, res.Differences)
		}
		return res.Run.Status
	}
	return ""
}

// F2: when the lock is lost, nothing more is done, and the next holder settles the run.
func TestLostLockStopsEverything(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	p := s.Plan(t, d, plan.Options{})
	kv := s.KV.Connect(mem.Options{})
	var calls atomic.Int64
	s.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
		if op == "create" && at == fake.After && calls.Add(1) == 1 {
			kv.Lapse()
			lock, err := s.Store.Lock(context.Background(), state.LockInfo{Who: "another"}, state.LockOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			lock.Close()
		}
	}
	e := s.Engine(func(o *engine.Options) { o.Store, o.Parallelism = state.New(kv, "test"), 1 })
	defer e.Close()
	_, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
	if !errors.Is(err, state.ErrFenced) {
		t.Fatalf("got %v, want ErrFenced", err)
	}
	if n := calls.Load(); n != 1 {
		t.Fatalf("%d creates were called, want 1: the lock was lost after the first", n)
	}
	if got := settleRun(t, s, "fenced"); got != state.RunApplied {
		t.Fatalf("ended %q", got)
	}
	if left := s.Plan(t, d, plan.Options{}); !left.Empty() || len(left.Unmanaged) > 0 {
		t.Fatalf("not converged:\n%s", enginetest.Text(left))
	}
}

// The first interrupt lets steps in progress end and starts no more; resume finishes.
func TestInterrupt(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	p := s.Plan(t, d, plan.Options{})
	interrupt := make(chan struct{})
	var creates atomic.Int64
	s.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
		if op == "create" && at == fake.Before && creates.Add(1) == 1 {
			close(interrupt)
		}
	}
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
	defer e.Close()
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Interrupt: interrupt})
	if !errors.Is(err, engine.ErrInterrupted) || res.Run.Status != state.RunOpen {
		t.Fatalf("got %v, %s", err, res.Run.Status)
	}
	if n := creates.Load(); n != 1 {
		t.Fatalf("%d steps were started", n)
	}
	var held *engine.HeldError
	if _, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{}); !errors.As(err, &held) || held.Open != res.Run.ID {
		t.Fatalf("another apply is not kept back by the open run: %v", err)
	}
	if got := settleRun(t, s, "interrupted"); got != state.RunApplied {
		t.Fatalf("ended %q", got)
	}
}

// No step begins after an interrupt, also when that was requested before the first.
func TestInterruptBeforeTheFirstStep(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	interrupt := make(chan struct{})
	close(interrupt)
	res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{Interrupt: interrupt})
	if !errors.Is(err, engine.ErrInterrupted) {
		t.Fatalf("got %v, %v", res, err)
	}
	if got := s.World.Dump(); strings.Contains(got, "br0") {
		t.Fatalf("a step was started:\n%s", got)
	}
	if got := settleRun(t, s, "interrupted"); got != state.RunApplied {
		t.Fatalf("ended %q", got)
	}
}

// A provider that panics fails the run, and the run ends.
func TestPanicFailsTheRun(t *testing.T) {
	s := enginetest.New()
	var once atomic.Bool
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		if op == "create" && at == fake.After && c.Ref.Name == "b1" && once.CompareAndSwap(false, true) {
			panic("of the provider")
		}
	}
	res, err := s.Apply(s.Plan(t, s.Document(t, base), plan.Options{}), engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted || !strings.Contains(res.Run.Message, "of the provider") {
		t.Fatal(res.Run.Status, res.Run.Message, err)
	}
	if strings.Contains(s.World.Dump(), "b1") {
		t.Fatal("what the panicking call made is still there")
	}
}

// What others change while a run is undone is left alone, and reported.
func TestRevertKeepsWhatOthersChanged(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, with(map[string]string{
		"n1/near.bridge/br0": `{"mode":"open","size":1}`,
		"n1/near.port/p0":    `{"bridge":"br0","tag":12}`,
	})), plan.Options{})
	var once atomic.Bool
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		if op == "update" && at == fake.Before && c.Ref.Name == "p0" && once.CompareAndSwap(false, true) {
			thing := thingOf(t, s, "n1", "near.bridge", "br0")
			thing.Spec["size"] = int64(77)
			if err := s.World.Put("n1", "near.bridge", thing); err != nil {
				t.Error(err)
			}
		}
	}
	if err := s.World.Fail(fake.Fault{Op: "update", Ref: "n1/near.port/p0", Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
	defer e.Close()
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{OnFailure: apply.Rollback})
	if err != nil || res.Run.Status != state.RunPartial {
		t.Fatal(res.Run.Status, res.Run.Message, err)
	}
	if len(res.Differences) != 1 || !strings.Contains(res.Differences[0].Detail, "size") {
		t.Fatalf("%v", res.Differences)
	}
	bridge := thingOf(t, s, "n1", "near.bridge", "br0")
	if bridge.Spec["mode"] != "secure" || bridge.Spec["size"] != int64(77) {
		t.Fatalf("the bridge is %v", bridge.Spec)
	}
}
