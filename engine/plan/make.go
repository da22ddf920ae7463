package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Make makes a plan. It modifies none of its inputs; equal inputs result in equal plans. An error means that the inputs
// are inconsistent; what may not be done is a Refusal in the plan.
func Make(in Input) (*Plan, error) {
	m, err := decided(in, rest{})
	if err != nil {
		return nil, err
	}
	return m.plan, nil
}

// decided makes a plan from inputs that leave out resources that are as they should be and unrelated to the others; see [Planner].
func decided(in Input, left rest) (*maker, error) {
	m := &maker{in: in, rest: left, at: map[schema.Ref]halves{}, detached: map[schema.Ref]*detachment{}, dropped: map[int]int{}, secretive: map[*schema.Kind]bool{}, traits: map[schema.Place]*providers.Traits{}, plan: &Plan{
		Format: Format, ID: in.ID, Site: in.Document.Site, Document: in.Document.JSON, Digest: in.Document.Digest, Destroy: in.Options.Destroy, Servers: in.Servers,
	}}
	if in.Options.Destroy || in.Options.Sweep {
		m.plan.Document, m.plan.Digest, m.plan.Sweep = nil, "", in.Options.Sweep
	}
	m.plan.Asked = in.Options.Unlimited || in.Options.MaxDestroy != ""
	if !in.Options.Unlimited {
		m.plan.MaxDestroy = cmp.Or(in.Options.MaxDestroy, in.Document.Policy.MaxDestroy, DefaultMaxDestroy)
	}
	if err := m.match(); err != nil {
		return nil, err
	}
	if err := m.checkPatterns(); err != nil {
		return nil, err
	}
	m.suspect()
	if in.Options.Sweep {
		m.sweep()
	} else {
		m.outside()
		m.decide()
		m.cascade()
		m.choose()
		m.handovers()
		m.emit()
		m.orphans()
		m.connect()
		m.connectSeen()
		m.held()
		m.untangle()
		m.connectCarried()
	}
	for i := range m.plan.Steps {
		s := &m.plan.Steps[i]
		traits, _ := in.Traits(s.Ref.Scope, s.Ref.Kind)
		s.Undo, s.Leaves = s.Consequence(in.Kinds[s.Ref.Kind], traits)
	}
	m.narrow()
	if err := m.order(); err != nil {
		return nil, err
	}
	return m, nil
}

type maker struct {
	in    Input
	rest  rest
	items []*item
	byRef map[schema.Ref]*item
	names Names

	recorded map[schema.Place]bool      // places with something recorded as existing
	owners   map[*providers.Thing]*item // the owner of each thing
	at       map[schema.Ref]halves
	users    map[string][]*schema.Kind                        // see referrersOf
	refers   map[schema.Place]map[Referent][]*providers.Thing // see referring
	chose    bool                                             // something was chosen from everything that exists
	plan     *Plan

	desired   []schema.Resource         // converge's own resources of the document, with outside references by external id
	external  map[schema.Ref]*item      // what the document only refers to
	outsiders map[*providers.Thing]bool // the same as observed
	awaits    map[schema.Ref][]*item    // by resource: the external ones that it refers to

	detached map[schema.Ref]*detachment
	dropped  map[int]int // steps that are refused and left out, and the index of the refusal

	secretive map[*schema.Kind]bool
	traits    map[schema.Place]*providers.Traits // see served
}

// halves are the indices of a resource's steps: the one that removes and the one that makes; -1 for none.
type halves struct{ remove, make int }

