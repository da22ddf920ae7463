package survey

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A Discovered is an existing thing, written as a resource that would take it over or, when it is external, refer to it.
type Discovered struct {
	schema.Resource
	ID      string // external id
	Depends []schema.Ref
	Managed bool     // recorded, or bears our mark
	Why     string   // why it is external although nobody is known to manage it; empty when somebody is
	Secrets []string // fields whose secret has to be filled in by hand

	// Seen is what is observed but not stated. For what converge made, that is what the far side filled in. What exists
	// by itself, unmanaged and unused, states nothing at all, because there is nothing to take over.
	Seen     schema.Object
	byItself bool
}

// A Leftover is a thing that cannot be written as a resource, or should not be.
type Leftover struct {
	plan.Unmanaged
	Reason string

	ref schema.Ref
}

// A Choice says which parts of a survey are written, and how. The zero Choice is everything, as converge's own.
type Choice struct {
	Kinds    []string // patterns of kinds to write, with what they refer to; none: all
	External []string // patterns of refs (plan.Matches) that others manage
}

// Resources writes what the survey observed as resources for a document. Fits checks whether a name and a spec are valid; a
// thing that fails is left over. What others manage is external, and written only when something else that is written refers
// to it: what the choice names, what recorded resources refer to by id, what another site or the far side itself has made,
// and what no resource can describe. It fails with a *plan.UnmatchedError.
func (s *Survey) Resources(ks schema.Kinds, o Choice, fits func(schema.Ref, schema.Object) error) (finds []Discovered, left []Leftover, err error) {
	n := s.name(ks)
	for _, p := range o.External {
		refs := slices.SortedFunc(maps.Keys(n.used), schema.Ref.Compare)
		if !slices.ContainsFunc(refs, func(r schema.Ref) bool { return plan.Matches(p, r) }) {
			return nil, nil, &plan.UnmatchedError{Option: "external", Pattern: p, Refs: refs}
		}
	}
	others := s.others(ks)
	for at, things := range s.Observed.Things {
		traits, _ := s.Traits(at.Scope, at.Kind)
		for i := range things {
			t := &things[i]
			ref, ok := n.refs[t]
			if !ok {
				continue
			}
			f := s.find(ks[at.Kind], ref, t, n)
			if n.others[t] || others[at][t.ID] && !f.Managed ||
				slices.ContainsFunc(o.External, func(p string) bool { return plan.Matches(p, ref) }) {
				finds = append(finds, f.external(things))
				continue
			}
			if f.byItself = !f.Managed && plan.ByItself(traits, ref, t); f.byItself && len(f.Spec) == 0 {
				continue // nothing was stated about it
			}
			if why := s.unfit(t, f, traits, n, fits); why != "" {
				left = append(left, Leftover{plan.Unmanaged{Scope: at.Scope, Kind: at.Kind, ID: t.ID, Name: t.Name}, why, ref})
				f = f.external(things)
				f.Why = why
			}
			finds = append(finds, f)
		}
	}
	finds = append(finds, s.unlisted(finds, n)...)
	slices.SortFunc(finds, func(a, b Discovered) int { return a.Ref.Compare(b.Ref) })
	setAside(ks, finds)
	finds = slices.DeleteFunc(keepNeeded(keepKinds(finds, o.Kinds)), func(f Discovered) bool {
		if f.External == nil {
			return false
		}
		err := fits(f.Ref, schema.Object{"external": true})
		if err != nil {
			left = append(left, Leftover{plan.Unmanaged{Scope: f.Ref.Scope, Kind: f.Ref.Kind, ID: f.ID, Name: f.Ref.Name}, err.Error(), f.Ref})
		}
		return err != nil
	})
	left = slices.DeleteFunc(left, func(l Leftover) bool {
		return slices.ContainsFunc(finds, func(f Discovered) bool { return f.Ref == l.ref })
	})
	slices.SortFunc(left, func(a, b Leftover) int { return a.ref.Compare(b.ref) })
	return finds, slices.CompactFunc(left, func(a, b Leftover) bool { return a.ref == b.ref }), nil
}

