package engine_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// steps returns the names of what a plan does from its step number from on, sorted.
func steps(p *plan.Plan, from int, action func(*plan.Step) plan.Action) []string {
	list := []string{}
	for i := range p.Steps[min(from, len(p.Steps)):] {
		s := &p.Steps[from+i]
		list = append(list, fmt.Sprintf("%s %s", action(s), s.Ref))
	}
	slices.Sort(list)
	return list
}

func forth(s *plan.Step) plan.Action { return s.Action }

// afterSteps returns the world in which the first n steps from base to twelve are done, and no other was begun.
func afterSteps(t *testing.T, n int) string {
	t.Helper()
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, twelve), plan.Options{})
	for i := n; i < len(p.Steps); i++ {
		fail(t, s, fake.Fault{Op: string(p.Steps[i].Action), Ref: p.Steps[i].Ref.String(), Times: -1, Class: providers.Invalid, Effect: fake.EffectBefore})
	}
	if _, err := s.Apply(p, engine.ApplyOptions{OnFailure: apply.Continue}); err != nil {
		t.Fatal(err)
	}
	return s.World.Dump()
}

// change plans and applies a document, and returns the run.
func change(t *testing.T, s *enginetest.Site, resources map[string]string) (*plan.Plan, string) {
	t.Helper()
	p := s.Plan(t, s.Document(t, resources), plan.Options{})
	res, err := s.Apply(p, engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res.Run.Stands(), err)
	}
	return p, res.Run.ID
}

// rollback undoes a run except for its first steps.
func rollback(s *enginetest.Site, run string, keep int) (engine.Result, error) {
	e := s.Engine(nil)
	defer e.Close()
	return e.Rollback(context.Background(), run, engine.ApplyOptions{Keep: keep})
}

// A rollback to a step undoes what came after it and nothing else, whichever step it is; and it can be extended to an earlier one.
func TestRollbackToStep(t *testing.T) {
	ctx := context.Background()
	for keep := range 13 {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			s := enginetest.New()
			s.Converge(t, s.Document(t, base))
			p, run := change(t, s, twelve)
			e := s.Engine(nil)
			defer e.Close()
			inverse, err := e.Undoing(ctx, run, keep)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := steps(inverse, 0, forth), steps(p, keep, (*plan.Step).Inverse); !slices.Equal(got, want) {
				t.Fatalf("shown %q, want %q", got, want)
			}
			res, err := e.Rollback(ctx, run, engine.ApplyOptions{Keep: keep, Approve: inverse.Approval()})
			want, kept := state.RunRolledBack, keep
			switch {
			case keep == 0:
				want = state.RunReverted
			case keep >= len(p.Steps):
				want, kept = state.RunApplied, 0
			}
			if err != nil || res.Run.Status != want || res.Run.Kept != kept {
				t.Fatal(res.Run.Stands(), err)
			}
			if stored, err := s.Store.Run(ctx, res.Run.ID); err != nil || stored.Status != want || stored.Kept != kept {
				t.Fatal(stored.Stands(), err)
			}
			standsAt(t, s, p, min(keep, len(p.Steps)))
			if want != state.RunRolledBack {
				return
			}
			if _, err := rollback(s, run, keep+1); err == nil || !strings.Contains(err.Error(), "has already been reverted") {
				t.Errorf("forward again: %v", err)
			}
			if res, err := rollback(s, run, keep); err != nil || res.Run.Kept != keep || res.Run.Ended == nil {
				t.Errorf("to the same step again: %s, %v", res.Run.Stands(), err)
			}
			if _, err := e.Resume(ctx, res.Run.ID, engine.ApplyOptions{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("ended rolled back to step %d", keep)) {
				t.Errorf("resume: %v", err)
			}
			if res, err := rollback(s, run, keep/2); err != nil || res.Run.Kept != keep/2 {
				t.Fatal(res.Run.Stands(), err)
			}
			standsAt(t, s, p, keep/2)
			if keep > 1 {
				if res, err := rollback(s, run, 0); err != nil || res.Run.Status != state.RunReverted || res.Run.Kept != 0 {
					t.Fatal(res.Run.Stands(), err)
				}
				standsAt(t, s, p, 0)
			}
			s.Release(t)
			s.Converge(t, s.Document(t, twelve))
			if left := s.Plan(t, s.Document(t, twelve), plan.Options{}); !left.Empty() {
				t.Fatalf("applied anew, it is not as desired:\n%s", enginetest.Text(left))
			}
		})
	}
}