// An item is one resource with everything that is known of it.
type item struct {
	ref     schema.Ref
	kind    *schema.Kind
	traits  *providers.Traits
	desired *schema.Resource
	record  *state.Record // nil when gone
	born    int           // incarnations so far
	thing   *providers.Thing
	unknown bool

	lacks schema.Ref // an external reference that could not be observed, which makes the item unknown too

	unsupported bool // the far side does not have the kind; unknown is set too
	unchanged   bool // it is as it should be

	secretive   bool // the kind has secrets
	recordStale bool // the new record differs from the stored one
	changes     []diff.Change
	replace     string // why it has to be replaced; empty: it need not be
	renewed     string // what it refers to that is replaced, in words; nothing else differs
	chosen      []Chosen
	handover    bool // replaced, with the new one made before the old one is deleted
	refused     bool
	taken       bool // its thing exists, marked by another site, or another one has its id
	succeeded   bool // its thing was deleted, and another one that is not ours has its id
}

// remade reports whether a thing with the id of the recorded one is certainly another one.
func (it *item) remade(t *providers.Thing) bool {
	return it.record != nil && it.record.UID != "" && t.UID != "" && t.UID != it.record.UID
}

// unmarked reports whether the recorded thing, or one that is taken over in place of it, bears no mark although it could. What converge has
// recorded with a uid, it has marked.
func (it *item) unmarked() bool {
	return it.record != nil && it.record.UID != "" && it.traits.Mark && it.thing.Mark.IsZero() && it.traits.Update != providers.Never
}

// there reports whether the recorded thing exists, whoever owns it.
func (it *item) there() bool { return it.thing != nil || it.taken }

func (it *item) refs() []schema.Ref {
	if it.record != nil {
		return it.record.After
	}
	if it.desired != nil {
		return it.desired.After
	}
	return nil
}

// decide finds out what differs, for every resource by itself.
func (m *maker) decide() {
	for _, it := range m.items {
		if it.unknown || it.desired == nil || it.thing == nil || it.refused {
			continue
		}
		want, recorded := it.desired.Spec, schema.Object(nil)
		if it.record == nil {
			it.recordStale = true
		} else if want.Equal(it.record.Spec) {
			it.recordStale = it.record.Protect != it.desired.Lifecycle.Protect || it.record.OnRemove != it.desired.Lifecycle.OnRemove ||
				!slices.Equal(it.record.After, it.desired.After) || !slices.Equal(it.record.Ignore, it.ignored())
		} else {
			recorded, it.recordStale = it.record.Spec, true
		}
		it.recordStale = it.recordStale || it.remade(it.thing)
		it.changes = diff.Compare(it.kind, want, it.seen(), recorded, it.desired.Lifecycle.Ignore, m.names.In(it.ref.Scope))
		if it.named() && it.thing.Name != it.called() {
			it.changes = append(it.changes, diff.Change{Path: NamePath, Before: it.thing.Name, After: it.called()})
		}
		it.replace = whyReplace(it)
		if it.replace == "" && slices.ContainsFunc(m.in.Options.Replace, func(p string) bool { return Matches(p, it.ref) }) {
			it.replace = AskedReplace
		}
		m.compare(it)
		m.refuseShrinking(it)
	}
}

// refuseShrinking refuses to lower what can only grow, of a thing that is not made anew.
func (m *maker) refuseShrinking(it *item) {
	for _, c := range it.changes {
		f := it.kind.Field(c.Path)
		was, isInt := c.Before.(int64)
		will, set := c.After.(int64)
		if f == nil || !f.Grows || !isInt || !set || will >= was || it.replace != "" {
			continue
		}
		it.refused = true
		m.refuse(it.ref, fmt.Sprintf("%s can only grow: it is %d, and the document says %d", c.Path, was, will), fmt.Sprintf("set it to at least %d", was))
	}
}

