package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// fencing is how long a far side may take to store an epoch.
const fencing = 30 * time.Second

// fence stores our epoch in every far side that can store one, before anything is observed: what an earlier holder still
// sends there is refused from then on. A far side that cannot be reached, or does not answer in time, is unknown. When one has seen
// a higher epoch although the lock is ours, the store must be older than it was: the site is held until somebody confirms that the
// store was restored. One that is confined may lie about that: it holds its own scope, and only another one like it holds the site.
func (e *Engine) fence(ctx context.Context, set *providers.Set, lock *state.Lock, p *plan.Plan) error {
	var scopes []string
	for _, r := range stepRefs(p) {
		scopes = append(scopes, r.Scope)
	}
	ctx = lock.Context(ctx)
	within, cancel := context.WithTimeout(ctx, fencing)
	defer cancel()
	var mu sync.Mutex
	var unknown []plan.Unknown
	older := map[string]*providers.OutdatedError{} // by what is to be held
	var wg sync.WaitGroup
	slots := make(chan struct{}, e.o.Parallelism)
	for _, far := range set.Fences(scopes) {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := far.Fence(within, lock.Epoch()); err != nil {
				mu.Lock()
				defer mu.Unlock()
				var outdated *providers.OutdatedError
				switch {
				case errors.As(err, &outdated) && far.Confined:
					older[far.Scope] = outdated
				case outdated != nil:
					older[schema.ScopeSite] = outdated
				}
				unknown = append(unknown, plan.Unknown{Scope: far.Scope, Kind: far.Name, Error: err.Error()})
			}
		})
	}
	wg.Wait()
	for scope, outdated := range older {
		if len(older) > 1 {
			scope = schema.ScopeSite
		}
		h := state.Hold{Scope: scope, By: e.o.Who, At: e.o.Now().UTC(), Older: scope == schema.ScopeSite, Reason: fmt.Sprintf(
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