// standsAt checks that the first n steps of a plan from base to twelve are done and no others, and that converge knows so.
func standsAt(t *testing.T, s *enginetest.Site, p *plan.Plan, n int) {
	t.Helper()
	if got, want := s.World.Dump(), afterSteps(t, n); got != want {
		t.Fatalf("after %d steps:\n%s", n, lines(want, got))
	}
	again := s.Plan(t, s.Document(t, twelve), plan.Options{})
	if got, want := steps(again, 0, forth), steps(p, n, forth); !slices.Equal(got, want) || len(again.Drift)+len(again.Unmanaged) > 0 {
		t.Fatalf("the next plan has %q, want %q\n%s", got, want, enginetest.Text(again))
	}
	e := s.Engine(nil)
	defer e.Close()
	report, err := e.Drift(context.Background(), again.Site)
	if err != nil || len(report.Drifted)+len(report.Unstated)+len(report.Strays) > 0 {
		t.Fatalf("drift: %+v, %v", report, err)
	}
	if n == 0 || n == len(p.Steps) {
		return
	}
	var held *engine.HeldError
	if _, err := s.Apply(again, engine.ApplyOptions{}); !errors.As(err, &held) || !strings.Contains(err.Error(), fmt.Sprintf("ended rolled back to step %d", n)) {
		t.Fatalf("it is tried again unseen: %v", err)
	}
}

// inTurn makes a run do the same writes each time.
func inTurn(o *engine.Options) { o.Parallelism = 1 }

// Whichever write to the store is the last of a process that rolls back, to a step or all of a run, before or after its effect,
// and of the one that continues: the run is as it was, or comes to that step and no further.
func TestKilledRollbackToStep(t *testing.T) {
	ctx := context.Background()
	const first, second = 9, 4
	at := map[int]string{}
	for _, n := range []int{12, first, second, 0} {
		at[n] = afterSteps(t, n)
	}
	ends := map[string]int{}
	for _, c := range []struct{ from, to int }{{12, second}, {first, second}, {first, 0}, {12, 0}} {
		for _, after := range []bool{false, true} {
			for n := int64(1); ; n++ {
				s := enginetest.New()
				s.Converge(t, s.Document(t, base))
				_, run := change(t, s, twelve)
				if c.from < 12 {
					if res, err := rollback(s, run, c.from); err != nil || res.Run.Kept != c.from {
						t.Fatal(res.Run.Stands(), err)
					}
				}
				e, kv, died := dying(s, n, after, inTurn)
				_, err := e.Rollback(ctx, run, engine.ApplyOptions{Keep: c.to})
				e.Close()
				if !died.Load() {
					if err != nil || n < 10 {
						t.Fatalf("the rollback ended after %d writes: %v", n, err)
					}
					break
				}
				name, wanted := fmt.Sprintf("%d to %d, write %d, after=%v", c.from, c.to, n, after), stands(c.to)
				kv.Lapse()
				e, kv, _ = dying(s, 3+n%5, !after, inTurn) // the next one dies too
				_, _ = e.Resume(ctx, "", engine.ApplyOptions{})
				e.Close()
				kv.Lapse()
				left, err := s.Store.Run(ctx, run)
				if err != nil {
					t.Fatal(err)
				}
				ends[left.Stands()]++
				switch left.Stands() {
				case wanted:
				case "open":
					if ended := settled(t, s, name); ended.Stands() != wanted {
						t.Fatalf("%s: resumed, it ended %s", name, ended.Stands())
					}
				default: // it had not begun
					if left.Stands() != stands(c.from) || s.World.Dump() != at[c.from] {
						t.Fatalf("%s: it is %s, and the world is not so:\n%s", name, left.Stands(), lines(at[c.from], s.World.Dump()))
					}
					if res, err := rollback(s, run, c.to); err != nil || res.Run.Stands() != wanted {
						t.Fatalf("%s: once more: %s, %v", name, res.Run.Stands(), err)
					}
				}
				if s.World.Dump() != at[c.to] {
					t.Fatalf("%s: the world is not as after step %d:\n%s", name, c.to, lines(at[c.to], s.World.Dump()))
				}
			}
		}
	}
	t.Logf("ends: %v", ends)
	for _, end := range []string{"open", stands(12), stands(first), stands(second), stands(0)} {
		if ends[end] == 0 {
			t.Errorf("no process left a run that was %s: %v", end, ends)
		}
	}
}

// stands returns the state of a run of twelve steps of which the first n are done, and the others were or have been undone.
func stands(n int) string {
	switch n {
	case 0:
		return "reverted"
	case 12:
		return "applied"
	}
	return fmt.Sprintf("rolled back to step %d", n)
}

