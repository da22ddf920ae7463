package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A Chosen is a field that the document leaves to the planner, and what was chosen for it.
type Chosen struct {
	Field string `json:"field"`
	Kind  string `json:"kind"`
	ID    string `json:"id"`  // external id of the chosen thing, of the same scope as the step
	Why   string `json:"why"` // in words
}

// Unfit returns why a thing cannot be chosen, for any resource; empty when it can. It is checked when a plan is made and,
// because time passes, once more before it is applied. Own says that the old half of the resource has the thing: it may be
// unavailable because of that, so it only has to be well.
func Unfit(c *schema.Choice, t *providers.Thing, own bool) string { return unfit(c, t, t.Spec, own) }

func unfit(c *schema.Choice, t *providers.Thing, spec schema.Object, own bool) string {
	said := []schema.Object{t.Status, spec}
	switch {
	case t.Phase != providers.Ready:
		return cmp.Or(t.Detail, "not ready")
	case own && t.Detail != "":
		return t.Detail
	case own:
		said = said[1:]
	}
	for _, name := range c.Unless {
		for _, fields := range said {
			if v, ok := fields[name]; ok {
				if text, ok := v.(string); ok {
					return text
				}
				return name
			}
		}
	}
	return ""
}

// A candidate is a thing that could be chosen.
type candidate struct {
	thing *providers.Thing
	spec  schema.Object // its spec after the plan, references as names
	taken bool
	left  *item // it is replaced, and its old half has the thing
}

// choose fills in, for everything to be made, the fields that the document leaves to the planner. Equal inputs result in equal
// choices: resources choose in the order of their refs, each from where there are fewest of its like, and there the first
// in the order of ids. What is replaced keeps its own when nothing else fits.
func (m *maker) choose() {
	pools := map[schema.Place]*pool{}
	for _, it := range m.items {
		if it.desired == nil || it.unknown || it.refused || it.thing != nil && it.replace == "" {
			continue
		}
		for i := range it.kind.Fields {
			f := &it.kind.Fields[i]
			if f.Choose == nil {
				continue
			}
			if _, stated := it.desired.Spec[f.Name]; stated {
				continue
			}
			at := schema.Place{Scope: it.ref.Scope, Kind: f.Choose.Kind}
			if pools[at] == nil {
				pools[at], m.chose = m.pool(at, it.kind, f), true
			}
			chosen, none := pools[at].choose(it, f)
			if none != "" {
				it.refused = true
				m.refuse(it.ref, fmt.Sprintf("no %s can be chosen for its %s: %s", f.Choose.Kind, f.Name, none),
					fmt.Sprintf("free one, change what it requires, or set its %s explicitly", f.Name))
				break
			}
			it.chosen = append(it.chosen, chosen)
		}
	}
}

// held keeps what a thing was chosen by as it is as long as what chose it is there, because the far side would refuse to change
// it in the middle of the run: such a change waits for the removal of what chose the thing, and is refused when that stays.
func (m *maker) held() {
	for _, it := range m.items {
		h, ok := m.at[it.ref]
		if !ok || h.make < 0 {
			continue
		}
		for _, b := range Unsettles(m.in.Kinds, &m.plan.Steps[h.make]) {
			m.chose = true
			m.hold(it, h.make, b)
		}
	}
}

// hold is held for one step and one way in which it unsettles.
func (m *maker) hold(it *item, step int, b Basis) {
	names := m.names.In(it.ref.Scope)
	becomes := it.becomes(diff.Named(it.kind, it.thing.Spec, names))[b.Same]
	things := m.in.Observed.Things[schema.Place{Scope: it.ref.Scope, Kind: b.Kind.Name}]
	for i := range things {
		t := &things[i]
		if id, _ := t.Spec[b.Field].(string); id != it.thing.ID || t.Phase == providers.Deleting {
			continue
		}
		says, wants := fmt.Sprintf("%s %s (id %s)", b.Kind.Name, t.Name, t.ID), diff.Named(b.Kind, t.Spec, names)
		if of := m.owners[t]; of != nil {
			if h, ok := m.at[of.ref]; ok && h.remove >= 0 {
				m.need(step, h.remove)
				continue
			}
			says = of.ref.String()
			if of.desired != nil {
				wants = of.becomes(wants)
			}
		}
		if want, stated := wants[b.Same]; stated && want != becomes {
			it.refused, m.dropped[step] = true, len(m.plan.Refusals)
			m.refuse(it.ref, fmt.Sprintf("its %s would change from %v to %v, but %s stays on it and needs %v", b.Same, want, becomes, says, want),
				fmt.Sprintf("keep its %s as it is, or first remove %s", b.Same, says))
			return
		}
	}
}

// A Basis is what a kind chooses things by: the thing in its field Field has the same value in the field Same.
type Basis struct {
	Kind        *schema.Kind
	Field, Same string
}

// Unsettles returns in which respects a step changes what its thing may have been chosen by, in the order of the kinds. Whether
// something did choose it takes a look at all things of these kinds.
func Unsettles(kinds schema.Kinds, s *Step) (by []Basis) {
	if s.Action != Update {
		return nil
	}
	for _, k := range kinds {
		for i := range k.Fields {
			f := &k.Fields[i]
			if f.Choose == nil || f.Choose.Kind != s.Ref.Kind {
				continue
			}
			for _, same := range f.Choose.Same {
				if slices.ContainsFunc(s.Changes, func(c diff.Change) bool { return c.Path == same }) {
					by = append(by, Basis{k, f.Name, same})
				}
			}
		}
	}
	slices.SortFunc(by, func(a, b Basis) int {
		return cmp.Or(strings.Compare(a.Kind.Name, b.Kind.Name), strings.Compare(a.Field, b.Field))
	})
	return by
}

