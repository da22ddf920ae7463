package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Survey is everything that the providers of a site report, with what is recorded about it.
type Survey struct {
	Site     schema.Site
	Observed plan.Observation
	Recorded []state.Record
	Traits   func(scope, kind string) (providers.Traits, bool)
	Servers  []Server
}

// A Server is a far side that answered, as it describes itself.
type Server struct {
	state.Server
	Build string // the software version that it runs, which implies the version of its API; empty when it does not report one
}

// Survey observes every kind that the needs serve, and changes nothing.
func (e *Engine) Survey(ctx context.Context, site schema.Site, needs []Need) (*Survey, error) {
	records, err := e.o.Store.Records(ctx)
	if err != nil {
		return nil, err
	}
	e.recall(ctx, records, nil)
	refs := make([]schema.Ref, len(needs))
	for i, n := range needs {
		refs[i] = schema.Ref{Scope: n.Scope, Kind: n.Provider + "."}
	}
	set, err := e.connect(ctx, site, refs)
	if err != nil {
		return nil, err
	}
	at := map[plan.Place]bool{}
	set.Each(func(scope string, k providers.Served, _ *providers.Provider) {
		at[plan.Place{Scope: scope, Kind: k.Name}] = true
	})
	s := &Survey{Site: site, Recorded: records, Observed: e.observe(ctx, set, at, liveIDs(records)), Traits: func(scope, kind string) (providers.Traits, bool) {
		k, _, ok := set.Find(scope, kind)
		return k.Traits, ok
	}}
	for _, known := range e.servers(ctx, set) {
		s.Servers = append(s.Servers, Server{Server: known, Build: e.build(ctx, set, known)})
	}
	for _, n := range needs { // a provider that could not be opened shows nothing, which does not mean that it is empty
		if err := set.Failure(n.Scope, n.Provider); err != nil {
			s.Observed.Unknown[plan.Place{Scope: n.Scope, Kind: n.Provider + ".*"}] = err.Error()
		}
	}
	return s, ctx.Err()
}

// recorded returns the names of recorded resources by external id.
func (s *Survey) recorded() plan.Names {
	names := plan.Names{}
	for i := range s.Recorded {
		if r := &s.Recorded[i]; !r.Gone {
			names.Put(r.Ref, r.ID)
		}
	}
	return names
}

// Unknown lists what could not be observed completely. What the far side does not support was not observed either: an
// older server may have such things all the same.
func (s *Survey) Unknown() []plan.Unknown {
	var list []plan.Unknown
	for at, why := range s.Observed.Unknown {
		list = append(list, plan.Unknown{Scope: at.Scope, Kind: at.Kind, Error: why})
	}
	for at, why := range s.Observed.Unsupported {
		list = append(list, plan.Unknown{Scope: at.Scope, Kind: at.Kind, Error: "the server does not support it: " + strings.TrimPrefix(why, "observe "+at.Kind+": ")})
	}
	slices.SortFunc(list, func(a, b plan.Unknown) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Kind, b.Kind))
	})
	return list
}

// A Find is an existing thing, written as a resource that would take it over or, when it is external, refer to it.
type Find struct {
	schema.Resource
	ID      string // external id
	Depends []schema.Ref
	Managed bool     // recorded, or bears our mark
	Secrets []string // fields whose secret has to be filled in by hand

	// Seen is what is observed but not stated. For what converge made, that is what the far side filled in. What exists
	// by itself, unmanaged and unused, states nothing at all, because there is nothing to take over.
	Seen     schema.Object
	byItself bool
}

