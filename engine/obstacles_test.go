package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// foreseeing gives the providers of a site what they say of deletes.
func foreseeing(say func(scope string, deletes, changes []providers.Target) ([]providers.Obstacle, error)) func(*engine.Options) {
	return func(o *engine.Options) {
		open := o.Open
		o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			set, err := open(ctx, site, needs)
			if err != nil {
				return nil, err
			}
			for _, p := range set.All() {
				p.Obstacles = func(_ context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
					return say(p.Scope, deletes, changes)
				}
			}
			return set, nil
		}
	}
}

// A delete that would be refused is found out before anything is done that cannot be undone: by the plan, or at the latest at the point of no
// return, from where the run goes back.
func TestObstacles(t *testing.T) {
	was := map[string]string{"site/far.guard/a": `{"size":1}`, "site/far.guard/b": `{"size":1}`, "n1/near.bridge/old": `{"mode":"secure"}`, "n1/near.bridge/keep": `{"mode":"secure"}`}
	is := map[string]string{"site/far.host/h": `{"size":1}`, "n1/near.bridge/keep": `{"mode":"standalone"}`}
	for name, c := range map[string]struct {
		err       error
		elsewhere bool // the obstacle is there only for some other thing
		failing   apply.OnFailure
		ends      state.RunStatus
		deleted   int
	}{
		"in the way":           {ends: state.RunReverted},
		"of something else":    {elsewhere: true, ends: state.RunApplied, deleted: 2},
		"not known":            {err: errors.New("away"), ends: state.RunApplied, deleted: 2},
		"each step for itself": {failing: apply.Continue, ends: state.RunApplied, deleted: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			s.Converge(t, s.Document(t, was))
			before := s.World.Dump()
			var asked [][]providers.Target
			var inTheWay bool
			e := s.Engine(foreseeing(func(scope string, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
				if scope != schema.ScopeSite || !inTheWay {
					return nil, nil
				}
				asked = append(asked, deletes, changes)
				on := deletes[len(deletes)-1]
				if c.elsewhere {
					on.ID = "another"
				}
				if c.err != nil {
					return nil, c.err
				}
				return []providers.Obstacle{{Target: on, Why: "it is the disk of domain x"}}, nil
			}))
			defer e.Close()
			p, err := e.Plan(t.Context(), s.Document(t, is), plan.Options{})
			if err != nil || len(p.Refusals) > 0 {
				t.Fatal(enginetest.Text(p), err)
			}
			inTheWay = true
			again, err := e.Plan(t.Context(), s.Document(t, is), plan.Options{})
			refused := !c.elsewhere && c.err == nil
			if err != nil || (len(again.Refusals) == 1) != refused {
				t.Errorf("the plan:\n%s%v", enginetest.Text(again), err)
			} else if refused && !strings.Contains(again.Refusals[0].Reason, "cannot be deleted: it is the disk of domain x") {
				t.Errorf("refused: %v", again.Refusals)
			}
			asked = nil
			deletes := s.World.Count("delete")
			res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval(), OnFailure: c.failing})
			if res.Run.Status != c.ends {
				t.Fatalf("%+v %v %v", res.Run, res.Differences, err)
			}
			guards := 0
			for _, entry := range s.World.Log() {
				if entry.Op == "delete" && entry.Call.Ref.Kind == "far.guard" {
					guards++
				}
			}
			if guards != c.deleted {
				t.Errorf("%d guards were deleted (%d deletes in all), want %d", guards, s.World.Count("delete")-deletes, c.deleted)
			}
			if c.ends != state.RunReverted {
				return
			}
			if !strings.Contains(res.Run.Message, "it is the disk of domain x") || s.World.Dump() != before {
				t.Errorf("%q; the world is\n%s", res.Run.Message, s.World.Dump())
			}
			if len(asked) != 2 || len(asked[0]) != 2 || !slices.ContainsFunc(asked[0], func(t providers.Target) bool { return t.Kind == "far.guard" }) {
				t.Errorf("asked of %v", asked)
			}
		})
	}
}

// A provider that panics, or does not answer when the run is to stop, cannot tell: a plan goes on, and a run stops before the point of no return.
func TestObstaclesThatCannotBeTold(t *testing.T) {
	was, is := map[string]string{"site/far.guard/a": `{"size":1}`, "site/far.guard/b": `{"size":1}`}, map[string]string{"site/far.guard/b": `{"size":1}`}
	for name, c := range map[string]struct {
		say  func(interrupt func()) error
		ends state.RunStatus
	}{
		"a panic":      {func(func()) error { panic("a definition that makes no sense") }, state.RunApplied},
		"an interrupt": {func(interrupt func()) error { interrupt(); select {} }, state.RunOpen},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			s.Converge(t, s.Document(t, was))
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			asks := false
			e := s.Engine(foreseeing(func(string, []providers.Target, []providers.Target) ([]providers.Obstacle, error) {
				if !asks {
					return nil, nil
				}
				return nil, c.say(interrupt)
			}))
			defer e.Close()
			asks = name == "a panic"
			p, err := e.Plan(t.Context(), s.Document(t, is), plan.Options{})
			if err != nil || len(p.Refusals) > 0 || len(p.Steps) != 1 {
				t.Fatal(enginetest.Text(p), err)
			}
			asks = true
			res, err := e.Apply(ctx, p, engine.ApplyOptions{Approve: p.Approval()})
			if res.Run.Status != c.ends || errors.Is(err, apply.ErrInterrupted) != (c.ends == state.RunOpen) {
				t.Errorf("%+v, %v", res.Run, err)
			}
			if deleted := s.World.Count("delete"); deleted > 0 != (c.ends == state.RunApplied) {
				t.Errorf("%d deletes were called", deleted)
			}
		})
	}
}

// What uses a thing may be changed to end that before the thing is deleted, and not after it.
func TestObstaclesThatAreChanged(t *testing.T) {
	step := func(id int, action plan.Action, kind, name string, needs ...int) plan.Step {
		return plan.Step{ID: id, Ref: schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: name}, Action: action, ExternalID: name, Needs: needs}
	}
	// The host drops the guard b, and has the guard a again after that was replaced.
	p := &plan.Plan{Steps: []plan.Step{
		step(0, plan.Delete, "far.guard", "a"), step(1, plan.Create, "far.guard", "a", 0), step(2, plan.Update, "far.host", "h", 1), step(3, plan.Delete, "far.guard", "b", 2),
		step(4, plan.Update, "far.host", "i"), step(5, plan.Delete, "far.guard", "c", 4),
	}}
	far := enginetest.New().World.Provider("far", schema.ScopeSite)
	uses := map[string]string{"a": "h", "b": "h", "c": "i"}
	far.Obstacles = func(_ context.Context, deletes, changes []providers.Target) (found []providers.Obstacle, err error) {
		for _, d := range deletes {
			if !slices.Contains(changes, providers.Target{Kind: "far.host", ID: uses[d.ID]}) {
				found = append(found, providers.Obstacle{Target: d, Why: "a host has it"})
			}
		}
		return found, nil
	}
	set, err := providers.NewSet(far)
	if err != nil {
		t.Fatal(err)
	}
	found, err := p.Obstructions(t.Context(), set, func(int) bool { return true })
	if err != nil || len(found) != 1 || found[0].Step.ID != 0 {
		t.Errorf("%v, %v", found, err)
	}
}
