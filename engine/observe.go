package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// look makes the inputs of a plan: it connects to the providers that the document and the records need, and observes
// every kind that they serve in those scopes, all at once. What cannot be observed completely is unknown. With strays,
// it looks wherever a thing with our mark may be, even where nothing known is left.
func (e *Engine) look(ctx context.Context, doc *schema.Document, strays bool) (plan.Input, error) {
	records, err := e.o.Store.Records(ctx)
	if err != nil {
		return plan.Input{}, err
	}
	runs, _ := e.o.Store.Runs(ctx) // what cannot be read is reported by whoever needs it
	share(records, doc.Resources)
	e.register(ctx, records, nil)
	in := plan.Input{Kinds: e.o.Kinds, Document: doc, Recorded: records, Begun: e.unresolved(ctx, runs)}
	r := reaching{strays: strays, at: map[schema.Place]bool{}, live: map[schema.Place]bool{}}
	for i := range records {
		rec := &records[i]
		r.record(rec.Ref.Place(), !rec.Gone)
		if strays && !rec.Gone { // things that are only referred to have to exist
			maps.Copy(r.at, places(plan.Outside(e.o.Kinds, rec.Ref, rec.Spec, rec.After)))
		}
	}
	r.document(e.o.Kinds, doc)
	set, err := r.reach(ctx, e, doc.Site, in.Begun)
	if err != nil {
		return plan.Input{}, err
	}
	in.Traits = set.Traits
	in.Observed = e.observe(ctx, set, r.at, liveIDs(records))
	in.Servers, _ = e.servers(ctx, set.All())
	return in, ctx.Err()
}

// reaching collects where a site has to be observed.
type reaching struct {
	strays   bool                  // also wherever a thing with our mark may be
	at       map[schema.Place]bool // what is observed
	live     map[schema.Place]bool // where a plan may delete
	choosing []schema.Place        // of the candidates that the planner chooses from
}

// record adds a place for which something is recorded, and whether that exists.
func (r *reaching) record(at schema.Place, exists bool) {
	if exists {
		r.live[at] = true
	}
	if exists || r.strays {
		r.at[at] = true
	}
}

// document adds the places of the resources of a document.
func (r *reaching) document(kinds schema.Kinds, doc *schema.Document) {
	var last schema.Place
	var choosy bool
	for i := range doc.Resources {
		d := &doc.Resources[i]
		if at := d.Ref.Place(); at != last {
			last, choosy = at, slices.ContainsFunc(kinds[at.Kind].Fields, func(f schema.Field) bool { return f.Choose != nil })
			r.at[at] = true
		}
		if d.Lifecycle.Adopt == schema.AdoptMatch { // and then replaced
			r.live[last] = true
		}
		if choosy {
			for _, f := range chooses(kinds[d.Ref.Kind], d) {
				r.choosing = append(r.choosing, schema.Place{Scope: d.Ref.Scope, Kind: f.Choose.Kind})
			}
		}
	}
}

// reach connects to the providers that serve these places, and adds those that show only then. Begun is what an open run has yet to
// settle: what that makes is there too.
func (r *reaching) reach(ctx context.Context, e *Engine, site schema.Site, begun map[schema.Ref]bool) (*providers.Set, error) {
	if r.strays {
		for ref := range begun {
			r.at[ref.Place()] = true
		}
	}
	set, err := e.connect(ctx, site, needs(r.at))
	if err != nil {
		return nil, err
	}
	if r.strays {
		set.Each(func(scope string, k providers.Served, _ *providers.Provider) {
			if k.Traits.Mark {
				r.at[schema.Place{Scope: scope, Kind: k.Name}] = true
			}
		})
	}
	for p := range r.live { // what refers to a thing decides whether it may be deleted
		if k, _, ok := set.Find(p.Scope, p.Kind); ok && k.Traits.DeleteUnchecked {
			for _, by := range plan.Referrers(e.o.Kinds, p.Kind) {
				r.at[schema.Place{Scope: p.Scope, Kind: by.Name}] = true
			}
		}
	}
	for _, at := range r.choosing {
		r.at[at] = true
	}
	return set, nil
}

