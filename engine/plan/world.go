package plan

import (
	"cmp"
	"iter"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A world is all inputs of a [Planner], with indexes of how they relate.
type world struct {
	in Input // its kinds and traits, and the site

	resources map[schema.Ref]*schema.Resource
	records   map[schema.Ref]*state.Record
	things    map[thingKey]*held

	owned map[schema.Ref]thingKey
	owner map[thingKey]schema.Ref

	users     index[schema.Ref, schema.Ref]              // what depends on a resource, according to the document or the record
	recorded  index[thingKey, schema.Ref]                // the resources recorded with an external id
	outside   index[thingKey, schema.Ref]                // the resources that name a thing by its id in the document
	named     index[thingName, thingKey]                 // the things with a name
	marked    index[schema.Ref, thingKey]                // the things with a mark of ours
	referring index[Referent, thingKey]                  // the things that are observed to refer to an id
	futures   map[schema.Place]index[string, schema.Ref] // the ids that things will have when they are made; only in places that outside refers to
}

type thingKey struct {
	schema.Place
	id string
}

type thingName struct {
	schema.Place
	name string
}

// held is a thing with what it refers to.
type held struct {
	*providers.Thing
	refers []Referent
}

// An index lists the values of a key, possibly with duplicates.
type index[K, V comparable] map[K][]V

func (x index[K, V]) add(k K, v V) { x[k] = append(x[k], v) }

func (x index[K, V]) remove(k K, v V) {
	list := x[k]
	i := slices.Index(list, v)
	if i < 0 {
		return
	}
	if list[i] = list[len(list)-1]; len(list) == 1 {
		delete(x, k)
		return
	}
	x[k] = list[:len(list)-1]
}

func newWorld(in Input) world {
	w := world{
		in:        Input{Kinds: in.Kinds, Traits: in.Traits, Document: &schema.Document{Site: in.Document.Site}},
		resources: make(map[schema.Ref]*schema.Resource, len(in.Document.Resources)), records: make(map[schema.Ref]*state.Record, len(in.Recorded)),
		things: map[thingKey]*held{}, users: index[schema.Ref, schema.Ref]{}, recorded: index[thingKey, schema.Ref]{},
		outside: index[thingKey, schema.Ref]{}, named: index[thingName, thingKey]{}, marked: index[schema.Ref, thingKey]{},
		referring: index[Referent, thingKey]{}, futures: map[schema.Place]index[string, schema.Ref]{},
	}
	for i := range in.Document.Resources {
		w.setResource(in.Document.Resources[i].Ref, &in.Document.Resources[i])
	}
	for i := range in.Recorded {
		w.setRecord(in.Recorded[i].Ref, &in.Recorded[i])
	}
	for at, things := range in.Observed.Things {
		for i := range things {
			w.setThing(thingKey{at, things[i].ID}, &things[i])
		}
	}
	return w
}

func (w *world) setResource(ref schema.Ref, r *schema.Resource) {
	w.unforesee(ref)
	defer w.foresee(ref)
	if had := w.resources[ref]; had != nil {
		for _, to := range had.After {
			w.users.remove(to, ref)
		}
		for _, to := range had.Outside {
			w.outside.remove(outsideKey(to), ref)
		}
		delete(w.resources, ref)
	}
	if r == nil {
		return
	}
	w.resources[ref] = r
	for _, to := range r.After {
		w.users.add(to, ref)
	}
	for _, to := range r.Outside {
		w.outside.add(outsideKey(to), ref)
	}
}

// outsideKey returns the key of the thing that a reference by external id leads to.
func outsideKey(to schema.Ref) thingKey { return thingKey{to.Place(), to.Name} }

func (w *world) setRecord(ref schema.Ref, r *state.Record) {
	w.unforesee(ref)
	defer w.foresee(ref)
	at := ref.Place()
	if had := w.records[ref]; had != nil {
		for _, to := range had.After {
			w.users.remove(to, ref)
		}
		w.recorded.remove(thingKey{at, had.ID}, ref)
		delete(w.records, ref)
	}
	if r == nil {
		return
	}
	w.records[ref] = r
	for _, to := range r.After {
		w.users.add(to, ref)
	}
	w.recorded.add(thingKey{at, r.ID}, ref)
}

func (w *world) setThing(k thingKey, t *providers.Thing) {
	if had := w.things[k]; had != nil {
		for _, to := range had.refers {
			w.referring.remove(to, k)
		}
		w.named.remove(thingName{k.Place, had.Name}, k)
		w.marked.remove(had.Mark.Ref, k)
		delete(w.things, k)
	}
	if t == nil {
		return
	}
	h := &held{Thing: t}
	w.things[k] = h
	if kind := w.in.Kinds[k.Kind]; kind != nil {
		h.refers = references(kind, t.Spec)
	}
	for _, to := range h.refers {
		w.referring.add(to, k)
	}
	w.named.add(thingName{k.Place, t.Name}, k)
	w.marked.add(t.Mark.Ref, k)
}

func (w *world) own(ref schema.Ref, k thingKey) { w.owned[ref], w.owner[k] = k, ref }

func (w *world) disown(ref schema.Ref) {
	if k, ok := w.owned[ref]; ok {
		delete(w.owned, ref)
		if w.owner[k] == ref {
			delete(w.owner, k)
		}
	}
}

func (w *world) forgetOwners() {
	w.owned, w.owner = make(map[schema.Ref]thingKey, len(w.records)), make(map[thingKey]schema.Ref, len(w.records))
}

// future returns the id that the thing of a resource would have if it were made now; empty where the id is its name.
func (w *world) future(ref schema.Ref) string {
	r := w.resources[ref]
	if r == nil || r.External != nil {
		return ""
	}
	traits, served := w.in.Traits(ref.Scope, ref.Kind)
	if !served || traits.ID != "" {
		return ""
	}
	born := 0
	if had := w.records[ref]; had != nil {
		born = had.Incarnation
	}
	return ExternalID(w.in.Document.Site.ID, traits, ref, born+1, r.Spec)
}

// foresee and unforesee maintain the futures of the places where they were asked for.
func (w *world) foresee(ref schema.Ref) {
	if ids := w.futures[ref.Place()]; ids != nil {
		ids.add(w.future(ref), ref)
	}
}

func (w *world) unforesee(ref schema.Ref) {
	if ids := w.futures[ref.Place()]; ids != nil {
		ids.remove(w.future(ref), ref)
	}
}

// awaited returns the resources whose things will have an id.
func (w *world) awaited(k thingKey) []schema.Ref {
	if w.futures[k.Place] == nil {
		w.futures[k.Place] = index[string, schema.Ref]{}
		for ref := range w.resources {
			if ref.Scope == k.Scope && ref.Kind == k.Kind {
				w.foresee(ref)
			}
		}
	}
	return w.futures[k.Place][k.id]
}

// document returns the document with these of its resources, and recordsOf returns their records, both in order.
func (w *world) document(header *schema.Document, refs iter.Seq[schema.Ref]) *schema.Document {
	doc := *header
	sorted := schema.SortRefs(slices.Collect(refs))
	doc.Resources = make([]schema.Resource, 0, len(sorted))
	for _, ref := range sorted {
		if r := w.resources[ref]; r != nil {
			doc.Resources = append(doc.Resources, *r)
		}
	}
	return &doc
}

func (w *world) recordsOf(refs iter.Seq[schema.Ref]) []state.Record {
	sorted := schema.SortRefs(slices.Collect(refs))
	recorded := make([]state.Record, 0, len(sorted))
	for _, ref := range sorted {
		if r := w.records[ref]; r != nil {
			recorded = append(recorded, *r)
		}
	}
	return recorded
}

// seen returns all things of each place, in order.
func (w *world) seen(places iter.Seq[schema.Place]) map[schema.Place][]providers.Thing {
	lists := map[schema.Place][]*held{}
	for k, h := range w.things {
		lists[k.Place] = append(lists[k.Place], h)
	}
	things := map[schema.Place][]providers.Thing{}
	for at := range places {
		things[at] = inOrder(lists[at])
	}
	return things
}

func inOrder(list []*held) []providers.Thing {
	slices.SortFunc(list, func(a, b *held) int { return cmp.Compare(a.ID, b.ID) })
	things := make([]providers.Thing, len(list))
	for i, h := range list {
		things[i] = *h.Thing
	}
	return things
}

// A worklist is what a plan decides about anew: resources and things.
type worklist struct {
	world  *world
	refs   map[schema.Ref]bool
	things map[thingKey]bool

	newRefs   []schema.Ref // not yet followed to what they lead to
	newThings []thingKey
}

func (p *Planner) worklist() *worklist {
	return &worklist{world: &p.world, refs: map[schema.Ref]bool{}, things: map[thingKey]bool{}}
}

func (s *worklist) add(ref schema.Ref) {
	if !s.refs[ref] {
		s.refs[ref] = true
		s.newRefs = append(s.newRefs, ref)
	}
}

func (s *worklist) addAll(refs []schema.Ref) {
	for _, ref := range refs {
		s.add(ref)
	}
}

func (s *worklist) addThing(k thingKey) {
	if !s.things[k] {
		s.things[k] = true
		s.newThings = append(s.newThings, k)
	}
}

func (s *worklist) addThings(keys []thingKey) {
	for _, k := range keys {
		s.addThing(k)
	}
}

// close adds what the selection leads to, transitively: deciding about a resource takes everything that it refers to, and
// everything that could be its thing.
func (s *worklist) close() {
	for len(s.newRefs)+len(s.newThings) > 0 {
		for len(s.newRefs) > 0 {
			ref := s.newRefs[len(s.newRefs)-1]
			s.newRefs = s.newRefs[:len(s.newRefs)-1]
			s.fromRef(ref)
		}
		for len(s.newThings) > 0 {
			k := s.newThings[len(s.newThings)-1]
			s.newThings = s.newThings[:len(s.newThings)-1]
			s.fromThing(k)
		}
	}
}

func (s *worklist) fromRef(ref schema.Ref) {
	w, at := s.world, ref.Place()
	if k, ok := w.owned[ref]; ok {
		s.addThing(k)
	}
	s.addThings(w.marked[ref])
	if ref.Name != "" {
		s.addThings(w.named[thingName{at, ref.Name}])
	}
	record := w.records[ref]
	if record != nil {
		s.addAll(record.After)
		s.addThing(thingKey{at, record.ID})
		s.addAll(w.recorded[thingKey{at, record.ID}])
	}
	r := w.resources[ref]
	if r == nil {
		return
	}
	s.addAll(r.After)
	for _, to := range r.Outside {
		k := outsideKey(to)
		s.addThing(k)
		s.addAll(w.recorded[k])
		s.addAll(w.awaited(k))
	}
	for _, id := range s.idsOf(r, record) {
		s.addThing(thingKey{at, id})
	}
}

// idsOf lists the ids that the thing of a resource may have.
func (s *worklist) idsOf(r *schema.Resource, record *state.Record) []string {
	if r.External != nil {
		return []string{cmp.Or(r.External.ID, r.Ref.Name)} // the name may be its id
	}
	var ids []string
	if r.Lifecycle.ID != "" {
		ids = append(ids, r.Lifecycle.ID)
	}
	traits, served := s.world.in.Traits(r.Ref.Scope, r.Ref.Kind)
	if !served {
		return ids
	}
	born := 0
	if record != nil {
		born = record.Incarnation
	}
	last := born + lookAhead
	if record != nil && !record.Gone || traits.ID != "" {
		last = born + 1
	}
	for i := born + 1; i <= last; i++ {
		ids = append(ids, ExternalID(s.world.in.Document.Site.ID, traits, r.Ref, i, r.Spec))
	}
	return ids
}

func (s *worklist) fromThing(k thingKey) {
	w := s.world
	if ref, ok := w.owner[k]; ok {
		s.add(ref)
	}
	s.addAll(w.recorded[k])
	h := w.things[k]
	if h == nil {
		return
	}
	if h.Mark.Site == w.in.Document.Site.ID && !h.Mark.IsZero() {
		s.add(h.Mark.Ref)
	}
	s.add(schema.Ref{Scope: k.Scope, Kind: k.Kind, Name: h.Name})
	for _, to := range h.refers {
		for _, scope := range []string{k.Scope, schema.ScopeSite} {
			of := thingKey{schema.Place{Scope: scope, Kind: to.Kind}, to.ID}
			if ref, ok := w.owner[of]; ok {
				s.add(ref)
			}
			s.addAll(w.recorded[of])
		}
	}
}

// thingAgain follows again what a changed thing leads to.
func (s *worklist) thingAgain(k thingKey) {
	s.things[k] = true
	s.newThings = append(s.newThings, k)
}

// dependents adds what depends on a resource, according to the document and the records, and what refers to its thing.
func (s *worklist) dependents(ref schema.Ref) {
	w, at := s.world, ref.Place()
	s.addAll(w.users[ref])
	if k, ok := w.owned[ref]; ok {
		s.referrers(k)
	}
	if record := w.records[ref]; record != nil {
		s.referrers(thingKey{at, record.ID})
	}
}

// referrers adds the things that are observed to refer to a thing, and what names it by its id in the document.
func (s *worklist) referrers(k thingKey) {
	s.addThings(s.world.referring[Referent{k.Kind, k.id}])
	s.addAll(s.world.outside[k])
}

// users adds what names the thing of a resource by its id in the document.
func (s *worklist) users(ref schema.Ref) {
	w, at := s.world, ref.Place()
	if k, ok := w.owned[ref]; ok {
		s.addAll(w.outside[k])
	}
	record := w.records[ref]
	if record != nil {
		s.addAll(w.outside[thingKey{at, record.ID}])
	}
	if r := w.resources[ref]; r != nil {
		for _, id := range s.idsOf(r, record) {
			s.addAll(w.outside[thingKey{at, id}])
		}
	}
}