// A Leftover is a thing that cannot be written as a resource.
type Leftover struct {
	plan.Foreign
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
func (s *Survey) Resources(ks schema.Kinds, o Choice, fits func(schema.Ref, schema.Object) error) (finds []Find, left []Leftover, err error) {
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
			if n.others[t] || others[plan.Place{Scope: at.Scope, Kind: at.Kind}][t.ID] && !f.Managed ||
				slices.ContainsFunc(o.External, func(p string) bool { return plan.Matches(p, ref) }) {
				finds = append(finds, f.external(things))
				continue
			}
			if f.byItself = !f.Managed && plan.ByItself(traits, ref, t); f.byItself && len(f.Spec) == 0 {
				continue // nothing was stated about it
			}
			if err := fits(ref, f.Spec); err != nil {
				left = append(left, Leftover{plan.Foreign{Scope: at.Scope, Kind: at.Kind, ID: t.ID, Name: t.Name}, err.Error(), ref})
				f = f.external(things)
			}
			finds = append(finds, f)
		}
	}
	finds = append(finds, s.unlisted(finds, n)...)
	slices.SortFunc(finds, func(a, b Find) int { return a.Ref.Compare(b.Ref) })
	setAside(ks, finds)
	finds = slices.DeleteFunc(keepNeeded(keepKinds(finds, o.Kinds)), func(f Find) bool {
		if f.External == nil {
			return false
		}
		err := fits(f.Ref, schema.Object{"external": true})
		if err != nil {
			left = append(left, Leftover{plan.Foreign{Scope: f.Ref.Scope, Kind: f.Ref.Kind, ID: f.ID, Name: f.Ref.Name}, err.Error(), f.Ref})
		}
		return err != nil
	})
	left = slices.DeleteFunc(left, func(l Leftover) bool {
		return slices.ContainsFunc(finds, func(f Find) bool { return f.Ref == l.ref })
	})
	slices.SortFunc(left, func(a, b Leftover) int { return a.ref.Compare(b.ref) })
	return finds, slices.CompactFunc(left, func(a, b Leftover) bool { return a.ref == b.ref }), nil
}

// others returns, by place, the ids by which recorded resources refer to things that have no name in converge.
func (s *Survey) others(ks schema.Kinds) map[plan.Place]map[string]bool {
	ids := map[plan.Place]map[string]bool{}
	for i := range s.Recorded {
		r := &s.Recorded[i]
		if r.Gone {
			continue
		}
		for _, to := range plan.Outside(ks, r.Ref, r.Spec, r.After) {
			at := plan.Place{Scope: to.Scope, Kind: to.Kind}
			if ids[at] == nil {
				ids[at] = map[string]bool{}
			}
			ids[at][to.Name] = true
		}
	}
	return ids
}

// external returns the find as one that others manage, with an id where its name is ambiguous.
func (f Find) external(things []providers.Thing) Find {
	x := Find{Resource: schema.Resource{Ref: f.Ref, Spec: schema.Object{}, External: &schema.External{}}, ID: f.ID, Managed: f.Managed}
	for i := range things {
		if t := &things[i]; plan.Called(t, f.Ref.Name) != (t.ID == f.ID) {
			x.External.ID = f.ID
		}
	}
	return x
}

// unlisted returns what finds refer to but the far side cannot list, each under its id.
func (s *Survey) unlisted(finds []Find, n *naming) (more []Find) {
	seen := map[schema.Ref]bool{}
	for i := range finds {
		for _, to := range finds[i].After {
			_, unsupported := s.Observed.Unsupported[plan.Place{Scope: to.Scope, Kind: to.Kind}]
			if unsupported && n.used[to] == nil && !seen[to] && uuid.Validate(to.Name) != nil { // a UUID needs no declaration
				seen[to] = true
				more = append(more, Find{Resource: schema.Resource{Ref: to, Spec: schema.Object{}, External: &schema.External{ID: to.Name}}, ID: to.Name})
			}
		}
	}
	return more
}

// keepNeeded drops external finds that nothing else refers to.
func keepNeeded(finds []Find) []Find {
	needed := map[schema.Ref]bool{}
	for i := range finds {
		for _, to := range finds[i].After {
			needed[to] = true
		}
	}
	return slices.DeleteFunc(finds, func(f Find) bool { return f.External != nil && !needed[f.Ref] })
}

