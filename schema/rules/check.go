package rules

import (
	"cmp"
	"slices"
	"strings"

	"converge.dev/converge/schema"
)

// A check is one way to find violations of a rule. It is done for a whole site, or again for what a revision has touched. All checks
// may read the policy, which a revision leaves as it is.
type check interface {
	// whole checks everything.
	whole(st *Site, p *reporter)

	// again checks what was touched. It finds every violation that the change caused, provided there was none before.
	again(st *Site, t *Touched, p *reporter)
}

// each checks resources one at a time. Check reads the resource, what that refers to, and what that refers to in turn.
type each struct {
	of    func(*schema.Kind) bool // kinds; nil: all
	check func(st *Site, r *Resource, p *reporter)
}

func (e each) whole(st *Site, p *reporter) {
	for r := range st.ofKinds(e.of) {
		if r.sound {
			e.check(st, r, p)
		}
	}
}

func (e each) again(st *Site, t *Touched, p *reporter) {
	for _, r := range t.Resources {
		if r.sound && (e.of == nil || e.of(r.Kind)) {
			e.check(st, r, p)
		}
	}
}

// A key is what resources may have in common. One that is not meant as a pair has an empty second half.
type key [2]string

// sharing checks resources that have a key in common.
type sharing struct {
	of       func(*schema.Kind) bool
	external bool // also what is external

	// keys calls has with every key of r, and the path of the value that it comes from. It reads what an each may read.
	keys func(st *Site, r *Resource, has func(k key, path ...string))

	// check is called for every key of every resource that shares it. Shared lists at least two resources with that key, in the
	// order of refs, r at index n among them: a resource that has a key twice is listed twice. The time that all calls for a key take
	// grows with their number only.
	check func(st *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter)
}

func (s *sharing) whole(st *Site, p *reporter) {
	g := s.groups(st)
	if st.kept != nil {
		st.kept.mu.Lock()
		st.kept.groups[s] = g
		st.kept.mu.Unlock()
	}
	var members []*Resource
	for _, group := range g.more {
		members = append(members, group...)
	}
	s.compare(st, members, g, nil, p)
}

func (s *sharing) again(st *Site, t *Touched, p *reporter) {
	g, only := st.kept.groups[s], t.keys[s]
	var members []*Resource
	for k := range only {
		members = append(members, g.more[k]...)
	}
	s.compare(st, members, g, only, p)
}

// compare checks the keys of some resources, which may be listed several times; only those of only unless that is nil.
func (s *sharing) compare(st *Site, members []*Resource, g *groups, only map[key]bool, p *reporter) {
	slices.SortFunc(members, byNumber)
	members = slices.Compact(members)
	var before []key // of r
	for _, r := range members {
		before = before[:0]
		s.keys(st, r, func(k key, path ...string) {
			shared := g.more[k]
			if shared == nil || only != nil && !only[k] {
				return
			}
			n, _ := slices.BinarySearchFunc(shared, r, byNumber)
			for _, b := range before {
				if b == k {
					n++
				}
			}
			before = append(before, k)
			s.check(st, r, path, k, shared, n, p)
		})
	}
}

// taken returns a check that only the first of several has the key. The text has a place for the key and one for the ref of the
// first.
func taken(text string) func(st *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
	return func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.report(r, path, text, k[0], shared[0].Ref)
		}
	}
}

// groups are resources by the keys that they have.
type groups struct {
	one  map[key]*Resource   // the only one
	more map[key][]*Resource // two or more, in the order of refs
}

// groups finds the keys of all resources.
func (s *sharing) groups(st *Site) *groups {
	g := &groups{map[key]*Resource{}, map[key][]*Resource{}}
	for r := range st.ofKinds(s.of) {
		if s.takes(r) {
			s.keys(st, r, func(k key, _ ...string) { g.add(k, r) })
		}
	}
	return g
}

// takes reports whether a resource of one of the kinds has keys that can be read.
func (s *sharing) takes(r *Resource) bool { return r.sound || s.external && r.External != nil }

func (g *groups) add(k key, r *Resource) {
	if shared := g.more[k]; shared != nil {
		i, _ := slices.BinarySearchFunc(shared, r, byNumber)
		g.more[k] = slices.Insert(shared, i, r)
	} else if other := g.one[k]; other != nil {
		g.more[k] = []*Resource{other, r}
		slices.SortFunc(g.more[k], byNumber)
		delete(g.one, k)
	} else {
		g.one[k] = r
	}
}

func (g *groups) remove(k key, r *Resource) {
	if g.one[k] == r {
		delete(g.one, k)
		return
	}
	shared := g.more[k]
	i := slices.Index(shared, r)
	if i < 0 {
		return
	}
	if shared = slices.Delete(shared, i, i+1); len(shared) > 1 {
		g.more[k] = shared
		return
	}
	g.one[k] = shared[0]
	delete(g.more, k)
}

func byNumber(a, b *Resource) int { return cmp.Compare(a.Number, b.Number) }

// together checks all resources of some kinds together. Check reads no others.
type together struct {
	kinds []string
	check func(st *Site, p *reporter)
}

func (c together) whole(st *Site, p *reporter) { c.check(st, p) }

func (c together) again(st *Site, t *Touched, p *reporter) {
	if slices.ContainsFunc(t.Changed, func(r *Resource) bool { return slices.Contains(c.kinds, r.Ref.Kind) }) {
		c.check(st, p)
	}
}

// named returns a condition that holds for the kinds with these names.
func named(names ...string) func(*schema.Kind) bool {
	return func(k *schema.Kind) bool { return slices.Contains(names, k.Name) }
}

// carbideKinds holds for all kinds of Carbide.
func carbideKinds(k *schema.Kind) bool { return strings.HasPrefix(k.Name, "carbide.") }
