package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A guarded world undoes by itself what cut a node off: the far end of the contract of guards, with a clock.
type guardedWorld struct {
	cut  bool   // what is changed cuts the node off
	mute bool   // nothing is seen of a node that is cut off
	lost bool   // what is changed is accepted, and never there
	kept func() // optional; called when something is to be kept

	mu     sync.Mutex
	guards map[string]*aGuard
	asked  []string // what Settle was asked for: keep or undo
}

type aGuard struct {
	timer   *time.Timer
	undo    []func()
	verdict string // kept or undone; empty: open
	cut     bool
}

// end undoes what a guard protects, once.
func (w *guardedWorld) end(g *aGuard) {
	if g.verdict == "" {
		g.verdict = "undone"
		for _, undo := range slices.Backward(g.undo) {
			undo()
		}
	}
}

// must stops the test when an undo fails.
func (w *guardedWorld) must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *guardedWorld) settle(_ context.Context, s providers.Settling) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.guards[s.ID]
	if g == nil {
		return false, &providers.Error{Op: "settle", Class: providers.Absent, Err: errors.New("no such guard")}
	}
	w.asked = append(w.asked, map[bool]string{true: "keep", false: "undo"}[s.Keep])
	if s.Keep && w.kept != nil {
		w.kept()
	}
	if g.verdict == "" {
		switch {
		case g.cut:
			return false, &providers.Error{Op: "settle", Class: providers.Transient, Err: errors.New("it does not answer")}
		case s.Keep:
			g.verdict = "kept"
		default:
			w.end(g)
		}
		g.timer.Stop()
	}
	return g.verdict == "kept", nil
}

// guardedKind arms a guard before each change.
type guardedKind struct {
	providers.Kind
	w *guardedWorld
}

func (k guardedKind) arm(c providers.Call, undo func()) {
	if c.Guard.IsZero() {
		return
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	g := k.w.guards[c.Guard.ID]
	if g == nil {
		g = &aGuard{cut: k.w.cut}
		g.timer = time.AfterFunc(c.Guard.Within, func() {
			k.w.mu.Lock()
			defer k.w.mu.Unlock()
			k.w.end(g)
		})
		k.w.guards[c.Guard.ID] = g
	}
	g.undo = append(g.undo, undo)
	c.Armed()
}

// Get implements providers.Kind.
func (k guardedKind) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	k.w.mu.Lock()
	away := false
	for _, g := range k.w.guards {
		away = away || k.w.mute && g.cut && g.verdict == ""
	}
	k.w.mu.Unlock()
	if away {
		return nil, &providers.Error{Op: "get", Class: providers.Transient, Err: errors.New("it does not answer")}
	}
	return k.Kind.Get(ctx, ids)
}

// version returns the version token that a thing has now.
func (k guardedKind) version(id string) string {
	there, err := k.Kind.Get(context.Background(), []string{id})
	k.w.must(err)
	return there[0].Version
}

func (k guardedKind) Create(ctx context.Context, c providers.Call) error {
	k.arm(c, func() {
		k.w.must(k.Kind.Delete(context.Background(), providers.Call{Ref: c.Ref, ID: c.ID, Version: k.version(c.ID), Epoch: c.Epoch}))
	})
	return k.Kind.Create(ctx, c)
}

func (k guardedKind) Update(ctx context.Context, c providers.Call) error {
	k.arm(c, func() {
		back := c
		back.Want, back.Have, back.Version = c.Have, c.Want, k.version(c.ID)
		k.w.must(k.Kind.Update(context.Background(), back))
	})
	if k.w.lost {
		return nil
	}
	return k.Kind.Update(ctx, c)
}

func (k guardedKind) Delete(ctx context.Context, c providers.Call) error {
	k.arm(c, func() {
		back := c
		back.Want, back.Mark = c.Have, providers.Mark{Site: enginetest.SiteID, Ref: c.Ref, Incarnation: 1}
		k.w.must(k.Kind.Create(context.Background(), back))
	})
	return k.Kind.Delete(ctx, c)
}

// guarding returns a site whose bridges are guarded, and an engine on it.
func guarding(t *testing.T) (*enginetest.Site, *guardedWorld, func() *engine.Engine) {
	s, w := enginetest.New(), &guardedWorld{guards: map[string]*aGuard{}}
	return s, w, func() *engine.Engine {
		e := s.Engine(func(o *engine.Options) {
			open := o.Open
			o.Retry = apply.Retry{}
			o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
				set, err := open(ctx, site, needs)
				if err != nil {
					return nil, err
				}
				all := set.All()
				for _, p := range all {
					if p.Name != "near" {
						continue
					}
					p.Settle = w.settle
					for i := range p.Kinds {
						p.Kinds[i].Traits.CutsOff = true
						p.Kinds[i].Kind = guardedKind{p.Kinds[i].Kind, w}
					}
				}
				return providers.NewSet(all...)
			}
		})
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
}

