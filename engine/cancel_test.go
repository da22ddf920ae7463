package engine_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/state"
)

// A run is cancelled through the store by a process that has access only to the store: it ends like an interrupted one, and is
// resumed by a process that was not asked to cancel.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, doc := outageSite(t)
		p := s.Plan(t, doc, plan.Options{})
		far := &restarting{}
		var holder state.LockInfo
		e := far.engine(s, sync.OnceFunc(func() {
			now, err := s.Store.LockInfo(t.Context())
			if err == nil {
				holder = *now
				err = s.Store.Ask(t.Context(), state.ToCancel, holder, "ann@here")
			}
			if err != nil {
				t.Error(err)
			}
		}))
		defer e.Close()
		begin := time.Now()
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
		if took := time.Since(begin); !errors.Is(err, engine.ErrInterrupted) || took > 5*time.Second {
			t.Fatalf("it ended after %s: %v", took, err)
		}
		if !strings.Contains(res.Run.Message, "cancelled by ann@here") || res.Run.Cancelled != holder.Epoch {
			t.Errorf("the run says %q, and that process %d of %d ended it", res.Run.Message, res.Run.Cancelled, holder.Epoch)
		}
		if err := s.Store.Ask(t.Context(), state.ToCancel, holder, "ann@here"); !errors.Is(err, state.ErrGuard) {
			t.Errorf("a process that has ended is asked: %v", err)
		}
		begin = time.Now()
		res, err = e.Resume(t.Context(), "", engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunApplied {
			t.Fatalf("resumed, the run ended %s: %s (%v)", res.Run.Status, res.Run.Message, err)
		}
		if took := time.Since(begin); took < 3*time.Second {
			t.Errorf("the resumed run was over after %s: too early to have seen what was asked of the other", took)
		}
	})
}
