package plan_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A model is a small world that changes: the input of the planner for a change, and of a plan of everything.
type model struct {
	t         *rapid.T
	in        plan.Input
	resources map[schema.Ref]*schema.Resource
	records   map[schema.Ref]*state.Record
	changes   plan.Changes
	plans     int
}

var (
	modelNames  = map[string][]string{"far.net": {"a", "b"}, "far.guard": {"a", "g"}, "far.subnet": {"a", "s", "t"}, "far.host": {"a", "h", "i"}, "far.lease": {"a", "l"}, "near.bridge": {"a", "br"}, "near.port": {"p", "q"}}
	modelScopes = map[string][]string{"near.bridge": {"n1", "n2"}, "near.port": {"n1", "n2"}}
	stranger    = providers.Mark{Site: "another", Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: "a"}, Incarnation: 1}
)

func modelRefs() (all []schema.Ref) {
	for _, kind := range slices.Sorted(maps.Keys(modelNames)) {
		scopes := modelScopes[kind]
		if scopes == nil {
			scopes = []string{schema.ScopeSite}
		}
		for _, scope := range scopes {
			for _, name := range modelNames[kind] {
				all = append(all, schema.Ref{Scope: scope, Kind: kind, Name: name})
			}
		}
	}
	return all
}

func newModel(t *rapid.T) *model {
	kinds := enginetest.Kinds()
	kinds["far.lease"] = &schema.Kind{Name: "far.lease", Fields: []schema.Field{
		{Name: "guard", Type: schema.String, Ref: "far.guard", Choose: &schema.Choice{Kind: "far.guard", Same: []string{"size"}}}, {Name: "size", Type: schema.Int, Immutable: true},
	}}
	m := &model{t: t, resources: map[schema.Ref]*schema.Resource{}, records: map[schema.Ref]*state.Record{}}
	traits := map[string]providers.Traits{"far": fake.SiteTraits(), "near": fake.NodeTraits()}
	subnets := fake.SiteTraits()
	subnets.Exclusive, subnets.DeleteUnchecked = []providers.Exclusive{{Field: "cidr"}}, true
	hosts := fake.SiteTraits()
	hosts.Detach = []providers.Detachable{{Field: "links"}}
	guards := fake.SiteTraits()
	if rapid.Bool().Draw(t, "guards by name") {
		guards.ID, guards.IDsNotReusable, guards.Delete, guards.Mark = "{name}", false, providers.Never, false
	}
	m.in = plan.Input{
		Kinds: kinds, Document: &schema.Document{Site: schema.Site{Name: "test", ID: enginetest.SiteID}, JSON: []byte(`{}`)},
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{}, Unknown: map[schema.Place]string{}},
		Rest:     rapid.Bool().Draw(t, "rest"),
		Servers:  []state.Server{{Scope: schema.ScopeSite, Provider: "far", Identity: "x"}},
		Traits: func(_, kind string) (providers.Traits, bool) {
			switch kind {
			case "far.subnet":
				return subnets, true
			case "far.host":
				return hosts, true
			case "far.guard":
				return guards, true
			}
			return traits[schema.Ref{Kind: kind}.Provider()], true
		},
	}
	bridges, ports := fake.NodeTraits(), fake.NodeTraits()
	if rapid.Bool().Draw(t, "templated") {
		bridges.ID, ports.ID, ports.Mark = "sw/{name}", "{bridge}/{name}", rapid.Bool().Draw(t, "pm")
	}
	if rapid.Bool().Draw(t, "bm") {
		bridges.Mark = false
	}
	old := m.in.Traits
	m.in.Traits = func(s, kind string) (providers.Traits, bool) {
		switch kind {
		case "near.bridge":
			return bridges, true
		case "near.port":
			return ports, true
		}
		return old(s, kind)
	}
	for _, ref := range modelRefs() {
		at := ref.Place()
		if _, known := m.in.Observed.Things[at]; !known && rapid.IntRange(0, 19).Draw(t, "seen") == 19 {
			m.in.Observed.Unknown[at] = "denied"
		} else if m.in.Observed.Unknown[at] == "" {
			m.in.Observed.Things[at] = nil
		}
	}
	m.forget()
	return m
}