// unfit returns why a thing cannot be a resource; empty when it can. What would be marked is refused unless it is ready: the step
// that marks it waits for that, and would fail for what it has not done.
func (s *Survey) unfit(t *providers.Thing, f Discovered, traits providers.Traits, n *naming, fits func(schema.Ref, schema.Object) error) string {
	err := fits(f.Ref, f.Spec)
	if f.Managed || f.byItself {
		return reason(err)
	}
	marks := traits.Mark && traits.Update != providers.Never
	switch {
	case t.Passing != "":
		return t.Passing
	case marks && t.Phase == providers.Failed:
		return "it has failed: " + cmp.Or(t.Detail, "no reason given")
	case marks && t.Phase == providers.Pending:
		return "it is not ready: " + cmp.Or(t.Detail, "no reason given")
	}
	for _, to := range f.After {
		if n.used[to] != nil || uuid.Validate(to.Name) == nil { // a UUID needs no declaration
			continue
		}
		if why, unknown := s.unknown(to.Place()); unknown {
			return fmt.Sprintf("it refers to the %s %s, and these could not be observed: %s", to.Kind, to.Name, strings.TrimPrefix(why, "observe "+to.Kind+": "))
		}
		if err != nil {
			return fmt.Sprintf("it refers to the %s %s, which was not found", to.Kind, to.Name)
		}
	}
	return reason(err)
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// unknown returns why the things of a place could not be observed.
func (s *Survey) unknown(at schema.Place) (why string, unknown bool) {
	if why, unknown = s.Observed.Unknown[at]; !unknown { // or the whole provider
		provider, _, _ := strings.Cut(at.Kind, ".")
		why, unknown = s.Observed.Unknown[schema.Place{Scope: at.Scope, Kind: provider + ".*"}]
	}
	return why, unknown
}

// others returns, by place, the ids by which recorded resources refer to things that have no name in converge.
func (s *Survey) others(ks schema.Kinds) map[schema.Place]map[string]bool {
	ids := map[schema.Place]map[string]bool{}
	for i := range s.Recorded {
		r := &s.Recorded[i]
		if r.Gone {
			continue
		}
		for _, to := range plan.Outside(ks, r.Ref, r.Spec, r.After) {
			at := to.Place()
			if ids[at] == nil {
				ids[at] = map[string]bool{}
			}
			ids[at][to.Name] = true
		}
	}
	return ids
}

// external returns the find as one that others manage, with an id where its name is ambiguous.
func (f Discovered) external(things []providers.Thing) Discovered {
	x := Discovered{Resource: schema.Resource{Ref: f.Ref, Spec: schema.Object{}, External: &schema.External{}}, ID: f.ID, Managed: f.Managed}
	for i := range things {
		if t := &things[i]; plan.Called(t, f.Ref.Name) != (t.ID == f.ID) {
			x.External.ID = f.ID
		}
	}
	return x
}

// unlisted returns what finds refer to but the far side cannot list, each under its id.
func (s *Survey) unlisted(finds []Discovered, n *naming) (more []Discovered) {
	seen := map[schema.Ref]bool{}
	for i := range finds {
		for _, to := range finds[i].After {
			_, unsupported := s.Observed.Unsupported[to.Place()]
			if unsupported && n.used[to] == nil && !seen[to] && uuid.Validate(to.Name) != nil { // a UUID needs no declaration
				seen[to] = true
				more = append(more, Discovered{Resource: schema.Resource{Ref: to, Spec: schema.Object{}, External: &schema.External{ID: to.Name}}, ID: to.Name})
			}
		}
	}
	return more
}

// keepNeeded drops external finds that nothing else refers to.
func keepNeeded(finds []Discovered) []Discovered {
	needed := map[schema.Ref]bool{}
	for i := range finds {
		for _, to := range finds[i].After {
			needed[to] = true
		}
	}
	return slices.DeleteFunc(finds, func(f Discovered) bool { return f.External != nil && !needed[f.Ref] })
}

// setAside makes finds state nothing when they exist by themselves, are unmanaged, and no other find refers to them.
func setAside(ks schema.Kinds, finds []Discovered) {
	used := map[schema.Ref]bool{}
	for i := range finds {
		f := &finds[i]
		for _, r := range f.After {
			used[r] = true
		}
		k := ks[f.Ref.Kind]
		for j := range k.Fields {
			if c := k.Fields[j].Choose; c != nil {
				id, _ := f.Spec[k.Fields[j].Name].(string)
				used[schema.Ref{Scope: f.Ref.Scope, Kind: c.Kind, Name: id}] = true
			}
		}
	}
	for i := range finds {
		if f := &finds[i]; f.byItself && !used[f.Ref] {
			f.Seen, f.Resource, f.Secrets = f.Spec, schema.Resource{Ref: f.Ref, Spec: schema.Object{}}, nil
		}
	}
}

// keepKinds keeps the finds whose kind matches a pattern, and everything that they need.
func keepKinds(finds []Discovered, kinds []string) []Discovered {
	if len(kinds) == 0 {
		return finds
	}
	byRef := make(map[schema.Ref]*Discovered, len(finds))
	for i := range finds {
		byRef[finds[i].Ref] = &finds[i]
	}
	keep := map[schema.Ref]bool{}
	var take func(schema.Ref)
	take = func(r schema.Ref) {
		if f := byRef[r]; f != nil && !keep[r] {
			keep[r] = true
			for _, need := range f.After {
				take(need)
			}
		}
	}
	for _, f := range finds {
		if slices.ContainsFunc(kinds, func(p string) bool { ok, err := path.Match(p, f.Ref.Kind); return ok && err == nil }) {
			take(f.Ref)
		}
	}
	return slices.DeleteFunc(finds, func(f Discovered) bool { return !keep[f.Ref] })
}
