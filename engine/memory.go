package engine

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Memory is what an engine remembers of a site from one look to the next, so that a report or a plan costs what has changed, not
// what the site has. Both are those of [Engine.Drift] and [Engine.Plan], of the site as it was when each place was observed last:
// a place is observed again when somebody says that it may have changed ([Memory.Changed]), when it was unknown, and when what is
// remembered of it is old; so is what a run has changed, and everything in the scopes of that run whose provider reports no changes.
//
// A Memory changes nothing. It is not for concurrent use, nor is it used while its engine is.
type Memory struct {
	e *Engine
	o Remembering

	doc        *schema.Document // as it was given last
	desired    *schema.Document // the same with the digests of its secrets
	unreadable error            // why desired has no such digests, or is as it was before; nil: neither

	records map[schema.Place]map[string]*state.Record // by name
	base    *drift.Base                               // of the records
	settled int64                                     // epoch up to which they have what runs have changed,
	amended int64                                     // and revision up to which what others have
	doubted bool                                      // they are to be read again
	newest  string                                    // run at that time
	worked  int64                                     // see [Engine.Plan]
	begun   map[schema.Ref]bool

	seen    map[schema.Place]*sight
	changed map[schema.Place]ids // has to be observed again
	servers []state.Server
	mute    map[providers.Need]bool // those that did not say who they are
	known   []state.Server

	planning, drifting line
	placed             bool // these are about the right places, for the providers that were open then:
	opened             int
}

// Remembering says how long a Memory trusts what it remembers.
type Remembering struct {
	Silent time.Duration // how long, of a place whose provider does not report changes
	Sweep  time.Duration // how long, of all others
}

// A line is a series of plans, each made from what has changed since the one before.
type line struct {
	at      map[schema.Place]bool // the places that it is about
	planner *plan.Planner         // nil: the next plan is made from everything
	changes plan.Changes          // since the last plan
}

// Remember returns a memory in which nothing is remembered yet.
func (e *Engine) Remember(o Remembering) *Memory {
	return &Memory{e: e, o: o, seen: map[schema.Place]*sight{}, changed: map[schema.Place]ids{}}
}

// Doubt makes everything be read and observed again, because something shows that what is remembered is wrong, or nobody has reported
// what has changed.
func (m *Memory) Doubt() {
	m.doubted = true
	m.suspect(func(schema.Place) bool { return true })
}

// Due returns when something is remembered for so long that it is to be looked at again.
func (m *Memory) Due() time.Time {
	oldest := m.e.o.Now()
	for _, s := range m.seen {
		if s.at.Before(oldest) {
			oldest = s.at
		}
	}
	return oldest.Add(m.o.Sweep)
}

// Changed says what may have changed at the site.
func (m *Memory) Changed(changes []Changed) {
	for _, c := range changes {
		m.changed[c.Place] = m.changed[c.Place].and(c.IDs)
	}
}

// Look brings the memory up to date with a document, with the store, and with what may have changed at the site. After an error it is
// as up to date as before, or more.
func (m *Memory) Look(ctx context.Context, doc *schema.Document) error {
	runs, err := m.e.o.Store.Runs(ctx)
	if err != nil {
		return err
	}
	amended, err := m.e.o.Store.Amended(ctx)
	if err != nil {
		return err
	}
	m.worked = workedBy(runs, amended)
	if err := m.recall(ctx, runs, amended); err != nil {
		return err
	}
	if err := m.state(ctx, doc); err != nil {
		return err
	}
	if begun := m.e.unresolved(ctx, runs); !maps.Equal(begun, m.begun) {
		m.begun, m.placed = begun, false
		m.planning.changes.Begun, m.drifting.changes.Begun = begun, begun
	}
	set, err := m.reach(ctx)
	if err != nil {
		return err
	}
	if err := m.observe(ctx, set); err != nil {
		return err
	}
	if m.known, err = m.e.o.Store.Servers(ctx); err != nil {
		return err
	}
	for _, l := range []*line{&m.planning, &m.drifting} {
		l.changes.Servers, l.changes.Known = append([]state.Server{}, m.servers...), append([]state.Server{}, m.known...) // empty is not nil
	}
	return ctx.Err()
}