// forget begins a new list of changes.
func (m *model) forget() {
	m.plans++
	m.changes = plan.Changes{
		ID: fmt.Sprint("plan ", m.plans), Resources: map[schema.Ref]*schema.Resource{}, Records: map[schema.Ref]*state.Record{},
		Things: map[schema.Place]map[string]*providers.Thing{},
	}
}

// input returns everything.
func (m *model) input() plan.Input {
	in := m.in
	in.ID = m.changes.ID
	doc := *m.in.Document
	for _, ref := range schema.SortRefs(slices.Collect(maps.Keys(m.resources))) {
		doc.Resources = append(doc.Resources, *m.resources[ref])
	}
	in.Document, in.Recorded = &doc, nil
	for _, ref := range schema.SortRefs(slices.Collect(maps.Keys(m.records))) {
		in.Recorded = append(in.Recorded, *m.records[ref])
	}
	in.Observed.Things = map[schema.Place][]providers.Thing{}
	for at, things := range m.in.Observed.Things {
		in.Observed.Things[at] = slices.SortedFunc(slices.Values(things), func(a, b providers.Thing) int { return cmp.Compare(a.ID, b.ID) })
	}
	return in
}

func (m *model) setResource(ref schema.Ref, r *schema.Resource) {
	m.changes.Resources[ref] = r
	if m.resources[ref] = r; r == nil {
		delete(m.resources, ref)
	}
}

func (m *model) setRecord(ref schema.Ref, r *state.Record) {
	m.changes.Records[ref] = r
	if m.records[ref] = r; r == nil {
		delete(m.records, ref)
	}
}

func (m *model) setThing(at schema.Place, id string, t *providers.Thing) {
	if _, seen := m.in.Observed.Things[at]; !seen {
		return
	}
	if m.changes.Things[at] == nil {
		m.changes.Things[at] = map[string]*providers.Thing{}
	}
	m.changes.Things[at][id] = t
	list := slices.Clone(m.in.Observed.Things[at])
	i := slices.IndexFunc(list, func(t providers.Thing) bool { return t.ID == id })
	switch {
	case t == nil && i >= 0:
		list = slices.Delete(list, i, i+1)
	case t != nil && i >= 0:
		list[i] = *t
	case t != nil:
		list = append(list, *t)
	}
	m.in.Observed.Things[at] = list
}

// id returns the external id of a name.
func (m *model) id(scope, kind, name string) string {
	for _, s := range []string{scope, schema.ScopeSite} {
		if r := m.records[schema.Ref{Scope: s, Kind: kind, Name: name}]; r != nil && r.ID != "" {
			return r.ID
		}
	}
	return name
}

func (m *model) draw(what string, n int) int { return rapid.IntRange(0, n-1).Draw(m.t, what) }

// spec draws what a document says of a resource.
func (m *model) spec(ref schema.Ref) schema.Object {
	pick := func(kind string) string {
		scope := schema.ScopeSite
		if m.in.Kinds[kind].Node {
			scope = ref.Scope
		}
		name := modelNames[kind][m.draw("of "+kind, len(modelNames[kind]))]
		if m.draw("by id", 5) == 0 {
			return m.id(scope, kind, name)
		}
		return name
	}
	o := schema.Object{"size": int64(m.draw("size", 2))}
	switch ref.Kind {
	case "far.net":
		o["cidr"] = fmt.Sprintf("10.%d.0.0/16", m.draw("cidr", 2))
	case "far.subnet":
		o["cidr"], o["net"] = fmt.Sprintf("10.0.%d.0/24", m.draw("cidr", 3)), pick("far.net")
	case "far.host":
		o["net"] = pick("far.net")
		if m.draw("guarded", 2) == 0 {
			o["guard"] = pick("far.guard")
		}
		if m.draw("linked", 2) == 0 {
			o["links"] = []any{map[string]any{"port": int64(1), "subnet": pick("far.subnet")}}
		}
	case "far.lease":
		if m.draw("stated", 4) > 0 {
			o["guard"] = pick("far.guard")
		}
	case "near.port":
		delete(o, "size")
		o["bridge"], o["tag"] = pick("near.bridge"), int64(m.draw("tag", 2))
	}
	return o
}

