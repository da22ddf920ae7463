package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// fresh refuses a plan that is outdated by the site, the records or the document.
func (e *Engine) fresh(ctx context.Context, set *providers.Set, p *plan.Plan, recorded []state.Record) error {
	head, err := e.o.Store.Head(ctx)
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return err
	}
	if head.Revision != p.Revision && head.Digest != p.Digest {
		return &StaleError{[]event.Difference{{Detail: fmt.Sprintf("the document was replaced by serial %d (%s, %s)", head.Serial, head.By, head.At.Format("2006-01-02 15:04:05"))}}}
	}
	ds, err := e.stale(ctx, set, p, recorded)
	if err != nil {
		return err
	}
	if len(ds) > 0 {
		slices.SortFunc(ds, func(a, b event.Difference) int { return a.Ref.Compare(b.Ref) })
		return &StaleError{ds}
	}
	return nil
}

// stale returns how the site no longer is as a plan expects, resource by resource.
func (e *Engine) stale(ctx context.Context, set *providers.Set, p *plan.Plan, recorded []state.Record) ([]event.Difference, error) {
	var ds []event.Difference
	records := make(map[schema.Ref]*state.Record, len(recorded))
	for i := range recorded {
		records[recorded[i].Ref] = &recorded[i]
	}
	ids := map[schema.Place][]string{}
	expecting := make([]*plan.Step, 0, len(p.Steps))
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Attaches { // it expects the result of an earlier step
			continue
		}
		if !sameRecord(s.Prior, records[s.Ref]) {
			ds = append(ds, event.Difference{Ref: s.Ref, Detail: "another run has changed it since"})
			continue
		}
		if s.Before != nil || s.Action == plan.Create {
			at := s.Ref.Place()
			ids[at], expecting = append(ids[at], s.ExternalID), append(expecting, s)
		}
	}
	seen, err := e.lookFor(ctx, set, ids)
	if err != nil {
		return nil, err
	}
	names := externalNames(p, recorded)
	for _, s := range expecting {
		if d := e.changedSince(s, seen[s.Ref.Place()][s.ExternalID], names); d != "" {
			ds = append(ds, event.Difference{Ref: s.Ref, Detail: d})
		}
	}
	unfit, err := e.unfit(ctx, set, p)
	if err != nil {
		return nil, err
	}
	gone, err := e.gone(ctx, set, p)
	return slices.Concat(ds, unfit, gone), err
}

func sameRecord(a, b *state.Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.Incarnation == b.Incarnation && a.Gone == b.Gone && a.Name == b.Name && a.Run == b.Run && a.Spec.Equal(b.Spec)
}

// changedSince returns how a thing differs from what a step expects; empty when it does not.
func (e *Engine) changedSince(s *plan.Step, have *providers.Thing, names plan.Names) string {
	gone := have == nil || have.Phase == providers.Deleting
	switch {
	case s.Action == plan.Create && (gone || s.Replace): // what is replaced is there under the same natural key
		return ""
	case s.Action == plan.Create:
		return "it now exists"
	case gone:
		return "it is gone"
	case s.Called != "" && have.Name != s.Called:
		return fmt.Sprintf("it is now named %q", have.Name)
	}
	kind := e.o.Kinds[s.Ref.Kind]
	now := diff.Named(kind, have.Spec, names.In(s.Ref.Scope))
	if s.Before != nil && now.Equal(s.Before) {
		return ""
	}
	same := func(_, id string) string { return id }
	changes := append(diff.Compare(kind, s.Before, now, nil, nil, same), diff.Compare(kind, now, s.Before, nil, nil, same)...)
	if len(changes) == 0 {
		return "it has changed"
	}
	was, _ := json.Marshal(changes[0].After)
	is, _ := json.Marshal(changes[0].Before)
	return fmt.Sprintf("%s changed from %s to %s", changes[0].Path, was, is)
}

// externalNames returns the names that a plan has for the things that its specs refer to.
func externalNames(p *plan.Plan, recorded []state.Record) plan.Names {
	names := plan.Names{}
	missing := map[schema.Ref]string{} // what was gone when the plan was made: the id that it gets
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == plan.Create && !s.Replace {
			missing[s.Ref] = s.ExternalID
		}
	}
	for i := range recorded {
		id, gone := missing[recorded[i].Ref]
		if !recorded[i].Gone && (!gone || id == recorded[i].ID) {
			names.Put(recorded[i].Ref, recorded[i].ID)
		}
	}
	for i := range p.Steps {
		names.Put(p.Steps[i].Ref, p.Steps[i].ExternalID)
	}
	return names
}

// gone returns which of the things that the plan only refers to no longer exist, or no longer have that name.
func (e *Engine) gone(ctx context.Context, set *providers.Set, p *plan.Plan) (ds []event.Difference, err error) {
	ids := map[schema.Place][]string{}
	for _, x := range p.Externals {
		if at := x.Ref.Place(); x.Unchecked == "" {
			ids[at] = append(ids[at], x.ID)
		}
	}
	seen, err := e.lookFor(ctx, set, ids)
	if err != nil {
		return nil, err
	}
	for _, x := range p.Externals {
		if x.Unchecked != "" {
			continue
		}
		if lost := x.Lost(seen[x.Ref.Place()][x.ID]); lost != "" {
			ds = append(ds, event.Difference{Ref: x.Ref, Detail: lost})
		}
	}
	return ds, nil
}

// unfit returns which of the things that the plan has chosen can no longer be chosen.
func (e *Engine) unfit(ctx context.Context, set *providers.Set, p *plan.Plan) ([]event.Difference, error) {
	ids := map[schema.Place][]string{}
	for i := range p.Steps {
		for _, c := range p.Steps[i].Chosen {
			at := schema.Place{Scope: p.Steps[i].Ref.Scope, Kind: c.Kind}
			ids[at] = append(ids[at], c.ID)
		}
	}
	seen, err := e.lookFor(ctx, set, ids)
	if err != nil {
		return nil, err
	}
	had := map[schema.Ref]schema.Object{} // by what is replaced
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Replace && s.Action == plan.Delete {
			had[s.Ref] = s.Before
		}
	}
	var ds []event.Difference
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, c := range s.Chosen {
			why := "it is gone"
			if t := seen[schema.Place{Scope: s.Ref.Scope, Kind: c.Kind}][c.ID]; t != nil {
				why = plan.Unfit(e.o.Kinds[s.Ref.Kind].Field(c.Field).Choose, t, had[s.Ref][c.Field] == c.ID)
			}
			if why != "" {
				ds = append(ds, event.Difference{Ref: s.Ref, Detail: fmt.Sprintf("the %s %s chosen for it is no longer available: %s", c.Kind, c.ID, why)})
			}
		}
	}
	return ds, nil
}

// lookFor observes the things with the given ids, place by place; what does not exist is left out. It fails with an
// *UnknownError.
func (e *Engine) lookFor(ctx context.Context, set *providers.Set, ids map[schema.Place][]string) (map[schema.Place]map[string]*providers.Thing, error) {
	seen := make(map[schema.Place]map[string]*providers.Thing, len(ids))
	for at, list := range ids {
		served, _, _ := set.Find(at.Scope, at.Kind)
		things, err := apply.Some(served.Kind, list...).Again(ctx, e.o.Retry)
		if err != nil {
			return nil, &UnknownError{Unknown: []plan.Unknown{{Scope: at.Scope, Kind: at.Kind, Error: err.Error()}}}
		}
		seen[at] = make(map[string]*providers.Thing, len(things))
		for i := range things {
			seen[at][things[i].ID] = &things[i]
		}
	}
	return seen, nil
}