// compare notes where an existing thing is no longer as it was left.
func (m *maker) compare(it *item) {
	if m.in.Begun[it.ref] {
		return
	}
	note := func(d Drift) {
		d.Ref = it.ref
		m.plan.Drift = append(m.plan.Drift, d)
	}
	left := it.left()
	if it.thing.Phase == providers.Failed && (left == nil || !left.Failed) {
		note(Drift{Failed: it.thing.Detail})
	}
	switch {
	case it.remade(it.thing): // with our mark, or taken over
		note(Drift{Remade: true})
	case it.unmarked():
		note(Drift{Unmarked: true})
	}
	switch {
	case it.record == nil:
	case left != nil && !left.Gone:
		if d := m.between(it, left.Spec, diff.Rest(it.kind, diff.Assume(it.thing.Spec, it.thing.Unfilled, left.Spec), nil)); len(d) > 0 {
			note(Drift{Changes: d})
		}
	default:
		if m.in.Rest && it.record.Rest != nil {
			if d := m.between(it, it.record.Rest, diff.Rest(it.kind, it.thing.Spec, it.record.Spec)); len(d) > 0 {
				note(Drift{Unstated: d})
			}
		}
		if len(it.changes) > 0 {
			if d := m.drift(it); len(d) > 0 {
				note(Drift{Changes: d})
			}
		}
	}
}

// left returns how the last run left the thing, when that differs from its record; nil otherwise.
func (it *item) left() *state.Left {
	if it.record == nil {
		return nil
	}
	return it.record.Left
}

// seen returns what was observed of the thing. Secrets that never come back, and fields that the far side does not report,
// are assumed to be as recorded.
func (it *item) seen() schema.Object {
	seen := diff.Assume(it.thing.Spec, it.thing.Unfilled, recordedSpec(it), it.desired.Spec)
	if it.traits.Fixed {
		seen = diff.Lasting(it.kind, seen, recordedSpec(it))
	}
	if !it.secretive {
		return seen
	}
	return sealed.Assume(it.kind, seen, recordedSpec(it))
}

// drift lists where the thing no longer is as was stated when it was left.
func (m *maker) drift(it *item) []diff.Change {
	cs := diff.Compare(it.kind, it.record.Spec, it.seen(), nil, it.desired.Lifecycle.Ignore, m.names.In(it.ref.Scope))
	if was := it.record.Called(); it.named() && it.thing.Name != was {
		cs = append(cs, diff.Change{Path: NamePath, Before: it.thing.Name, After: was})
	}
	for i := range cs {
		cs[i].Before, cs[i].After = cs[i].After, cs[i].Before
		cs[i].Replaces, cs[i].Disruption = false, "" // it has happened
	}
	return cs
}

// called returns the desired name of the thing: that of the resource, unless it was taken over by its id and had a name.
func (it *item) called() string {
	switch {
	case it.moved() && it.thing.Name == it.thing.Mark.Ref.Name:
	case it.record != nil:
		return it.record.Called()
	case it.desired.Lifecycle.ID != "" && it.thing != nil && it.thing.ID == it.desired.Lifecycle.ID:
		return it.thing.Name
	}
	return it.ref.Name
}

// named reports whether the thing has a name that could differ. A thing that shows no name, or its id in place of one, has
// none to compare.
func (it *item) named() bool {
	return it.traits.Named() && it.thing != nil && it.thing.Name != "" && it.thing.Name != it.thing.ID
}

// moved reports whether the resource was recorded under another name before, which its mark still shows.
func (it *item) moved() bool {
	return it.thing != nil && it.record != nil && it.record.ID == it.thing.ID && !it.thing.Mark.IsZero() && it.thing.Mark.Ref != it.ref && it.traits.Update != providers.Never
}

// between lists what differs between two specs with external ids, in either direction, without what the far side changes by
// itself.
func (m *maker) between(it *item, was, is schema.Object) []diff.Change {
	was, is = was.Clone(), is.Clone()
	for _, f := range it.traits.SelfChanging {
		delete(was, f)
		delete(is, f)
	}
	was, is = diff.Prune(was, it.desired.Lifecycle.Ignore), diff.Prune(is, it.desired.Lifecycle.Ignore)
	if was.Equal(is) {
		return nil
	}
	return diff.Between(it.kind, was, is, m.names.In(it.ref.Scope))
}

