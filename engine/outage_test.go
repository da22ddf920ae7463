package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// The kinds of outages.
const (
	outageSilent = "silent" // no call gets through
	outageCut    = "cut"    // the same, but the call with which it begins is carried out, and its reply is lost
	outageIdle   = "idle"   // requests are accepted, as all observations show, and not acted on
)

// A restarting far side is away for a while from one of its calls on.
type restarting struct {
	at     int // the call with which it begins, from 1; 0: never
	way    string
	lasts  time.Duration // how long it is away
	mu     sync.Mutex
	calls  int
	until  time.Time
	owes   time.Time // since when an idle one has not done what was requested; zero: nothing was requested
	undone []string  // deletes of healthy things
}

// idleFor is how long a call waits for an idle far side; after half of it the far side counts as idle.
const idleFor = 10 * time.Second

func (r *restarting) health(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) && (r.way != outageIdle || !r.owes.IsZero() && time.Since(r.owes) >= idleFor/2) {
		return errUnreachable
	}
	return nil
}

// meets counts a call and returns what happens to it.
func (r *restarting) meets() (away, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.calls == r.at {
		r.until = time.Now().Add(r.lasts)
		return r.way != outageCut, r.way == outageCut
	}
	return time.Now().Before(r.until), false
}

// asked makes an idle far side owe something, and waits for as long as a call does; it returns when the far side is back.
func (r *restarting) asked() (back time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owes.IsZero() {
		r.owes = time.Now()
	}
	return time.Until(r.until)
}

// restartable is a kind of a restarting far side.
type restartable struct {
	providers.Kind
	of *restarting
}

func (k restartable) call(op string, ref schema.Ref, do func() error) error {
	away, cut := k.of.meets()
	fail := func(class providers.Class) error {
		return &providers.Error{Op: op, Ref: ref, Class: class, Err: errUnreachable}
	}
	if away && k.of.way == outageIdle {
		if err := do(); err != nil || op == "observe" {
			return err
		}
		back := k.of.asked()
		time.Sleep(min(back, idleFor))
		if back > idleFor {
			return fail(providers.Unknown)
		}
		return nil
	}
	if away {
		return fail(providers.Transient)
	}
	if err := do(); err != nil || !cut {
		return err
	}
	return fail(providers.Unknown)
}

func (k restartable) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(k.Get).List(ctx)
}

func (k restartable) Get(ctx context.Context, ids []string) (things []providers.Thing, err error) {
	err = k.call("observe", schema.Ref{}, func() error {
		things, err = providertest.Of(k.Kind)(ctx, ids)
		return err
	})
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	if k.of.way == outageIdle && !k.of.owes.IsZero() && time.Now().Before(k.of.until) {
		for i := range things {
			if things[i].Phase == providers.Ready {
				things[i].Phase, things[i].Detail = providers.Pending, "nobody acts"
			}
		}
	}
	return things, err
}

func (k restartable) Create(ctx context.Context, c providers.Call) error {
	return k.call("create", c.Ref, func() error { return k.Kind.Create(ctx, c) })
}

func (k restartable) Update(ctx context.Context, c providers.Call) error {
	return k.call("update", c.Ref, func() error { return k.Kind.Update(ctx, c) })
}

func (k restartable) Delete(ctx context.Context, c providers.Call) error {
	k.of.mu.Lock()
	if !strings.HasPrefix(c.Ref.Name, "old") {
		k.of.undone = append(k.of.undone, c.Ref.String())
	}
	k.of.mu.Unlock()
	return k.call("delete", c.Ref, func() error { return k.Kind.Delete(ctx, c) })
}

func (r *restarting) engine(s *enginetest.Site, interrupt func()) *engine.Engine {
	return s.Engine(func(o *engine.Options) {
		o.Retry, o.Parallelism = apply.Retry{}, 3 // as in production, in virtual time
		emit := o.Emit
		o.Emit = func(e event.Event) {
			if p, ok := e.(event.StepProgress); ok && p.Phase == event.Waiting && interrupt != nil {
				interrupt()
			}
			emit(e)
		}
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			far := s.World.Provider("far", schema.ScopeSite)
			far.Health = r.health
			for i := range far.Kinds {
				far.Kinds[i].Kind = restartable{far.Kinds[i].Kind, r}
			}
			return providers.NewSet(far)
		}
	})
}

