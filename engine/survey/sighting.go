package survey

import (
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

// Items returns what was observed, without revisions, sorted by scope, kind and id.
func (s *Survey) Items(ks schema.Kinds) []Item {
	items := []Item{}
	all := s.items(ks)
	for _, at := range slices.SortedFunc(maps.Keys(all), schema.Place.Compare) {
		items = append(items, all[at]...)
	}
	return items
}

// A Sighting is what was observed last, over several surveys. The zero value has observed nothing.
type Sighting struct {
	items   map[schema.Place][]Item
	unknown map[schema.Place]bool
}

// Sort is what a change is, in one word.
type Sort string

// The sorts of changes.
const (
	Added   Sort = "added"
	Changed Sort = "changed"
	Removed Sort = "removed"
	Lost    Sort = "unknown"  // a kind can no longer be observed; what there is of it counts as unchanged
	Found   Sort = "observed" // it is observed again
)

// A Change is how one survey differs from those before.
type Change struct {
	Sort   Sort          `json:"change"`
	Scope  string        `json:"scope"`
	Kind   string        `json:"kind"`
	Item   *Item         `json:"item,omitempty"`   // as it is; as it was, when it was removed
	Fields []diff.Change `json:"fields,omitempty"` // which fields of its spec differ
	Error  string        `json:"error,omitempty"`  // why the kind is unknown
}

// Update records a survey and returns how it differs from what was observed before. Places that it does not have are as they were.
func (g *Sighting) Update(ks schema.Kinds, s *Survey) []Change {
	if g.items == nil {
		g.items, g.unknown = map[schema.Place][]Item{}, map[schema.Place]bool{}
	}
	var changes []Change
	lost := map[schema.Place]bool{}
	for _, u := range s.Unknown() {
		at := schema.Place{Scope: u.Scope, Kind: u.Kind}
		if lost[at] = true; !g.unknown[at] {
			changes = append(changes, Change{Sort: Lost, Scope: at.Scope, Kind: at.Kind, Error: u.Error})
		}
		g.unknown[at] = true
	}
	for at := range g.unknown {
		if !lost[at] && s.observed(at) {
			delete(g.unknown, at)
			changes = append(changes, Change{Sort: Found, Scope: at.Scope, Kind: at.Kind})
		}
	}
	seen := s.items(ks)
	for at, is := range seen {
		changes = append(changes, between(ks[at.Kind], g.items[at], is)...)
		g.items[at] = is
	}
	slices.SortStableFunc(changes, func(a, b Change) int {
		return schema.Place{Scope: a.Scope, Kind: a.Kind}.Compare(schema.Place{Scope: b.Scope, Kind: b.Kind})
	})
	return changes
}

// observed reports whether a survey has observed a place, or any kind of a provider, which is unknown as PROVIDER.* while it cannot be
// opened.
func (s *Survey) observed(at schema.Place) bool {
	if _, ok := s.Observed.Things[at]; ok {
		return true
	}
	provider, all := strings.CutSuffix(at.Kind, "*")
	if !all {
		return false
	}
	for p := range s.Observed.Things {
		if p.Scope == at.Scope && strings.HasPrefix(p.Kind, provider) {
			return true
		}
	}
	return false
}

// between compares the items of a place, sorted by id.
func between(k *schema.Kind, was, is []Item) (changes []Change) {
	add := func(sort Sort, i *Item, fields []diff.Change) {
		changes = append(changes, Change{Sort: sort, Scope: i.Scope, Kind: i.Kind, Item: i, Fields: fields})
	}
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(was) == 0 || len(is) > 0 && is[0].ID < was[0].ID:
			add(Added, &is[0], nil)
			is = is[1:]
		case len(is) == 0 || was[0].ID < is[0].ID:
			add(Removed, &was[0], nil)
			was = was[1:]
		default:
			if !same(&was[0], &is[0]) {
				add(Changed, &is[0], diff.Between(k, was[0].Spec, is[0].Spec, plan.Names{}.In(is[0].Scope)))
			}
			was, is = was[1:], is[1:]
		}
	}
	return changes
}

func same(a, b *Item) bool { return digestOf(a) == digestOf(b) }
