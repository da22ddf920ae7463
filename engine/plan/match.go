package plan

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// lookAhead is how many incarnations beyond the recorded one are searched for when a record or a mark was lost.
const lookAhead = 3

// match brings together what is desired, recorded and observed of each resource: by recorded id, then by mark, then by
// the ids that we would have chosen, then by natural key.
func (m *maker) match() error {
	m.recorded = map[schema.Place]bool{}
	for i := range m.in.Recorded {
		if r := &m.in.Recorded[i]; !r.Gone {
			m.recorded[r.Ref.Place()] = true
		}
	}
	if err := m.externals(); err != nil {
		return err
	}
	m.collect()
	byID := make(map[schema.Place]map[string]*providers.Thing, len(m.in.Observed.Things))
	marked := map[schema.Ref]*providers.Thing{}
	for at, things := range m.in.Observed.Things {
		if len(things) == 0 {
			continue
		}
		ids := make(map[string]*providers.Thing, len(things))
		for i := range things {
			t := &things[i]
			ids[t.ID] = t
			if t.Mark.Site != m.plan.Site.ID || t.Mark.IsZero() || t.Phase == providers.Deleting {
				continue
			}
			had := marked[t.Mark.Ref]
			if had == nil || had.Mark.Incarnation < t.Mark.Incarnation || had.Mark.Incarnation == t.Mark.Incarnation && m.recordedAs(t) {
				marked[t.Mark.Ref] = t
			}
		}
		byID[at] = ids
	}
	m.owners = make(map[*providers.Thing]*item, len(m.items))
	if m.in.Part != nil {
		for at, owned := range m.in.Part.Owners {
			for id, ref := range owned {
				if t := byID[at][id]; t != nil {
					m.owners[t] = &item{ref: ref, traits: &unserved}
				}
			}
		}
	}
	for _, it := range m.items {
		if err := m.describe(it, it.ref.Place()); err != nil {
			return err
		}
	}
	owned := func(it *item) {
		if it.unknown {
			return
		}
		at := it.ref.Place()
		if t := m.find(it, byID[at], marked); t != nil && m.owners[t] == nil {
			it.thing, m.owners[t] = t, it
			if it.record == nil {
				it.born = max(it.born, t.Mark.Incarnation)
			}
		}
	}
	for _, it := range m.items { // a record takes precedence over a mark, which may hold an earlier name
		if it.record != nil {
			owned(it)
		}
	}
	for _, it := range m.items {
		if it.record == nil {
			owned(it)
		}
	}
	m.contents()
	for _, it := range m.items {
		switch {
		case it.desired == nil || it.thing != nil || it.unknown || it.refused:
		case it.desired.Lifecycle.ID != "" && it.record == nil:
			m.adoptByID(it, byID[it.ref.Place()])
		case it.desired.Lifecycle.Adopt == schema.AdoptMatch:
			m.adoptByName(it)
		}
	}
	m.index()
	m.unmanaged()
	m.await()
	return nil
}

// recordedAs reports whether a marked thing is certainly the recorded one, and no copy of that.
func (m *maker) recordedAs(t *providers.Thing) bool {
	r := m.prior(t.Mark.Ref)
	return r != nil && r.UID != "" && r.UID == t.UID
}

// collect makes one item for each resource that is desired or recorded, in the order of refs.
func (m *maker) collect() {
	desired := m.desired
	if m.in.Options.Destroy {
		desired = nil
	}
	if !slices.IsSortedFunc(m.in.Recorded, state.ByRef) {
		m.in.Recorded = slices.SortedFunc(slices.Values(m.in.Recorded), state.ByRef)
	}
	n := 0
	for range Pairs(desired, m.in.Recorded) {
		n++
	}
	all := make([]item, 0, n) // not moved once they are there
	m.items = make([]*item, 0, n)
	m.byRef = make(map[schema.Ref]*item, n)
	for want, record := range Pairs(desired, m.in.Recorded) {
		all = append(all, item{traits: &unserved, desired: want})
		it := &all[len(all)-1]
		if want != nil {
			it.ref = want.Ref
		}
		if record != nil {
			it.ref, it.born = record.Ref, record.Incarnation
			if !record.Gone {
				it.record = record
			}
		}
		m.items = append(m.items, it)
		m.byRef[it.ref] = it
	}
}

