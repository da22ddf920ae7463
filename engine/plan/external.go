package plan

import (
	"cmp"
	"fmt"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// An External is a thing that the document only refers to: it exists, and others manage it.
type External struct {
	Ref       schema.Ref `json:"ref"` // as the document names it
	ID        string     `json:"id"`
	Name      string     `json:"name,omitempty"`      // the name that it was found by; empty: the document states its id
	Unchecked string     `json:"unchecked,omitempty"` // why its existence was not checked; empty: it was observed
}

// Lost returns why the thing found with the external id of x is no longer the one that the document refers to; empty when it
// is. t is nil when none was found.
func (x External) Lost(t *providers.Thing) string {
	switch {
	case t == nil || t.Phase == providers.Deleting:
		return "it is external and no longer exists"
	case x.Name != "" && t.Name != x.Name:
		return fmt.Sprintf("it is external and is now named %q", t.Name)
	}
	return ""
}

// externals finds what the document only refers to, and replaces every reference to it by name with one by external id. From
// then on it is as if the document had said so: for converge, what is external has no name, no record and no step.
func (m *maker) externals() error {
	m.desired = m.in.Document.Resources
	if m.in.Options.Destroy || m.in.Options.Sweep || !slices.ContainsFunc(m.desired, func(r schema.Resource) bool { return r.External != nil }) {
		return nil
	}
	m.external, m.outsiders, m.awaits = map[schema.Ref]*item{}, map[*providers.Thing]bool{}, map[schema.Ref][]*item{}
	ids := map[schema.Ref]string{}
	m.desired = nil
	for i := range m.in.Document.Resources {
		if r := &m.in.Document.Resources[i]; r.External != nil {
			it := &item{ref: r.Ref, traits: &unserved, desired: r}
			m.external[r.Ref] = it
			id, err := m.lookUp(it)
			if err != nil {
				return err
			}
			ids[r.Ref] = id
		}
	}
	for _, r := range m.in.Document.Resources {
		if r.External != nil {
			continue
		}
		if slices.ContainsFunc(r.After, func(to schema.Ref) bool { return m.external[to] != nil }) {
			m.refer(&r, ids)
		}
		m.desired = append(m.desired, r)
	}
	return nil
}

// lookUp returns the external id of a thing; empty when that is refused or unknown.
func (m *maker) lookUp(it *item) (id string, err error) {
	at := it.ref.Place()
	id = it.desired.External.ID
	if said, ok := m.in.Observed.Unsupported[at]; ok {
		if id == "" {
			it.refused = true
			m.refuse(it.ref, fmt.Sprintf("it is external, but the server cannot tell which %s has this name: %s", at.Kind, said),
				`identify it with external: {id: "..."}; that id is then not checked`)
			return "", nil
		}
		m.plan.Externals = append(m.plan.Externals, External{Ref: it.ref, ID: id, Unchecked: "the server cannot list " + at.Kind})
		return id, nil
	}
	if err := m.describe(it, at); err != nil || it.unknown {
		return "", err
	}
	var found []*providers.Thing
	things := m.in.Observed.Things[at]
	for i := range things {
		t := &things[i]
		if Meant(it.desired, t) {
			found = append(found, t)
		}
	}
	switch {
	case len(found) == 1:
		it.thing, m.outsiders[found[0]] = found[0], true
		x := External{Ref: it.ref, ID: found[0].ID}
		if id == "" {
			x.Name = found[0].Name
		}
		m.plan.Externals = append(m.plan.Externals, x)
		return found[0].ID, nil
	case len(found) > 1:
		m.refuse(it.ref, fmt.Sprintf("it is external, but %d objects of kind %s have this name", len(found), at.Kind), `identify it with external: {id: "..."}`)
	case it.kind.Reference():
		m.refuse(it.ref, fmt.Sprintf("there is no %s %s", at.Kind, cmp.Or(id, it.ref.Name)), "correct the name, or remove it from the document")
	case id != "":
		m.refuse(it.ref, fmt.Sprintf("it is external, but there is no %s with the id %s", at.Kind, id), "correct the id, or create the object")
	default:
		m.refuse(it.ref, fmt.Sprintf("it is external, but there is no %s with this name", at.Kind),
			`create it, identify it with external: {id: "..."}, or remove external to have converge create it`)
	}
	it.refused = true
	return "", nil
}

// Meant reports whether a thing, in the place of an external resource, can be what the resource refers to.
func Meant(r *schema.Resource, t *providers.Thing) bool {
	if r.External.ID != "" {
		return t.Phase != providers.Deleting && t.ID == r.External.ID
	}
	return Called(t, r.Ref.Name)
}

// Called reports whether the name of something external can refer to a thing.
func Called(t *providers.Thing, name string) bool {
	return t.Phase != providers.Deleting && (t.Name == name || t.ID == name)
}

// refer writes external ids into a resource; the document's own copy stays as it is.
func (m *maker) refer(r *schema.Resource, ids map[schema.Ref]string) {
	kind := m.in.Kinds[r.Ref.Kind]
	if kind == nil {
		return
	}
	var after []schema.Ref
	outside := slices.Clone(r.Outside)
	for _, to := range r.After {
		if m.external[to] == nil {
			after = append(after, to)
			continue
		}
		m.awaits[r.Ref] = append(m.awaits[r.Ref], m.external[to])
	}
	r.Spec = r.Spec.Clone()
	kind.ReplaceRefs(r.Spec, func(k, name string) string {
		for _, to := range []schema.Ref{{Scope: r.Ref.Scope, Kind: k, Name: name}, {Scope: schema.ScopeSite, Kind: k, Name: name}} {
			if id := ids[to]; id != "" {
				outside = append(outside, schema.Ref{Scope: to.Scope, Kind: k, Name: id})
				return id
			}
		}
		return name
	})
	kind.Normalize(r.Spec)
	r.After, r.Outside = after, schema.SortRefs(outside)
}

// await marks as undecided what refers to something external that could not be found.
func (m *maker) await() {
	for _, it := range m.items {
		if it.desired == nil {
			continue
		}
		for _, of := range m.awaits[it.ref] {
			it.refused = it.refused || of.refused
			if of.unknown && !it.unknown {
				it.unknown, it.lacks = true, of.ref
			}
		}
	}
}

// leaveAside keeps only the externals that the plan is about.
func (m *maker) leaveAside(in selection) {
	m.plan.Externals = slices.DeleteFunc(m.plan.Externals, func(e External) bool { return !m.about(e.Ref.Place(), e.Ref.Name, in) })
}

// about reports whether the plan covers a resource of a place, or something that refers to an external thing there; with
// a name, to that one.
func (m *maker) about(at schema.Place, name string, in selection) bool {
	if in == nil {
		return true
	}
	return slices.ContainsFunc(m.items, func(it *item) bool {
		if !in.has(it.ref) {
			return false
		}
		return name == "" && it.ref.Scope == at.Scope && it.ref.Kind == at.Kind || slices.ContainsFunc(m.awaits[it.ref], func(of *item) bool {
			return of.ref.Scope == at.Scope && of.ref.Kind == at.Kind && (name == "" || of.ref.Name == name)
		})
	})
}

// Outside returns what a spec refers to by external id, which is neither declared nor recorded under a name. After is what it
// refers to by name.
func Outside(ks schema.Kinds, ref schema.Ref, spec schema.Object, after []schema.Ref) (refs []schema.Ref) {
	kind := ks[ref.Kind]
	if kind == nil {
		return nil
	}
	for k, name := range kind.Refs(spec) {
		if to := ks.Target(ref.Scope, k, name); !slices.Contains(after, to) {
			refs = append(refs, to)
		}
	}
	return schema.SortRefs(refs)
}