// declare puts a resource into the document, or changes it there, together with what it refers to.
func (m *model) declare(ref schema.Ref) {
	r := &schema.Resource{Ref: ref, Spec: m.spec(ref)}
	l := &r.Lifecycle
	switch m.draw("lifecycle", 12) {
	case 0, 1:
		if ref.Kind == "far.net" || ref.Kind == "far.guard" {
			r.External, r.Spec = &schema.External{}, schema.Object{}
		}
	case 2:
		l.Protect = true
	case 3:
		l.OnRemove = schema.Forget
	case 4:
		l.Adopt = schema.AdoptMatch
	case 5:
		l.Ignore = []string{"size"}
	case 6:
		if list := m.in.Observed.Things[ref.Place()]; len(list) > 0 {
			l.ID = list[m.draw("which", len(list))].ID
		}
	}
	m.setResource(ref, r)
	m.connect()
}

// connect resolves what all resources refer to, like a loader.
func (m *model) connect() {
	for again := true; again; {
		again = false
		for _, ref := range schema.SortRefs(slices.Collect(maps.Keys(m.resources))) {
			r := *m.resources[ref]
			r.After, r.Outside = nil, nil
			m.in.Kinds[ref.Kind].ReplaceRefs(r.Spec.Clone(), func(kind, name string) string {
				to := schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: name}
				if m.in.Kinds[kind].Node {
					to.Scope = ref.Scope
				}
				switch {
				case len(name) > 4: // an id
					r.Outside = append(r.Outside, to)
				case m.resources[to] == nil:
					m.setResource(to, &schema.Resource{Ref: to, Spec: m.spec(to)})
					again = true
					fallthrough
				default:
					r.After = append(r.After, to)
				}
				return name
			})
			r.After, r.Outside = schema.SortRefs(r.After), schema.SortRefs(r.Outside)
			if !reflect.DeepEqual(&r, m.resources[ref]) {
				m.setResource(ref, &r)
			}
		}
	}
}

// remove removes a resource from the document, and everything that refers to it.
func (m *model) remove(ref schema.Ref) {
	if m.resources[ref] == nil {
		return
	}
	m.setResource(ref, nil)
	for _, r := range modelRefs() {
		if user := m.resources[r]; user != nil && slices.Contains(user.After, ref) {
			m.remove(r)
		}
	}
}

// carry carries out some of a plan.
func (m *model) carry(p *plan.Plan, all bool) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if !all && m.draw("do", 4) == 0 {
			continue
		}
		at := s.Ref.Place()
		traits, _ := m.in.Traits(at.Scope, at.Kind)
		switch s.Action {
		case plan.Create, plan.Update:
			t := &providers.Thing{ID: s.ExternalID, Name: s.Ref.Name, Spec: m.abroad(s), Phase: providers.Ready, Version: "1"}
			if traits.Mark {
				t.Mark = providers.Mark{Site: enginetest.SiteID, Ref: s.Ref, Incarnation: s.Incarnation}
			}
			if t.UID = s.UID; traits.ID != "" && s.Action == plan.Create {
				t.UID = fmt.Sprint("uid ", m.plans)
			}
			m.setThing(at, t.ID, t)
		case plan.Delete:
			m.setThing(at, s.ExternalID, nil)
		}
		switch {
		case m.draw("lost", 20) == 0: // it died before it recorded that
		case s.Record == nil:
			m.setRecord(s.Ref, nil)
		default:
			r := *s.Record
			if traits.ID != "" && s.Action == plan.Create {
				r.UID = fmt.Sprint("uid ", m.plans)
			}
			m.setRecord(s.Ref, &r)
		}
	}
}