// setAside makes finds state nothing when they exist by themselves, are unmanaged, and no other find refers to them.
func setAside(ks schema.Kinds, finds []Find) {
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
func keepKinds(finds []Find, kinds []string) []Find {
	if len(kinds) == 0 {
		return finds
	}
	byRef := make(map[schema.Ref]*Find, len(finds))
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
	return slices.DeleteFunc(finds, func(f Find) bool { return !keep[f.Ref] })
}

// find writes one thing as a resource.
func (s *Survey) find(k *schema.Kind, ref schema.Ref, t *providers.Thing, n *naming) Find {
	f := Find{Resource: schema.Resource{Ref: ref}, ID: t.ID, Managed: t.Mark.Site == s.Site.ID && !t.Mark.IsZero()}
	spec := diff.Named(k, t.Spec, n.names.In(ref.Scope))
	record := n.records[ref]
	if record != nil && record.ID == t.ID {
		f.Managed = true
		f.Lifecycle.Protect, f.Lifecycle.OnRemove, f.Lifecycle.Ignore = record.Protect, record.OnRemove, record.Ignore
		f.Depends = record.After
		if record.Run != "" { // written by a run; a record rebuilt from marks states nothing
			said := stated(k.Fields, spec, record.Spec, "", record.Ignore)
			was := diff.Prune(record.Rest, record.Ignore)
			for field, v := range diff.Prune(diff.Rest(k, t.Spec, record.Spec), record.Ignore) { // and what has changed in the rest since converge left it
				if record.Rest != nil && !diff.Same(schema.Object{"": v}, schema.Object{"": was[field]}) {
					said[field] = spec[field]
				}
			}
			f.Seen = diff.Beyond(k, spec, said)
			spec = said
		}
		for i := range k.Fields { // what only the planner reads, and what it chose, is in the record alone
			name := k.Fields[i].Name
			stated, ok := record.Spec[name]
			switch {
			case k.Fields[i].Planning && ok:
				spec[name] = stated
			case k.Fields[i].Choose != nil && !ok:
				delete(spec, name)
				delete(f.Seen, name)
			case ok && sealed.Within(stated) && spec[name] == nil: // it never comes back
				spec[name] = schema.Clone(stated)
			}
		}
	} else if !f.Managed {
		f.Lifecycle.Adopt = schema.AdoptMatch
		if t.Name != ref.Name || n.ambiguous[t] {
			f.Lifecycle.ID = t.ID
		}
	}
	spec, f.Secrets = secretPlaces(k, ref, spec, record)
	k.EachRef(spec, func(kind, name string) string {
		f.After = append(f.After, n.kinds.Target(ref.Scope, kind, name))
		return name
	})
	f.After = schema.SortRefs(f.After)
	f.Depends = slices.DeleteFunc(slices.Clone(f.Depends), func(r schema.Ref) bool { return slices.Contains(f.After, r) || n.used[r] == nil })
	f.After = schema.SortRefs(append(f.After, f.Depends...))
	f.Spec = terse(k.Fields, spec)
	f.Seen, _ = secretPlaces(k, ref, f.Seen, record)
	f.Seen = terse(k.Fields, f.Seen)
	return f
}

// stated returns the part of what was observed that the document had stated: the rest is left to the far side. For
// ignored paths it returns what the document had stated, whatever was observed.
func stated(fields []schema.Field, seen, said map[string]any, at string, ignore []string) map[string]any {
	out := make(map[string]any, len(said))
	for name, s := range said {
		if diff.Ignored(at+name, ignore) {
			out[name] = schema.Clone(s)
			continue
		}
		v, ok := seen[name]
		if !ok {
			continue
		}
		f := (&schema.Field{Fields: fields}).Field(name)
		if m, isMap := v.(map[string]any); isMap && f != nil && !f.Secret {
			if sm, ok := s.(map[string]any); ok {
				v = stated(f.Fields, m, sm, at+name+".", ignore)
			}
		}
		out[name] = v
	}
	return out
}

// secretPlaces replaces every secret by where it can be read: as recorded, or under an invented name that has to be filled
// in by hand. It returns the paths of the latter.
func secretPlaces(k *schema.Kind, ref schema.Ref, spec schema.Object, record *state.Record) (_ schema.Object, made []string) {
	known := map[string]any{}
	if record != nil {
		_, _ = sealed.Each(k, record.Spec, func(path string, v any) (any, error) {
			if m, ok := v.(map[string]any); ok && m["from"] != nil {
				known[path] = m["from"]
			}
			return v, nil
		})
	}
	spec, _ = sealed.Each(k, spec, func(path string, v any) (any, error) { // the visit never fails
		from, ok := known[path]
		if sealed.Digest(v) == "" && !ok {
			return nil, nil // none is set
		}
		if !ok {
			made = append(made, path)
			from = "env:" + strings.Trim(strings.Map(func(r rune) rune {
				if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
					return r
				}
				return '_'
			}, strings.ToUpper(ref.Name+"_"+path)), "_")
		}
		return map[string]any{"from": from}, nil
	})
	for name, v := range spec {
		if v == nil {
			delete(spec, name)
		}
	}
	return spec, made
}

// terse returns a spec without what the schema fills in by itself.
func terse(fields []schema.Field, spec map[string]any) map[string]any {
	out := make(map[string]any, len(spec))
	for name, v := range spec {
		f := (&schema.Field{Fields: fields}).Field(name)
		if f == nil {
			out[name] = v
			continue
		}
		if f.Default != nil && diff.Same(schema.Object{"": f.Default}, schema.Object{"": v}) {
			continue
		}
		out[name] = terseValue(f, v)
	}
	return out
}