// cascade replaces or updates what refers to something that is replaced, whose external id will change.
func (m *maker) cascade() {
	dependents := map[schema.Ref][]*item{}
	var work []*item
	for _, it := range m.items {
		if it.desired == nil || it.thing == nil || it.unknown || it.refused {
			continue
		}
		for _, r := range it.desired.After {
			dependents[r] = append(dependents[r], it)
		}
		if it.replace != "" {
			work = append(work, it)
		}
	}
	for len(work) > 0 {
		parent := work[0]
		work = work[1:]
		for _, it := range dependents[parent.ref] {
			if len(it.changes) == 0 && !it.recordStale {
				it.renewed = "it refers to " + parent.ref.String() + ", which is replaced"
			}
			for _, use := range uses(it.kind, it.desired.Spec, parent.ref) {
				if !slices.ContainsFunc(it.changes, func(c diff.Change) bool { return c.Path == use.path }) {
					it.changes = append(it.changes, diff.Change{Path: use.path, Before: parent.ref.Name, After: parent.ref.Name, Replaces: use.immutable})
				}
				if it.replace == "" && (use.immutable || it.traits.Update == providers.Never) {
					it.replace = use.path + " refers to " + parent.ref.String() + ", which is replaced"
					work = append(work, it)
				}
			}
		}
	}
}

type use struct {
	path      string
	immutable bool
}

// uses returns where a spec refers to ref.
func uses(k *schema.Kind, spec schema.Object, ref schema.Ref) []use {
	var found []use
	for i := range k.Fields {
		f := &k.Fields[i]
		if v, ok := spec[f.Name]; ok && f.HasRefs() {
			found = append(found, usesIn(f, v, f.Name, ref)...)
		}
	}
	slices.SortFunc(found, func(a, b use) int { return strings.Compare(a.path, b.path) })
	return found
}

// emit turns decisions into steps.
func (m *maker) emit() {
	for _, it := range m.items {
		if it.remarkable() {
			m.plan.Remarks = append(m.plan.Remarks, Remark{it.ref, it.thing.Detail})
		}
		switch {
		case it.unknown || it.refused:
		case it.desired == nil:
			m.emitRemoved(it)
		case it.thing == nil:
			m.emitCreate(it, it.born+1, whyCreate(it))
			if left := it.left(); it.record != nil && !m.in.Begun[it.ref] && (left == nil || !left.Gone) {
				m.plan.Drift = append(m.plan.Drift, Drift{Ref: it.ref, Missing: true})
			}
		case it.replace != "":
			m.emitReplace(it)
		case len(it.changes) > 0:
			s := m.step(it, Update, whyUpdate(it))
			s.Changes = it.changes
			s.Want = diff.Prune(it.desired.Spec, it.desired.Lifecycle.Ignore)
			s.After = it.becomes(s.Before)
			m.add(it, s)
		case it.record == nil && it.statesNothing() && ByItself(*it.traits, it.ref, it.thing):
			it.unchanged = true // it can never be changed, deleted or missing
		case it.record == nil && it.traits.Mark && it.thing.Mark.IsZero() && it.traits.Update != providers.Never:
			s := m.step(it, Update, "adopted as is; ownership mark added")
			s.After = s.Before
			m.add(it, s)
		case it.unmarked():
			s := m.step(it, Update, whyUnmarked(it))
			s.After = s.Before
			m.add(it, s)
		case it.traits.Mark && it.thing.Mark.Site == m.plan.Site.ID && it.thing.Mark.Ref != it.ref && it.traits.Update != providers.Never:
			s := m.step(it, Update, whyMoved(it))
			s.After = s.Before
			m.add(it, s)
		case it.recordStale:
			s := m.step(it, Adopt, whyAdopt(it))
			s.After = s.Before
			m.add(it, s)
		default:
			it.unchanged = true
		}
	}
	slices.SortFunc(m.plan.Drift, func(a, b Drift) int { return a.Ref.Compare(b.Ref) })
}