// recall reads what runs, and whoever amended the records, have changed since.
func (m *Memory) recall(ctx context.Context, runs []state.Run, amended state.Amended) error {
	i := slices.IndexFunc(runs, func(r state.Run) bool { return r.ID == m.newest })
	pruned := i < 0 && len(runs) > 0 || i >= keepRuns // maybe some that were never seen
	all := m.records == nil || m.doubted || amended.Revision != m.amended || pruned
	settled, touched := max(m.settled, amended.Epoch), map[schema.Ref]bool{}
	for _, run := range runs {
		open := run.Status == state.RunOpen
		if !open {
			settled = max(settled, run.Epoch)
		}
		if all || !open && run.Epoch <= m.settled {
			continue
		}
		if p, _, err := planOf(ctx, m.e.o.Store, run); err == nil {
			for i := range p.Steps {
				s := &p.Steps[i]
				touched[s.Ref] = true
				m.changed[s.Ref.Place()] = m.changed[s.Ref.Place()].and([]string{s.ExternalID})
			}
		} else { // whatever it has changed
			all = true
		}
	}
	if !all && len(touched) == 0 {
		return nil
	}
	if m.placed = false; all {
		records, err := m.e.o.Store.Records(ctx)
		if err != nil {
			return err
		}
		m.Doubt()
		if m.doubted = false; m.desired != nil {
			share(records, m.desired.Resources)
		}
		m.e.register(ctx, records, nil)
		m.records, m.base = map[schema.Place]map[string]*state.Record{}, drift.NewBase(m.e.o.Kinds)
		for i := range records {
			m.record(records[i].Ref, &records[i])
		}
		m.planning.planner, m.drifting.planner = nil, nil
	} else {
		records, err := m.e.recordsOf(ctx, touched)
		if err != nil {
			return err
		}
		m.e.register(ctx, records, nil)
		m.touched(touched)
		for i := range records {
			m.record(records[i].Ref, &records[i])
			delete(touched, records[i].Ref)
		}
		for ref := range touched {
			m.record(ref, nil)
		}
	}
	m.settled, m.amended, m.newest = settled, amended.Revision, ""
	if len(runs) > 0 {
		m.newest = runs[0].ID
	}
	return nil
}

// suspect makes places be observed again.
func (m *Memory) suspect(which func(schema.Place) bool) {
	for at := range m.seen {
		if which(at) {
			m.changed[at] = ids{}
		}
	}
}

// touched makes everything be observed again whose provider does not report what a run may have changed there, in the scopes of its
// steps. What their things were and are is observed again by their records.
func (m *Memory) touched(refs map[schema.Ref]bool) {
	scopes := map[string]bool{}
	for ref := range refs {
		scopes[ref.Scope] = true
	}
	m.suspect(func(at schema.Place) bool { return scopes[at.Scope] && m.seen[at].silent })
}

// record replaces a record; nil removes it.
func (m *Memory) record(ref schema.Ref, r *state.Record) {
	at := ref.Place()
	was := m.records[at][ref.Name]
	if r == nil && was == nil || r != nil && was != nil && reflect.DeepEqual(r, was) {
		return
	}
	if r == nil {
		if delete(m.records[at], ref.Name); len(m.records[at]) == 0 {
			delete(m.records, at)
		}
	} else {
		if m.records[at] == nil {
			m.records[at] = map[string]*state.Record{}
		}
		m.records[at][ref.Name] = r
	}
	for _, r := range []*state.Record{was, r} {
		if r != nil {
			m.changed[at] = m.changed[at].and([]string{r.ID})
		}
	}
	m.base.Set(ref, r)
	for _, l := range []*line{&m.planning, &m.drifting} {
		set(&l.changes.Records, ref, r)
	}
	m.leave(ref)
}

// leave notes what the report compares a resource with: what is recorded of it, or what the document leaves to others.
func (m *Memory) leave(ref schema.Ref) {
	r := m.records[ref.Place()][ref.Name]
	if r != nil && !r.Gone {
		set(&m.drifting.changes.Resources, ref, drift.Left(r))
		return
	}
	set(&m.drifting.changes.Resources, ref, nil)
	if want := resourceOf(m.desired, ref); want != nil && want.External != nil {
		m.drifting.changes.Resources[ref] = want
	}
}

func set[K comparable, V any](in *map[K]*V, k K, v *V) {
	if *in == nil {
		*in = map[K]*V{}
	}
	(*in)[k] = v
}

func resourceOf(doc *schema.Document, ref schema.Ref) *schema.Resource {
	if doc == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(doc.Resources, ref, func(r schema.Resource, ref schema.Ref) int { return r.Ref.Compare(ref) })
	if !ok {
		return nil
	}
	return &doc.Resources[i]
}

