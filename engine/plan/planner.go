package plan

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Planner makes successive plans of a site. Each is the plan that [Make] makes from the same inputs, with the things of each
// place in the order of their ids. Its cost follows what changed since the previous plan and what is not as it should be, not
// the size of the site.
//
// It decides anew about three sorts of resources: those that changed; those that are not quiet, that is, have a step, a refusal,
// a remark or drift; and those that either may affect, because one refers to the other, both claim one thing, or what is deleted is in
// use. All others are as they should be, and are only counted.
//
// A Planner is not for concurrent use. It owns what it is given: callers must not modify that afterwards.
type Planner struct {
	in    Input // without desired or recorded resources; of the things it has only the places
	world world

	rest    rest                // everything that is quiet
	quiet   map[schema.Ref]bool // the same by ref, and whether it is recorded
	restive map[schema.Ref]bool // all other resources

	external  map[schema.Ref]string // what the document only refers to, and the id with which it was found
	unmanaged []Unmanaged           // as in the last plan
	stale     bool                  // the last plan failed, so that all of this is from an earlier one
}

// A rest is what is as it should be: stated in the document, and observed so.
type rest struct {
	resources int
	recorded  map[schema.Place]int // how many of these are recorded; those that only exist by themselves are not
}

func (r *rest) count(ref schema.Ref, recorded bool, n int) {
	r.resources += n
	if recorded {
		r.recorded[ref.Place()] += n
	}
}

// Changes are the differences from the inputs of the previous plan. Each map holds what is new or has changed, and nil for what
// is gone.
type Changes struct {
	ID        string                          // of the plan
	Document  *schema.Document                // a new revision, whose Resources are not read; nil: unchanged
	Resources map[schema.Ref]*schema.Resource // of the document
	Records   map[schema.Ref]*state.Record
	Things    map[schema.Place]map[string]*providers.Thing // by external id; only of places that were observed for the first plan

	// The following replace the previous values when they are not nil.
	Begun   map[schema.Ref]bool
	Servers []state.Server
	Known   []state.Server
}

// NewPlanner makes the first plan, of everything. The options must be empty: one-off requests are for [Make].
func NewPlanner(in Input) (*Planner, *Plan, error) {
	if !reflect.ValueOf(in.Options).IsZero() {
		return nil, nil, errors.New("an incremental planner takes no options")
	}
	p := &Planner{in: in, world: newWorld(in)}
	header := *in.Document
	header.Resources = nil
	p.in.Document, p.in.Recorded = &header, nil
	p.in.Observed.Things = make(map[schema.Place][]providers.Thing, len(in.Observed.Things))
	for at := range in.Observed.Things {
		p.in.Observed.Things[at] = nil
	}
	plan, err := p.all()
	if err != nil {
		return nil, nil, err
	}
	return p, plan, nil
}

// Plan makes the plan after some changes. Things of a place that was not observed for the first plan are an error, after which
// everything is as before; after any other error the changes are kept, and the next plan decides about everything.
func (p *Planner) Plan(ch Changes) (*Plan, error) {
	for at := range ch.Things {
		if _, observed := p.in.Observed.Things[at]; !observed {
			return nil, fmt.Errorf("%s/%s was not observed when the planner was created: a new planner is required", at.Scope, at.Kind)
		}
	}
	p.in.ID = ch.ID
	s := p.worklist()
	p.take(ch, s)
	if p.stale {
		return p.all()
	}
	for ref := range p.restive {
		s.add(ref)
	}
	for ref := range p.in.Begun {
		s.add(ref)
	}
	for {
		m, err := p.some(s)
		if err != nil || m.chose { // a choice is made from everything that exists
			return p.all()
		}
		if !p.spread(m, s) {
			p.settle(m, s)
			return m.plan, nil
		}
	}
}

// take applies the changes, and selects what they affect.
func (p *Planner) take(ch Changes, s *worklist) {
	if ch.Document != nil {
		header := *ch.Document
		header.Resources = nil
		p.in.Document = &header
	}
	if ch.Servers != nil {
		p.in.Servers = ch.Servers
	}
	if ch.Known != nil {
		p.in.Known = ch.Known
	}
	if ch.Begun != nil {
		for ref := range p.in.Begun {
			s.add(ref)
		}
		p.in.Begun = ch.Begun
	}
	for ref, r := range ch.Resources {
		s.users(ref) // what names it by its external id may not do so once it is declared
		p.world.setResource(ref, r)
		s.add(ref)
		s.users(ref)
	}
	for ref, r := range ch.Records {
		s.users(ref)
		p.world.setRecord(ref, r)
		s.add(ref)
		s.users(ref)
	}
	for at, things := range ch.Things {
		for id, t := range things {
			k := thingKey{at, id}
			s.addThing(k)
			p.world.setThing(k, t)
			s.thingAgain(k)
		}
	}
}