// remarkable reports whether something is wrong with a thing that stays, although it is ready.
func (it *item) remarkable() bool {
	return it.desired != nil && !it.refused && it.replace == "" && it.thing != nil && it.thing.Phase == providers.Ready && it.thing.Detail != ""
}

// ByItself reports whether a thing exists whatever converge does, and is named by its id: it is described, and never ours.
func ByItself(t providers.Traits, ref schema.Ref, thing *providers.Thing) bool {
	return t.Create == providers.Never && t.Delete == providers.Never && !t.Mark && thing.ID == ref.Name
}

// statesNothing reports whether the document only mentions the thing.
func (it *item) statesNothing() bool {
	l := it.desired.Lifecycle
	return len(diff.Prune(it.desired.Spec, l.Ignore)) == 0 && !l.Protect && l.OnRemove == ""
}

func recordedSpec(it *item) schema.Object {
	if it.record == nil {
		return nil
	}
	return it.record.Spec
}

// becomes returns the spec of the thing after it was changed as the document says. What the document ignores stays as it is.
func (it *item) becomes(have schema.Object) schema.Object {
	return diff.Merge(it.kind, it.desired.Spec, have, recordedSpec(it), it.desired.Lifecycle.Ignore)
}

// ignored returns the paths that the document ignores, sorted.
func (it *item) ignored() []string { return slices.Sorted(slices.Values(it.desired.Lifecycle.Ignore)) }

// emitRemoved decides about a recorded resource that has left the document.
func (m *maker) emitRemoved(it *item) {
	forget := func(reason string) {
		s := m.step(it, Forget, reason)
		s.Record = nil
		if it.thing != nil && it.thing.Mark.Site == m.plan.Site.ID { // its mark stays, and does not make it a stray
			s.Record = &state.Record{Ref: it.ref, ID: it.thing.ID, Incarnation: it.born, Gone: true}
		}
		m.add(it, s)
	}
	left := "no longer declared"
	if m.in.Options.Destroy {
		left = "scheduled for destruction"
	}
	switch {
	case it.succeeded:
		forget(left + ", and already gone: another one with its name was created outside converge, and stays")
	case it.thing == nil:
		forget(left + ", and already gone")
	case m.external[it.ref] != nil:
		forget("declared external: the object stays")
	case it.record.OnRemove == schema.Forget:
		forget(left + "; on_remove is forget: the object stays")
	case it.traits.Delete == providers.Never:
		forget(left + "; a " + it.kind.Name + " cannot be deleted: the object stays")
	case it.record.OnRemove == schema.Refuse:
		m.refuse(it.ref, "it is "+left+" but its on_remove is refuse", `declare it again, or set lifecycle.on_remove to "delete" or "forget" first`)
	case it.record.Protect:
		m.refuse(it.ref, "it is "+left+" but is protected", "declare it again, or apply it once with lifecycle.protect set to false")
	default:
		m.add(it, m.removal(it, left))
	}
}

// ours reports whether a thing bears a mark of this site.
func (m *maker) ours(t *providers.Thing) bool {
	return !t.Mark.IsZero() && t.Mark.Site == m.plan.Site.ID
}

