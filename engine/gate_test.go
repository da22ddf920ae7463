package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/enginetest"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

var errUnreachable = errors.New("nobody answers")

// A patient is a far provider whose calls do not get through while down says so. It counts what is called all the same.
type patient struct {
	down func(asked int) bool

	mu         sync.Mutex
	asked      int
	calls, bad int // creates, and those made while it was down
	sick       bool
}

func (p *patient) health(context.Context) providers.Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.sick = p.down(p.asked); p.sick {
		return providers.Health{Down: errUnreachable}
	}
	return providers.Health{}
}

type counted struct {
	providers.Kind
	of *patient
}

func (c counted) Create(ctx context.Context, call providers.Call) error {
	c.of.mu.Lock()
	c.of.calls++
	if c.of.sick {
		c.of.bad++
	}
	c.of.mu.Unlock()
	return c.Kind.Create(ctx, call)
}

func (p *patient) engine(s *enginetest.Site, within time.Duration) *engine.Engine {
	return s.Engine(func(o *engine.Options) {
		o.Retry.Within = within
		o.Open = func(context.Context, schema.Site, []engine.Need) (*providers.Set, error) {
			far := s.World.Provider("far", schema.ScopeSite)
			far.Health = p.health
			for i := range far.Kinds {
				far.Kinds[i].Kind = counted{far.Kinds[i].Kind, p}
			}
			return providers.NewSet(far)
		}
	})
}

var threeNets = map[string]string{
	"site/far.net/a": `{"cidr": "10.0.0.0/24"}`, "site/far.net/b": `{"cidr": "10.0.1.0/24"}`, "site/far.net/c": `{"cidr": "10.0.2.0/24"}`,
}

// TestNoStepBeginsWhileDown: steps wait until calls get through again, and then all is well.
func TestNoStepBeginsWhileDown(t *testing.T) {
	s := enginetest.New()
	plans := s.Plan(t, s.Document(t, threeNets), plan.Options{})
	p := &patient{down: func(asked int) bool { return asked < 20 }}
	e := p.engine(s, 0)
	defer e.Close()
	res, err := e.Apply(t.Context(), plans, engine.ApplyOptions{Approve: plans.Approval()})
	if err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("the run ended %s: %v", res.Run.Status, err)
	}
	if p.asked < 20 || p.calls != 3 || p.bad != 0 {
		t.Errorf("health was asked for %d times; %d creates, %d of them while the provider was down", p.asked, p.calls, p.bad)
	}
	waited := false
	for _, ev := range s.Events() {
		if e, ok := ev.(event.StepProgress); ok && e.Phase == event.Waiting {
			waited = true
		}
	}
	if !waited {
		t.Error("nobody was told why nothing goes on")
	}
}

// TestInterruptWhileDown: a run that waits can be stopped; nothing was begun, so nothing is unknown.
func TestInterruptWhileDown(t *testing.T) {
	s := enginetest.New()
	plans := s.Plan(t, s.Document(t, threeNets), plan.Options{})
	interrupt := make(chan struct{})
	p := &patient{down: func(asked int) bool {
		if asked == 5 {
			close(interrupt)
		}
		return true
	}}
	e := p.engine(s, 0)
	defer e.Close()
	res, err := e.Apply(t.Context(), plans, engine.ApplyOptions{Approve: plans.Approval(), Interrupt: interrupt})
	if !errors.Is(err, engine.ErrInterrupted) || res.Run.Status != state.RunOpen {
		t.Fatalf("the run ended %s: %v", res.Run.Status, err)
	}
	if p.calls != 0 {
		t.Errorf("%d creates", p.calls)
	}
	for _, d := range res.Differences {
		if d.Detail != "create was not started" {
			t.Errorf("%s: %s", d.Ref, d.Detail)
		}
	}
	p.down = func(int) bool { return false }
	if res, err = e.Resume(t.Context(), res.Run.ID, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Errorf("resumed, it ended %s: %v", res.Run.Status, err)
	}
}

// TestDownForTooLong: patience ends, once for the whole run, and the steps find out for themselves.
func TestDownForTooLong(t *testing.T) {
	s := enginetest.New()
	plans := s.Plan(t, s.Document(t, threeNets), plan.Options{})
	p := &patient{down: func(int) bool { return true }}
	e := p.engine(s, 20*time.Millisecond)
	defer e.Close()
	res, err := e.Apply(t.Context(), plans, engine.ApplyOptions{Approve: plans.Approval()})
	if p.calls == 0 {
		t.Fatalf("nothing was called; the run ended %s: %v", res.Run.Status, err)
	}
}
