package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/graph"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A detachment is an extra update of a thing that removes references before their targets are deleted.
type detachment struct {
	step int
	from []schema.Ref
}

// untangle resolves cycles of steps. Where a thing has to be deleted before its successor can be created, and an update
// moves a reference from one to the other, the update becomes two: one that removes the reference before, and one that puts
// it back afterwards. What cannot be resolved is refused, and left out of the plan.
func (m *maker) untangle() {
	for {
		_, cycle := graph.Levels(m.plan.Needs())
		if cycle == nil {
			return
		}
		if m.split(cycle) {
			continue
		}
		for _, i := range cycle {
			m.plan.Steps[i].Needs = nil
			m.dropped[i] = len(m.plan.Refusals) - 1
		}
	}
}

// split breaks a cycle where something can be detached, or where a replaced thing can be deleted first although its
// successor was to be made first; otherwise it refuses the cycle and returns false.
func (m *maker) split(cycle []int) bool {
	why := func() { m.exchange(cycle) }
	for n, i := range cycle {
		j := cycle[(n+1)%len(cycle)]
		gone, update := &m.plan.Steps[i], &m.plan.Steps[j]
		if gone.Action != Delete || update.Action != Update || update.Detaches {
			continue
		}
		it := m.byRef[update.Ref]
		if !Refers(it.kind, it.thing.Spec, Referent{gone.Ref.Kind, gone.ExternalID}) { // it was recorded, but is no longer so
			m.unneed(i, j)
			return true
		}
		stuck := m.detach(it, i, j)
		if len(stuck) == 0 {
			return true
		}
		why = func() { m.stuck(gone, it, stuck) }
	}
	for n, i := range cycle {
		j := cycle[(n+1)%len(cycle)]
		if it := m.byRef[m.plan.Steps[i].Ref]; it.handover && m.plan.Steps[i].Action == Delete && m.plan.Steps[j].Ref == it.ref {
			m.goesFirst(it, i, j)
			return true
		}
	}
	why()
	return false
}

// goesFirst turns a replacement with handover into one that deletes the old thing before the new one is made.
func (m *maker) goesFirst(it *item, remove, made int) {
	it.handover = false
	m.unneed(remove, made)
	m.need(made, remove)
	m.plan.Steps[made].Beside = false
	s := &m.plan.Steps[remove]
	s.Stray, s.Record = false, m.left(it)
}

func (m *maker) need(step, before int) {
	s := &m.plan.Steps[step]
	if step != before && !slices.Contains(s.Needs, before) {
		s.Needs = append(s.Needs, before)
	}
}

func (m *maker) unneed(step, before int) {
	s := &m.plan.Steps[step]
	s.Needs = slices.DeleteFunc(s.Needs, func(n int) bool { return n == before })
}

// detach makes a delete wait for an update that only removes the reference, not for the one that leads to the desired
// state. It returns the paths of references that cannot be removed.
func (m *maker) detach(it *item, gone, update int) (stuck []use) {
	d := m.detached[it.ref]
	have := it.seen()
	if d != nil {
		have = m.plan.Steps[d.step].After
	}
	lost := m.plan.Steps[gone].Ref
	id := m.plan.Steps[gone].ExternalID
	have, ok := without(it.kind, have, it.traits.Detach, lost.Kind, id)
	if !ok {
		return uses(it.kind, it.thing.Spec, schema.Ref{Kind: lost.Kind, Name: id})
	}
	if d == nil {
		d = &detachment{step: len(m.plan.Steps)}
		m.plan.Steps = append(m.plan.Steps, Step{})
		m.detached[it.ref] = d
	}
	d.from = append(d.from, lost)
	first := m.detaching(it, have, d.from)
	first.Needs = m.plan.Steps[d.step].Needs
	m.plan.Steps[d.step] = first
	m.attaching(it, &m.plan.Steps[update], &first)
	m.unneed(gone, update)
	m.need(gone, d.step)
	m.need(update, d.step)
	return nil
}

// detaching makes the first of the two updates. Its result is written with external ids: what is not detached is still the
// old thing, even where that is about to be replaced too.
func (m *maker) detaching(it *item, have schema.Object, from []schema.Ref) Step {
	lost := make([]string, len(from))
	for i, r := range from {
		lost[i] = r.String()
	}
	s := m.step(it, Update, "it stops referring to "+strings.Join(lost, ", ")+", which "+plural(len(lost), "is", "are")+" deleted first")
	s.Detaches, s.Within, s.After = true, within(it, Update), have
	named := diff.Named(it.kind, have, m.names.In(it.ref.Scope))
	s.Changes = diff.Compare(it.kind, named, s.Before, s.Before, nil, func(_, id string) string { return id })
	s.Want = schema.Object{}
	r := *m.record(it, s.ExternalID, s.Incarnation)
	r.Spec = schema.Object{}
	if it.record != nil {
		r.Spec, r.After = it.record.Spec.Clone(), it.record.After
		for f := range it.record.Spec {
			if v, ok := have[f]; ok {
				s.Want[f] = v
			}
		}
	}
	s.Disruption = "" // what the other changes interrupt is not done yet
	for _, c := range s.Changes {
		f := c.Field()
		delete(r.Spec, f)
		if v, ok := have[f]; ok {
			s.Want[f], r.Spec[f] = v, named[f]
		}
		s.disrupt(c)
	}
	r.After = slices.DeleteFunc(slices.Clone(r.After), func(r schema.Ref) bool { return slices.Contains(from, r) })
	s.Record = &r
	return s
}