func (m *maker) emitReplace(it *item) {
	switch {
	case it.traits.Create == providers.Never || it.traits.Delete == providers.Never:
		m.refuse(it.ref, "it would have to be replaced ("+it.replace+"), but a "+it.kind.Name+" cannot be deleted and recreated", "undo that change in the document")
		return
	case it.remade(it.thing) && !m.ours(it.thing):
		m.refuse(it.ref, "it would have to be replaced ("+it.replace+"), but it was created outside converge, in place of the one that converge managed", "change the document to what it is, and adopt it first; or delete it by hand")
		return
	case it.desired.Lifecycle.Protect || (it.record != nil && it.record.Protect):
		m.refuse(it.ref, "it would have to be replaced ("+it.replace+"), but it is protected", "undo that change, or apply it once with lifecycle.protect set to false")
		return
	}
	s := m.removal(it, it.replace)
	s.Replace = true
	if it.handover { // what refers to it is moved to the new one before the old one is deleted
		m.emitCreate(it, it.born+1, it.replace)
		made := &m.plan.Steps[len(m.plan.Steps)-1]
		made.Replace, made.Beside, made.Changes, made.After = true, true, it.changes, m.carried(it, made.After)
		s.Stray, s.Record = true, made.Record
		s.Needs = append(s.Needs, len(m.plan.Steps)-1)
		m.add(it, s)
		return
	}
	m.add(it, s)
	m.emitCreate(it, it.born+1, it.replace)
	made := &m.plan.Steps[len(m.plan.Steps)-1]
	made.Replace, made.Changes, made.After = true, it.changes, m.carried(it, made.After)
	made.Needs = append(made.Needs, len(m.plan.Steps)-2)
}

// carried returns the spec with which a replaced thing is made anew: what the document ignores is taken from the old one, because
// others have set it. What cannot be observed of the old one, and a reference to what this plan removes, is as the document says.
func (m *maker) carried(it *item, after schema.Object) schema.Object {
	is := diff.Named(it.kind, it.thing.Spec, m.names.In(it.ref.Scope))
	lost := func(path string) bool {
		name := diff.Change{Path: path}.Field()
		f := it.kind.Field(name)
		if f == nil || f.Computed || sealed.Holds(f) || slices.Contains(it.thing.Unfilled, name) {
			return true
		}
		k := schema.Kind{Fields: []schema.Field{*f}}
		for kind, id := range k.Refs(it.thing.Spec) {
			if r, ok := m.names.Find(it.ref.Scope, kind, id); ok && m.byRef[r] != nil && m.byRef[r].desired == nil {
				return true
			}
		}
		return false
	}
	return diff.Spare(after, is, slices.DeleteFunc(it.ignored(), lost))
}

func (m *maker) removal(it *item, reason string) Step {
	s := m.step(it, Delete, reason)
	s.Record = m.left(it)
	return s
}

// left returns the record of a deleted thing: which of its ids are used up.
func (m *maker) left(it *item) *state.Record {
	if !it.traits.UsedOnce() {
		return nil
	}
	return &state.Record{Ref: it.ref, Incarnation: it.born, Gone: true}
}

func (m *maker) emitCreate(it *item, incarnation int, reason string) {
	if it.traits.Create == providers.Never {
		m.refuse(it.ref, "it does not exist, and a "+it.kind.Name+" cannot be created", "remove it from the document, or create the object outside converge")
		return
	}
	s := m.step(it, Create, reason)
	s.Before, s.UID, s.Mark, s.Version = nil, "", providers.Mark{}, ""
	s.After, s.Incarnation, s.Chosen = it.desired.Spec, incarnation, it.chosen
	if len(it.chosen) > 0 {
		s.After = s.After.Clone()
		for _, c := range it.chosen {
			s.After[c.Field] = c.ID
		}
	}
	s.ExternalID = ExternalID(m.plan.Site.ID, *it.traits, it.ref, incarnation, it.desired.Spec)
	s.Record = m.record(it, s.ExternalID, incarnation)
	m.add(it, s)
}

