package engine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// manglings are the ways to change a plan file, by name. Each gets the bytes of the plan and returns others.
var manglings = map[string]func(t testing.TB, rng *rand.Rand, said []byte) []byte{
	"a byte": func(_ testing.TB, rng *rand.Rand, said []byte) []byte {
		said = slices.Clone(said)
		said[rng.IntN(len(said))] ^= 1 << rng.IntN(8)
		return said
	},
	"a digit": func(_ testing.TB, rng *rand.Rand, said []byte) []byte {
		said = slices.Clone(said)
		for {
			if i := rng.IntN(len(said)); said[i] >= '0' && said[i] <= '9' {
				said[i] = byte('0' + rng.IntN(10))
				return said
			}
		}
	},
	"a piece": func(_ testing.TB, rng *rand.Rand, said []byte) []byte {
		i := rng.IntN(len(said))
		j := min(i+1+rng.IntN(200), len(said))
		if rng.IntN(2) == 0 {
			return slices.Concat(said[:i], said[j:])
		}
		return slices.Concat(said[:j], said[i:])
	},
	"a folded name": func(_ testing.TB, rng *rand.Rand, said []byte) []byte {
		at := slices.Collect(namesIn(said))
		i := at[rng.IntN(len(at))]
		said = slices.Clone(said)
		said[i] -= 'a' - 'A'
		return said
	},
	"a field of a step": withSteps(func(rng *rand.Rand, p map[string]any, steps []map[string]any) {
		step := steps[rng.IntN(len(steps))]
		name := pick(rng, step)
		switch rng.IntN(3) {
		case 0:
			delete(step, name)
		case 1:
			step[name] = odd[rng.IntN(len(odd))]
		default:
			step[name] = steps[rng.IntN(len(steps))][name]
		}
	}),
	"a field below": withSteps(func(rng *rand.Rand, p map[string]any, steps []map[string]any) {
		step := steps[rng.IntN(len(steps))]
		if below, ok := step[pick(rng, step)].(map[string]any); ok && len(below) > 0 {
			below[pick(rng, below)] = odd[rng.IntN(len(odd))]
		}
	}),
	"a field of the plan": withSteps(func(rng *rand.Rand, p map[string]any, _ []map[string]any) {
		p[pick(rng, p)] = odd[rng.IntN(len(odd))]
	}),
	"actions": withSteps(func(rng *rand.Rand, p map[string]any, steps []map[string]any) {
		step := steps[rng.IntN(len(steps))]
		step["action"] = []string{"create", "update", "delete", "adopt", "forget", "Create", "explode", ""}[rng.IntN(8)]
	}),
	"classes": withSteps(func(rng *rand.Rand, p map[string]any, steps []map[string]any) {
		for range 1 + rng.IntN(len(steps)) {
			steps[rng.IntN(len(steps))]["undo"] = []string{"R1", "R2", "R3", "R4", "r1", ""}[rng.IntN(6)]
		}
	}),
	"needs": withSteps(func(rng *rand.Rand, p map[string]any, steps []map[string]any) {
		for range 1 + rng.IntN(3) {
			needs := make([]any, rng.IntN(3))
			for i := range needs {
				needs[i] = json.Number(fmt.Sprint(rng.IntN(len(steps)+2) - 1))
			}
			steps[rng.IntN(len(steps))]["needs"] = needs
		}
	}),
	"steps": withSteps(func(rng *rand.Rand, p map[string]any, steps []map[string]any) {
		list := p["steps"].([]any)
		i, j := rng.IntN(len(list)), rng.IntN(len(list))
		switch rng.IntN(3) {
		case 0:
			p["steps"] = slices.Delete(list, i, i+1)
		case 1:
			list[i], list[j] = list[j], list[i]
		default:
			p["steps"] = slices.Insert(list, i, any(maps.Clone(steps[j])))
		}
	}),
	"the site": withSteps(func(rng *rand.Rand, p map[string]any, _ []map[string]any) {
		p["site"].(map[string]any)[[]string{"name", "id"}[rng.IntN(2)]] = odd[rng.IntN(len(odd))]
	}),
	"the limit": withSteps(func(rng *rand.Rand, p map[string]any, _ []map[string]any) {
		p["max_destroy"] = []any{"0", "1", "100%", "1000", "-1", "10 %", "", 3}[rng.IntN(8)]
		if rng.IntN(2) == 0 {
			p["max_destroy_asked"] = true
		}
	}),
}

var odd = []any{nil, "", "x", "another", json.Number("0"), json.Number("-1"), json.Number("7"), json.Number("1e99"), true, []any{}, []any{json.Number("0")},
	map[string]any{}, map[string]any{"size": json.Number("3")}, "site/far.guard/kept", "R1", "6a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"}

// withSteps makes a mangling from a change of the plan as JSON; half of the time the attacker corrects the order after it.
func withSteps(change func(rng *rand.Rand, p map[string]any, steps []map[string]any)) func(testing.TB, *rand.Rand, []byte) []byte {
	return func(t testing.TB, rng *rand.Rand, said []byte) []byte {
		return edit(t, said, func(p map[string]any, steps []map[string]any) {
			change(rng, p, steps)
			_, isList := p["steps"].([]any)
			if isList && !slices.ContainsFunc(stepsOf(p), func(s map[string]any) bool { return s == nil }) && rng.IntN(2) == 0 {
				reorder(t, p)
			}
		})
	}
}

func pick(rng *rand.Rand, m map[string]any) string {
	names := slices.Sorted(maps.Keys(m))
	return names[rng.IntN(len(names))]
}

