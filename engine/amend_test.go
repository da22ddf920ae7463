package engine_test

import (
	"context"
	"errors"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/state"
)

// What is recorded is changed by hand under the lock, which is given back, and not while a run is open or another process works.
func TestAmend(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	e := s.Engine(nil)
	defer e.Close()
	called := 0
	amend := func() error {
		return e.Amend(t.Context(), "state rm", func(ctx context.Context, lock *state.Lock) error {
			called++
			if info, err := s.Store.LockInfo(ctx); err != nil || info == nil || info.Operation != "state rm" || info.Epoch != lock.Epoch() {
				t.Errorf("meanwhile the lock is held by %+v (%v)", info, err)
			}
			return nil
		})
	}
	for range 2 {
		if err := amend(); err != nil {
			t.Fatal(err)
		}
	}
	other, err := s.Store.Lock(t.Context(), state.LockInfo{Operation: "apply", Who: "ann@there"}, state.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var locked *state.LockedError
	if err := amend(); !errors.As(err, &locked) || locked.Info.Who != "ann@there" {
		t.Errorf("while another process works: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	fails(t, s, "update", "n1/near.port/p0")
	p := s.Plan(t, s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":99}`})), plan.Options{})
	res, err := s.Apply(p, engine.ApplyOptions{OnFailure: apply.Stop})
	if err != nil || res.Run.Status != state.RunOpen {
		t.Fatal(res.Run.Status, err)
	}
	var held *engine.HeldError
	if err := amend(); !errors.As(err, &held) || held.Open != res.Run.ID {
		t.Errorf("while run %s is open: %v", res.Run.ID, err)
	}
	if called != 2 {
		t.Errorf("it was called %d times, want 2", called)
	}
}