// step returns a step with the fields that every step of an item has.
func (m *maker) step(it *item, a Action, reason string) Step {
	s := Step{Ref: it.ref, Action: a, Reason: reason, Prior: m.prior(it.ref)}
	if it.thing != nil {
		s.Before = diff.Named(it.kind, it.thing.Spec, m.names.In(it.ref.Scope))
		s.ExternalID, s.UID, s.Mark, s.Version = it.thing.ID, it.thing.UID, it.thing.Mark, it.thing.Version
		s.Incarnation = max(it.born, 1)
		if a == Delete && it.named() {
			s.Called = it.thing.Name
		}
	} else if it.record != nil {
		s.ExternalID, s.Incarnation = it.record.ID, it.record.Incarnation
	}
	if it.desired != nil {
		s.Want = it.desired.Spec
		s.Record = m.record(it, s.ExternalID, s.Incarnation)
		if a != Adopt || it.record == nil || it.record.UID != "" || !it.traits.Mark || !it.thing.Mark.IsZero() { // else it would have to be marked
			s.Record.UID = s.UID
		}
	}
	for i := range it.changes {
		if c := &it.changes[i]; c.Disruption == schema.NeedsRestart {
			c.Disruption = it.restarts()
		}
		s.disrupt(it.changes[i])
	}
	return s
}

// restarts returns what a change interrupts that needs a restart: nothing in what is made anew, and otherwise what the restart does, where the
// document requests it.
func (it *item) restarts() string {
	if it.replace != "" {
		return ""
	}
	if it.desired != nil {
		for _, field := range it.traits.Later {
			f, stated := it.kind.Field(field), it.desired.Spec[field]
			if f != nil && stated != nil && stated != false && f.Disruption != "" && !slices.Contains(it.desired.Lifecycle.Ignore, field) {
				return f.Disruption
			}
		}
	}
	return schema.NeedsRestart
}

// disrupt takes over what a change interrupts, of several what the first does. What only waits for a restart comes last.
func (s *Step) disrupt(c diff.Change) {
	if s.Disruption == "" || s.Disruption == schema.NeedsRestart && c.Disruption != "" {
		s.Disruption = c.Disruption
	}
}

// within returns the longest wait for the result of a step: the document's, else the kind's.
func within(it *item, a Action) time.Duration {
	var own schema.Timeouts
	if it.desired != nil {
		own = it.desired.Timeouts
	}
	switch a {
	case Create:
		return cmp.Or(own.Create, it.traits.ReadyWithin)
	case Update:
		return cmp.Or(own.Update, it.traits.ReadyWithin)
	case Delete:
		return cmp.Or(own.Delete, it.traits.GoneWithin)
	}
	return 0
}

func (m *maker) record(it *item, id string, incarnation int) *state.Record {
	r := &state.Record{
		Ref: it.ref, ID: id, Incarnation: incarnation, Spec: it.desired.Spec, After: it.desired.After,
		Protect: it.desired.Lifecycle.Protect, OnRemove: it.desired.Lifecycle.OnRemove, Ignore: it.ignored(),
	}
	if it.named() && it.thing.ID == id && it.called() != it.ref.Name {
		r.Name = it.called()
	}
	return r
}

func (m *maker) prior(ref schema.Ref) *state.Record {
	i, ok := slices.BinarySearchFunc(m.in.Recorded, ref, func(r state.Record, ref schema.Ref) int { return r.Ref.Compare(ref) })
	if !ok {
		return nil
	}
	return &m.in.Recorded[i]
}

func (m *maker) add(it *item, s Step) {
	s.Within = within(it, s.Action)
	i := len(m.plan.Steps)
	h, ok := m.at[it.ref]
	if !ok {
		h = halves{-1, -1}
	}
	if s.Action == Delete || s.Action == Forget {
		h.remove = i
	} else {
		h.make = i
	}
	m.at[it.ref] = h
	m.plan.Steps = append(m.plan.Steps, s)
}

func (m *maker) refuse(ref schema.Ref, reason, text string, do ...remedy.Action) {
	m.plan.Refusals = append(m.plan.Refusals, Refuse(ref, reason, text, do...))
}

// disappeared refuses a plan because the document, or the site, has lost more at once than is plausible.
func (m *maker) disappeared(reason, text string, do ...remedy.Action) {
	m.plan.Refusals = append(m.plan.Refusals, Refuse(schema.Ref{}, reason, text, do...).breaking(RuleDisappearance))
}