// abroad returns the result of a step, with ids.
func (m *model) abroad(s *plan.Step) schema.Object {
	spec := s.After.Clone()
	m.in.Kinds[s.Ref.Kind].ReplaceRefs(spec, func(kind, name string) string { return m.id(s.Ref.Scope, kind, name) })
	return spec
}

// meddle changes the world like another client.
func (m *model) meddle() {
	places := slices.SortedFunc(maps.Keys(m.in.Observed.Things), func(a, b schema.Place) int {
		return schema.Ref{Scope: a.Scope, Kind: a.Kind}.Compare(schema.Ref{Scope: b.Scope, Kind: b.Kind})
	})
	at := places[m.draw("place", len(places))]
	list := m.in.Observed.Things[at]
	if len(list) == 0 || m.draw("new", 4) == 0 {
		ref := schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: modelNames[at.Kind][m.draw("name", len(modelNames[at.Kind]))]}
		t := &providers.Thing{ID: fmt.Sprint("foreign-", m.draw("id", 3)), Name: ref.Name, Spec: m.abroad(&plan.Step{Ref: ref, After: m.spec(ref)}), Phase: providers.Ready}
		traits, _ := m.in.Traits(at.Scope, at.Kind)
		if m.draw("as ours", 3) == 0 {
			t.Mark = providers.Mark{Site: enginetest.SiteID, Ref: ref, Incarnation: 1 + m.draw("incarnation", 3)}
			t.ID = plan.ExternalID(enginetest.SiteID, traits, ref, t.Mark.Incarnation, nil)
			if m.draw("no mark", 2) == 0 {
				t.Mark = providers.Mark{}
			}
		} else if traits.ID != "" {
			t.ID, t.UID = ref.Name, "uid "+[]string{"a", "b"}[m.draw("uid", 2)]
		}
		m.setThing(at, t.ID, t)
		return
	}
	t := list[m.draw("thing", len(list))]
	switch m.draw("meddle", 13) {
	case 11, 12:
		if traits, _ := m.in.Traits(at.Scope, at.Kind); traits.ID != "" {
			was := t.ID
			t.ID = "renamed-" + []string{"a", "br", "p"}[m.draw("to", 3)]
			if m.draw("copy", 3) > 0 {
				m.setThing(at, was, nil)
			} else {
				t.UID = "uid c"
			}
		}
	case 0, 1:
		m.setThing(at, t.ID, nil)
		return
	case 2:
		t.Phase = []providers.Phase{providers.Ready, providers.Failed, providers.Deleting, providers.Pending}[m.draw("phase", 4)]
	case 3:
		t.Mark = stranger
	case 4:
		t.Mark = providers.Mark{}
	case 5:
		if traits, _ := m.in.Traits(at.Scope, at.Kind); traits.ID == "" { // otherwise the name is in the id
			t.Name = modelNames[at.Kind][m.draw("name", len(modelNames[at.Kind]))]
		}
	case 6:
		t.Derived = !t.Derived
	case 7:
		t.Detail = []string{"", "it has crashed"}[m.draw("detail", 2)]
	case 8:
		if traits, _ := m.in.Traits(at.Scope, at.Kind); traits.ID != "" {
			t.UID, t.Mark = "uid "+[]string{"a", "b"}[m.draw("uid", 2)], providers.Mark{}
		}
	default:
		ref := schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: t.Name}
		t.Spec = m.abroad(&plan.Step{Ref: ref, After: m.spec(ref)})
	}
	m.setThing(at, t.ID, &t)
}