// settled resumes the open run.
func settled(t *testing.T, s *enginetest.Site, name string) state.Run {
	t.Helper()
	e := s.Engine(nil)
	defer e.Close()
	res, err := e.Resume(context.Background(), "", engine.ApplyOptions{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return res.Run
}

// A rollback to a step whose undo fails ends partial, with what is kept left out of it; once that is repaired it comes to the same
// step.
func TestRollbackToStepFails(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p, run := change(t, s, twelve)
	const keep = 5
	undo := p.Steps[keep]
	fail(t, s, fake.Fault{Op: string(undo.Inverse()), Ref: undo.Ref.String(), Times: 1, Class: providers.Invalid, Effect: fake.EffectBefore})
	res, err := rollback(s, run, keep)
	if err != nil || res.Run.Status != state.RunPartial || res.Run.Kept != 0 || len(res.Differences) != 1 || res.Differences[0].Ref != undo.Ref {
		t.Fatal(res.Run.Stands(), res.Differences, err)
	}
	if run := settled(t, s, "mended"); run.Status != state.RunRolledBack || run.Kept != keep {
		t.Fatal(run.Stands())
	}
	standsAt(t, s, p, keep)
}

// What is kept has to be done: of a run that stopped on its way, what was not done cannot be kept, and what was done can be,
// with the run at its end.
func TestRollbackToStepOfStoppedRun(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, twelve), plan.Options{})
	at := p.Steps[6]
	fail(t, s, fake.Fault{Op: string(at.Action), Ref: at.Ref.String(), Class: providers.Invalid, Effect: fake.EffectBefore})
	res, err := s.Apply(p, engine.ApplyOptions{OnFailure: apply.Continue})
	if err != nil || res.Run.Status != state.RunPartial {
		t.Fatal(res.Run.Stands(), err)
	}
	run := res.Run.ID
	for _, keep := range []int{7, 12} {
		if res, err := rollback(s, run, keep); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("step 7, %s %s, is not done", at.Action, at.Ref)) {
			t.Errorf("%d: %s, %v", keep, res.Run.Stands(), err)
		}
	}
	if _, err := rollback(s, run, -1); err == nil || !strings.Contains(err.Error(), "numbered from 1") {
		t.Errorf("%v", err)
	}
	if _, err := rollback(s, run, 13); err == nil || !strings.Contains(err.Error(), "beyond its last step, 12") {
		t.Errorf("%v", err)
	}
	if res, err := rollback(s, run, 6); err != nil || res.Run.Kept != 6 || res.Run.Failed != at.Ref {
		t.Fatal(res.Run.Stands(), res.Run.Failed, err)
	}
	standsAt(t, s, p, 6)
}

// A run that is open although all its steps are done is brought to its end by continuing, not by keeping all of them.
func TestRollbackToLastStepOfOpenRun(t *testing.T) {
	for n := int64(1); ; n++ {
		s := enginetest.New()
		s.Converge(t, s.Document(t, base))
		p := s.Plan(t, s.Document(t, twelve), plan.Options{})
		e, kv, died := dying(s, n, false, inTurn)
		res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
		e.Close()
		kv.Lapse()
		if !died.Load() {
			t.Fatalf("no write was the last before the end: %v", err)
		}
		run := res.Run.ID
		left, err := s.Store.Run(context.Background(), run)
		if err != nil || left.Status != state.RunOpen {
			continue
		}
		if done, err := engine.Finished(context.Background(), s.Store, left); err != nil || done < len(p.Steps) {
			continue
		}
		if _, err := rollback(s, run, 12); err == nil || !strings.Contains(err.Error(), "no step comes after it") || !reflect.DeepEqual(remedy.Remedies(err)[0].Do, []remedy.Action{remedy.Of(remedy.Resume, run)}) {
			t.Errorf("%s: %v", left.Stands(), err)
		}
		if res, err := rollback(s, run, 5); err != nil || res.Run.Kept != 5 {
			t.Error(res.Run.Stands(), err)
		}
		standsAt(t, s, p, 5)
		return
	}
}