// namesIn finds where names of members begin with a small letter.
func namesIn(said []byte) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := 1; i+1 < len(said); i++ {
			begins := (said[i-1] == '{' || said[i-1] == ',') && said[i] == '"' && said[i+1] >= 'a' && said[i+1] <= 'z'
			if begins && !yield(i+1) {
				return
			}
		}
	}
}

// A plan file that was changed in any way is refused, and nothing is done. When the owner of the key changed it, it is
// refused, or carried out as a plan that could have been made: within the budget, with unmanaged things untouched, what does
// not come back only with the approval of that very plan, and applied only when each of its steps is done.
func TestTortureTamperedPlans(t *testing.T) {
	const shards = 4
	tries := torture.Scale(600, 5_000, 50_000)
	names := slices.Sorted(maps.Keys(manglings))
	kinds := torture.Cover(t, "ways to change a plan", names)
	ends := torture.Cover(t, "ends of changed plans", []string{"foreign", "unreadable", "refused", "carried out"})
	t.Run("shards", func(t *testing.T) { // returns when all of them have ended
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(7, uint64(shard)))
				s := tampered(t)
				for try := range tries / shards {
					name := names[try%len(names)]
					kinds.Reach(name)
					if s.try(t, fmt.Sprintf("try %d, %s", try, name), manglings[name](t, rng, s.said), rng, ends) {
						s = tampered(t)
					}
				}
			})
		}
	})
	torture.Report(t, "T", "%d changed plan files, each without the key and with it: %s", tries, ends)
}

// try applies a changed plan, without the key and with it, and reports whether it was carried out.
func (s *tampering) try(t *testing.T, what string, said []byte, rng *rand.Rand, ends *torture.Coverage) bool {
	t.Helper()
	if bytes.Equal(said, s.said) {
		return false
	}
	_, _, err := s.apply(t.Context(), bytes.Replace(s.file, s.said, said, 1), (*plan.Plan).Approval)
	var refusal *engine.RefusedError
	switch {
	case errors.Is(err, plan.ErrFormat):
		ends.Reach("unreadable")
	case errors.As(err, &refusal) && strings.Contains(err.Error(), plan.ErrForeign.Error()):
		ends.Reach("foreign")
	default:
		t.Fatalf("%s: it is taken as ours: %v\n%s", what, err, said)
	}

	approve := (*plan.Plan).Approval
	if rng.IntN(2) == 0 { // what was approved is the plan as it was before
		approve = func(*plan.Plan) string { return s.plan.Approval() }
	}
	p, res, err := s.apply(t.Context(), plan.Seal(said, s.key), approve)
	if err != nil && res.Run.ID == "" {
		s.untouched(t, what)
		ends.Reach("refused")
		return false
	}
	ends.Reach("carried out")
	s.allowed(t, what, p, res, err, approve(p))
	return true
}

// allowed checks the result of a changed plan that was carried out.
func (s *tampering) allowed(t *testing.T, what string, p *plan.Plan, res engine.Result, err error, approved string) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("%s: the run is %s (%v, %v): %s\n%s\n%s", what, res.Run.Status, res.Differences, err, fmt.Sprintf(format, args...), enginetest.Text(p), s.World.Dump())
	}
	if n := s.World.Count("delete"); n-s.deleted > s.deletes && res.Run.Status == state.RunApplied {
		fail("%d things are deleted, %d may be", n-s.deleted, s.deletes)
	}
	for i := range p.Steps {
		late := strings.HasPrefix(p.Steps[i].Ref.Kind, "far.") && p.Steps[i].Action == plan.Delete
		if late && (p.Steps[i].Undo.Reversible() || approved != p.Approval()) {
			fail("it deletes for good what nobody approved of")
		}
	}
	dump := s.World.Dump()
	for _, kept := range []string{`"kept"`, `"nobodys"`, `"another"`} {
		if block(dump, kept) != block(s.before, kept) {
			fail("%s is not as it was", kept)
		}
	}
	switch res.Run.Status {
	case state.RunApplied:
		if len(p.Steps) == 0 {
			break
		}
		log, jerr := journal.Read(t.Context(), s.Store, res.Run.ID)
		if jerr != nil {
			fail("%v", jerr)
		}
		sum, jerr := journal.Sum(log.Records, len(p.Steps))
		if jerr != nil {
			fail("%v", jerr)
		}
		for i := range p.Steps {
			if !sum.Forward[i].Finished() {
				fail("step %d is not done", i)
			}
		}
	case state.RunReverted:
		if dump != s.before {
			fail("the world is not as before:\n%s", s.before)
		}
	case state.RunPartial:
		if len(res.Differences) == 0 {
			fail("it says of nothing that it is different")
		}
	default:
		fail("it did not end")
	}
	// Whatever it did, the document can be applied afterwards: no record prevents planning.
	s.Release(t)
	e := s.Engine(nil)
	defer e.Close()
	if again, err := e.Plan(t.Context(), s.doc, plan.Options{Unlimited: true, AllowMissing: true}); err != nil {
		fail("nothing can be planned any more: %v", err)
	} else if err := again.Check(); err != nil {
		fail("the next plan is not one: %v", err)
	}
}

// block returns what the dump of a world says of one thing.
func block(dump, name string) string {
	i := strings.Index(dump, `"name": `+name)
	if i < 0 {
		return ""
	}
	return dump[i : i+strings.Index(dump[i:], "}\n")]
}
