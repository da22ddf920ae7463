package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// fence stores our epoch in every far side that can store one, before anything is observed: what an earlier holder still
// sends there is refused from then on. A far side that cannot be reached is unknown. When one has seen a higher epoch
// although the lock is ours, the store must be older than it was: the site is held until somebody confirms that the store was
// restored.
func (e *Engine) fence(ctx context.Context, set *providers.Set, lock *state.Lock, p *plan.Plan) error {
	var scopes []string
	for _, r := range stepRefs(p) {
		scopes = append(scopes, r.Scope)
	}
	ctx = lock.Context(ctx)
	var mu sync.Mutex
	var unknown []plan.Unknown
	var outdated *providers.OutdatedError
	var wg sync.WaitGroup
	slots := make(chan struct{}, e.o.Parallelism)
	for _, far := range set.Fences(scopes) {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := far.Fence(ctx, lock.Epoch()); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errors.As(err, &outdated)
				unknown = append(unknown, plan.Unknown{Scope: far.Scope, Kind: far.Name, Error: err.Error()})
			}
		})
	}
	wg.Wait()
	if outdated != nil {
		h := state.Hold{Scope: schema.ScopeSite, By: e.o.Who, At: e.o.Now().UTC(), Older: true, Reason: fmt.Sprintf(
			"%s has already accepted a lock holder with epoch %d, but the store is only at epoch %d: the store was lost, or is an older copy", outdated.On, outdated.Stored, outdated.Epoch)}
		if _, err := lock.Commit(ctx, nil, []state.Op{e.o.Store.HoldOp(h)}); err != nil {
			return err
		}
		return &HeldError{Holds: []state.Hold{h}}
	}
	if len(unknown) > 0 {
		slices.SortFunc(unknown, func(a, b plan.Unknown) int { return cmp.Compare(a.Scope, b.Scope) })
		return &UnknownError{Unknown: unknown}
	}
	return nil
}

// reachable fails with an *UnknownError when a provider that the plan needs could not be opened.
func reachable(set *providers.Set, p *plan.Plan) error {
	var unknown []plan.Unknown
	for _, r := range neededRefs(p) {
		if _, _, ok := set.Find(r.Scope, r.Kind); ok {
			continue
		}
		why := "no provider serves it"
		if err := set.Failure(r.Scope, r.Provider()); err != nil {
			why = err.Error()
		}
		if u := (plan.Unknown{Scope: r.Scope, Kind: r.Kind, Error: why}); !slices.Contains(unknown, u) {
			unknown = append(unknown, u)
		}
	}
	if len(unknown) > 0 {
		return &UnknownError{Unknown: unknown}
	}
	return nil
}

func stepRefs(p *plan.Plan) []schema.Ref {
	refs := make([]schema.Ref, len(p.Steps))
	for i := range p.Steps {
		refs[i] = p.Steps[i].Ref
	}
	return refs
}

// neededRefs returns the refs of the steps and of what is observed for them.
func neededRefs(p *plan.Plan) []schema.Ref {
	refs := stepRefs(p)
	for _, x := range p.Externals {
		if x.Unchecked == "" {
			refs = append(refs, x.Ref)
		}
	}
	return refs
}