// state takes a document.
func (m *Memory) state(ctx context.Context, doc *schema.Document) error {
	desired, err := m.e.readable(ctx, doc)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if m.unreadable = err; err != nil { // a report needs no secrets
		if desired = m.desired; m.doc != doc {
			desired = doc
		}
	}
	was := m.desired
	m.doc, m.desired = doc, desired
	if was == nil || was.Site.ID != desired.Site.ID {
		m.planning.planner, m.drifting.planner, m.placed = nil, nil, false
		return nil
	}
	if was.Digest != desired.Digest || was.Site != desired.Site || was.Author != desired.Author {
		m.planning.changes.Document, m.drifting.changes.Document = desired, &schema.Document{Site: desired.Site}
	}
	if len(was.Resources) == len(desired.Resources) && (len(was.Resources) == 0 || &was.Resources[0] == &desired.Resources[0]) {
		return nil
	}
	for a, b := range paired(was.Resources, desired.Resources) {
		if a != nil && b != nil && sameResource(a, b) {
			continue
		}
		ref := cmp.Or(b, a).Ref
		set(&m.planning.changes.Resources, ref, b)
		m.leave(ref)
		m.placed = false
	}
	return nil
}

// paired yields the resources of two documents by ref; nil where a document does not have it.
func paired(a, b []schema.Resource) iter.Seq2[*schema.Resource, *schema.Resource] {
	return func(yield func(a, b *schema.Resource) bool) {
		for len(a)+len(b) > 0 {
			c := 0
			switch {
			case len(a) == 0:
				c = 1
			case len(b) == 0:
				c = -1
			default:
				c = a[0].Ref.Compare(b[0].Ref)
			}
			var x, y *schema.Resource
			if c <= 0 {
				x, a = &a[0], a[1:]
			}
			if c >= 0 {
				y, b = &b[0], b[1:]
			}
			if !yield(x, y) {
				return
			}
		}
	}
}

// reach connects to the providers that are needed, and says what the plans and the reports are about.
func (m *Memory) reach(ctx context.Context) (*providers.Set, error) {
	scopes := m.e.reopened
	m.e.reopened = nil
	m.suspect(func(at schema.Place) bool { return scopes[at.Scope] })
	if m.placed { // as before, but what could not be reached is tried again
		if _, err := m.e.connect(ctx, m.desired.Site, needs(m.everywhere())); err != nil {
			return nil, err
		}
	}
	for !m.placed || m.opened != m.e.opened { // what is open decides where else to look
		m.opened = m.e.opened
		if err := m.place(ctx); err != nil {
			return nil, err
		}
		m.placed = true
	}
	return m.e.set, nil
}

// place finds out what plans and reports are about.
func (m *Memory) place(ctx context.Context) error {
	planning := reaching{at: map[schema.Place]bool{}, live: map[schema.Place]bool{}}
	drifting := reaching{strays: true, at: map[schema.Place]bool{}, live: map[schema.Place]bool{}}
	for at, named := range m.records {
		exists := false
		for _, r := range named {
			exists = exists || !r.Gone
		}
		planning.record(at, exists)
		drifting.record(at, exists)
	}
	for to := range m.base.Outside() {
		drifting.at[to.Place()] = true
	}
	planning.document(m.e.o.Kinds, m.desired)
	drifting.document(m.e.o.Kinds, &schema.Document{Resources: externals(m.desired)})
	if _, err := planning.reach(ctx, m.e, m.desired.Site, m.begun); err != nil {
		return err
	}
	if _, err := drifting.reach(ctx, m.e, m.desired.Site, m.begun); err != nil {
		return err
	}
	m.planning.about(planning.at)
	m.drifting.about(drifting.at)
	return nil
}

// everywhere returns all places that plans or reports are about.
func (m *Memory) everywhere() map[schema.Place]bool {
	all := make(map[schema.Place]bool, len(m.drifting.at))
	maps.Copy(all, m.planning.at)
	maps.Copy(all, m.drifting.at)
	return all
}

func (l *line) about(at map[schema.Place]bool) {
	if !maps.Equal(l.at, at) {
		l.at, l.planner = at, nil
	}
}

// externals returns what a document leaves to others.
func externals(doc *schema.Document) (list []schema.Resource) {
	for i := range doc.Resources {
		if doc.Resources[i].External != nil {
			list = append(list, doc.Resources[i])
		}
	}
	return list
}

// input returns everything that a plan, or a report, is made from.
func (m *Memory) input(at map[schema.Place]bool, doc *schema.Document) plan.Input {
	return plan.Input{
		Kinds: m.e.o.Kinds, Document: doc, Recorded: m.recorded(), Observed: m.observation(at),
		Servers: slices.Clone(m.servers), Known: m.known, Begun: m.begun, Traits: m.e.set.Traits,
	}
}

func (m *Memory) recorded() []state.Record {
	n := 0
	for _, named := range m.records {
		n += len(named)
	}
	records := make([]state.Record, 0, n)
	for _, named := range m.records {
		for _, r := range named {
			records = append(records, *r)
		}
	}
	slices.SortFunc(records, state.ByRef)
	return records
}