// The halves of one change are kept or undone together, and the error names the steps that separate nothing.
func TestRollbackToStepPartsNoChange(t *testing.T) {
	s := enginetest.New()
	ports := map[string]string{"n1/near.bridge/br1": `{"mode":"secure"}`, "n1/near.port/p0": `{"bridge":"br1","tag":10}`}
	s.Converge(t, s.Document(t, base))
	p, run := change(t, s, with(ports))
	var halves []int
	for i := range p.Steps {
		if p.Steps[i].Replace {
			halves = append(halves, i)
		}
	}
	if len(p.Steps) != 3 || len(halves) != 2 {
		t.Fatal(enginetest.Text(p))
	}
	applied := s.World.Dump()
	whole := 0
	for keep := range len(p.Steps) + 1 {
		e := s.Engine(nil)
		_, err := e.Undoing(context.Background(), run, keep)
		e.Close()
		parts := keep > halves[0] && keep <= halves[1]
		want := fmt.Sprintf("n1/near.port/p0 is changed by more than one step, and these must be kept or rolled back together: roll back to step %d or %d", halves[0], halves[1]+1)
		switch {
		case parts && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%d: %v, want %s", keep, err, want)
		case !parts && err != nil:
			t.Errorf("%d: %v", keep, err)
		case !parts:
			whole++
		}
	}
	if whole == 0 || s.World.Dump() != applied {
		t.Error("the world was changed")
	}
}

// What is kept may include what cannot be undone exactly; what is undone may not.
func TestRollbackToStepKeepsWhatCannotBeUndone(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p, run := change(t, s, with(map[string]string{"site/far.host/b1": "", "site/far.net/b": "", "site/far.guard/web": `{"size":2}`}))
	if p.NoReturn == len(p.Steps) {
		t.Fatal(enginetest.Text(p))
	}
	var refused *engine.RefusedError
	for keep := range len(p.Steps) {
		if _, err := rollback(s, run, keep); !errors.As(err, &refused) {
			t.Errorf("%d: %v", keep, err)
		}
	}
	if res, err := rollback(s, run, len(p.Steps)); err != nil || res.Run.Status != state.RunApplied {
		t.Error(res.Run.Stands(), err)
	}
}

// What is kept is not called: its node need not answer, and may be held.
func TestRollbackToStepLeavesAloneWhatIsKept(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	doc := with(map[string]string{"n1/near.bridge/br0": `{"mode":"open","size":1}`, "n2/near.bridge/br0": `{"mode":"open","size":1}`})
	p, run := change(t, s, doc)
	if len(p.Steps) != 2 || p.Steps[0].Ref.Scope != "n1" {
		t.Fatal(enginetest.Text(p))
	}
	if err := s.Store.Hold(context.Background(), "n1", "ada", "maintenance"); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(func(o *engine.Options) {
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			return providers.NewSet(s.World.Provider("far", schema.ScopeSite), s.World.Provider("near", "n2"))
		}
	})
	defer e.Close()
	var held *engine.HeldError
	if _, err := e.Rollback(context.Background(), run, engine.ApplyOptions{}); !errors.As(err, &held) {
		t.Fatalf("what is held is undone: %v", err)
	}
	res, err := e.Rollback(context.Background(), run, engine.ApplyOptions{Keep: 1})
	if err != nil || res.Run.Kept != 1 {
		t.Fatal(res.Run.Stands(), err)
	}
	if th := thingOf(t, s, "n1", "near.bridge", "br0"); th.Spec["mode"] != "open" {
		t.Errorf("what is kept was changed: %v", th.Spec)
	}
	if th := thingOf(t, s, "n2", "near.bridge", "br0"); th.Spec["mode"] != "secure" {
		t.Errorf("what comes after it is not undone: %v", th.Spec)
	}
}