// attaching turns an update into the second of the two: it begins where the first one ends.
func (m *maker) attaching(it *item, s, first *Step) {
	names := m.names.In(it.ref.Scope)
	s.Attaches = true
	s.Before = diff.Named(it.kind, first.After, names)
	s.Prior = first.Record
	if it.traits.Mark {
		s.Mark = providers.Mark{Site: m.plan.Site.ID, Ref: it.ref, Incarnation: s.Incarnation}
	}
	s.After = it.becomes(s.Before)
	s.Changes = diff.Compare(it.kind, s.Want, s.Before, recordedSpec(it), it.desired.Lifecycle.Ignore, names)
	for _, c := range it.changes { // a reference to a successor of the same name differs only by id
		if !slices.ContainsFunc(s.Changes, func(d diff.Change) bool { return d.Field() == c.Field() }) {
			s.Changes = append(s.Changes, c)
		}
	}
}

// without returns a copy of an observed spec without its references to a thing; ok is false when it cannot be without them.
func without(k *schema.Kind, spec schema.Object, may []providers.Detachable, kind, id string) (out schema.Object, ok bool) {
	out = spec.Clone()
	to := schema.Ref{Kind: kind, Name: id}
	for i := range k.Fields {
		f := &k.Fields[i]
		if v, has := spec[f.Name]; !has || !f.HasRefs() || len(usesIn(f, v, f.Name, to)) == 0 {
			continue
		}
		list, isList := spec[f.Name].([]any)
		n := slices.IndexFunc(may, func(d providers.Detachable) bool { return d.Field == f.Name })
		if n < 0 || !isList {
			return nil, false
		}
		left := leave(f, list, may[n], to)
		if len(left) < may[n].Least {
			return nil, false
		}
		out[f.Name] = left
	}
	return out, true
}

// leave returns a list without the elements that refer to something, and without those that cannot exist without
// one of these.
func leave(f *schema.Field, list []any, d providers.Detachable, to schema.Ref) []any {
	group := func(e any) string {
		m, _ := e.(map[string]any)
		parts := make([]string, len(d.Group))
		for i, g := range d.Group {
			parts[i] = fmt.Sprint(m[g])
		}
		return strings.Join(parts, "\x00")
	}
	out, headless := make([]bool, len(list)), map[string]bool{}
	for i, e := range list {
		out[i] = len(usesIn(f.Elem, e, "", to)) > 0
		if m, ok := e.(map[string]any); ok && out[i] && d.Head != "" && m[d.Head] == d.HeadIs {
			headless[group(e)] = true
		}
	}
	left := []any{}
	for i, e := range list {
		if !out[i] && !headless[group(e)] {
			left = append(left, schema.Clone(e))
		}
	}
	return left
}

// stuck refuses a delete of what something else cannot be without.
func (m *maker) stuck(gone *Step, it *item, at []use) {
	paths := make([]string, len(at))
	for i, u := range at {
		paths[i] = u.path
	}
	what := "it must be deleted before other objects can be created"
	if gone.Replace {
		what = "it has to be replaced (" + gone.Reason + ") and cannot exist twice"
		if g := m.byRef[gone.Ref]; g != nil && g.thing != nil && g.desired != nil {
			if c, ok := shared(m.had(g), g.has(g.desired.Spec)); ok {
				what += " with " + c.String()
			}
		}
	}
	m.refuse(gone.Ref, fmt.Sprintf("%s, but %s refers to it in %s and cannot drop that reference temporarily", what, it.ref, strings.Join(paths, ", ")),
		fmt.Sprintf("first apply a document in which %s refers to something else or to nothing instead, then apply this one", it.ref))
}

// exchange refuses steps that wait for one another because each takes what another one has.
func (m *maker) exchange(cycle []int) {
	refs := make([]string, 0, len(cycle))
	texts := make([]string, len(cycle))
	for n, i := range cycle {
		s := &m.plan.Steps[i]
		if r := s.Ref.String(); !slices.Contains(refs, r) {
			refs = append(refs, r)
		}
		texts[n] = string(s.Action) + " " + s.Ref.String()
	}
	m.refuse(m.plan.Steps[slices.Min(cycle)].Ref, "these steps wait for one another: "+strings.Join(texts, ", "),
		"make the change in two documents: in the first, "+strings.Join(refs[1:], ", ")+plural(len(refs)-1, " gives up", " all give up")+" what "+refs[0]+" needs, or leave one of them out")
}

// usesIn returns where a value of a field refers to something.
func usesIn(f *schema.Field, v any, path string, to schema.Ref) []use {
	var found []use
	var walk func(f *schema.Field, v any, path string, immutable bool)
	walk = func(f *schema.Field, v any, path string, immutable bool) {
		immutable = immutable || f.Immutable
		switch v := v.(type) {
		case string:
			if f.Ref == to.Kind && v == to.Name {
				found = append(found, use{path, immutable})
			}
		case []any:
			for i, e := range v {
				if f.Elem != nil {
					walk(f.Elem, e, path+"["+strconv.Itoa(i)+"]", immutable)
				}
			}
		case map[string]any:
			for n, e := range v {
				c := f.Elem
				if f.Type == schema.Struct {
					c = f.Field(n)
				}
				if c != nil {
					walk(c, e, path+"."+n, immutable)
				}
			}
		}
	}
	walk(f, v, path, false)
	return found
}
