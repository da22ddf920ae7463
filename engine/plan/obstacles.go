package plan

import (
	"context"
	"errors"
	"slices"

	"converge.dev/converge/providers"
)

// Obstructed is a step that the far side would refuse, and why.
type Obstructed struct {
	Step *Step
	Why  string
}

// Obstructions asks the far sides which deletes among some of the steps they would refuse, once those before them are done. The error is of
// the far sides that could not tell.
func (p *Plan) Obstructions(ctx context.Context, set *providers.Set, some func(i int) bool) ([]Obstructed, error) {
	type question struct{ deletes, changes []providers.Target }
	questions := map[*providers.Provider]*question{}
	steps := map[*providers.Provider]map[providers.Target]*Step{}
	for i := range p.Steps {
		s := &p.Steps[i]
		_, far, ok := set.Find(s.Ref.Scope, s.Ref.Kind)
		if !ok || far.Obstacles == nil || !some(i) {
			continue
		}
		q := questions[far]
		if q == nil {
			q = &question{}
			questions[far], steps[far] = q, map[providers.Target]*Step{}
		}
		switch t := (providers.Target{Kind: s.Ref.Kind, ID: s.ExternalID}); s.Action {
		case Delete:
			q.deletes, steps[far][t] = append(q.deletes, t), s
		case Create, Update:
			q.changes = append(q.changes, t)
		}
	}
	var found []Obstructed
	var errs []error
	for far, q := range questions {
		if len(q.deletes) == 0 {
			continue
		}
		obstacles, err := far.Obstacles(ctx, q.deletes, q.changes)
		errs = append(errs, err)
		for _, o := range obstacles {
			if s := steps[far][o.Target]; s != nil {
				found = append(found, Obstructed{s, o.Why})
			}
		}
	}
	slices.SortFunc(found, func(a, b Obstructed) int { return a.Step.ID - b.Step.ID })
	return found, errors.Join(errs...)
}
