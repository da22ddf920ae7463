package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Referrers returns the kinds that can refer to a kind, by name.
func Referrers(kinds schema.Kinds, kind string) []*schema.Kind {
	var found []*schema.Kind
	for _, name := range kinds.Names() {
		if kinds[name].Spec().Has(func(f *schema.Field) bool { return f.Ref == kind }) {
			found = append(found, kinds[name])
		}
	}
	return found
}

// A Referent is a thing that others refer to.
type Referent struct{ Kind, ID string }

// references lists what an observed spec refers to.
func references(k *schema.Kind, spec schema.Object) (all []Referent) {
	for kind, id := range k.Refs(spec) {
		if to := (Referent{kind, id}); !slices.Contains(all, to) {
			all = append(all, to)
		}
	}
	return all
}

// Refers reports whether a spec with external ids refers to a thing.
func Refers(k *schema.Kind, spec schema.Object, to Referent) bool {
	return slices.Contains(references(k, spec), to)
}

// ByReferent returns which of some things of a kind refer to what, in the order in which they are listed, each once.
func ByReferent(k *schema.Kind, things []providers.Thing) map[Referent][]*providers.Thing {
	by := map[Referent][]*providers.Thing{}
	for i := range things {
		for _, to := range references(k, things[i].Spec) {
			by[to] = append(by[to], &things[i])
		}
	}
	return by
}

// orphans refuses to delete what something that stays is observed to refer to: the far side would refuse the delete half-way
// through the plan, or would not notice and leave a dangling reference. In the latter case every referring kind must have been
// observed too, and package apply checks once more right before each such delete. What this plan also deletes, or points
// elsewhere, does not count. What converge does not know of is left to a far side that checks.
func (m *maker) orphans() {
	for i := range m.plan.Steps {
		s := &m.plan.Steps[i]
		if s.Action != Delete {
			continue
		}
		traits, _ := m.served(s.Ref.Place())
		left, unseen := m.referrers(s, !traits.DeleteUnchecked)
		switch {
		case len(left) > 0:
			then := "the server would refuse that halfway through the plan"
			if traits.DeleteUnchecked {
				then = "the server would leave dangling references behind for good"
			}
			m.refuse(s.Ref, "it would be deleted, but "+strings.Join(left, ", ")+" still "+plural(len(left), "refers", "refer")+" to it",
				then+"; first remove the referring objects or point them elsewhere, or declare them and remove them in the same plan")
		case traits.DeleteUnchecked && unseen != "":
			m.refuse(s.Ref, "it would be deleted, but it is unknown whether anything still refers to it: "+unseen,
				"the server would leave dangling references behind for good; fix the connection, or set lifecycle.on_remove to \"forget\"")
		}
	}
}

// referrers lists what stays and refers to what a step deletes, all of it or only what is declared or recorded, and returns what
// could not be observed.
func (m *maker) referrers(s *Step, ours bool) (left []string, unseen string) {
	const shown = 5
	for _, k := range m.referrersOf(s.Ref.Kind) {
		at := schema.Place{Scope: s.Ref.Scope, Kind: k.Name}
		_, served := m.served(at)
		things, seen := m.in.Observed.Things[at]
		if _, never := m.in.Observed.Unsupported[at]; !served || never {
			continue // none can exist
		}
		if !seen {
			unseen = at.Scope + "/" + at.Kind + " could not be observed"
			continue
		}
		for _, t := range m.referring(at, k, things)[Referent{s.Ref.Kind, s.ExternalID}] {
			of := m.owners[t]
			if m.letsGo(of, s) || ours && (of == nil || of.refused) {
				continue
			}
			if len(left) == shown {
				return append(left, "and more"), unseen
			}
			left = append(left, fmt.Sprintf("%s %s (id %s)", k.Name, t.Name, t.ID))
		}
	}
	return left, unseen
}

// referrersOf is [Referrers] of the kinds of the plan.
func (m *maker) referrersOf(kind string) []*schema.Kind {
	found, ok := m.users[kind]
	if !ok {
		if m.users == nil {
			m.users = map[string][]*schema.Kind{}
		}
		found = Referrers(m.in.Kinds, kind)
		m.users[kind] = found
	}
	return found
}

// referring returns the things of a place that stay and refer to something, by what they refer to.
func (m *maker) referring(at schema.Place, k *schema.Kind, things []providers.Thing) map[Referent][]*providers.Thing {
	if by, ok := m.refers[at]; ok {
		return by
	}
	by := ByReferent(k, things)
	for to, things := range by {
		things = slices.DeleteFunc(things, func(t *providers.Thing) bool { return t.Derived || t.Phase == providers.Deleting })
		slices.SortFunc(things, func(a, b *providers.Thing) int { // whatever order the far side lists them in, the plan is the same
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
		})
		by[to] = things
	}
	if m.refers == nil {
		m.refers = map[schema.Place]map[Referent][]*providers.Thing{}
	}
	m.refers[at] = by
	return by
}

// letsGo reports whether a resource no longer refers to what a step deletes once its own steps are done.
func (m *maker) letsGo(it *item, s *Step) bool {
	if it == nil {
		return false // nothing declares it
	}
	h, changes := m.at[it.ref]
	switch {
	case !changes:
		return false
	case it.desired == nil || h.remove >= 0:
		return h.remove >= 0 && m.plan.Steps[h.remove].Action == Delete
	case slices.Contains(it.desired.After, s.Ref):
		return s.Replace
	}
	return h.make >= 0 && (s.Replace || !Refers(it.kind, m.plan.Steps[h.make].After, Referent{s.Ref.Kind, s.Ref.Name}))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
