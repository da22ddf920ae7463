package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// site draws a document: any subset of a fixed set of names, with references that exist.
func site(t *rapid.T, label string) map[string]string {
	m := map[string]string{"site/far.guard/always": `{}`} // a document without resources is refused
	small := rapid.IntRange(0, 2)
	spec := func(v map[string]any) string {
		b, _ := json.Marshal(v)
		return string(b)
	}
	labels := func(l string) any {
		out := map[string]any{}
		for _, k := range []string{"env", "team"} {
			if n := small.Draw(t, l+k); n > 0 {
				out[k] = fmt.Sprint(n)
			}
		}
		return out
	}
	some := rapid.Bool()
	var nets, guards []string
	for i := range 3 {
		name := fmt.Sprintf("net%d", i)
		if some.Draw(t, label+name) {
			nets = append(nets, name)
			m["site/far.net/"+name] = spec(map[string]any{"cidr": fmt.Sprintf("10.%d.%d.0/24", i, small.Draw(t, label+name+"cidr")), "labels": labels(label + name)})
		}
	}
	for i := range 2 {
		name := fmt.Sprintf("guard%d", i)
		if some.Draw(t, label+name) {
			guards = append(guards, name)
			m["site/far.guard/"+name] = spec(map[string]any{"size": small.Draw(t, label+name+"size")})
		}
	}
	var subnets, cidrs []string
	if len(nets) > 0 {
		for i := range 3 { // of few addresses, so that they pass from one to another
			name := fmt.Sprintf("subnet%d", i)
			if !some.Draw(t, label+name) {
				continue
			}
			cidr := fmt.Sprintf("10.9.%d.0/24", i+small.Draw(t, label+name+"cidr"))
			if slices.Contains(cidrs, cidr) {
				continue
			}
			cidrs, subnets = append(cidrs, cidr), append(subnets, name)
			m["site/far.subnet/"+name] = spec(map[string]any{"cidr": cidr, "net": rapid.SampledFrom(nets).Draw(t, label+name+"net"), "size": small.Draw(t, label+name+"size")})
		}
		for i := range 4 {
			name := fmt.Sprintf("host%d", i)
			if !some.Draw(t, label+name) {
				continue
			}
			v := map[string]any{"net": rapid.SampledFrom(nets).Draw(t, label+name+"net"), "size": small.Draw(t, label+name+"size"), "labels": labels(label + name)}
			if len(guards) > 0 && some.Draw(t, label+name+"guarded") {
				v["guard"] = rapid.SampledFrom(guards).Draw(t, label+name+"guard")
			}
			var links []any
			for _, n := range subnets {
				if some.Draw(t, label+name+n) {
					links = append(links, map[string]any{"port": len(links), "subnet": n})
				}
			}
			if links != nil {
				v["links"] = links
			}
			m["site/far.host/"+name] = spec(v)
		}
	}
	for _, node := range []string{"n1", "n2"} {
		if !some.Draw(t, label+node) {
			continue
		}
		bridges := []string{"br"}
		m[node+"/near.bridge/br"] = spec(map[string]any{"mode": fmt.Sprint(small.Draw(t, label+node+"mode"))})
		if some.Draw(t, label+node+"second") {
			bridges = append(bridges, "br2")
			m[node+"/near.bridge/br2"] = spec(map[string]any{"mode": "x"})
		}
		for i := range 2 {
			if name := fmt.Sprintf("p%d", i); some.Draw(t, label+node+name) {
				m[node+"/near.port/"+name] = spec(map[string]any{"bridge": rapid.SampledFrom(bridges).Draw(t, label+node+name+"bridge"), "tag": small.Draw(t, label+node+name+"tag")})
			}
		}
	}
	return m
}

// fault draws something that goes wrong.
func fault(t *rapid.T, i int) fake.Fault {
	l := fmt.Sprint("fault", i)
	return fake.Fault{
		Op:     rapid.SampledFrom([]string{"create", "update", "delete", "observe"}).Draw(t, l+"op"),
		Nth:    rapid.IntRange(1, 6).Draw(t, l+"nth"),
		Times:  rapid.IntRange(1, 7).Draw(t, l+"times"),
		Class:  rapid.SampledFrom([]providers.Class{providers.Transient, providers.Busy, providers.Invalid, providers.Denied, providers.Unknown}).Draw(t, l+"class"),
		Effect: fake.EffectBefore,
	}
}

