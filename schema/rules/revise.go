package rules

import (
	"slices"
	"sync"

	"converge.dev/converge/schema"
)

// kept is what a site needs so that a revision costs what it changes.
type kept struct {
	mu     sync.Mutex
	groups map[*sharing]*groups
	users  map[schema.Ref]map[*Resource]bool // what refers to a ref, whether that exists or not
}

// Keep has the site prepare for [Site.Revise]. It is called after all resources have been accepted and before the site is checked.
func (st *Site) Keep() {
	st.kept = &kept{groups: map[*sharing]*groups{}, users: make(map[schema.Ref]map[*Resource]bool, len(st.Resources))}
	for _, r := range st.Resources {
		st.kept.link(r)
	}
}

func (k *kept) link(r *Resource) {
	for _, to := range slices.Concat(r.After, r.Outside, r.missing) {
		if k.users[to] == nil {
			k.users[to] = map[*Resource]bool{}
		}
		k.users[to][r] = true
	}
}

func (k *kept) unlink(r *Resource) {
	for _, to := range slices.Concat(r.After, r.Outside, r.missing) {
		if delete(k.users[to], r); len(k.users[to]) == 0 {
			delete(k.users, to)
		}
	}
}

// Touched is what a revision may have an effect on.
type Touched struct {
	// Resources are those that are new or have changed, those that refer to that, and those that refer to these, sorted by ref.
	Resources []*Resource

	// Changed are those of them that are new or differ from before, also in After and Outside.
	Changed []*Resource

	keys  map[*sharing]map[key]bool // that a touched resource had before, or has now
	old   []*Resource               // what was replaced or removed
	added []schema.Ref
}

// Revise replaces or adds some resources, which have been accepted by another site, and removes others. The site must be valid, and
// must have been kept and checked. Whether the result is valid too, [Site.CheckAgain] tells; if it is not, [Site.Undo] takes
// the revision back. The policy stays as it is.
func (st *Site) Revise(put []*Resource, remove []schema.Ref) *Touched {
	t := &Touched{keys: map[*sharing]map[key]bool{}}
	near := st.near(put, remove)
	for ref := range near {
		if r := st.index[ref]; r != nil {
			st.regroup(r, t, (*groups).remove)
			st.kept.unlink(r)
		}
	}
	for _, ref := range remove {
		if old := st.index[ref]; old != nil {
			t.old = append(t.old, old)
			delete(st.index, ref)
		}
	}
	same := len(t.old) == 0 // the refs are those from before
	isNew := make(map[*Resource]bool, len(put))
	for _, r := range put {
		isNew[r] = true
		if old := st.index[r.Ref]; old != nil {
			r.Number = old.Number
			t.old = append(t.old, old)
		} else {
			same = false
			t.added = append(t.added, r.Ref)
		}
		st.index[r.Ref] = r
	}
	st.list(put, t.old, same)
	for ref := range near {
		if r := st.index[ref]; r != nil {
			t.Resources = append(t.Resources, r)
		}
	}
	slices.SortFunc(t.Resources, byNumber)
	for _, r := range t.Resources {
		after, outside := r.After, r.Outside
		if r.sound {
			st.refer(r)
		}
		st.kept.link(r)
		if isNew[r] || !slices.Equal(r.After, after) || !slices.Equal(r.Outside, outside) {
			t.Changed = append(t.Changed, r)
		}
	}
	for _, r := range t.Resources { // after all references are right, because keys follow them
		st.regroup(r, t, (*groups).add)
	}
	return t
}

// Undo takes a revision back, which must be the last one.
func (st *Site) Undo(t *Touched) { st.Revise(t.old, t.added) }

// CheckAgain is [Site.Check] for what a revision has touched.
func (st *Site) CheckAgain(t *Touched, most int) Findings {
	return st.apply(most, func(c check, p *reporter) { c.again(st, t, p) })
}

// near returns the refs that change, those that refer to them, and those that refer to these: what a rule may find to be in
// violation by looking where an [each] looks.
func (st *Site) near(put []*Resource, remove []schema.Ref) map[schema.Ref]bool {
	near := map[schema.Ref]bool{}
	change := func(ref schema.Ref) {
		near[ref] = true
		for user := range st.kept.users[ref] {
			near[user.Ref] = true
			for user := range st.kept.users[user.Ref] {
				near[user.Ref] = true
			}
		}
	}
	for _, r := range put {
		change(r.Ref)
	}
	for _, ref := range remove {
		change(ref)
	}
	return near
}

// regroup adds a resource to the groups of its keys, or removes it from them.
func (st *Site) regroup(r *Resource, t *Touched, do func(*groups, key, *Resource)) {
	for s, g := range st.kept.groups {
		if s.of != nil && !s.of(r.Kind) || !s.takes(r) {
			continue
		}
		s.keys(st, r, func(k key, _ ...string) {
			do(g, k, r)
			if t.keys[s] == nil {
				t.keys[s] = map[key]bool{}
			}
			t.keys[s][k] = true
		})
	}
}

// list brings the lists of resources up to date with the index. Same says that no ref came or went.
func (st *Site) list(put, old []*Resource, same bool) {
	kinds := map[string][]*Resource{}
	for _, r := range old {
		kinds[r.Ref.Kind] = nil
	}
	for _, r := range put {
		kinds[r.Ref.Kind] = append(kinds[r.Ref.Kind], r)
	}
	if same {
		for _, r := range put {
			st.Resources[r.Number] = r
		}
	} else {
		st.Resources = st.update(st.Resources, put)
		for i, r := range st.Resources {
			r.Number = i
		}
	}
	for kind, put := range kinds {
		st.byKind[kind] = st.update(st.byKind[kind], put)
	}
}

// update returns a list with what the index has in place of its resources, and with new ones.
func (st *Site) update(list, put []*Resource) []*Resource {
	put = slices.SortedFunc(slices.Values(put), func(a, b *Resource) int { return a.Ref.Compare(b.Ref) })
	out := make([]*Resource, 0, len(list)+len(put))
	for _, r := range list {
		for len(put) > 0 && put[0].Ref.Compare(r.Ref) < 0 {
			out, put = append(out, put[0]), put[1:]
		}
		if len(put) > 0 && put[0].Ref == r.Ref {
			out, put = append(out, put[0]), put[1:]
		} else if st.index[r.Ref] == r {
			out = append(out, r)
		}
	}
	return append(out, put...)
}
