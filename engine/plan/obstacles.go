package plan

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"converge.dev/converge/providers"
)

// Obstructed is a step that the far side would refuse, and why.
type Obstructed struct {
	Step *Step
	Why  string
}

// foreseeWithin is how long a provider may take to say what it would refuse.
const foreseeWithin = 30 * time.Second

// Obstructions asks the far sides, all at the same time, which deletes among some of the steps they would refuse. The error is of those that
// could not tell. A change of what uses a thing is taken to end that, unless it comes after the delete.
func (p *Plan) Obstructions(ctx context.Context, set *providers.Set, some func(i int) bool) ([]Obstructed, error) {
	steps := map[*providers.Provider][]*Step{}
	deletes := map[*providers.Provider]bool{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if _, far, ok := set.Find(s.Ref.Scope, s.Ref.Kind); ok && far.Obstacles != nil && some(i) {
			steps[far] = append(steps[far], s)
			deletes[far] = deletes[far] || s.Action == Delete
		}
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	var found []Obstructed
	var errs []error
	for far := range deletes {
		if !deletes[far] {
			continue
		}
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, foreseeWithin)
			defer cancel()
			obstructed, err := p.obstructions(ctx, far, steps[far])
			mu.Lock()
			defer mu.Unlock()
			found, errs = append(found, obstructed...), append(errs, err)
		})
	}
	asking.Wait()
	slices.SortFunc(found, func(a, b Obstructed) int { return a.Step.ID - b.Step.ID })
	return found, errors.Join(errs...)
}

// obstructions asks one provider.
func (p *Plan) obstructions(ctx context.Context, far *providers.Provider, steps []*Step) ([]Obstructed, error) {
	target := func(s *Step) providers.Target { return providers.Target{Kind: s.Ref.Kind, ID: s.ExternalID} }
	byTarget := map[providers.Target]*Step{}
	var deletes, free []providers.Target // free: what is changed before anything is deleted, or beside it
	var late []*Step                     // what is changed after something is deleted
	after := map[int]map[int]bool{}      // the deletes before a change
	for _, s := range steps {
		switch s.Action {
		case Delete:
			deletes, byTarget[target(s)] = append(deletes, target(s)), s
		case Create, Update:
			if after[s.ID] = p.deletesBefore(s); len(after[s.ID]) == 0 {
				free = append(free, target(s))
			} else {
				late = append(late, s)
			}
		}
	}
	ask := func(deletes, changes []providers.Target) (found []Obstructed, err error) {
		obstacles, err := asked(ctx, far, deletes, changes)
		for _, o := range obstacles {
			if s := byTarget[o.Target]; s != nil {
				found = append(found, Obstructed{s, o.Why})
			}
		}
		return found, err
	}
	found, err := ask(deletes, free)
	if len(late) == 0 || len(found) == 0 {
		return found, err
	}
	// What is changed after one delete may be changed before another: those with the same changes before them are asked for together.
	groups := map[string][]Obstructed{}
	before := map[string][]providers.Target{}
	for _, o := range found {
		var changed []providers.Target
		for _, s := range late {
			if !after[s.ID][o.Step.ID] {
				changed = append(changed, target(s))
			}
		}
		key := fmt.Sprint(changed)
		groups[key], before[key] = append(groups[key], o), changed
	}
	found = nil
	for key, obstructed := range groups {
		if len(before[key]) == 0 {
			found = append(found, obstructed...)
			continue
		}
		var these []providers.Target
		for _, o := range obstructed {
			these = append(these, target(o.Step))
		}
		others := slices.DeleteFunc(slices.Clone(deletes), func(t providers.Target) bool { return slices.Contains(these, t) })
		still, unknown := ask(these, slices.Concat(others, free, before[key]))
		found, err = append(found, still...), errors.Join(err, unknown)
	}
	return found, err
}

// deletesBefore returns the deletes that come before a step.
func (p *Plan) deletesBefore(s *Step) map[int]bool {
	found, seen := map[int]bool{}, map[int]bool{}
	for todo := slices.Clone(s.Needs); len(todo) > 0; {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[i] {
			continue
		}
		seen[i] = true
		if p.Steps[i].Action == Delete {
			found[i] = true
		}
		todo = append(todo, p.Steps[i].Needs...)
	}
	return found
}

// asked asks a provider. One that panics or does not answer in time could not tell.
func asked(ctx context.Context, far *providers.Provider, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
	type answer struct {
		obstacles []providers.Obstacle
		err       error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a = answer{err: fmt.Errorf("the provider panicked\n%s", debug.Stack())}
			}
			answers <- a
		}()
		a.obstacles, a.err = far.Obstacles(ctx, deletes, changes)
	}()
	select {
	case a := <-answers:
		return a.obstacles, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
