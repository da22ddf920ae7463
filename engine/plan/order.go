package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/engine/graph"
	"converge.dev/converge/schema"
)

// connect determines which steps come before which: a resource is made after what it refers to, and removed once everything that
// refers to it is gone or refers to something else.
func (m *maker) connect() {
	need := func(step, before int) {
		if step >= 0 && before >= 0 {
			m.need(step, before)
		}
	}
	m.exclude(need)
	for _, it := range m.items {
		mine, ok := m.at[it.ref]
		if !ok {
			continue
		}
		if it.desired != nil {
			for _, r := range it.desired.After {
				if h, ok := m.at[r]; ok {
					need(mine.make, h.make)
				}
			}
		}
		for _, c := range it.chosen { // it was chosen by its future state
			if r, ok := m.names.Find(it.ref.Scope, c.Kind, c.ID); ok {
				if h, ok := m.at[r]; ok {
					need(mine.make, h.make)
				}
			}
		}
		for _, r := range it.refs() {
			h, ok := m.at[r]
			if !ok || h.remove < 0 {
				continue
			}
			switch {
			case mine.remove >= 0:
				need(h.remove, mine.remove)
			case mine.make < 0 || m.plan.Steps[mine.make].Action == Create: // it does not exist yet, so it cannot refer to the old one
			case m.byRef[r] != nil && m.byRef[r].handover:
				need(h.remove, mine.make)
			case it.desired == nil || !slices.Contains(it.desired.After, r):
				need(h.remove, mine.make)
			case m.plan.Steps[mine.make].Action == Update && m.byRef[r] != nil && m.byRef[r].traits.ID == "" && len(uses(it.kind, it.desired.Spec, r)) > 0:
				need(h.remove, mine.make) // the old one is deleted first: what refers to it has to be detached
			}
		}
	}
}

// connectCarried makes what is made anew wait for what it refers to because the old one did, although the document does not
// say so.
func (m *maker) connectCarried() {
	for _, it := range m.items {
		mine, ok := m.at[it.ref]
		if !ok || it.replace == "" || mine.make < 0 || len(it.desired.Lifecycle.Ignore) == 0 {
			continue
		}
		for kind, name := range it.kind.Refs(m.plan.Steps[mine.make].After) {
			for _, scope := range []string{it.ref.Scope, schema.ScopeSite} {
				h, ok := m.at[schema.Ref{Scope: scope, Kind: kind, Name: name}]
				if ok && h.make >= 0 && !m.waitsFor(h.make, mine.make) {
					m.need(mine.make, h.make)
				}
			}
		}
	}
}

// connectSeen makes a removal wait for the removal of what is observed to refer to the thing, whether or not that is recorded:
// others may have set the reference, for example in an ignored field, or lifecycle.id may have given the thing that it is
// recorded to refer to another name.
func (m *maker) connectSeen() {
	for _, it := range m.items {
		mine, ok := m.at[it.ref]
		if !ok || mine.remove < 0 || it.thing == nil || m.plan.Steps[mine.remove].Action != Delete {
			continue
		}
		for kind, id := range it.kind.Refs(it.thing.Spec) {
			if r, ok := m.names.Find(it.ref.Scope, kind, id); ok && !slices.Contains(it.refs(), r) {
				if h, ok := m.at[r]; ok && h.remove >= 0 {
					m.need(h.remove, mine.remove)
				}
			}
		}
	}
}

// waitsFor reports whether a step comes after another one, directly or indirectly.
func (m *maker) waitsFor(step, other int) bool {
	seen := map[int]bool{}
	var walk func(i int) bool
	walk = func(i int) bool {
		if i == other {
			return true
		}
		if seen[i] {
			return false
		}
		seen[i] = true
		return slices.ContainsFunc(m.plan.Steps[i].Needs, walk)
	}
	return walk(step)
}

// narrow keeps the steps that -target and -exclude select, and drops those that need something unknown or refused. What is
// unknown or refused about the rest does not matter.
func (m *maker) narrow() {
	steps := m.plan.Steps
	keep := make([]bool, len(steps))
	pair := m.pairs()
	var take func(i int)
	take = func(i int) {
		if !keep[i] {
			keep[i] = true
			for _, n := range steps[i].Needs {
				take(n)
			}
			if n, ok := pair[i]; ok {
				take(n)
			}
		}
	}
	for i := range steps {
		if m.targets(steps[i].Ref) {
			take(i)
		}
	}
	excluded := m.excluded()
	for i := range steps {
		if excluded[steps[i].Ref] {
			keep[i] = false
		}
	}
	for _, i := range m.staying(excluded) {
		keep[i] = false
	}
	drop(steps, keep, pair, func(_, _ *Step) {})
	in := m.considered(keep, excluded)
	m.refused(in, keep)
	for _, places := range []*[]Unknown{&m.plan.Unknown, &m.plan.Unsupported} {
		*places = slices.DeleteFunc(*places, func(u Unknown) bool {
			return !m.about(schema.Place{Scope: u.Scope, Kind: u.Kind}, "", in)
		})
	}
	m.leaveAside(in)
	m.leaveOut(keep, pair, in)
	m.count(in)
	if !slices.Contains(keep, false) {
		return
	}
	m.renumber(func(yield func(int) bool) {
		for i := range steps {
			if keep[i] && !yield(i) {
				return
			}
		}
	})
}

