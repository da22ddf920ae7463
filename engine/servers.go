package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// servers asks the far sides for their identity. One that has none is left out, and so is one that does not answer, which is mute: its kinds
// show why.
func (e *Engine) servers(ctx context.Context, far []*providers.Provider) (list []state.Server, mute []*providers.Provider) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, e.o.Parallelism)
	for _, p := range far {
		if p.Identity == nil {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			id, err := p.Identity(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				e.o.Logger.Debug("failed to query a server for its identity", "provider", p.Name, "scope", p.Scope, "error", err)
				mute = append(mute, p)
			} else if id != "" {
				list = append(list, state.Server{Scope: p.Scope, Provider: p.Name, Identity: id})
			}
		})
	}
	wg.Wait()
	slices.SortFunc(list, compareServers)
	return list, mute
}

func compareServers(a, b state.Server) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Provider, b.Provider))
}

// strangers pairs each known server with the different one that has answered in its place.
func strangers(known, now []state.Server) (pairs [][2]state.Server) {
	for _, n := range now {
		for _, k := range known {
			if k.Scope == n.Scope && k.Provider == n.Provider && k.Identity != n.Identity {
				pairs = append(pairs, [2]state.Server{k, n})
			}
		}
	}
	return pairs
}

// distrust marks as unknown what a server other than the recorded one shows: there, everything that was made would seem gone.
func (e *Engine) distrust(ctx context.Context, in *plan.Input) error {
	known, err := e.o.Store.Servers(ctx)
	if err != nil {
		return err
	}
	in.Known = known
	for _, pair := range strangers(known, in.Servers) {
		was, is := pair[0], pair[1]
		for at := range in.Observed.Things {
			if at.Scope == is.Scope && (schema.Ref{Kind: at.Kind}).Provider() == is.Provider {
				delete(in.Observed.Things, at)
				in.Observed.Unknown[at] = fmt.Sprintf("another server answers: it identifies itself as %s, but the recorded objects were created on %s; "+
					"make sure that converge reaches the right one", is.Identity, was.Identity)
				if in.Observed.Others == nil {
					in.Observed.Others = map[schema.Place]bool{}
				}
				in.Observed.Others[at] = true
			}
		}
	}
	return nil
}

// sameServers refuses a plan that was made for other servers than those that answer now.
func (e *Engine) sameServers(ctx context.Context, set *providers.Set, p *plan.Plan) error {
	recorded, err := e.o.Store.Servers(ctx)
	if err != nil {
		return err
	}
	expected := slices.Clone(p.Servers)
	for _, k := range recorded { // the plan was made while the server did not report its identity
		if !slices.ContainsFunc(p.Servers, func(s state.Server) bool { return s.Scope == k.Scope && s.Provider == k.Provider }) {
			expected = append(expected, k)
		}
	}
	var ds []event.Difference
	now, _ := e.servers(ctx, set.All())
	for _, pair := range strangers(expected, now) {
		ds = append(ds, event.Difference{Detail: fmt.Sprintf("the plan was made for the %s server in scope %s that identifies itself as %s, but %s answers",
			pair[0].Provider, pair[0].Scope, pair[0].Identity, pair[1].Identity)})
	}
	if len(ds) > 0 {
		return &StaleError{ds}
	}
	return nil
}

// rememberServers records the servers that a plan is about to change.
func (e *Engine) rememberServers(ctx context.Context, lock *state.Lock, p *plan.Plan) error {
	known, err := e.o.Store.Servers(ctx)
	if err != nil {
		return err
	}
	var ops []state.Op
	for _, s := range p.Servers {
		at := slices.IndexFunc(known, func(k state.Server) bool { return k.Scope == s.Scope && k.Provider == s.Provider })
		used := slices.ContainsFunc(p.Steps, func(st plan.Step) bool { return st.Ref.Scope == s.Scope && st.Ref.Provider() == s.Provider })
		if used && (at < 0 || known[at].Identity != s.Identity) {
			s.At = e.o.Now().UTC()
			ops = append(ops, e.o.Store.ServerOp(s))
		}
	}
	for batch := range slices.Chunk(ops, state.MaxOps/2) {
		if _, err := lock.Commit(ctx, nil, batch); err != nil {
			return fmt.Errorf("record the servers: %w", err)
		}
	}
	return nil
}