// orderHolds checks that nothing is created before, or removed after, what it needs.
func orderHolds(t *rapid.T, p *plan.Plan, d *schema.Document) {
	made := map[schema.Ref]int{}
	for i := range p.Steps {
		if a := p.Steps[i].Action; a == plan.Create || a == plan.Update {
			made[p.Steps[i].Ref] = i
		}
		for _, n := range p.Steps[i].Needs {
			if p.Steps[n].Wave > p.Steps[i].Wave || n >= i {
				t.Fatalf("step %d needs step %d, which comes later:\n%s", i, n, enginetest.Text(p))
			}
		}
		if reversible := p.Steps[i].Undo.Reversible(); !reversible && i < p.NoReturn {
			t.Fatalf("step %d cannot be undone and comes before the point of no return:\n%s", i, enginetest.Text(p))
		}
	}
	for _, r := range d.Resources {
		i, ok := made[r.Ref]
		if !ok {
			continue
		}
		for _, a := range r.After {
			if j, ok := made[a]; ok && j > i {
				t.Fatalf("%s is made before %s, to which it refers:\n%s", r.Ref, a, enginetest.Text(p))
			}
		}
	}
}

// turnsHold records every start of a step and checks that no node of a later turn begins while an earlier turn has a step
// that could be done: stages are a precaution, and dependencies between nodes come first.
func turnsHold(t *rapid.T, p *plan.Plan, events []event.Event, turns *int) {
	done := map[int]bool{}
	for _, e := range events {
		switch e := e.(type) {
		case event.StepStarted:
			if e.Undo {
				return
			}
			if e.Step.Stage > 1 {
				*turns++
			}
			for i := range p.Steps {
				early := &p.Steps[i]
				waits := slices.ContainsFunc(early.Needs, func(n int) bool { return !done[n] })
				if early.Stage > 0 && early.Stage < e.Step.Stage && !done[i] && !waits && (i < p.NoReturn) == (e.Step.ID < p.NoReturn) {
					t.Fatalf("step %d of turn %d began before step %d of turn %d:\n%s", e.Step.ID, e.Step.Stage, i, early.Stage, enginetest.Text(p))
				}
			}
		case event.StepDone:
			done[e.Step.ID] = true
		case event.StepFailed, event.RevertStarted:
			return
		}
	}
}

// budgetHolds repeats the plan with its own budget: it is refused when it destroys more, and only then.
func budgetHolds(t *rapid.T, s *enginetest.Site, d *schema.Document, p *plan.Plan) (over bool) {
	deletes := 0
	for i := range p.Steps {
		if p.Steps[i].Action == plan.Delete {
			deletes++
		}
	}
	allowed := rapid.IntRange(0, 4).Draw(t, "budget")
	e := s.Engine(nil)
	defer e.Close()
	bounded, err := e.Plan(context.Background(), d, plan.Options{MaxDestroy: fmt.Sprint(allowed), AllowMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	if over = deletes > allowed; over != (len(bounded.Refusals) > 0) {
		t.Fatalf("%d things are destroyed, %d may be, and the refusals are %v", deletes, allowed, bounded.Refusals)
	}
	if !over {
		return false
	}
	before, calls := s.World.Dump(), len(s.World.Log())
	bounded.Refusals = nil // a mistake of the planner: the apply counts for itself
	var refused *engine.RefusedError
	if _, err := s.Apply(bounded, engine.ApplyOptions{}); !errors.As(err, &refused) {
		t.Fatalf("a plan over its budget was not refused: %v", err)
	}
	if s.World.Dump() != before || len(s.World.Log()) != calls {
		t.Fatal("a plan over its budget changed something")
	}
	return true
}

// From any document to any other, whatever goes wrong: a run ends at the desired state, or back at the start, or reports
// that it did neither; and once nothing goes wrong any more, the site converges and the second plan is empty. No run
// destroys more than it may, and nodes take their turns.
func TestTortureAnyWorldConverges(t *testing.T) {
	torture.Worlds(t, 100, 500, 100000)
	ends := map[state.RunStatus]int{}
	tried, turns, overBudget := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tried++
		s := enginetest.New()
		subnet, host := fake.SiteTraits(), fake.SiteTraits()
		subnet.Exclusive, host.Detach = []providers.Exclusive{{Field: "cidr"}}, []providers.Detachable{{Field: "links"}}
		s.World.Traits = map[string]providers.Traits{"far.subnet": subnet, "far.host": host}
		first := s.Document(fataler{TB: nil, t: t}, site(t, "first"))
		run(t, s, first, engine.ApplyOptions{})
		start := s.World.Dump()

		second := s.Document(fataler{TB: nil, t: t}, site(t, "second"))
		p := makePlan(t, s, second)
		orderHolds(t, p, second)
		if budgetHolds(t, s, second, p) {
			overBudget++
		}
		blind := false
		for i := range rapid.IntRange(0, 2).Draw(t, "faults") {
			f := fault(t, i)
			blind = blind || f.Op == "observe"
			if err := s.World.Fail(f); err != nil {
				t.Fatal(err)
			}
		}
		policy := rapid.SampledFrom([]apply.OnFailure{apply.Rollback, apply.Stop, apply.Continue}).Draw(t, "policy")
		seen := len(s.Events())
		res, err := s.Apply(p, engine.ApplyOptions{OnFailure: policy})
		turnsHold(t, p, s.Events()[seen:], &turns)
		var unknown *engine.UnknownError
		switch {
		case errors.As(err, &unknown): // observing failed before anything was done
			if s.World.Dump() != start {
				t.Fatalf("nothing was to be done, and the world changed")
			}
		case err != nil && res.Run.Status != state.RunOpen: // an open run is settled below
			t.Fatalf("apply: %v", err)
		case res.Run.Status == state.RunReverted && s.World.Dump() != start:
			t.Fatalf("reverted, and the world is not as before\nbefore %s\nafter %s\n%s", start, s.World.Dump(), enginetest.Text(p))
		case res.Run.Status == state.RunPartial && len(res.Differences) == 0:
			t.Fatal("partial without differences")
		}
		ends[res.Run.Status]++

		blamesNobody := func(when string) {
			if r := driftOf(fataler{TB: nil, t: t}, s, second.Site); !blind && len(r.Drifted)+len(r.Unstated) > 0 {
				t.Fatalf("%s (%s) somebody else is blamed: %+v %+v\n%s", when, res.Run.Status, r.Drifted, r.Unstated, enginetest.Text(p))
			}
		}
		blamesNobody("after the run")
		settle(t, s, res)
		blamesNobody("after it was settled")
		for range 20 { // faults run out
			again := makePlan(t, s, second)
			if again.Empty() && len(again.Unknown) == 0 {
				break
			}
			if len(again.Unknown) == 0 {
				run(t, s, second, engine.ApplyOptions{})
			}
		}
		last := makePlan(t, s, second)
		if !last.Empty() || len(last.Unmanaged) > 0 {
			runs, _ := s.Store.Runs(context.Background())
			var history strings.Builder
			for _, r := range runs {
				fmt.Fprintf(&history, "%s %s %s\n", r.ID, r.Status, r.Message)
			}
			t.Fatalf("not converged:\n%s\nruns:\n%s\nworld: %s", enginetest.Text(last), history.String(), s.World.Dump())
		}
	})
	for _, end := range []state.RunStatus{state.RunApplied, state.RunReverted, state.RunPartial, state.RunOpen} {
		if ends[end] == 0 && torture.Full() { // a hundred worlds may miss one
			t.Errorf("no run ended %s: the worlds do not try enough", end)
		}
	}
	if turns == 0 || overBudget == 0 {
		t.Errorf("%d steps waited for their turn, %d plans were over a budget: the worlds do not try enough", turns, overBudget)
	}
	torture.Report(t, "N", "%d worlds converge: %d runs applied, %d reverted, %d partial, %d open; %d plans over budget refused, %d steps waited for their turn",
		tried, ends[state.RunApplied], ends[state.RunReverted], ends[state.RunPartial], ends[state.RunOpen], overBudget, turns)
}