// Pairs yields each resource as it is desired and as it is recorded, nil where it is not, in the order of refs, in which both have to
// be. It leaves out what was deleted earlier and is not desired.
func Pairs(desired []schema.Resource, recorded []state.Record) iter.Seq2[*schema.Resource, *state.Record] {
	return func(yield func(*schema.Resource, *state.Record) bool) {
		for d, r := 0, 0; d < len(desired) || r < len(recorded); {
			c := -1
			if d == len(desired) {
				c = 1
			} else if r < len(recorded) {
				c = desired[d].Ref.Compare(recorded[r].Ref)
			}
			var want *schema.Resource
			var record *state.Record
			if c <= 0 {
				want = &desired[d]
				d++
			}
			if c >= 0 {
				record = &recorded[r]
				r++
			}
			if (want != nil || !record.Gone) && !yield(want, record) {
				return
			}
		}
	}
}

// unserved are the traits where no provider serves the kind, or none could be reached.
var unserved providers.Traits

// describe looks up the kind; a kind that no provider serves in the scope, or that could not be observed, is unknown.
func (m *maker) describe(it *item, at schema.Place) error {
	it.kind = m.in.Kinds[it.ref.Kind]
	if it.kind == nil {
		return fmt.Errorf("%s: the schema has no kind %s; was it recorded by a newer version of converge?", it.ref, it.ref.Kind)
	}
	if _, known := m.secretive[it.kind]; !known {
		m.secretive[it.kind] = sealed.Held(it.kind)
	}
	it.secretive = m.secretive[it.kind]
	why, unknown := m.in.Observed.Unknown[at]
	if said, ok := m.in.Observed.Unsupported[at]; ok {
		if !m.recorded[at] {
			it.unknown, it.unsupported = true, true
			m.plan.Unsupported = note(m.plan.Unsupported, Unknown{Scope: at.Scope, Kind: at.Kind, Error: said})
			return nil
		}
		unknown, why = true, "objects of this kind are recorded, but: "+said // perhaps a wrong server
	}
	if !unknown {
		traits, served := m.served(at)
		_, seen := m.in.Observed.Things[at]
		it.traits = traits
		switch {
		case !served:
			unknown, why = true, "no provider is configured for it"
		case !seen:
			unknown, why = true, "it was not observed"
		}
	}
	if unknown {
		it.unknown = true
		m.plan.Unknown = note(m.plan.Unknown, Unknown{Scope: at.Scope, Kind: at.Kind, Error: why, OtherServer: m.in.Observed.Others[at]})
	}
	return nil
}

// served returns the traits of the kind of a place, and whether there is a provider that serves it there.
func (m *maker) served(at schema.Place) (*providers.Traits, bool) {
	traits, known := m.traits[at]
	if !known {
		traits = &unserved
		if t, ok := m.in.Traits(at.Scope, at.Kind); ok {
			traits = &t
		}
		m.traits[at] = traits
	}
	return traits, traits != &unserved
}

// note adds a place once.
func note(places []Unknown, u Unknown) []Unknown {
	if slices.Contains(places, u) {
		return places
	}
	return append(places, u)
}

func (m *maker) find(it *item, ids map[string]*providers.Thing, marked map[schema.Ref]*providers.Thing) *providers.Thing {
	if it.record != nil {
		if t := ids[it.record.ID]; t != nil && t.Phase != providers.Deleting {
			switch {
			case t.Mark.Site == m.plan.Site.ID: // it may have had another name before
				return t
			case t.Mark.IsZero() && it.remade(t):
				if ours := m.renamed(it, marked); ours != nil {
					return m.refuseRenamed(it, ours)
				}
				return m.successor(it, t)
			case t.Mark.IsZero():
				return t
			}
			it.refused, it.taken = true, true
			if m.in.Rest { // a plan reports it as a refusal
				m.plan.Drift = append(m.plan.Drift, Drift{Ref: it.ref, TakenBy: t.Mark})
			}
			m.refuse(it.ref, fmt.Sprintf("the recorded object is now marked as %s of site %s", t.Mark.Ref, t.Mark.Site),
				"find out who adopted it; remove the mark if that site is gone, or forget the resource", remedy.Of(remedy.Forget, it.ref.String()))
			return nil
		}
	}
	if t := m.renamed(it, marked); t != nil {
		return m.refuseRenamed(it, t)
	}
	if t := marked[it.ref]; t != nil && m.owners[t] == nil && !it.elsewhere(t) {
		return t
	}
	if it.desired == nil || it.record != nil {
		return nil
	}
	if it.traits.ID != "" {
		t := ids[ExternalID(m.plan.Site.ID, *it.traits, it.ref, 1, it.desired.Spec)]
		if t == nil || t.Phase == providers.Deleting || m.mayAdopt(it, t) {
			return t
		}
		return nil
	}
	for i, last := it.born+1, it.born+lookAhead; i <= last; i++ {
		t := ids[ExternalID(m.plan.Site.ID, *it.traits, it.ref, i, it.desired.Spec)]
		switch {
		case t == nil || t.Phase == providers.Deleting:
		case m.owners[t] != nil: // it had this name before
			it.born = i
		default:
			it.born = i
			return t
		}
	}
	return nil
}