// staying returns the steps that remove what something excluded refers to, where the removal of that is refused, so that no
// step of its own keeps them waiting.
func (m *maker) staying(excluded selection) (steps []int) {
	for _, it := range m.items {
		if _, steps := m.at[it.ref]; steps || !excluded[it.ref] || it.desired != nil || it.record == nil {
			continue
		}
		for _, r := range it.record.After {
			if h, ok := m.at[r]; ok && h.remove >= 0 {
				steps = append(steps, h.remove)
			}
		}
	}
	return steps
}

// pairs maps the first step of a pair to the second one, without which it must not be done: a plan that deletes the old
// half of a replacement also makes the new one, and one that detaches a thing also attaches it again.
func (m *maker) pairs() map[int]int {
	pair := map[int]int{}
	for ref, h := range m.at {
		if h.remove >= 0 && h.make >= 0 && m.plan.Steps[h.remove].Replace {
			pair[h.remove] = h.make
		}
		if d := m.detached[ref]; d != nil {
			pair[d.step] = h.make
		}
	}
	return pair
}

// order sorts the steps into waves: first all that can be undone, then those that cannot and those that need them.
func (m *maker) order() error {
	steps := m.plan.Steps
	wave, after, err := waves(steps)
	if err != nil {
		return err
	}
	stages := stagesOf(steps)
	for i := range steps {
		steps[i].Wave, steps[i].Stage = wave[i], stages[steps[i].Ref.Scope]
	}
	sorted := make([]int, len(steps))
	for i := range sorted {
		sorted[i] = i
	}
	slices.SortFunc(sorted, func(a, b int) int {
		return cmp.Or(cmp.Compare(wave[a], wave[b]), steps[a].Ref.Compare(steps[b].Ref), cmp.Compare(a, b))
	})
	m.renumber(slices.Values(sorted))
	m.plan.NoReturn = slices.IndexFunc(sorted, func(i int) bool { return after[i] })
	if m.plan.NoReturn < 0 {
		m.plan.NoReturn = len(steps)
	}
	return nil
}

// waves determines what the order of steps follows from: the wave of each, and whether it is beyond the point of no
// return, because it cannot be undone or needs a step that cannot. All waves beyond that point come after those before it.
func waves(steps []Step) (wave []int, after []bool, err error) {
	needs := make([][]int, len(steps))
	after = make([]bool, len(steps))
	for i := range steps {
		needs[i], after[i] = steps[i].Needs, !steps[i].Undo.Reversible()
	}
	levels, cycle := graph.Levels(needs)
	if cycle != nil {
		refs := make([]string, len(cycle))
		for i, n := range cycle {
			refs[i] = string(steps[n].Action) + " " + steps[n].Ref.String()
		}
		return nil, nil, fmt.Errorf("these steps need one another: %s", strings.Join(refs, " needs "))
	}
	sorted := make([]int, len(steps))
	for i := range sorted {
		sorted[i] = i
	}
	slices.SortStableFunc(sorted, func(a, b int) int { return cmp.Compare(levels[a], levels[b]) })
	for _, i := range sorted { // needs come first in this order, so one pass propagates the mark
		after[i] = after[i] || slices.ContainsFunc(needs[i], func(n int) bool { return after[n] })
	}
	wave = make([]int, len(steps))
	for _, i := range sorted {
		for _, n := range needs[i] {
			if after[n] == after[i] {
				wave[i] = max(wave[i], wave[n]+1)
			}
		}
	}
	first := 0 // wave beyond the point of no return
	for i := range steps {
		if !after[i] {
			first = max(first, wave[i]+1)
		}
	}
	for i := range steps {
		if after[i] {
			wave[i] += first
		}
	}
	return wave, after, nil
}

// stagesOf returns the stages of the nodes that the steps are for; the site itself has none.
func stagesOf(steps []Step) map[string]int {
	var nodes []string
	for i := range steps {
		if steps[i].Ref.Scope != schema.ScopeSite {
			nodes = append(nodes, steps[i].Ref.Scope)
		}
	}
	return Stages(nodes)
}

// renumber keeps the steps at the given indices, in that order.
func (m *maker) renumber(order func(yield func(int) bool)) {
	at := make(map[int]int, len(m.plan.Steps))
	var kept []Step
	for i := range order {
		at[i] = len(kept)
		kept = append(kept, m.plan.Steps[i])
	}
	for i := range kept {
		kept[i].ID = i
		needs := make([]int, 0, len(kept[i].Needs))
		for _, n := range kept[i].Needs {
			if j, ok := at[n]; ok {
				needs = append(needs, j)
			}
		}
		slices.Sort(needs)
		kept[i].Needs = needs
	}
	m.plan.Steps = kept
}