func makePlan(t *rapid.T, s *enginetest.Site, d *schema.Document) *plan.Plan {
	e := s.Engine(nil)
	defer e.Close()
	p, err := e.Plan(context.Background(), d, plan.Options{Unlimited: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t *rapid.T, s *enginetest.Site, d *schema.Document, o engine.ApplyOptions) {
	p := makePlan(t, s, d)
	if len(p.Refusals) > 0 {
		t.Fatal(enginetest.Text(p))
	}
	res, err := s.Apply(p, o)
	var unknown *engine.UnknownError
	if err != nil && !errors.As(err, &unknown) && res.Run.Status != state.RunOpen {
		t.Fatal(err)
	}
	settle(t, s, res)
}

// settle continues a run until it has ended, and releases what cannot be brought to an end, as an operator would.
func settle(t *rapid.T, s *enginetest.Site, res engine.Result) {
	for range 40 {
		if res.Run.Status != state.RunOpen && res.Run.Status != state.RunPartial {
			s.Release(fataler{TB: nil, t: t})
			return
		}
		e := s.Engine(nil)
		next, err := e.Resume(context.Background(), res.Run.ID, engine.ApplyOptions{OnFailure: apply.Stop})
		e.Close()
		var unknown *engine.UnknownError
		var held *engine.HeldError
		switch {
		case err == nil || next.Run.Status == state.RunOpen:
			res = next
		case errors.As(err, &held): // by more than the run itself
			s.Release(fataler{TB: nil, t: t})
		case !errors.As(err, &unknown):
			t.Fatal(err)
		}
	}
	t.Fatalf("run %s cannot be settled: %s %v", res.Run.ID, res.Run.Message, res.Differences)
}

// fataler makes rapid usable as a testing.TB.
type fataler struct {
	testing.TB
	t *rapid.T
}

func (f fataler) Helper()                   {}
func (f fataler) Fatal(args ...any)         { f.t.Fatal(args...) }
func (f fataler) Fatalf(s string, a ...any) { f.t.Fatalf(s, a...) }