// renamed returns the recorded thing under another id than the recorded one, where ids are names and others can change them; nil when there is
// none.
func (m *maker) renamed(it *item, marked map[schema.Ref]*providers.Thing) *providers.Thing {
	if t := marked[it.ref]; t != nil && m.owners[t] == nil && it.elsewhere(t) && it.record.UID == t.UID {
		return t
	}
	return nil
}

// elsewhere reports whether a thing with our mark has another id than the recorded one, although ids are names: it was renamed, or it is a copy
// of ours, together with the mark.
func (it *item) elsewhere(t *providers.Thing) bool {
	return it.record != nil && it.traits.ID != "" && it.record.UID != "" && t.ID != it.record.ID
}

// refuseRenamed refuses a thing that others have renamed, because converge cannot give it back its name. It returns one that is to be removed.
func (m *maker) refuseRenamed(it *item, t *providers.Thing) *providers.Thing {
	if it.desired == nil {
		return t
	}
	it.refused, it.taken = true, true
	if m.in.Rest { // a plan reports it as a refusal
		m.plan.Drift = append(m.plan.Drift, Drift{Ref: it.ref, Renamed: t.ID})
	}
	m.refuse(it.ref, fmt.Sprintf("the %s was renamed to %s outside converge", it.kind.Name, t.ID), "rename it back to "+it.record.ID+", or remove it there to have it created again")
	return nil
}

// successor returns a thing that somebody else made under the id of a recorded one that is gone, if it may be taken over in place of that.
func (m *maker) successor(it *item, t *providers.Thing) *providers.Thing {
	switch {
	case it.desired == nil: // ours is gone, and this one stays
		it.succeeded = true
		return nil
	case it.desired.Lifecycle.ID == t.ID || m.adopts(it):
		return t
	}
	it.refused, it.taken = true, true
	if m.in.Rest { // a plan reports it as a refusal
		m.plan.Drift = append(m.plan.Drift, Drift{Ref: it.ref, Remade: true})
	}
	m.refuse(it.ref, fmt.Sprintf("the %s that converge manages was deleted, and another one with its name was created outside converge", it.kind.Name),
		`to take that over, set lifecycle.adopt to "match"; to have converge create its own again, delete or rename that one; to leave it to others, remove it from the document, or declare it external`)
	return nil
}

// adopts reports whether what is there may be taken over.
func (m *maker) adopts(it *item) bool {
	return it.traits.Create == providers.Never || it.traits.Delete == providers.Never || // taking over what cannot be deleted loses nothing
		it.desired.Lifecycle.Adopt == schema.AdoptMatch
}

// mayAdopt reports whether a thing that has the resource's natural key and is not known to be ours may be taken over.
func (m *maker) mayAdopt(it *item, t *providers.Thing) bool {
	switch {
	case !t.Mark.IsZero():
		m.refuse(it.ref, fmt.Sprintf("a %s with this name exists and is marked as %s of site %s", it.kind.Name, t.Mark.Ref, t.Mark.Site),
			"choose another name, or remove the mark if that site is gone")
	case m.adopts(it):
		return true
	default:
		m.refuse(it.ref, fmt.Sprintf("a %s with this name exists and was not created by converge", it.kind.Name),
			`to adopt it, set lifecycle.adopt to "match"; otherwise choose another name`)
	}
	it.refused = true
	return false
}

// adoptByID takes over the thing that the document names.
func (m *maker) adoptByID(it *item, ids map[string]*providers.Thing) {
	id := it.desired.Lifecycle.ID
	t := ids[id]
	reason := ""
	switch {
	case t == nil || t.Phase == providers.Deleting:
		reason = "which does not exist"
	case m.owners[t] != nil:
		reason = "which belongs to " + m.owners[t].ref.String() + " already"
	case !t.Mark.IsZero():
		reason = fmt.Sprintf("which is marked as %s of site %s", t.Mark.Ref, t.Mark.Site)
	default:
		it.thing, m.owners[t] = t, it
		return
	}
	it.refused = true
	m.refuse(it.ref, fmt.Sprintf("lifecycle.id names the %s %s, %s", it.kind.Name, id, reason), "correct lifecycle.id, or remove it to have converge create the object")
}