// A pool is all things of a place from which a kind chooses.
type pool struct {
	unseen     string
	candidates []candidate
	used       map[string]map[string]int // how many resources with the same request there are in each place
}

// pool collects the candidates, and what is taken: by what exists, and by what the document names.
func (m *maker) pool(at schema.Place, user *schema.Kind, f *schema.Field) *pool {
	p := &pool{used: map[string]map[string]int{}}
	things, seen := m.in.Observed.Things[at]
	if !seen {
		p.unseen = cmp.Or(m.in.Observed.Unknown[at], m.in.Observed.Unsupported[at], "the candidates were not observed")
		return p
	}
	kind := m.in.Kinds[at.Kind]
	byID := make(map[string]*candidate, len(things))
	p.candidates = make([]candidate, len(things))
	for i := range things {
		t := &things[i]
		spec := diff.Named(kind, t.Spec, m.names.In(at.Scope))
		if it := m.owners[t]; it != nil && it.desired != nil {
			spec = it.becomes(spec)
		}
		p.candidates[i] = candidate{thing: t, spec: spec}
		byID[t.ID] = &p.candidates[i]
	}
	slices.SortFunc(p.candidates, func(a, b candidate) int { return strings.Compare(a.thing.ID, b.thing.ID) })
	for i := range p.candidates {
		byID[p.candidates[i].thing.ID] = &p.candidates[i]
	}
	mine := schema.Place{Scope: at.Scope, Kind: user.Name}
	theirs := m.in.Observed.Things[mine]
	for i := range theirs {
		id, _ := theirs[i].Spec[f.Name].(string)
		c := byID[id]
		if c == nil {
			continue
		}
		switch it := m.owners[&theirs[i]]; {
		case it != nil && it.desired != nil && it.replace != "" && c.left == nil:
			c.left = it
		default:
			c.taken = true
			if it != nil && it.desired != nil && it.replace == "" {
				p.count(it, f, c)
			}
		}
	}
	for _, it := range m.items {
		if it.ref.Scope != mine.Scope || it.ref.Kind != mine.Kind || it.desired == nil || it.thing != nil && it.replace == "" {
			continue
		}
		id, _ := it.desired.Spec[f.Name].(string)
		if c := byID[id]; c != nil {
			c.taken = true
			p.count(it, f, c)
		}
	}
	return p
}

// like returns a key that is equal for resources that ask for the same.
func like(it *item, f *schema.Field) string {
	parts := make([]string, len(f.Choose.Same))
	for i, name := range f.Choose.Same {
		parts[i], _ = it.desired.Spec[name].(string)
	}
	return strings.Join(parts, "\x00")
}

func where(f *schema.Field, c *candidate) string {
	s, _ := c.thing.Status[f.Choose.Spread].(string)
	return s
}

func (p *pool) count(it *item, f *schema.Field, c *candidate) {
	key := like(it, f)
	if p.used[key] == nil {
		p.used[key] = map[string]int{}
	}
	p.used[key][where(f, c)]++
}

// choose takes a candidate for a resource, or returns why there is none.
func (p *pool) choose(it *item, f *schema.Field) (chosen Chosen, none string) {
	if p.unseen != "" {
		return chosen, p.unseen
	}
	used := p.used[like(it, f)]
	var best, own *candidate
	fit, reasons := 0, map[string]int{}
	for i := range p.candidates {
		c := &p.candidates[i]
		if why := p.unlike(it, f, c); why != "" {
			reasons[why]++
			continue
		}
		if c.left == it {
			own = c
			continue
		}
		fit++
		if best == nil || used[where(f, c)] < used[where(f, best)] {
			best = c
		}
	}
	why := fmt.Sprintf("one of %d that fit", fit)
	switch {
	case best == nil && own == nil:
		parts := make([]string, 0, len(reasons))
		for _, why := range slices.Sorted(maps.Keys(reasons)) {
			parts = append(parts, fmt.Sprintf("%d: %s", reasons[why], why))
		}
		return chosen, cmp.Or(strings.Join(parts, "; "), "none exist")
	case best == nil:
		best, why = own, "its current one, because no other fits"
	case where(f, best) != "":
		at := where(f, best)
		why = fmt.Sprintf("%s, in %s %s, which has %d like it", why, f.Choose.Spread, at, used[at])
	}
	best.taken = true
	p.count(it, f, best)
	return Chosen{f.Name, f.Choose.Kind, best.thing.ID, why}, ""
}

// unlike returns why a candidate does not suit a resource.
func (p *pool) unlike(it *item, f *schema.Field, c *candidate) string {
	for _, name := range f.Choose.Same {
		want, stated := it.desired.Spec[name].(string)
		if have, _ := c.spec[name].(string); stated && have != want {
			return name + " is not " + want
		}
	}
	labels, _ := c.spec["labels"].(map[string]any)
	for key, want := range labelsOf(it.desired.Spec, f.Choose.Labels) {
		if have, ok := labels[key]; !ok || have != want {
			return fmt.Sprintf("label %s is not %q", key, want)
		}
	}
	if c.taken || c.left != nil && c.left != it {
		return "taken"
	}
	return unfit(f.Choose, c.thing, c.spec, c.left == it)
}

// keeps reports whether the new half of a replaced thing is to have what the old half has.
func (it *item) keeps(c Chosen) bool { return it.thing != nil && it.thing.Spec[c.Field] == c.ID }

// labelsOf returns the labels at a path of a spec, in the order of their keys.
func labelsOf(spec schema.Object, path string) func(yield func(string, any) bool) {
	var at any = map[string]any(spec)
	for name := range strings.SplitSeq(path, ".") {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	m, _ := at.(map[string]any)
	return func(yield func(string, any) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
