package engine

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A sight is what was seen of a place.
type sight struct {
	at     time.Time
	traits providers.Traits
	things []*providers.Thing // by id
	twice  bool               // an id was listed twice, so that a planner cannot tell the things apart
	silent bool               // its provider does not report changes
	sort   sort
	why    string // what is unknown or unsupported
}

// ids are external ids; none stands for all.
type ids map[string]bool

// manyThings is how many things of a place are observed one by one at most: to list them all costs no more.
const manyThings = 1000

// and returns the ids and others; of no others, all.
func (x ids) and(others []string) ids {
	if len(others) == 0 || x != nil && len(x) == 0 {
		return ids{}
	}
	if x == nil {
		x = ids{}
	}
	for _, id := range others {
		x[id] = true
	}
	if len(x) > manyThings {
		return ids{}
	}
	return x
}

// A sort is what a look at a place leads to.
type sort int

const (
	observed sort = iota
	unknown
	unsupported
	unserved // nobody serves it
)

// observe observes what may have changed.
func (m *Memory) observe(ctx context.Context, set *providers.Set) error {
	all := m.everywhere()
	maps.DeleteFunc(m.seen, func(at schema.Place, _ *sight) bool { return !all[at] })
	now := m.e.o.Now()
	due := m.o.Sweep
	if !now.Before(m.Due()) { // then also what will be due soon
		due -= due / 10
	}
	whole, swept, scopes := map[schema.Place]bool{}, map[schema.Place]bool{}, map[string]bool{}
	asked := map[schema.Place][]string{} // of what is not observed as a whole, the things
	for at := range all {
		was := m.seen[at]
		told, isTold := m.changed[at]
		served, _, found := set.Find(at.Scope, at.Kind)
		switch {
		case was == nil || was.sort != observed || !found || isTold && len(told) == 0:
		case served.Watch == nil && now.Sub(was.at) >= m.o.Silent:
		case now.Sub(was.at) >= due:
			swept[at] = served.Watch != nil
		case isTold:
			whole[at], asked[at] = false, slices.Collect(maps.Keys(told))
			continue
		default:
			continue
		}
		whole[at], scopes[at.Scope] = true, true
		for _, r := range m.records[at] {
			if !r.Gone {
				asked[at] = append(asked[at], r.ID)
			}
		}
	}
	for at := range asked {
		slices.Sort(asked[at])
		asked[at] = slices.Compact(asked[at])
	}
	seen := m.e.observe(ctx, set, whole, asked)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.identify(ctx, set, scopes)
	for at, all := range whole {
		served, _, found := set.Find(at.Scope, at.Kind)
		is := &sight{at: now, traits: served.Traits, silent: served.Watch == nil}
		things, ok := seen.Things[at]
		if !ok {
			is.sort = unserved
		}
		if why, ok := seen.Unknown[at]; ok {
			is.sort, is.why = unknown, why
		}
		if why, ok := seen.Unsupported[at]; ok {
			is.sort, is.why = unsupported, why
		}
		is.take(things)
		if was := m.seen[at]; !all && is.sort == observed {
			is.at = was.at
			is.keep(was.things, asked[at])
		}
		if n := m.sees(at, is); n > 0 && swept[at] && found {
			m.e.o.Logger.Warn("the provider had not reported these changes", "scope", at.Scope, "kind", at.Kind, "things", n)
		}
	}
	clear(m.changed)
	return nil
}

// take takes over what was observed.
func (s *sight) take(things []providers.Thing) {
	s.things = make([]*providers.Thing, len(things))
	for i := range things {
		s.things[i] = &things[i]
	}
	slices.SortFunc(s.things, byID)
}

// keep also takes what was there before, apart from some things, which were observed again.
func (s *sight) keep(was []*providers.Thing, again []string) {
	is := s.things
	s.things = make([]*providers.Thing, 0, len(was)+len(is))
	for _, t := range was {
		if _, asked := slices.BinarySearch(again, t.ID); asked {
			continue
		}
		for len(is) > 0 && is[0].ID < t.ID {
			s.things, is = append(s.things, is[0]), is[1:]
		}
		s.things = append(s.things, t)
	}
	s.things = append(s.things, is...)
}