func (m *Memory) observation(places map[schema.Place]bool) plan.Observation {
	o := plan.Observation{Things: map[schema.Place][]providers.Thing{}, Unknown: map[schema.Place]string{}, Unsupported: map[schema.Place]string{}}
	for at := range places {
		s := m.seen[at]
		if s == nil { // the look at it failed
			o.Unknown[at] = "it has not been observed yet"
			continue
		}
		switch s.sort {
		case observed:
			o.Things[at] = make([]providers.Thing, len(s.things))
			for i, t := range s.things {
				o.Things[at][i] = *t
			}
		case unknown:
			o.Unknown[at] = s.why
		case unsupported:
			o.Unsupported[at] = s.why
		}
	}
	return o
}

// ambiguous reports whether no planner can continue: things cannot be told apart, or another server answers, whose things are not ours.
func (m *Memory) ambiguous() bool {
	for _, s := range m.seen {
		if s.twice {
			return true
		}
	}
	return len(strangers(m.known, m.servers)) > 0
}

// next makes the next plan of a line. Base returns what the first one is made from.
func (l *line) next(id string, base func() plan.Input) (p *plan.Plan, err error) {
	ch := l.changes
	l.changes = plan.Changes{}
	if l.planner != nil {
		ch.ID = id
		if p, err = l.planner.Plan(ch); err == nil {
			return p, nil
		}
		l.planner = nil
	}
	in := base()
	in.ID = id
	l.planner, p, err = plan.NewPlanner(in)
	return p, err
}

// Plan is [Engine.Plan] of the document and the site as they are remembered.
func (m *Memory) Plan(ctx context.Context, o plan.Options) (*plan.Plan, error) {
	if m.unreadable != nil {
		return nil, m.unreadable
	}
	e := m.e
	var p *plan.Plan
	var err error
	whole := func() plan.Input { return m.input(m.planning.at, m.desired) }
	if m.ambiguous() || !reflect.ValueOf(o).IsZero() { // a planner that goes on takes no options
		in := whole()
		p, err = e.decide(ctx, &in, o)
	} else if p, err = m.planning.next(e.o.NewID(e.o.Now()), whole); err == nil {
		p.Author, p.Passing = m.desired.Author, e.passing
	}
	if err != nil {
		return nil, err
	}
	p.Worked = m.worked
	e.obstruct(ctx, p)
	return p, e.judge(ctx, p, m.desired, m.base.Live())
}

// Drift is [Engine.Drift] of the site as it is remembered.
func (m *Memory) Drift(ctx context.Context) (*drift.Report, error) {
	at := m.e.o.Now().UTC()
	if m.ambiguous() {
		in := m.input(m.drifting.at, &schema.Document{Site: m.desired.Site, Resources: externals(m.desired)})
		if err := m.e.distrust(ctx, &in); err != nil {
			return nil, err
		}
		return drift.Compare(in, at)
	}
	p, err := m.drifting.next("", func() plan.Input {
		doc := schema.Document{Site: m.desired.Site, Resources: externals(m.desired)}
		doc.Resources = slices.DeleteFunc(doc.Resources, func(r schema.Resource) bool { return m.base.IDOf(r.Ref) != "" })
		doc.Resources = slices.Grow(doc.Resources, m.base.Live())
		for _, named := range m.records {
			for _, r := range named {
				if !r.Gone {
					doc.Resources = append(doc.Resources, *drift.Left(r))
				}
			}
		}
		slices.SortFunc(doc.Resources, func(a, b schema.Resource) int { return a.Ref.Compare(b.Ref) })
		in := m.input(m.drifting.at, &doc)
		in.Rest = true
		return in
	})
	if err != nil {
		return nil, err
	}
	return m.base.Report(p, m.sightOf, m.begun, at), nil
}

// sameResource reports whether two resources with the same ref are the same. Those that a revision does not touch share their specs.
func sameResource(a, b *schema.Resource) bool {
	x, y := &a.Lifecycle, &b.Lifecycle
	return sameObject(a.Spec, b.Spec) && slices.Equal(a.After, b.After) && slices.Equal(a.Outside, b.Outside) && a.Timeouts == b.Timeouts &&
		x.Protect == y.Protect && x.OnRemove == y.OnRemove && slices.Equal(x.Ignore, y.Ignore) && x.Adopt == y.Adopt && x.ID == y.ID &&
		(a.External == nil) == (b.External == nil) && (a.External == nil || *a.External == *b.External)
}

func sameObject(a, b schema.Object) bool {
	return len(a) == len(b) && reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer() || a.Equal(b)
}