// bridges returns the bridges of a node, with their modes.
func bridges(t *testing.T, s *enginetest.Site) string {
	t.Helper()
	var list []string
	for _, th := range things(t, s, "n1", "near.bridge") {
		list = append(list, fmt.Sprintf("%s=%v", th.ID, th.Spec["mode"]))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// things lists what there is.
func things(t *testing.T, s *enginetest.Site, scope, kind string) (all []providers.Thing) {
	t.Helper()
	provider, _, _ := strings.Cut(kind, ".")
	for _, k := range s.World.Provider(provider, scope).Kinds {
		if k.Name != kind {
			continue
		}
		var err error
		if all, err = providers.Collect(k.Kind.List(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// planned returns a plan for a document.
func planned(t *testing.T, s *enginetest.Site, e *engine.Engine, resources map[string]string) *plan.Plan {
	t.Helper()
	p, err := e.Plan(t.Context(), s.Document(t, resources), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A change is kept once its node was reached anew; one that cuts its node off is undone by its guard, and the run is reverted.
func TestGuard(t *testing.T) {
	for name, c := range map[string]struct {
		cut     bool
		changes map[string]string
		status  state.RunStatus
		there   string
	}{
		"kept":       {false, map[string]string{"n1/near.bridge/a": `{"mode":"b"}`, "n1/near.bridge/c": `{"mode":"c"}`}, state.RunApplied, "a=b c=c"},
		"cut create": {true, map[string]string{"n1/near.bridge/a": `{"mode":"a"}`, "n1/near.bridge/b": `{"mode":"a"}`, "n1/near.bridge/c": `{"mode":"c"}`}, state.RunReverted, "a=a b=a"},
		"cut update": {true, map[string]string{"n1/near.bridge/a": `{"mode":"b"}`, "n1/near.bridge/b": `{"mode":"a"}`}, state.RunReverted, "a=a b=a"},
		"cut delete": {true, map[string]string{"n1/near.bridge/b": `{"mode":"a"}`}, state.RunReverted, "a=a b=a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, open := guarding(t)
				e := open()
				if _, err := e.Apply(t.Context(), planned(t, s, e, map[string]string{"n1/near.bridge/a": `{"mode":"a"}`, "n1/near.bridge/b": `{"mode":"a"}`}), engine.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				if there := bridges(t, s); there != "a=a b=a" {
					t.Fatalf("there is %s", there)
				}
				w.cut = c.cut
				begun := time.Now()
				res, err := e.Apply(t.Context(), planned(t, s, e, c.changes), engine.ApplyOptions{})
				if err != nil || res.Run.Status != c.status || res.Run.Unconfirmed != c.cut {
					t.Errorf("%v: ended %s, unconfirmed %t: %s", err, res.Run.Status, res.Run.Unconfirmed, res.Run.Message)
				}
				if there := bridges(t, s); there != c.there {
					t.Errorf("there is %s, want %s", there, c.there)
				}
				if took := time.Since(begun); c.cut && (took < 2*time.Minute || took > 3*time.Minute) {
					t.Errorf("it took %v", took)
				}
				for id, g := range w.guards {
					if g.verdict == "" {
						t.Errorf("guard %s was left open", id)
					}
				}
			})
		})
	}
}

// A step that fails although its node can be reached anew does not leave its guard open: the run is reverted like any other.
func TestGuardOfFailedStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, open := guarding(t)
		e := open()
		if _, err := e.Apply(t.Context(), planned(t, s, e, map[string]string{"n1/near.bridge/a": `{"mode":"a"}`}), engine.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		w.lost, w.guards = true, map[string]*aGuard{}
		res, err := e.Apply(t.Context(), planned(t, s, e, map[string]string{"n1/near.bridge/a": `{"mode":"b"}`}), engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunReverted || res.Run.Unconfirmed {
			t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
		}
		for id, g := range w.guards {
			if g.verdict != "kept" {
				t.Errorf("guard %s: %s", id, g.verdict)
			}
		}
		if len(w.guards) != 1 || bridges(t, s) != "a=a" {
			t.Errorf("%d guards; there is %s", len(w.guards), bridges(t, s))
		}
	})
}

// confirming starts a run that has to be confirmed, and returns once it waits for that.
func confirming(t *testing.T, s *enginetest.Site, e *engine.Engine, ctx context.Context, resources map[string]string) (run string, end func() (engine.Result, error)) {
	t.Helper()
	return confirmingWithin(t, s, e, ctx, resources, 5*time.Minute)
}

func confirmingWithin(t *testing.T, s *enginetest.Site, e *engine.Engine, ctx context.Context, resources map[string]string, confirm time.Duration) (run string, end func() (engine.Result, error)) {
	t.Helper()
	p := planned(t, s, e, resources)
	done := make(chan struct{})
	var res engine.Result
	var err error
	go func() {
		defer close(done)
		res, err = e.Apply(t.Context(), p, engine.ApplyOptions{Confirm: confirm, Interrupt: ctx.Done(), Approve: p.Approval()})
	}()
	synctest.Wait()
	for _, ev := range s.Events() {
		if w, ok := ev.(event.ConfirmWait); ok {
			run = w.Run
			if w.Within != confirm*4/5 {
				t.Errorf("it is to be confirmed within %v", w.Within)
			}
		}
	}
	if run == "" {
		<-done
		t.Fatalf("it does not wait to be confirmed: %+v, %v", res.Run, err)
	}
	return run, func() (engine.Result, error) { <-done; return res, err }
}

// ask confirms a run, as converge confirm does.
func ask(t *testing.T, s *enginetest.Site) {
	t.Helper()
	holder, err := s.Store.LockInfo(t.Context())
	if err != nil || holder == nil {
		t.Fatal(holder, err)
	}
	if err := s.Store.Ask(t.Context(), state.ToConfirm, *holder, "me@here"); err != nil {
		t.Fatal(err)
	}
}

// A run that has to be confirmed keeps all of its guards until somebody does that; and it does nothing before that cannot be undone.
func TestConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, open := guarding(t)
		e := open()
		s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/8"}`}))
		_, end := confirming(t, s, e, t.Context(), map[string]string{"n1/near.bridge/a": `{"mode":"a"}`, "n2/near.bridge/b": `{"mode":"b"}`})
		if there := things(t, s, schema.ScopeSite, "far.net"); len(there) != 1 {
			t.Errorf("what cannot be undone was done before the run was confirmed: %v", there)
		}
		if len(w.guards) != 1 || len(w.asked) != 0 { // both nodes share this world
			t.Errorf("%d guards, asked for %v", len(w.guards), w.asked)
		}
		ask(t, s)
		res, err := end()
		if err != nil || res.Run.Status != state.RunApplied || res.Run.Unconfirmed {
			t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
		}
		if there := things(t, s, schema.ScopeSite, "far.net"); len(there) != 0 {
			t.Errorf("there is %v", there)
		}
		if there := bridges(t, s); there != "a=a" {
			t.Errorf("there is %s", there)
		}
	})
}

// A run that nobody confirms in time is reverted, and so is one whose process ends before; nothing else confirms it.
func TestConfirmNever(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, w, open := guarding(t)
			_, end := confirming(t, s, open(), t.Context(), map[string]string{"n1/near.bridge/a": `{"mode":"a"}`})
			res, err := end()
			if err != nil || res.Run.Status != state.RunReverted || !res.Run.Unconfirmed {
				t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
			}
			if there := bridges(t, s); there != "" || !slices.Equal(w.asked, []string{"undo"}) {
				t.Errorf("there is %s; asked for %v", there, w.asked)
			}
		})
	})
	t.Run("cut off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, w, open := guarding(t)
			w.cut = true
			_, end := confirming(t, s, open(), t.Context(), map[string]string{"n1/near.bridge/a": `{"mode":"a"}`})
			ask(t, s)
			res, err := end()
			if err != nil || res.Run.Status != state.RunReverted || !res.Run.Unconfirmed {
				t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
			}
			if there := bridges(t, s); there != "" {
				t.Errorf("there is %s", there)
			}
		})
	})
	// Its guard has undone the change before the step could be seen done: that is why it failed, and not that it was not applied.
	t.Run("never seen", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, w, open := guarding(t)
			e := open()
			if _, err := e.Apply(t.Context(), planned(t, s, e, map[string]string{"n1/near.bridge/a": `{"mode":"a"}`}), engine.ApplyOptions{}); err != nil {
				t.Fatal(err)
			}
			w.cut, w.mute = true, true
			res, err := e.Apply(t.Context(), planned(t, s, e, map[string]string{"n1/near.bridge/a": `{"mode":"b"}`}), engine.ApplyOptions{Confirm: 90 * time.Second})
			if err != nil || res.Run.Status != state.RunReverted || !res.Run.Unconfirmed || !strings.Contains(res.Run.Message, "node n1 was not reached") {
				t.Errorf("%v: ended %s, unconfirmed %t: %s", err, res.Run.Status, res.Run.Unconfirmed, res.Run.Message)
			}
			if there := bridges(t, s); there != "a=a" {
				t.Errorf("there is %s", there)
			}
		})
	})
	// Who confirms it at the last moment has confirmed it.
	t.Run("just in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, _, open := guarding(t)
			confirm := 5*time.Minute + 300*time.Millisecond // it ends between two looks whether it is confirmed
			_, end := confirmingWithin(t, s, open(), t.Context(), map[string]string{"n1/near.bridge/a": `{"mode":"a"}`}, confirm)
			time.Sleep(confirm*4/5 - time.Millisecond) // in virtual time
			ask(t, s)
			if res, err := end(); err != nil || res.Run.Status != state.RunApplied {
				t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
			}
		})
	})
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, w, open := guarding(t)
			ctx, interrupt := context.WithCancel(t.Context())
			run, end := confirming(t, s, open(), ctx, map[string]string{"n1/near.bridge/a": `{"mode":"a"}`})
			interrupt()
			if res, err := end(); !errors.Is(err, engine.ErrInterrupted) || res.Run.Status != state.RunOpen {
				t.Fatalf("%v: ended %s", err, res.Run.Status)
			}
			if there := bridges(t, s); there != "" || !slices.Equal(w.asked, []string{"undo"}) {
				t.Errorf("there is %s; asked for %v", there, w.asked)
			}
			var refused *engine.RefusedError
			if _, err := open().Rollback(t.Context(), run, engine.ApplyOptions{Keep: 1}); !errors.As(err, &refused) {
				t.Errorf("a part of what was not confirmed is kept: %v", err)
			}
			res, err := open().Resume(t.Context(), run, engine.ApplyOptions{})
			if err != nil || res.Run.Status != state.RunReverted || !res.Run.Unconfirmed {
				t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
			}
			if there := bridges(t, s); there != "" {
				t.Errorf("there is %s", there)
			}
		})
	})
}

