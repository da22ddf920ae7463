package engine_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

var errUnreachable = errors.New("nobody answers")

// A patient is a far provider whose calls do not get through while down returns true. It counts them all the same.
type patient struct {
	down func(asked int) bool

	mu         sync.Mutex
	asked      int
	calls, bad int // creates, and those made while it was down
	sick       bool
}

func (p *patient) health(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.sick = p.down(p.asked); p.sick {
		return errUnreachable
	}
	return nil
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

func (p *patient) engine(s *enginetest.Site, within time.Duration, parallelism int) *engine.Engine {
	return s.Engine(func(o *engine.Options) {
		o.Retry.Within, o.Parallelism = within, parallelism
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			far := s.World.Provider("far", schema.ScopeSite)
			far.Health = p.health
			for i := range far.Kinds {
				far.Kinds[i].Kind = counted{far.Kinds[i].Kind, p}
			}
			return providers.NewSet(far, s.World.Provider("near", "n1"))
		}
	})
}

var threeNets = map[string]string{
	"site/far.net/a": `{"cidr": "10.0.0.0/24"}`, "site/far.net/b": `{"cidr": "10.0.1.0/24"}`, "site/far.net/c": `{"cidr": "10.0.2.0/24"}`,
}

// TestNoStepBeginsWhileDown: steps wait until calls get through again, and then succeed.
func TestNoStepBeginsWhileDown(t *testing.T) {
	s := enginetest.New()
	plans := s.Plan(t, s.Document(t, threeNets), plan.Options{})
	p := &patient{down: func(asked int) bool { return asked < 20 }}
	e := p.engine(s, 0, 8)
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

// TestOthersGoOnWhileDown: steps that wait for their provider leave their slot to others, and every one is begun once and
// ended once.
func TestOthersGoOnWhileDown(t *testing.T) {
	s := enginetest.New()
	doc := maps.Clone(threeNets)
	doc["n1/near.bridge/br"], doc["n1/near.port/p"] = `{"mode": "0"}`, `{"bridge": "br", "tag": 1}`
	plans := s.Plan(t, s.Document(t, doc), plan.Options{})
	p := &patient{down: func(int) bool { return !strings.Contains(s.World.Dump(), `"p"`) }} // until the other provider's last step is done
	e := p.engine(s, time.Minute, 1)
	defer e.Close()
	res, err := e.Apply(t.Context(), plans, engine.ApplyOptions{Approve: plans.Approval()})
	if err != nil || res.Run.Status != state.RunApplied || p.bad != 0 {
		t.Fatalf("the run ended %s, with %d creates while the provider was down: %v", res.Run.Status, p.bad, err)
	}
	began, ended := map[schema.Ref]int{}, map[schema.Ref]int{}
	for _, ev := range s.Events() {
		switch e := ev.(type) {
		case event.StepStarted:
			began[e.Step.Ref]++
		case event.StepDone:
			ended[e.Step.Ref]++
		}
	}
	for i := range plans.Steps {
		if ref := plans.Steps[i].Ref; began[ref] != 1 || ended[ref] != 1 {
			t.Errorf("%s began %d times and ended %d times", ref, began[ref], ended[ref])
		}
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
	e := p.engine(s, 0, 8)
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
	open := map[schema.Ref]bool{} // reported as started, and nothing since
	for _, ev := range s.Events() {
		switch e := ev.(type) {
		case event.StepStarted:
			open[e.Step.Ref] = true
		case event.StepFailed:
			delete(open, e.Step.Ref)
		}
	}
	if len(open) > 0 {
		t.Errorf("nobody was told what became of %v", slices.Collect(maps.Keys(open)))
	}
	p.down = func(int) bool { return false }
	if res, err = e.Resume(t.Context(), res.Run.ID, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Errorf("resumed, it ended %s: %v", res.Run.Status, err)
	}
}

// TestDownForTooLong: patience ends, once for the whole run, and the steps find out by themselves.
func TestDownForTooLong(t *testing.T) {
	s := enginetest.New()
	plans := s.Plan(t, s.Document(t, threeNets), plan.Options{})
	p := &patient{down: func(int) bool { return true }}
	e := p.engine(s, 20*time.Millisecond, 8)
	defer e.Close()
	res, err := e.Apply(t.Context(), plans, engine.ApplyOptions{Approve: plans.Approval()})
	if p.calls == 0 {
		t.Fatalf("nothing was called; the run ended %s: %v", res.Run.Status, err)
	}
}
