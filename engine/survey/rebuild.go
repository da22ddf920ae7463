package survey

import (
	"maps"
	"slices"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Rebuild makes records, as of when, for unrecorded things that bear this site's mark, or have an id that only this site
// assigns. What the document said of them is lost, so the records state no field: the next plan compares with the document
// alone. The lifecycle of a resource is taken from declared, today's document, so that a protected one stays protected when
// the store is lost. The newest incarnation of a resource counts; older ones stay strays. What is external is left to others, and
// its record says so: it is Gone.
func (s *Survey) Rebuild(ks schema.Kinds, when time.Time, declared ...schema.Resource) []state.Record {
	known, left, had := map[schema.Ref]bool{}, map[string]bool{}, s.recorded()
	for _, r := range s.Recorded {
		if r.Gone {
			left[r.ID] = r.ID != "" // to others, although it is marked
		} else {
			known[r.Ref] = true
		}
	}
	found := map[schema.Ref]state.Record{}
	for at, things := range s.Observed.Things {
		traits, _ := s.Traits(at.Scope, at.Kind)
		for i := range things {
			t := &things[i]
			ref, incarnation, ours := s.ours(at, t, traits)
			_, recorded := had.Find(at.Scope, at.Kind, t.ID)
			others := slices.ContainsFunc(declared, func(r schema.Resource) bool {
				return r.External != nil && r.Ref.Scope == at.Scope && r.Ref.Kind == at.Kind && plan.Meant(&r, t)
			})
			if !ours || left[t.ID] || known[ref] || recorded || t.Phase == providers.Deleting || found[ref].Incarnation >= incarnation {
				continue
			}
			r := state.Record{Ref: ref, ID: t.ID, UID: t.UID, Incarnation: incarnation, Spec: schema.Object{}, At: when, Gone: others}
			if !others && traits.Named() && t.Name != ref.Name && t.Name != t.ID {
				r.Name = t.Name
			}
			found[ref] = r
		}
	}
	names := s.recorded()
	for ref, r := range found {
		if !r.Gone {
			names.Put(ref, r.ID)
		}
	}
	lives := make(map[schema.Ref]*schema.Resource, len(declared))
	for i := range declared {
		lives[declared[i].Ref] = &declared[i]
	}
	records := slices.SortedFunc(maps.Values(found), state.ByRef)
	for i := range records {
		r := &records[i]
		if r.Gone {
			continue
		}
		things := s.Observed.Things[r.Ref.Place()]
		t := &things[slices.IndexFunc(things, func(t providers.Thing) bool { return t.ID == r.ID })]
		for kind, id := range ks[r.Ref.Kind].Refs(t.Spec) {
			if to, ok := names.Find(r.Ref.Scope, kind, id); ok {
				r.After = append(r.After, to)
			}
		}
		r.After = schema.SortRefs(r.After)
		if d := lives[r.Ref]; d != nil {
			r.Protect, r.OnRemove, r.Ignore = d.Lifecycle.Protect, d.Lifecycle.OnRemove, d.Lifecycle.Ignore
		}
	}
	return records
}

// ours returns which incarnation of which resource a thing is: by its mark or, where the kind cannot be marked, by an id
// that follows from this site, the thing's name and the incarnation.
func (s *Survey) ours(at schema.Place, t *providers.Thing, traits providers.Traits) (ref schema.Ref, incarnation int, ok bool) {
	if traits.Mark {
		m := t.Mark
		return m.Ref, m.Incarnation, m.Site == s.Site.ID && !m.IsZero() && m.Ref.Scope == at.Scope && m.Ref.Kind == at.Kind
	}
	ref = schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: t.Name}
	for i := 1; traits.ID == "" && i <= incarnations; i++ {
		if plan.ExternalID(s.Site.ID, traits, ref, i, t.Spec) == t.ID {
			return ref, i, true
		}
	}
	return ref, 0, false
}

// incarnations is how many incarnations are tried to identify an unmarked thing.
const incarnations = 64
