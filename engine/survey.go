package engine

import (
	"context"
	"errors"
	"slices"

	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Survey observes what the needs serve, at the places that want accepts; everything when it is nil. It changes nothing.
func (e *Engine) Survey(ctx context.Context, site schema.Site, needs []providers.Need, want func(schema.Place) bool) (*survey.Survey, error) {
	records, err := e.o.Store.Records(ctx)
	if err != nil {
		return nil, err
	}
	e.register(ctx, records, nil)
	set, err := e.connect(ctx, site, needs)
	if err != nil {
		return nil, err
	}
	at := map[schema.Place]bool{}
	for _, p := range served(set, needs, want) {
		at[p] = true
	}
	s := &survey.Survey{Site: site, Recorded: records, Observed: e.observe(ctx, set, at, liveIDs(records)), Traits: set.Traits}
	answered, _ := e.servers(ctx, set.All())
	for _, known := range answered {
		s.Servers = append(s.Servers, survey.Server{Server: known, Build: e.build(ctx, set, known)})
	}
	for _, n := range needs { // a provider that could not be opened shows nothing, which does not mean that it is empty
		if err := set.Failure(n.Scope, n.Provider); err != nil {
			s.Observed.Unknown[schema.Place{Scope: n.Scope, Kind: n.Provider + ".*"}] = err.Error()
		}
	}
	return s, ctx.Err()
}

// served returns the places of a set that the needs serve and want accepts; all of them when it is nil.
func served(set *providers.Set, needs []providers.Need, want func(schema.Place) bool) (at []schema.Place) {
	set.Each(func(scope string, k providers.Served, p *providers.Provider) {
		place := schema.Place{Scope: scope, Kind: k.Name}
		if slices.Contains(needs, providers.Need{Scope: scope, Provider: p.Name}) && (want == nil || want(place)) {
			at = append(at, place)
		}
	})
	return at
}

// build returns the software version of a server; empty when it does not report one.
func (e *Engine) build(ctx context.Context, set *providers.Set, s state.Server) string {
	for _, p := range set.All() {
		if p.Scope != s.Scope || p.Name != s.Provider || p.Build == nil {
			continue
		}
		build, err := p.Build(ctx)
		if err != nil {
			e.o.Logger.Debug("failed to query a server for its version", "provider", p.Name, "scope", p.Scope, "error", err)
		}
		return build
	}
	return ""
}

// Inventory observes the whole site and returns what changed after a revision, everything for 0. It writes what it saw into
// the store, because deletions are found only by comparing with what was there before. What could not be observed is never
// taken for deleted. It fails when the revision is older than the oldest remembered deletion.
func (e *Engine) Inventory(ctx context.Context, site schema.Site, needs []providers.Need, since int64) (*survey.Inventory, error) {
	s, err := e.Survey(ctx, site, needs, nil)
	if err != nil {
		return nil, err
	}
	for {
		was, err := e.o.Store.Inventory(ctx)
		if err == nil {
			err = survey.Remembers(was, since)
		}
		if err != nil {
			return nil, err
		}
		inv, next, oldest, changed := s.Inventory(e.o.Kinds, was, e.o.Now().UTC(), e.o.Shown)
		if changed {
			was, err = e.o.Store.PutInventory(ctx, was, next, oldest, inv.At)
			if errors.Is(err, state.ErrGuard) {
				continue // another process was quicker, and took the next revision
			}
			if err != nil {
				return nil, err
			}
		}
		inv.Number(was, since)
		return inv, nil
	}
}
