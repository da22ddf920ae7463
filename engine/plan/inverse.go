package plan

import (
	"slices"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/graph"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Whole returns the numbers of steps nearest to keep that may be kept while the steps after them are undone: at most keep, and
// at least keep. Both are keep itself unless it would separate the halves of one change: a replacement, or an update in two
// steps. What is kept never needs what is undone, because each step of a plan has a higher number than those it needs.
func (p *Plan) Whole(keep int) (below, above int) {
	below, above = keep, keep
	for moved := true; moved; {
		moved = false
		first := map[schema.Ref]int{}
		for i := range p.Steps {
			half, second := first[p.Steps[i].Ref]
			if !second {
				first[p.Steps[i].Ref] = i
				continue
			}
			if half < below && below <= i {
				below, moved = half, true
			}
			if half < above && above <= i {
				above, moved = i+1, true
			}
		}
	}
	return below, above
}

// Inverse returns what undoing the steps that undone selects would do, for people to look at, in the order in which they are
// undone; keep is how many of the first steps are not. It is never applied: package apply undoes a run step by step,
// according to its journal.
func (p *Plan) Inverse(run string, keep int, undone func(step int) bool) *Plan {
	inv := &Plan{Format: Format, ID: p.ID, Site: p.Site, Steps: []Step{}, Undoes: run, Keeps: keep}
	at := map[int]int{} // the index of each step in the inverse
	for i := len(p.Steps) - 1; i >= 0; i-- {
		if undone(i) {
			s := p.Steps[i].inverse()
			s.ID, at[i] = len(inv.Steps), len(inv.Steps)
			inv.Steps = append(inv.Steps, s)
		}
	}
	for i, after := range graph.Reverse(p.Needs()) {
		mine, ok := at[i]
		if !ok {
			continue
		}
		for _, n := range after {
			if first, ok := at[n]; ok {
				inv.Steps[mine].Needs = append(inv.Steps[mine].Needs, first)
			}
		}
	}
	waves, _ := graph.Levels(inv.Needs()) // a plan has no cycle, so neither has its inverse
	for i := range inv.Steps {
		inv.Steps[i].Wave = waves[i]
	}
	slices.SortStableFunc(inv.Steps, func(a, b Step) int { return a.Wave - b.Wave })
	now := make([]int, len(inv.Steps))
	for i := range inv.Steps {
		now[inv.Steps[i].ID] = i
	}
	for i := range inv.Steps {
		s := &inv.Steps[i]
		s.ID = i
		for j := range s.Needs {
			s.Needs[j] = now[s.Needs[j]]
		}
		slices.Sort(s.Needs)
	}
	inv.NoReturn = len(inv.Steps)
	return inv
}

// inverse returns the step that undoes a step.
func (s *Step) inverse() Step {
	did := map[Action]string{
		Create: "the run created it", Update: "the run changed it", Delete: "the run destroyed it", Adopt: "the run adopted it", Forget: "the run forgot it",
	}[s.Action]
	if s.Undo == providers.Restart {
		did += "; its running state is lost"
	}
	inv := Step{
		Ref: s.Ref, Action: s.Inverse(), Replace: s.Replace, Reason: did, Before: s.After, After: s.Before, Want: s.Before, ExternalID: s.ExternalID,
		Incarnation: s.Incarnation, Undo: providers.Exact, Disruption: s.Disruption, Prior: s.Record, Record: s.Prior, Stage: s.Stage,
	}
	for _, c := range s.Changes {
		inv.Changes = append(inv.Changes, diff.Change{Path: c.Path, Before: c.After, After: c.Before, Secret: c.Secret, Disruption: c.Disruption})
	}
	return inv
}