// share lets the records of resources that are as they were applied last share the specs of the document, so that what is said twice
// is held once.
func share(records []state.Record, resources []schema.Resource) {
	for want, r := range plan.Pairs(resources, records) {
		if want == nil || r == nil {
			continue
		}
		if len(want.Spec) > 0 && r.Spec.Equal(want.Spec) {
			r.Spec = want.Spec
		}
		if slices.Equal(r.After, want.After) {
			r.After = want.After
		}
	}
}

// chooses lists the fields of a resource that the planner has to choose.
func chooses(k *schema.Kind, r *schema.Resource) (fields []*schema.Field) {
	for i := range k.Fields {
		f := &k.Fields[i]
		if _, stated := r.Spec[f.Name]; f.Choose != nil && !stated && r.External == nil {
			fields = append(fields, f)
		}
	}
	return fields
}

// unresolved returns what an open run has yet to settle. A run that cannot be read is left out: resuming it reports why.
func (e *Engine) unresolved(ctx context.Context, runs []state.Run) map[schema.Ref]bool {
	refs := map[schema.Ref]bool{}
	for _, run := range runs {
		if run.Status != state.RunOpen {
			continue
		}
		p, _, err := planOf(ctx, e.o.Store, run)
		if err != nil {
			continue
		}
		sum, err := sumOf(ctx, e.o.Store, run, len(p.Steps))
		if err != nil {
			continue
		}
		maps.Copy(refs, apply.Unsettled(p, &sum))
	}
	return refs
}

// places returns the places of refs.
func places(refs []schema.Ref) map[schema.Place]bool {
	at := map[schema.Place]bool{}
	for _, r := range refs {
		at[r.Place()] = true
	}
	return at
}

// needs returns the providers that serve some places.
func needs(at map[schema.Place]bool) []providers.Need {
	all := make([]providers.Need, 0, len(at))
	for p := range at {
		all = append(all, providers.Need{Scope: p.Scope, Provider: schema.Ref{Kind: p.Kind}.Provider()})
	}
	return all
}

// connect opens providers. Open ones stay open; those that could not be opened before are tried again.
func (e *Engine) connect(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
	needs = slices.DeleteFunc(slices.Clone(needs), func(n providers.Need) bool { return e.open[n] && e.set.Failure(n.Scope, n.Provider) == nil })
	slices.SortFunc(needs, providers.Need.Compare)
	needs = slices.Compact(needs)
	if e.set != nil && len(needs) == 0 {
		return e.set, nil
	}
	vault := e.secrets(ctx)
	set, err := e.o.Open(ctx, site, needs)
	if err != nil {
		return nil, vault.Scrub(err)
	}
	set.Wrap(func(_ string, k providers.Served) providers.Kind {
		if kind := e.o.Kinds[k.Name]; kind != nil {
			return vault.Wrap(kind, k.Kind)
		}
		return k.Kind
	})
	for _, p := range set.All() {
		p.Obstacles = vault.Foresee(p.Obstacles)
		e.opened++
	}
	if e.set == nil {
		e.set, e.open = set, map[providers.Need]bool{}
	} else if err := e.set.Join(set); err != nil {
		return nil, errors.Join(err, set.Close())
	}
	for _, n := range needs {
		e.open[n] = true
	}
	return e.set, nil
}

// Reopen closes the providers of a scope, so that they are opened anew when they are needed: they may serve something else by now.
func (e *Engine) Reopen(scope string) error {
	if e.set == nil {
		return nil
	}
	for n := range e.open {
		if n.Scope == scope {
			delete(e.open, n)
		}
	}
	e.opened++
	if e.reopened == nil {
		e.reopened = map[string]bool{}
	}
	e.reopened[scope] = true
	return e.set.Drop(scope)
}

// stillLooking is how often an event reports what has not answered yet.
const stillLooking = 10 * time.Second

// liveIDs returns the ids of what is recorded as existing.
func liveIDs(recorded []state.Record) map[schema.Place][]string {
	ids := map[schema.Place][]string{}
	for i := range recorded {
		if r := &recorded[i]; !r.Gone {
			p := r.Ref.Place()
			ids[p] = append(ids[p], r.ID)
		}
	}
	return ids
}

