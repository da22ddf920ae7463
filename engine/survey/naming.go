package survey

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A naming maps each thing to the ref under which a document would declare it.
type naming struct {
	refs      map[*providers.Thing]schema.Ref
	used      map[schema.Ref]*providers.Thing
	names     plan.Names
	ambiguous map[*providers.Thing]bool // its name is ambiguous
	others    map[*providers.Thing]bool // made by another site, or by the far side itself
	kinds     schema.Kinds
	records   map[schema.Ref]*state.Record
}

// name names all things: as recorded, as marked, or as they are named on the far side. Two things of the same name get
// different ones.
func (s *Survey) name(ks schema.Kinds) *naming {
	n := &naming{
		refs: map[*providers.Thing]schema.Ref{}, used: map[schema.Ref]*providers.Thing{}, names: plan.Names{},
		ambiguous: map[*providers.Thing]bool{}, others: map[*providers.Thing]bool{}, kinds: ks, records: map[schema.Ref]*state.Record{},
	}
	recorded := s.recorded()
	for i := range s.Recorded {
		if r := &s.Recorded[i]; !r.Gone {
			n.records[r.Ref] = r
		}
	}
	give := func(t *providers.Thing, ref schema.Ref) {
		n.refs[t], n.used[ref] = ref, t
		n.names.Put(ref, t.ID)
	}
	for at, things := range s.Observed.Things {
		traits, _ := s.Traits(at.Scope, at.Kind)
		for i := range things { // first those whose name is settled
			t := &things[i]
			ref, known := recorded.Find(at.Scope, at.Kind, t.ID)
			if !known && t.Mark.Site == s.Site.ID && t.Mark.Ref.Scope == at.Scope && t.Mark.Ref.Kind == at.Kind {
				ref, known = t.Mark.Ref, true
			}
			if known && n.used[ref] == nil {
				give(t, ref)
			}
		}
		order := make([]*providers.Thing, 0, len(things))
		called := map[string]int{}
		for i := range things {
			t := &things[i]
			if _, done := n.refs[t]; !done && t.Phase != providers.Deleting {
				order = append(order, t)
				n.others[t] = t.Derived || !t.Mark.IsZero() && t.Mark.Site != s.Site.ID
			}
			called[t.Name]++
		}
		slices.SortFunc(order, func(a, b *providers.Thing) int { // what could become ours gets its name first
			first := func(t *providers.Thing) int {
				if n.others[t] {
					return 1
				}
				return 0
			}
			return cmp.Or(first(a)-first(b), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
		})
		for _, t := range order {
			n.ambiguous[t] = called[t.Name] > 1
			give(t, n.free(at, t, ks[at.Kind], traits, s.Site.ID))
		}
	}
	return n
}

// free returns a name that is not used in the place.
func (n *naming) free(at schema.Place, t *providers.Thing, k *schema.Kind, traits providers.Traits, site string) schema.Ref {
	name := cmp.Or(t.Name, t.ID)
	if traits.ID != "" { // the id is made from the name, and perhaps from fields
		for _, try := range []string{t.Name, t.ID, path.Base(t.ID)} {
			if plan.ExternalID(site, traits, schema.Ref{Name: try}, 1, t.Spec) == t.ID {
				name = try
				break
			}
		}
	} else {
		name = strings.Trim(strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
				return r
			}
			return '-'
		}, name), "-._")
		if len(name) < 2 {
			_, noun, _ := strings.Cut(k.Name, ".")
			name = strings.TrimSuffix(noun+"-"+name, "-")
		}
	}
	ref := schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: name}
	for i := 2; n.used[ref] != nil; i++ {
		ref.Name = fmt.Sprintf("%s-%d", name, i)
	}
	return ref
}
