package plan

import (
	"net/netip"
	"slices"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// shared returns a value that both lists claim.
func shared(a, b []providers.Claim) (providers.Claim, bool) {
	for _, c := range a {
		if slices.ContainsFunc(b, c.Excludes) {
			return c, true
		}
	}
	return providers.Claim{}, false
}

// had and has return what the thing claims now, and what it will claim. References are by name.
func (m *maker) had(it *item) []providers.Claim {
	if len(it.traits.Exclusive) == 0 {
		return nil
	}
	name := it.thing.Name
	if name == "" {
		name = it.ref.Name
	}
	return it.traits.Claims(name, diff.Named(it.kind, it.thing.Spec, m.names.In(it.ref.Scope)))
}

func (it *item) has(spec schema.Object) []providers.Claim { return it.traits.Claims(it.ref.Name, spec) }

// handovers decides which replaced things are made anew before the old ones are deleted: those to which something that stays
// refers in a way that can change, because the far side refuses to delete what is in use. Old and new have different ids,
// which the engine chooses. Where they cannot exist at the same time, because they share what is exclusive or because what
// contains them cannot, the old one is deleted first, and what refers to it is detached meanwhile; see [maker.untangle].
func (m *maker) handovers() {
	replaced := map[schema.Ref]*item{}
	users := map[schema.Ref][]*item{}
	for _, it := range m.items {
		if it.desired == nil || it.thing == nil || it.unknown || it.refused {
			continue
		}
		if it.replace != "" {
			replaced[it.ref] = it
		}
		for _, r := range it.desired.After {
			users[r] = append(users[r], it)
		}
	}
	can := map[*item]bool{}
	var possible func(it *item) bool
	possible = func(it *item) bool {
		if ok, known := can[it]; known {
			return ok
		}
		_, clash := shared(m.had(it), it.has(it.desired.Spec))
		ok := it.traits.ID == "" && !clash && !slices.ContainsFunc(it.chosen, it.keeps)
		for _, r := range it.desired.After {
			if p := replaced[r]; ok && p != nil {
				ok = possible(p)
			}
		}
		can[it] = ok
		return ok
	}
	wants := map[*item]bool{}
	var wanted func(it *item) bool
	wanted = func(it *item) bool {
		if want, known := wants[it]; known {
			return want
		}
		want := false
		for _, d := range users[it.ref] {
			if len(uses(d.kind, d.desired.Spec, it.ref)) > 0 && (d.replace == "" || possible(d) && wanted(d)) {
				want = true
			}
		}
		wants[it] = want
		return want
	}
	for _, it := range replaced {
		it.handover = possible(it) && wanted(it)
	}
}

// exclude makes every step that takes an exclusive value wait for the step in which another thing gives it up.
func (m *maker) exclude(need func(step, before int)) {
	type giver struct {
		it   *item
		step int
		providers.Claim
	}
	byValue, blocks := map[schema.Place]map[providers.Claim][]giver{}, map[schema.Place][]giver{}
	give := func(it *item, step int, cs []providers.Claim) {
		at := it.ref.Place()
		if byValue[at] == nil {
			byValue[at] = map[providers.Claim][]giver{}
		}
		for _, c := range cs {
			byValue[at][c] = append(byValue[at][c], giver{it, step, c})
			if c.Block.IsValid() {
				blocks[at] = append(blocks[at], giver{it, step, c})
			}
		}
	}
	type taker struct {
		it   *item
		step int
		cs   []providers.Claim
	}
	var takers []taker
	without := func(a, b []providers.Claim) []providers.Claim {
		return slices.DeleteFunc(slices.Clone(a), func(c providers.Claim) bool { return slices.ContainsFunc(b, c.Excludes) })
	}
	for _, it := range m.items {
		h, ok := m.at[it.ref]
		if !ok || len(it.traits.Exclusive) == 0 {
			continue
		}
		var had []providers.Claim
		if it.thing != nil {
			had = m.had(it)
		}
		if h.remove >= 0 && m.plan.Steps[h.remove].Action == Delete {
			give(it, h.remove, had)
		}
		if h.make < 0 {
			continue
		}
		switch s := &m.plan.Steps[h.make]; s.Action {
		case Create:
			takers = append(takers, taker{it, h.make, it.has(s.After)})
		case Update:
			has := it.has(s.After)
			give(it, h.make, without(had, has))
			takers = append(takers, taker{it, h.make, without(has, had)})
		}
	}
	for _, list := range blocks {
		slices.SortFunc(list, func(a, b giver) int { return a.Block.Addr().Compare(b.Block.Addr()) })
	}
	for _, t := range takers {
		at := t.it.ref.Place()
		from := func(g giver) {
			if g.it != t.it {
				need(t.step, g.step)
			}
		}
		for _, c := range t.cs {
			for _, g := range byValue[at][c] {
				from(g)
			}
			if !c.Block.IsValid() {
				continue
			}
			// Blocks are nested or disjoint: what overlaps begins inside this one, or is one of those around it.
			list := blocks[at]
			i, _ := slices.BinarySearchFunc(list, c.Block.Addr(), func(g giver, a netip.Addr) int { return g.Block.Addr().Compare(a) })
			for ; i < len(list) && c.Block.Contains(list[i].Block.Addr()); i++ {
				if c.Excludes(list[i].Claim) {
					from(list[i])
				}
			}
			for bits := c.Block.Bits() - 1; bits >= 0; bits-- {
				around := netip.PrefixFrom(c.Block.Addr(), bits).Masked()
				for _, g := range byValue[at][providers.Claim{Of: c.Of, Value: around.String(), Within: c.Within, Block: around}] {
					from(g)
				}
			}
		}
	}
}