// observe observes every requested place: everything in it where the value is true, else the things with the given ids. A place
// that has neither failed nor answered when ctx ends is unknown.
func (e *Engine) observe(ctx context.Context, set *providers.Set, at map[schema.Place]bool, ids map[schema.Place][]string) plan.Observation {
	o := plan.Observation{Things: map[schema.Place][]providers.Thing{}, Unknown: map[schema.Place]string{}, Unsupported: map[schema.Place]string{}}
	type seen struct {
		at     schema.Place
		things []providers.Thing
		took   time.Duration
		err    error
	}
	results, waiting := make(chan seen, len(at)), map[schema.Place]bool{}
	var wg sync.WaitGroup
	for p, whole := range at {
		served, _, ok := set.Find(p.Scope, p.Kind)
		if !ok {
			ref := schema.Ref{Scope: p.Scope, Kind: p.Kind}
			if err := set.Failure(p.Scope, ref.Provider()); err != nil {
				o.Unknown[p] = err.Error()
			}
			continue
		}
		e.o.Emit(event.Observing{Scope: p.Scope, Kind: p.Kind})
		waiting[p] = true
		wg.Go(func() {
			begin := time.Now()
			things, err := e.see(ctx, served.Kind, whole, ids[p])
			if err == nil {
				err = untold(e.o.Kinds[p.Kind], things)
			}
			results <- seen{p, things, time.Since(begin), err}
		})
	}
	go func() { wg.Wait(); close(results) }()
	begin, beat := time.Now(), time.NewTicker(stillLooking)
	defer beat.Stop()
	for {
		var s seen
		var more bool
		select {
		case s, more = <-results:
		case <-beat.C:
			if len(waiting) > 0 {
				p := slices.MinFunc(slices.Collect(maps.Keys(waiting)), schema.Place.Compare)
				e.o.Emit(event.Observing{Scope: p.Scope, Kind: p.Kind, Elapsed: time.Since(begin), More: len(waiting) - 1})
			}
			continue
		}
		if !more {
			break
		}
		delete(waiting, s.at)
		switch {
		case s.err == nil:
			o.Things[s.at] = s.things
		case providers.ClassOf(s.err) == providers.Unsupported:
			o.Unsupported[s.at] = s.err.Error()
		default:
			o.Unknown[s.at] = s.err.Error()
		}
		e.o.Emit(event.Observed{Scope: s.at.Scope, Kind: s.at.Kind, Things: len(s.things), Took: s.took, Err: s.err})
	}
	return o
}

// untold fails with Unsupported when the far side omits, in everything that it lists, a field that the kind requires: the
// field has moved elsewhere, and nothing could be decided about such things.
func untold(k *schema.Kind, things []providers.Thing) error {
	for _, f := range k.Fields {
		missing := func(t providers.Thing) bool { return slices.Contains(t.Unfilled, f.Name) }
		if f.Required && len(things) > 0 && !slices.ContainsFunc(things, func(t providers.Thing) bool { return !missing(t) }) {
			return &providers.Error{Op: "observe", Kind: k.Name, Class: providers.Unsupported, Err: fmt.Errorf(
				"the remote system does not report %s for any of its %d objects: its version is not supported by converge", f.Name, len(things))}
		}
	}
	return nil
}

// see returns all things of a kind, or those with the given ids. A list cannot say that it is incomplete or outdated, so what is
// recorded but not listed is read by its id before it counts as gone, because what is gone is created anew.
func (e *Engine) see(ctx context.Context, k providers.Kind, whole bool, recorded []string) ([]providers.Thing, error) {
	if !whole {
		return apply.Some(k, recorded...).Again(ctx, e.o.Retry)
	}
	things, err := apply.All(k).Again(ctx, e.o.Retry)
	if err != nil || len(recorded) == 0 {
		return things, err
	}
	listed := make(map[string]bool, len(things))
	for i := range things {
		listed[things[i].ID] = true
	}
	var missing []string
	for _, id := range recorded {
		if !listed[id] {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return things, nil
	}
	found, err := apply.Some(k, missing...).Again(ctx, e.o.Retry)
	return append(things, found...), err
}