// outageSite returns a site with something to create, to change and to delete, whose hosts take a while to become ready.
func outageSite(t *testing.T) (*enginetest.Site, *schema.Document) {
	t.Helper()
	s := enginetest.New()
	traits := fake.NodeTraits()
	traits.ReadyWithin, traits.GoneWithin, traits.EffectWithin = 15*time.Minute, 15*time.Minute, time.Minute
	quick := traits
	quick.ReadyWithin, quick.GoneWithin, quick.EffectWithin = time.Minute, time.Minute, idleFor
	s.World.Traits = map[string]providers.Traits{"far.host": traits, "far.guard": quick, "far.net": traits}
	s.Converge(t, s.Document(t, map[string]string{
		"site/far.guard/g": `{"size":1}`, "site/far.guard/old": `{}`, "site/far.net/n": `{"cidr":"10.0.0.0/24"}`,
	}))
	time.Sleep(time.Second)
	for _, op := range []string{"create", "update", "delete"} {
		if err := s.World.Fail(fake.Fault{Op: op, Ref: "far.*", Effect: fake.EffectSlow, Delay: fake.Duration(30 * time.Second), Times: gridAlways}); err != nil {
			t.Fatal(err)
		}
	}
	return s, s.Document(t, map[string]string{
		"site/far.guard/g": `{"size":2}`, "site/far.net/n": `{"cidr":"10.0.0.0/24","labels":{"a":"b"}}`,
		"site/far.host/a": `{"guard":"g","net":"n"}`, "site/far.host/b": `{"net":"n"}`,
	})
}

// An outage of the far side, however long, at any call, undoes nothing: the run continues when it is over, or it is left
// open and resumed.
func TestTortureOutage(t *testing.T) {
	var (
		mu             sync.Mutex
		cells, resumed int
	)
	t.Cleanup(func() {
		torture.Report(t, "E", "%d outages of 1 s, 10 s, 3 min and 40 min, at every call of an apply: nothing healthy undone, %d runs resumed", cells, resumed)
	})
	for _, lasts := range []time.Duration{time.Second, 10 * time.Second, 3 * time.Minute, 40 * time.Minute} {
		for _, way := range []string{outageSilent, outageCut, outageIdle} {
			t.Run(fmt.Sprintf("%s, %s", lasts, way), func(t *testing.T) {
				t.Parallel()
				for at, more := 1, true; more; at += torture.Scale(9, 1, 1) {
					synctest.Test(t, func(t *testing.T) {
						s, doc := outageSite(t)
						p := s.Plan(t, doc, plan.Options{})
						far := &restarting{at: at, way: way, lasts: lasts}
						e := far.engine(s, nil)
						defer e.Close()
						res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
						more = far.calls >= at
						var unknown *engine.UnknownError
						again := false
						switch {
						case errors.As(err, &unknown): // before anything was begun
							time.Sleep(lasts)
							res, err = e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
						case err != nil:
							again = true
							if run, rerr := s.Store.Run(t.Context(), res.Run.ID); rerr != nil || run.Status != state.RunOpen || run.Message == "" {
								t.Fatalf("call %d: the run was left %s, saying %q (%v): %v", at, run.Status, run.Message, rerr, err)
							}
							time.Sleep(lasts)
							res, err = e.Resume(t.Context(), "", engine.ApplyOptions{})
						}
						if err != nil || res.Run.Status != state.RunApplied {
							t.Fatalf("call %d: the run ended %s: %s (%v)", at, res.Run.Status, res.Run.Message, err)
						}
						if len(far.undone) > 0 {
							t.Errorf("call %d: deleted %v", at, far.undone)
						}
						if again := s.Plan(t, doc, plan.Options{}); !again.Empty() {
							t.Errorf("call %d: a second plan has %d steps", at, len(again.Steps))
						}
						mu.Lock()
						defer mu.Unlock()
						cells++
						if again {
							resumed++
						}
					})
				}
			})
		}
	}
}

// Pure waits can be dropped at once: an interrupted run does not wait until its things are ready.
func TestInterruptDropsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, doc := outageSite(t)
		p := s.Plan(t, doc, plan.Options{})
		far := &restarting{}
		interrupt := make(chan struct{})
		e := far.engine(s, sync.OnceFunc(func() { close(interrupt) }))
		defer e.Close()
		begin := time.Now()
		_, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval(), Interrupt: interrupt})
		if took := time.Since(begin); !errors.Is(err, engine.ErrInterrupted) || took > 5*time.Second {
			t.Fatalf("it ended after %s: %v", took, err)
		}
		res, err := e.Resume(t.Context(), "", engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunApplied {
			t.Fatalf("resumed, the run ended %s: %s (%v)", res.Run.Status, res.Run.Message, err)
		}
	})
}
