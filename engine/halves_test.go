package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// halves is a kind whose update takes two calls, one for the labels and one for the size. The second fails with the errors
// listed, one after the other, and from then on with the last of them. An undo is accepted.
type halves struct {
	providers.Kind
	errs *[]providers.Error
}

func (k halves) Update(ctx context.Context, c providers.Call) error {
	if c.Want["size"] == int64(1) {
		return k.Kind.Update(ctx, c)
	}
	if c.Have["labels"] == nil {
		first := c
		first.Want = c.Want.Clone()
		first.Want["size"] = c.Have["size"]
		if err := k.Kind.Update(ctx, first); err != nil {
			return err
		}
	}
	err := (*k.errs)[0]
	*k.errs = (*k.errs)[min(1, len(*k.errs)-1):]
	err.Op, err.Ref, err.Err = "update", c.Ref, errors.New("an instance runs on it")
	return &err
}

// inHalves makes the kind of the host one of halves.
func inHalves(o *engine.Options, errs *[]providers.Error) {
	around(o, gridHost.Kind, func(k providers.Served) providers.Kind { return halves{k.Kind, errs} })
}

// around replaces a kind by another one around it.
func around(o *engine.Options, kind string, other func(k providers.Served) providers.Kind) {
	open := o.Open
	o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
		set, err := open(ctx, site, needs)
		if err == nil {
			set.Wrap(func(_ string, k providers.Served) providers.Kind {
				if k.Name == kind {
					return other(k)
				}
				return k.Kind
			})
		}
		return set, err
	}
}

// S1: what is unknown is waited for, once, and each wait is announced before it begins. What was answered is not waited for at
// all: an update that was done in part, and then refused, is undone at once.
func TestWaitsForWhatIsUnknownOnce(t *testing.T) {
	blind := fake.NodeTraits()
	blind.Update = providers.Blind
	for name, c := range map[string]struct {
		traits providers.Traits
		errs   []providers.Error
		want   time.Duration
		base   time.Duration // of the pauses between tries
	}{
		"refused":                     {blind, []providers.Error{{Class: providers.Unknown, Over: true}, {Class: providers.Invalid}}, 0, 0},
		"refused, then busy":          {blind, []providers.Error{{Class: providers.Unknown, Over: true}, {Class: providers.Busy}}, 0, 0},
		"refused, then conflict":      {blind, []providers.Error{{Class: providers.Unknown, Over: true}, {Class: providers.Conflict}}, 0, 0},
		"unknown, then busy":          {blind, []providers.Error{{Class: providers.Unknown}, {Class: providers.Busy}}, gridLate, 0},
		"unknown, then conflict":      {blind, []providers.Error{{Class: providers.Unknown}, {Class: providers.Conflict}}, gridLate, 0},
		"unknown, then refused":       {fake.NodeTraits(), []providers.Error{{Class: providers.Unknown}, {Class: providers.Invalid}}, gridLate, 0},
		"unknown, then busy for long": {fake.NodeTraits(), []providers.Error{{Class: providers.Unknown}, {Class: providers.Busy}}, gridLate, 10 * time.Second},
		"refused, then unknown":       {blind, []providers.Error{{Class: providers.Unknown, Over: true}, {Class: providers.Unknown}, {Class: providers.Invalid}}, gridLate, 0},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := enginetest.New()
				c.traits.EffectWithin = gridLate
				s.World.Traits = map[string]providers.Traits{gridHost.Kind: c.traits, "far.guard": fake.NodeTraits()}
				s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1}`}))
				before := s.World.Dump()
				time.Sleep(time.Second) // so that the next run is the newer one
				p := s.Plan(t, s.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":2,"labels":{"a":"b"}}`}), plan.Options{})
				errs, began := c.errs, time.Now()
				var started, announced bool // the step; what follows
				var quiet time.Duration
				last := began
				e := s.Engine(func(o *engine.Options) {
					inHalves(o, &errs)
					if c.base > 0 {
						o.Retry.Base, o.Retry.Cap = c.base, time.Minute
					}
					o.Emit = func(ev event.Event) {
						if beat, ok := ev.(event.StepProgress); ok && beat.Phase == event.Acting {
							return
						}
						if since := time.Since(last); since > time.Second && !announced {
							quiet += since
						}
						last, announced = time.Now(), false
						switch ev := ev.(type) {
						case event.StepStarted:
							started = true
						case event.StepDone, event.StepFailed:
							started = false
						case event.StepProgress:
							announced = started && (ev.Phase == event.Settling || ev.Phase == event.Retrying)
						}
					}
				})
				defer e.Close()
				res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
				if err != nil || res.Run.Status != state.RunReverted {
					t.Fatal(res.Run.Status, res.Differences, err)
				}
				if took := time.Since(began).Round(time.Second); took != c.want || quiet > 0 {
					t.Errorf("it took %s, of which %s were not announced; want %s", took, quiet, c.want)
				}
				if is := s.World.Dump(); is != before {
					t.Errorf("the world is not as before:\n%s", is)
				}
			})
		})
	}
}

// What a step changed in part is undone, also when the run was stopped in between, and its step is refused again when it goes on.
func TestRefusedInPartTwice(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1}`}))
	before := s.World.Dump()
	p := s.Plan(t, s.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":2,"labels":{"a":"b"}}`}), plan.Options{})
	e := s.Engine(func(o *engine.Options) {
		inHalves(o, &[]providers.Error{{Class: providers.Unknown, Over: true}, {Class: providers.Invalid}})
	})
	defer e.Close()
	if res, err := e.Apply(t.Context(), p, engine.ApplyOptions{OnFailure: apply.Stop}); res.Run.Status != state.RunOpen {
		t.Fatal(res.Run.Status, err)
	}
	res, err := e.Resume(t.Context(), "", engine.ApplyOptions{OnFailure: apply.Rollback})
	if err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, res.Differences, err)
	}
	if is := s.World.Dump(); is != before {
		t.Errorf("the run ended reverted, and the world is not as before:\n%s", is)
	}
}