func terseValue(f *schema.Field, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if f.Type == schema.Struct {
			return terse(f.Fields, v)
		}
	case []any:
		if f.Elem != nil && f.Elem.Type == schema.Struct {
			out := make([]any, len(v))
			for i := range v {
				out[i] = terseValue(f.Elem, v[i])
			}
			return out
		}
	}
	return v
}

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
			if _, done := n.refs[t]; !done && t.Phase != providers.Leaving {
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
func (n *naming) free(at plan.Place, t *providers.Thing, k *schema.Kind, traits providers.Traits, site string) schema.Ref {
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

// Rebuild makes records, as of when, for unrecorded things that bear this site's mark, or have an id that only this site
// assigns. What the document said of them is lost, so the records state no field: the next plan compares with the document
// alone. The lifecycle of a resource is taken from declared, today's document, so that a protected one stays protected when
// the store is lost. The newest incarnation of a resource counts; older ones stay strays. What is external is left to others, and
// its record says so: it is Gone.
func (s *Survey) Rebuild(ks schema.Kinds, when time.Time, declared ...schema.Resource) []state.Record {
	known, left, had := map[schema.Ref]bool{}, map[string]bool{}, s.recorded()
	for _, r := range s.Recorded {
		if r.Gone {
			left[r.ID] = r.ID != "" // to others, although it is marked
		} else {
			known[r.Ref] = true
		}
	}
	found := map[schema.Ref]state.Record{}
	for at, things := range s.Observed.Things {
		traits, _ := s.Traits(at.Scope, at.Kind)
		for i := range things {
			t := &things[i]
			ref, incarnation, ours := s.ours(at, t, traits)
			_, recorded := had.Find(at.Scope, at.Kind, t.ID)
			others := slices.ContainsFunc(declared, func(r schema.Resource) bool {
				return r.External != nil && r.Ref.Scope == at.Scope && r.Ref.Kind == at.Kind && plan.Meant(&r, t)
			})
			if !ours || left[t.ID] || known[ref] || recorded || t.Phase == providers.Leaving || found[ref].Incarnation >= incarnation {
				continue
			}
			r := state.Record{Ref: ref, ID: t.ID, Incarnation: incarnation, Spec: schema.Object{}, At: when, Gone: others}
			if !others && traits.Named() && t.Name != ref.Name && t.Name != t.ID {
				r.Name = t.Name
			}
			found[ref] = r
		}
	}
	names := s.recorded()
	for ref, r := range found {
		if !r.Gone {
			names.Put(ref, r.ID)
		}
	}
	lives := make(map[schema.Ref]*schema.Resource, len(declared))
	for i := range declared {
		lives[declared[i].Ref] = &declared[i]
	}
	records := slices.SortedFunc(maps.Values(found), func(a, b state.Record) int { return a.Ref.Compare(b.Ref) })
	for i := range records {
		r := &records[i]
		if r.Gone {
			continue
		}
		things := s.Observed.Things[plan.Place{Scope: r.Ref.Scope, Kind: r.Ref.Kind}]
		t := &things[slices.IndexFunc(things, func(t providers.Thing) bool { return t.ID == r.ID })]
		ks[r.Ref.Kind].EachRef(t.Spec.Clone(), func(kind, id string) string {
			if to, ok := names.Find(r.Ref.Scope, kind, id); ok {
				r.After = append(r.After, to)
			}
			return id
		})
		r.After = schema.SortRefs(r.After)
		if d := lives[r.Ref]; d != nil {
			r.Protect, r.OnRemove, r.Ignore = d.Lifecycle.Protect, d.Lifecycle.OnRemove, d.Lifecycle.Ignore
		}
	}
	return records
}

// ours returns which incarnation of which resource a thing is: by its mark or, where the kind cannot be marked, by an id
// that follows from this site, the thing's name and the incarnation.
func (s *Survey) ours(at plan.Place, t *providers.Thing, traits providers.Traits) (ref schema.Ref, incarnation int, ok bool) {
	if traits.Mark {
		m := t.Mark
		return m.Ref, m.Incarnation, m.Site == s.Site.ID && !m.IsZero() && m.Ref.Scope == at.Scope && m.Ref.Kind == at.Kind
	}
	ref = schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: t.Name}
	for i := 1; traits.ID == "" && i <= incarnations; i++ {
		if plan.ExternalID(s.Site.ID, traits, ref, i, t.Spec) == t.ID {
			return ref, i, true
		}
	}
	return ref, 0, false
}

// incarnations is how many incarnations are tried to identify an unmarked thing.
const incarnations = 64