// all decides about everything.
func (p *Planner) all() (*Plan, error) {
	p.stale = true
	in := p.in
	in.Document, in.Recorded = p.world.document(p.in.Document, maps.Keys(p.world.resources)), p.world.recordsOf(maps.Keys(p.world.records))
	in.Observed.Things = p.world.seen(maps.Keys(p.in.Observed.Things))
	m, err := decided(in, rest{})
	if err != nil {
		return nil, err
	}
	p.stale = false
	p.rest = rest{recorded: map[schema.Place]int{}}
	p.quiet, p.restive, p.external = make(map[schema.Ref]bool, len(m.items)), map[schema.Ref]bool{}, map[schema.Ref]string{}
	p.world.forgetOwners()
	p.learn(m)
	p.unmanaged = m.plan.Unmanaged
	return m.plan, nil
}

// some decides about what is selected.
func (p *Planner) some(s *worklist) (*maker, error) {
	s.close()
	left := rest{p.rest.resources, maps.Clone(p.rest.recorded)}
	in := p.in
	in.Document, in.Recorded = p.world.document(p.in.Document, maps.Keys(s.refs)), p.world.recordsOf(maps.Keys(s.refs))
	for ref := range s.refs {
		if recorded, quiet := p.quiet[ref]; quiet {
			left.count(ref, recorded, -1)
		}
	}
	touched := map[schema.Place][]*held{}
	for k := range s.things {
		if h := p.world.things[k]; h != nil {
			touched[k.Place] = append(touched[k.Place], h)
		}
	}
	for at, list := range touched {
		in.Observed.Things[at] = inOrder(list)
	}
	defer func() { // it has all places, and may be large
		for at := range touched {
			in.Observed.Things[at] = nil
		}
	}()
	for at, n := range left.recorded {
		if n == 0 {
			delete(left.recorded, at)
		}
	}
	return decided(in, left)
}

// spread also selects what a decision may affect: what refers to a thing that is removed or replaced, or has become another
// one. It reports whether there was anything.
func (p *Planner) spread(m *maker, s *worklist) bool {
	before := len(s.refs) + len(s.things)
	for _, it := range m.items {
		if h, ok := m.at[it.ref]; it.replace != "" || it.desired == nil || ok && h.remove >= 0 || p.another(it) || it.thing != nil && it.remade(it.thing) {
			s.dependents(it.ref)
			if it.thing != nil {
				s.referrers(thingKey{it.ref.Place(), it.thing.ID})
			}
		}
	}
	for ref := range s.refs {
		was, known := p.external[ref]
		is := m.external[ref]
		if known != (is != nil) || known && was != foundAs(is) || is == nil && m.byRef[ref] == nil { // no longer a resource at all
			s.dependents(ref)
		}
	}
	s.close()
	return len(s.refs)+len(s.things) > before
}

// another reports whether a resource has a thing that was not its own before, or has lost its thing.
func (p *Planner) another(it *item) bool {
	had, ok := p.world.owned[it.ref]
	if it.thing == nil {
		return ok
	}
	return !ok || had.id != it.thing.ID
}

// foundAs returns how something external was found.
func foundAs(it *item) string {
	switch {
	case it.thing != nil:
		return it.thing.ID
	case it.unknown:
		return "\x00unknown"
	case it.refused:
		return "\x00refused"
	}
	return it.desired.External.ID
}

// settle stores what was decided about what is selected.
func (p *Planner) settle(m *maker, s *worklist) {
	for ref := range s.refs {
		if recorded, quiet := p.quiet[ref]; quiet {
			p.rest.count(ref, recorded, -1)
			delete(p.quiet, ref)
		}
		delete(p.restive, ref)
		delete(p.external, ref)
		p.world.disown(ref)
	}
	p.learn(m)
	others := slices.DeleteFunc(slices.Clone(p.unmanaged), func(f Unmanaged) bool { return s.things[thingKey{schema.Place{Scope: f.Scope, Kind: f.Kind}, f.ID}] })
	m.plan.Unmanaged = merged(others, m.plan.Unmanaged)
	p.unmanaged = m.plan.Unmanaged
}

// learn records which resources are quiet, and which resource owns each thing.
func (p *Planner) learn(m *maker) {
	drifted := make(map[schema.Ref]bool, len(m.plan.Drift))
	for i := range m.plan.Drift {
		drifted[m.plan.Drift[i].Ref] = true
	}
	for _, it := range m.items {
		if it.thing != nil {
			p.world.own(it.ref, thingKey{it.ref.Place(), it.thing.ID})
		}
		if it.unchanged && !it.refused && !drifted[it.ref] && !it.remarkable() {
			p.quiet[it.ref] = it.record != nil
			p.rest.count(it.ref, it.record != nil, 1)
		} else {
			p.restive[it.ref] = true
		}
	}
	for ref, it := range m.external {
		p.restive[ref] = true
		p.external[ref] = foundAs(it)
	}
}

// merged merges two sorted lists.
func merged(a, b []Unmanaged) []Unmanaged {
	if len(a) == 0 {
		return b
	}
	all := make([]Unmanaged, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if compareForeign(a[0], b[0]) < 0 {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}