// Random plans, rolled back to any step: the next plan contains what was undone, and nothing else.
func TestRollbackToAnyStep(t *testing.T) {
	ends := map[string]int{}
	late := func(st plan.Step) bool { return !st.Undo.Reversible() }
	rapid.Check(t, func(rt *rapid.T) {
		s := enginetest.New()
		s.Converge(t, s.Document(t, site(rt, "from ")))
		d := s.Document(t, site(rt, "to "))
		p := s.Plan(t, d, plan.Options{Unlimited: true})
		if p.Empty() || len(p.Refusals) > 0 {
			return
		}
		for i := range p.Steps { // so what is kept needs nothing of what is undone
			if slices.ContainsFunc(p.Steps[i].Needs, func(n int) bool { return n >= i }) {
				rt.Fatalf("step %d needs a later one:\n%s", i, enginetest.Text(p))
			}
		}
		res, err := s.Apply(p, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunApplied {
			rt.Fatal(res.Run.Stands(), err)
		}
		run, applied := res.Run.ID, s.World.Dump()
		from := 1
		if i := slices.IndexFunc(p.Steps, late); i >= 0 && rapid.Bool().Draw(rt, "keep what cannot be undone") {
			from = len(p.Steps)
			for !late(p.Steps[from-1]) {
				from--
			}
		}
		keep := rapid.IntRange(from, len(p.Steps)).Draw(rt, "keep")
		below, above := p.Whole(keep)
		if below > 0 && rapid.Bool().Draw(rt, "part nothing") {
			keep, above = below, below
		}
		res, err = rollback(s, run, keep)
		var refused *engine.RefusedError
		switch {
		case below < keep:
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("roll back to step %d or %d", below, above)) {
				rt.Fatalf("halves are parted: %s, %v", res.Run.Stands(), err)
			}
			ends["parts a change"]++
		case errors.As(err, &refused):
			if !slices.ContainsFunc(p.Steps[keep:], late) {
				rt.Fatal(err)
			}
			ends["refused"]++
		case err != nil:
			rt.Fatal(err)
		case keep == len(p.Steps):
			ends["nothing to do"]++
		default:
			if res.Run.Status != state.RunRolledBack || res.Run.Kept != keep {
				rt.Fatal(res.Run.Stands(), res.Differences)
			}
			ends["rolled back"]++
			if slices.ContainsFunc(p.Steps[:keep], late) {
				ends["rolled back behind the point of no return"]++
			}
			s.Release(t)
			again := s.Plan(t, d, plan.Options{Unlimited: true})
			if got, want := steps(again, 0, forth), steps(p, keep, forth); !slices.Equal(got, want) {
				rt.Fatalf("rolled back to step %d of\n%s\nthe next plan is\n%s", keep, enginetest.Text(p), enginetest.Text(again))
			}
			return
		}
		if s.World.Dump() != applied {
			rt.Fatal("the world was changed")
		}
	})
	t.Logf("ends: %v", ends)
	if ends["rolled back"] == 0 || ends["parts a change"] == 0 {
		t.Errorf("not every end was reached: %v", ends)
	}
}

// A follower is told how far back a run goes, and how much that is to undo, each time that this is requested.
func TestFollowTellsHowFarBack(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	_, run := change(t, s, twelve)
	var want []event.RevertStarted
	for _, keep := range []int{9, 4, 0} {
		want = append(want, event.RevertStarted{Steps: []int{3, 5, 4}[len(want)], Keep: keep})
		if res, err := rollback(s, run, keep); err != nil || res.Run.Stands() != stands(keep) {
			t.Fatal(res.Run.Stands(), err)
		}
	}
	var told []event.RevertStarted
	for _, e := range s.Events() {
		if e, ok := e.(event.RevertStarted); ok {
			told = append(told, e)
		}
	}
	stored, err := s.Store.Run(context.Background(), run)
	if err != nil {
		t.Fatal(err)
	}
	var followed []event.RevertStarted
	if err := engine.Follow(context.Background(), s.Store, stored, func(e event.Event) {
		if e, ok := e.(event.RevertStarted); ok {
			followed = append(followed, e)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(told, want) || !slices.Equal(followed, want) {
		t.Errorf("told %v, and who follows %v, want %v", told, followed, want)
	}
}

// A rollback that died can be requested again, wherever it died: what it had begun with is undone as well, so references to and from
// it do not prevent that.
func TestRollbackAfterARollbackThatDied(t *testing.T) {
	died := 0
	for n := int64(1); ; n++ {
		s := enginetest.New()
		s.Converge(t, s.Document(t, base))
		before := s.World.Dump()
		p, run := change(t, s, with(map[string]string{"site/far.net/x": `{}`, "site/far.subnet/s": `{"net":"x"}`, "site/far.host/y": `{"net":"x","links":[{"port":0,"subnet":"s"}]}`}))
		e, kv, dead := dying(s, n, true, func(o *engine.Options) { o.Parallelism = 1 })
		_, err := e.Rollback(t.Context(), run, engine.ApplyOptions{})
		e.Close()
		if !dead.Load() {
			if err != nil || died < len(p.Steps) {
				t.Fatalf("undone after it had died %d times: %v", died, err)
			}
			return
		}
		died++
		kv.Lapse()
		e = s.Engine(nil)
		if r, err := s.Store.Run(t.Context(), run); err != nil || r.Status == state.RunReverted {
			e.Close()
			continue
		}
		res, err := e.Rollback(t.Context(), run, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunReverted || s.World.Dump() != before {
			t.Fatalf("died at write %d; undone again: %s, %v, as before %v", n, res.Run.Status, err, s.World.Dump() == before)
		}
		e.Close()
	}
}
