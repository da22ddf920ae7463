package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
)

// A run of which every step was done is not applied when the far side has meanwhile lost what it did first: it is partial,
// names what is gone, and becomes applied when that is back.
func TestLostMeanwhileIsNotApplied(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, twelve), plan.Options{})
	first := &p.Steps[slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Action == plan.Create })]
	var lost providers.Thing
	done, looks := 0, 0
	e := s.Engine(func(o *engine.Options) {
		emit := o.Emit
		o.Emit = func(ev event.Event) {
			emit(ev)
			if _, ok := ev.(event.StepDone); !ok {
				return
			}
			if done++; done == len(p.Steps) {
				lost = thingOf(t, s, first.Ref.Scope, first.Ref.Kind, first.ExternalID)
				if err := s.World.Remove(first.Ref.Scope, first.Ref.Kind, first.ExternalID); err != nil {
					t.Error(err)
				}
				looks = s.World.Count("observe")
			}
		}
	})
	defer e.Close()
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunPartial {
		t.Fatalf("ended %s (%v), want partial", res.Run.Status, err)
	}
	if len(res.Differences) != 1 || res.Differences[0].Ref != first.Ref || !strings.Contains(res.Differences[0].Detail, "no longer exists") {
		t.Errorf("the differences are %v, want that %s no longer exists", res.Differences, first.Ref)
	}
	kinds := map[string]bool{}
	for i := range p.Steps {
		kinds[p.Steps[i].Ref.Scope+"/"+p.Steps[i].Ref.Kind] = true
	}
	if n := s.World.Count("observe") - looks; n > len(kinds) {
		t.Errorf("the last look took %d calls, there are %d kinds", n, len(kinds))
	}
	if res, err = e.Resume(context.Background(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunPartial {
		t.Fatalf("resumed, it ended %s (%v), want partial still", res.Run.Status, err)
	}
	if err := s.World.Put(first.Ref.Scope, first.Ref.Kind, lost); err != nil {
		t.Fatal(err)
	}
	if res, err = e.Resume(context.Background(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("resumed when it was back, it ended %s (%v): %v, want applied", res.Run.Status, err, res.Differences)
	}
	if err := e.Free(context.Background()); err != nil {
		t.Errorf("the site is still held: %v", err)
	}
}

// While the far side does not answer the last observation, nothing is claimed: the run stays open.
func TestUnseenAtTheEndIsOpen(t *testing.T) {
	s := enginetest.New()
	p := s.Plan(t, s.Document(t, base), plan.Options{})
	done := 0
	e := s.Engine(func(o *engine.Options) {
		emit := o.Emit
		o.Emit = func(ev event.Event) {
			emit(ev)
			if _, ok := ev.(event.StepDone); !ok {
				return
			}
			if done++; done == len(p.Steps) {
				if err := s.World.Fail(fake.Fault{Op: "observe", Ref: "far.net", Effect: fake.EffectBefore, Class: providers.Denied, Times: 1}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	defer e.Close()
	if res, err := e.Apply(context.Background(), p, engine.ApplyOptions{}); err == nil || res.Run.Status != state.RunOpen {
		t.Fatalf("ended %s (%v), want it open", res.Run.Status, err)
	}
	if err := e.Free(context.Background()); !errors.As(err, new(*engine.HeldError)) {
		t.Errorf("a run is open, and the site is free: %v", err)
	}
	if res, err := e.Resume(context.Background(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("resumed, it ended %s (%v), want applied", res.Run.Status, err)
	}
}