// What is done after the confirmation has guards of its own, which are ended.
func TestGuardAfterConfirmation(t *testing.T) {
	for name, before := range map[string]map[string]string{
		"only": {"site/far.account/z": `{"login":"x"}`},
		"also": {"n1/near.bridge/b": `{"mode":"b"}`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, open := guarding(t)
				d := s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/8"}`, "n1/near.bridge/a": `{"mode":"a"}`})
				for i := range d.Resources {
					if d.Resources[i].Ref.Kind == "far.net" {
						d.Resources[i].After = []schema.Ref{{Scope: "n1", Kind: "near.bridge", Name: "a"}}
					}
				}
				s.Converge(t, d)
				_, end := confirming(t, s, open(), t.Context(), before)
				ask(t, s)
				res, err := end()
				if err != nil || res.Run.Status != state.RunApplied {
					t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
				}
				there := bridges(t, s)
				time.Sleep(10 * time.Minute)
				if later := bridges(t, s); later != there || strings.Contains(later, "a=a") {
					t.Errorf("there was %q, and later is %q", there, later)
				}
				for id, g := range w.guards {
					if g.verdict != "kept" {
						t.Errorf("guard %s: %q", id, g.verdict)
					}
				}
			})
		})
	}
}

// A process that loses the lock between the confirmation and the end of the guards leaves a run that is reverted: what cannot be undone is
// not begun on what a guard may have undone.
func TestConfirmedAndLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, open := guarding(t)
		s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/8"}`}))
		w.cut = true
		w.kept = sync.OnceFunc(func() {
			holder, err := s.Store.LockInfo(context.Background())
			if err == nil {
				err = s.Store.ForceUnlock(context.Background(), holder.ID, "me@here", "lost")
			}
			w.must(err)
		})
		run, end := confirming(t, s, open(), t.Context(), map[string]string{"n1/near.bridge/a": `{"mode":"a"}`})
		ask(t, s)
		if res, err := end(); err == nil {
			t.Fatalf("ended %s", res.Run.Status)
		}
		time.Sleep(10 * time.Minute) // the guard undoes
		res, err := open().Resume(t.Context(), run, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunReverted || !res.Run.Unconfirmed {
			t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
		}
		if nets := things(t, s, schema.ScopeSite, "far.net"); len(nets) != 1 || bridges(t, s) != "" {
			t.Errorf("there are %d nets, and %q", len(nets), bridges(t, s))
		}
	})
}

// The rollback of a run that ended is guarded too: what it goes back to need not reach the site any more.
func TestGuardOfRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, open := guarding(t)
		e := open()
		if _, err := e.Apply(t.Context(), planned(t, s, e, map[string]string{"n1/near.bridge/a": `{"mode":"a"}`}), engine.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		res, err := e.Apply(t.Context(), planned(t, s, e, map[string]string{"n1/near.bridge/a": `{"mode":"b"}`}), engine.ApplyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.cut = true
		res, err = open().Rollback(t.Context(), res.Run.ID, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunPartial {
			t.Errorf("%v: ended %s: %s", err, res.Run.Status, res.Run.Message)
		}
		if there := bridges(t, s); there != "a=b" {
			t.Errorf("there is %s", there)
		}
	})
}