// adoptByName takes over the only unmarked thing with the resource's name, for kinds whose ids carry no meaning.
func (m *maker) adoptByName(it *item) {
	if it.traits.ID != "" {
		return
	}
	var found []*providers.Thing
	things := m.in.Observed.Things[it.ref.Place()]
	for i := range things {
		if t := &things[i]; t.Name == it.ref.Name && t.Mark.IsZero() && m.owners[t] == nil && t.Phase != providers.Deleting {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
	case 1:
		it.thing, m.owners[found[0]] = found[0], it
	default:
		it.refused = true
		m.refuse(it.ref, fmt.Sprintf("%d objects of kind %s are named %s: it is not clear which one to adopt", len(found), it.kind.Name, it.ref.Name),
			"rename all but one, or import the right one by its id")
	}
}

// contents gives up what is within a thing that others have made anew: what has its id there may be theirs, too. It is ours by its mark or its
// uid, or where the document takes it over.
func (m *maker) contents() {
	for again := true; again; {
		again = false
		for _, it := range m.items {
			if it.record == nil || it.thing == nil || m.ours(it.thing) || it.record.UID != "" && it.record.UID == it.thing.UID {
				continue
			}
			of := m.container(it)
			if of.IsZero() || it.desired != nil && (m.adopts(it) || it.desired.Lifecycle.ID == it.thing.ID) {
				continue
			}
			delete(m.owners, it.thing)
			it.thing, again = nil, true
			if it.desired == nil {
				it.succeeded = true
				continue
			}
			it.refused, it.taken = true, true
			m.refuse(it.ref, fmt.Sprintf("it may not be the %s that converge manages: %s, in which it is, was created outside converge in place of the one that converge managed", it.kind.Name, of),
				`to take it over as well, set its lifecycle.adopt to "match"; to leave it to others, remove it from the document`)
		}
	}
}

// container returns the thing that others have made anew and that contains a recorded one, such as the pool of a volume; zero when there is none.
func (m *maker) container(it *item) schema.Ref {
	for i := range it.kind.Fields {
		f := &it.kind.Fields[i]
		name, _ := it.record.Spec[f.Name].(string)
		if f.Ref == "" || name == "" || !strings.Contains(it.traits.ID, "{"+f.Name+"}") {
			continue
		}
		for _, scope := range []string{it.ref.Scope, schema.ScopeSite} {
			of := m.byRef[schema.Ref{Scope: scope, Kind: f.Ref, Name: name}]
			if of != nil && (of.succeeded || of.taken || of.thing != nil && of.remade(of.thing) && !m.ours(of.thing)) {
				return of.ref
			}
		}
	}
	return schema.Ref{}
}

// index builds the map from external ids to names with which specs are read.
func (m *maker) index() {
	m.names = Names{}
	for _, it := range m.items {
		if it.thing != nil {
			m.names.Put(it.ref, it.thing.ID)
		}
	}
	for _, it := range m.items { // what is missing, or refused, has or will have the id that others still refer to
		if it.thing != nil || it.desired == nil || it.unknown || it.traits.ID == "" {
			continue
		}
		id := ExternalID(m.plan.Site.ID, *it.traits, it.ref, 1, it.desired.Spec)
		if _, taken := m.names.Find(it.ref.Scope, it.ref.Kind, id); !taken {
			m.names.Put(it.ref, id)
		}
	}
}

// unmanaged lists what nothing declares.
func (m *maker) unmanaged() {
	for at, things := range m.in.Observed.Things {
		if k := m.in.Kinds[at.Kind]; k != nil && k.Reference() { // nothing could ever manage them
			continue
		}
		for i := range things {
			t := &things[i]
			if m.owners[t] != nil || m.outsiders[t] || t.Phase == providers.Deleting || t.Derived {
				continue
			}
			if it := m.byRef[schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: t.Name}]; it != nil && it.refused {
				continue
			}
			ours := t.Mark.Site == m.plan.Site.ID && !t.Mark.IsZero() && !m.leftToOthers(t)
			if ours && m.in.Begun[t.Mark.Ref] { // an open run made it, and has not recorded it yet
				continue
			}
			m.plan.Unmanaged = append(m.plan.Unmanaged, Unmanaged{Scope: at.Scope, Kind: at.Kind, ID: t.ID, Name: t.Name, Stray: ours})
		}
	}
	slices.SortFunc(m.plan.Unmanaged, compareForeign)
}

func compareForeign(a, b Unmanaged) int {
	x, y := schema.Ref{Scope: a.Scope, Kind: a.Kind, Name: a.ID}, schema.Ref{Scope: b.Scope, Kind: b.Kind, Name: b.ID}
	return x.Compare(y)
}

// leftToOthers reports whether a thing that bears a mark of ours was given up on purpose, so that it is not a stray.
func (m *maker) leftToOthers(t *providers.Thing) bool {
	r := m.prior(t.Mark.Ref)
	return r != nil && r.Gone && r.ID == t.ID
}