// edit makes one change.
func (m *model) edit(last *plan.Plan) {
	refs := modelRefs()
	ref := refs[m.draw("ref", len(refs))]
	switch m.draw("edit", 12) {
	case 0, 1, 2:
		m.declare(ref)
	case 3:
		m.remove(ref)
	case 4, 5, 6:
		m.meddle()
	case 7:
		if r := m.records[ref]; r != nil {
			is := *r
			switch m.draw("record", 4) {
			case 0:
				m.setRecord(ref, nil)
				return
			case 1:
				is.Gone = !is.Gone
			case 2:
				is.Protect = !is.Protect
			case 3:
				is.Left = &state.Left{Gone: true}
			}
			m.setRecord(ref, &is)
		}
	case 8:
		m.in.Begun = map[schema.Ref]bool{}
		if m.draw("begin", 2) == 0 {
			m.in.Begun[ref] = true
		}
		m.changes.Begun = m.in.Begun
	case 9:
		m.in.Known = []state.Server{{Scope: schema.ScopeSite, Provider: "far", Identity: []string{"x", "y"}[m.draw("server", 2)]}}
		m.changes.Known = m.in.Known
	default:
		m.carry(last, m.draw("all", 2) == 0)
	}
}

// told returns everything that a plan reports.
func told(t *rapid.T, p *plan.Plan) string {
	b, err := json.MarshalIndent(struct {
		Plan      *plan.Plan
		Document  plan.Verbatim
		Drift     []plan.Drift
		Unmanaged []plan.Unmanaged
		Remarks   []plan.Remark
	}{p, p.Document, p.Drift, p.Unmanaged, p.Remarks}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTorturePlanner: whatever changes, a planner that continues makes the plan that would be made from everything.
func TestTorturePlanner(t *testing.T) {
	torture.Worlds(t, 200, 1000, 100000)
	checked, quiet := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		for range m.draw("begins with", 8) {
			m.declare(modelRefs()[m.draw("ref", len(modelRefs()))])
		}
		p, got, err := plan.NewPlanner(m.input())
		for n := 0; ; n++ {
			if err != nil {
				t.Fatal(err)
			}
			want, werr := plan.Make(m.input())
			if werr != nil {
				t.Fatal(werr)
			}
			if is, should := told(t, got), told(t, want); is != should {
				t.Fatalf("plan %d of a planner:\n%s\nof everything:\n%s", n, is, should)
			}
			checked++
			quiet += got.Unchanged
			if n == 12 {
				return
			}
			m.forget()
			if n < 3 { // so that most is as it should be at the start
				m.carry(got, true)
			} else {
				for range 1 + m.draw("edits", 3) {
					m.edit(got)
				}
			}
			got, err = p.Plan(m.changes)
		}
	})
	torture.Report(t, "N", "a planner that goes on, in worlds that change: %d plans, each equal to the one of everything; %d times nothing was to be done about a resource", checked, quiet)
}

// TestPlannerAfterAnError: an error leaves nothing behind, and what does not fit is refused.
func TestPlannerAfterAnError(t *testing.T) {
	in := converged(t, 200)
	if _, _, err := plan.NewPlanner(plan.Input{Document: in.Document, Options: plan.Options{Destroy: true}}); err == nil {
		t.Error("a planner with options was made")
	}
	p, _, err := plan.NewPlanner(in)
	if err != nil {
		t.Fatal(err)
	}
	at := schema.Place{Scope: "n1", Kind: "near.port"}
	if _, err := p.Plan(plan.Changes{Things: map[schema.Place]map[string]*providers.Thing{at: {"p": {ID: "p"}}}}); err == nil || !strings.Contains(err.Error(), "n1/near.port") {
		t.Errorf("a thing of a place that was not observed: %v", err)
	}
	newer := schema.Ref{Scope: schema.ScopeSite, Kind: "far.newer", Name: "a"}
	if _, err := p.Plan(plan.Changes{Records: map[schema.Ref]*state.Record{newer: {Ref: newer, ID: "a", Incarnation: 1}}}); err == nil {
		t.Error("a record of an unknown kind was planned")
	}
	made, err := p.Plan(plan.Changes{Records: map[schema.Ref]*state.Record{newer: nil}})
	if err != nil || !made.Empty() || made.Unchanged != 200 {
		t.Errorf("after it is gone: %v, %d unchanged", err, made.Unchanged)
	}
}