func byID(a, b *providers.Thing) int { return strings.Compare(a.ID, b.ID) }

// identify asks the far sides in some scopes anew who they are.
func (m *Memory) identify(ctx context.Context, set *providers.Set, scopes map[string]bool) {
	var far []*providers.Provider
	open := map[providers.Need]bool{}
	for _, p := range set.All() {
		n := providers.Need{Scope: p.Scope, Provider: p.Name}
		if open[n] = true; scopes[p.Scope] || m.mute[n] {
			far = append(far, p)
		}
	}
	m.servers = slices.DeleteFunc(m.servers, func(s state.Server) bool {
		return scopes[s.Scope] || !open[providers.Need{Scope: s.Scope, Provider: s.Provider}]
	})
	answered, mute := m.e.servers(ctx, far)
	m.servers, m.mute = append(m.servers, answered...), map[providers.Need]bool{}
	for _, p := range mute {
		m.mute[providers.Need{Scope: p.Scope, Provider: p.Name}] = true
	}
	slices.SortFunc(m.servers, compareServers)
}

// sees remembers what was seen of a place, and returns how many things have changed.
func (m *Memory) sees(at schema.Place, is *sight) (changed int) {
	for i := 1; i < len(is.things); i++ {
		is.twice = is.twice || is.things[i-1].ID == is.things[i].ID
	}
	was := m.seen[at]
	m.seen[at] = is
	lines := []*line{&m.planning, &m.drifting}
	if was == nil || was.sort != is.sort || was.why != is.why || was.twice || is.twice || !reflect.DeepEqual(was.traits, is.traits) {
		for _, l := range lines {
			if l.at[at] {
				l.planner = nil
			}
		}
		return len(is.things)
	}
	tell := func(id string, t *providers.Thing) {
		changed++
		for _, l := range lines {
			if l.at[at] {
				l.thing(at, id, t)
			}
		}
	}
	old := was.things
	for i, t := range is.things {
		for len(old) > 0 && old[0].ID < t.ID {
			tell(old[0].ID, nil)
			old = old[1:]
		}
		if len(old) == 0 || old[0].ID != t.ID {
			tell(t.ID, t)
			continue
		}
		if t != old[0] && sameThing(old[0], t) {
			is.things[i] = old[0] // what is the same is held once
		} else if t != old[0] {
			tell(t.ID, t)
		}
		old = old[1:]
	}
	for _, t := range old {
		tell(t.ID, nil)
	}
	return changed
}

// thing notes that a thing has changed, or is gone.
func (l *line) thing(at schema.Place, id string, t *providers.Thing) {
	if l.changes.Things == nil {
		l.changes.Things = map[schema.Place]map[string]*providers.Thing{}
	}
	things := l.changes.Things[at]
	set(&things, id, t)
	l.changes.Things[at] = things
}

// sameThing reports whether two things with the same id are the same.
func sameThing(a, b *providers.Thing) bool {
	return a.ID == b.ID && a.UID == b.UID && a.Name == b.Name && a.Mark == b.Mark && a.Version == b.Version && a.Phase == b.Phase && a.Detail == b.Detail &&
		a.Derived == b.Derived && a.Passing == b.Passing && slices.Equal(a.Unfilled, b.Unfilled) && sameObject(a.Spec, b.Spec) && sameObject(a.Status, b.Status)
}

// sightOf returns what was seen of a thing by its id.
func (m *Memory) sightOf(to schema.Ref) drift.Sight {
	s := m.seen[to.Place()]
	switch {
	case s == nil:
		return drift.Sight{}
	case s.sort == unknown:
		return drift.Sight{Unknown: s.why}
	}
	i, found := slices.BinarySearchFunc(s.things, to.Name, func(t *providers.Thing, id string) int { return strings.Compare(t.ID, id) })
	return drift.Sight{Looked: s.sort == observed, There: found && s.things[i].Phase != providers.Deleting}
}
