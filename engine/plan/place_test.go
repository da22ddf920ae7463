package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// placing returns the input of a plan for rigs, which stand in bays, which appear by themselves.
func placing(rigs map[string]schema.Object, bays []providers.Thing, there []providers.Thing) plan.Input {
	kinds := schema.Kinds{
		"far.bay": {Name: "far.bay", Fields: []schema.Field{
			{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}},
			{Name: "repair", Type: schema.String},
			{Name: "type", Type: schema.String},
		}},
		"far.rig": {Name: "far.rig", Fields: []schema.Field{
			{Name: "bay", Type: schema.String, Immutable: true, Choose: &schema.Choice{
				Kind: "far.bay", Same: []string{"type"}, Labels: "want.labels", Unless: []string{"broken", "repair"}, Spread: "row",
			}},
			{Name: "size", Type: schema.Int},
			{Name: "type", Type: schema.String},
			{Name: "want", Type: schema.Struct, Planning: true, Fields: []schema.Field{{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}}}},
		}},
	}
	in := plan.Input{
		ID: "placing", Kinds: kinds, Document: &schema.Document{Site: schema.Site{Name: "test", ID: "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"}},
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{{Scope: "site", Kind: "far.bay"}: bays, {Scope: "site", Kind: "far.rig"}: there}},
		Traits:   func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
		Options:  plan.Options{Unlimited: true},
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if spec, ok := rigs[name]; ok {
			in.Document.Resources = append(in.Document.Resources, schema.Resource{Ref: schema.Ref{Scope: "site", Kind: "far.rig", Name: name}, Spec: spec})
		}
	}
	return in
}

func bay(id, row, kind string, status ...string) providers.Thing {
	t := providers.Thing{ID: id, Name: id, Spec: schema.Object{"type": kind}, Status: schema.Object{"row": row}, Phase: providers.Ready}
	for _, s := range status {
		key, value, _ := strings.Cut(s, "=")
		switch {
		case key == "broken":
			t.Status[key] = value
		case key == "repair":
			t.Spec[key] = value
		default:
			t.Spec["labels"] = map[string]any{key: value}
		}
	}
	return t
}

// chosen makes the plan and returns which bay each rig got.
func chosen(t *testing.T, in plan.Input) (string, *plan.Plan) {
	t.Helper()
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range p.Steps {
		if s.Action == plan.Create {
			lines = append(lines, fmt.Sprintf("%s in %v", s.Ref.Name, s.After["bay"]))
		}
	}
	for _, r := range p.Refusals {
		lines = append(lines, r.Ref.Name+" refused: "+r.Reason)
	}
	return strings.Join(lines, "\n"), p
}

func TestChoicesSpread(t *testing.T) {
	gpu := schema.Object{"type": "gpu"}
	in := placing(map[string]schema.Object{"a": gpu, "b": gpu, "c": gpu, "d": {"type": "gpu", "bay": "r1-2"}, "e": {"type": "cpu"}},
		[]providers.Thing{
			bay("r3-1", "r3", "gpu", "broken=no power"), bay("r2-2", "r2", "gpu"), bay("r1-1", "r1", "gpu"), bay("r1-2", "r1", "gpu"),
			bay("r2-1", "r2", "gpu"), bay("r3-2", "r3", "gpu", "repair=today"), bay("r1-9", "r1", "cpu"), bay("r4-1", "r4", "gpu"),
		},
		[]providers.Thing{{ID: "theirs", Name: "theirs", Spec: schema.Object{"bay": "r4-1", "type": "gpu"}, Phase: providers.Deleting}})
	// d names one in r1, so the others begin in r2; r4 is taken, even by what is in deletion; r3 is unavailable.
	want := "a in r2-1\nb in r1-1\nc in r2-2\nd in r1-2\ne in r1-9"
	got, p := chosen(t, in)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, s := range p.Steps {
		if s.Ref.Name == "a" && (len(s.Chosen) != 1 || s.Chosen[0].Why != "one of 3 that fit, in row r2, which has 0 like it" || s.Record.Spec["bay"] != nil) {
			t.Errorf("a: %+v, recorded %v", s.Chosen, s.Record.Spec)
		}
	}
	for range 3 {
		if again, _ := chosen(t, in); again != got {
			t.Fatalf("equal inputs give\n%s\nand\n%s", got, again)
		}
	}
}

func TestChoicesAreRefusedInWords(t *testing.T) {
	in := placing(map[string]schema.Object{"a": {"type": "gpu", "want": map[string]any{"labels": map[string]any{"zone": "x"}}}},
		[]providers.Thing{bay("1", "r", "gpu", "zone=x", "broken=no power"), bay("2", "r", "gpu", "zone=y"), bay("3", "r", "cpu", "zone=x"), bay("4", "r", "gpu", "zone=x")},
		[]providers.Thing{{ID: "theirs", Spec: schema.Object{"bay": "4"}, Phase: providers.Ready}})
	want := `a refused: no far.bay can be chosen for its bay: 1: label zone is not "x"; 1: no power; 1: taken; 1: type is not gpu`
	if got, _ := chosen(t, in); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	delete(in.Observed.Things, schema.Place{Scope: "site", Kind: "far.bay"})
	in.Observed.Unknown = map[schema.Place]string{{Scope: "site", Kind: "far.bay"}: "no answer"}
	if got, _ := chosen(t, in); !strings.Contains(got, "no answer") {
		t.Errorf("bays could not be observed: %s", got)
	}
}

// What was chosen stays: it is not a difference that the document does not name it, even when it once did.
func TestChoicesStay(t *testing.T) {
	for _, recorded := range []schema.Object{{"type": "gpu"}, {"type": "gpu", "bay": "1"}} {
		in := placing(map[string]schema.Object{"a": {"type": "gpu", "want": map[string]any{"labels": map[string]any{"zone": "x"}}}},
			[]providers.Thing{bay("1", "r", "gpu"), bay("2", "r", "gpu")},
			[]providers.Thing{{ID: "id-a", Name: "a", Spec: schema.Object{"type": "gpu", "bay": "1"}, Phase: providers.Ready}})
		ref := in.Document.Resources[0].Ref
		in.Recorded = []state.Record{{Ref: ref, ID: "id-a", Incarnation: 1, Spec: recorded}}
		_, p := chosen(t, in)
		if len(p.Steps) > 1 || len(p.Steps) == 1 && p.Steps[0].Action != plan.Adopt || len(p.Refusals) > 0 {
			t.Errorf("recorded %v: %+v %+v", recorded, p.Steps, p.Refusals)
		}
		in.Document.Resources[0].Spec["size"] = int64(2)
		_, p = chosen(t, in)
		if len(p.Steps) != 1 || p.Steps[0].Action != plan.Update || p.Steps[0].After["bay"] != "1" {
			t.Errorf("recorded %v: an update of another field gives %+v", recorded, p.Steps)
		}
	}
}

// replacing returns the input of a plan that replaces rigs, which stand in bays according to there.
func replacing(rigs map[string]schema.Object, bays []providers.Thing, there map[string]string) plan.Input {
	var stand []providers.Thing
	for _, name := range slices.Sorted(maps.Keys(there)) {
		stand = append(stand, providers.Thing{ID: "id-" + name, Name: name, Spec: schema.Object{"type": "gpu", "bay": there[name]}, Phase: providers.Ready})
	}
	in := placing(rigs, bays, stand)
	in.Options.Replace = []string{"site/far.rig/*"}
	for i := range in.Document.Resources {
		if ref := in.Document.Resources[i].Ref; there[ref.Name] != "" {
			in.Recorded = append(in.Recorded, state.Record{Ref: ref, ID: "id-" + ref.Name, Incarnation: 1, Spec: schema.Object{"type": "gpu"}})
		}
	}
	return in
}

// What is replaced gets another bay, or else the one that it has, which its removal frees. The far side says of that bay that it
// is not available, because it is not.
func TestReplacedKeepsItsOwnWhenNothingElseFits(t *testing.T) {
	gpu := schema.Object{"type": "gpu"}
	inUse := func(id string, status ...string) providers.Thing {
		return bay(id, "r", "gpu", append(status, "broken=in use")...)
	}
	unwell := inUse("1")
	unwell.Detail = "no power"
	for _, c := range []struct {
		name  string
		rigs  map[string]schema.Object
		bays  []providers.Thing
		there map[string]string
		want  string
	}{
		{"another is free", map[string]schema.Object{"a": gpu}, []providers.Thing{inUse("1"), bay("2", "r", "gpu")}, map[string]string{"a": "1"}, "a in 2"},
		{"none is free", map[string]schema.Object{"a": gpu, "b": gpu}, []providers.Thing{inUse("1"), inUse("2")}, map[string]string{"a": "2", "b": "1"}, "a in 2\nb in 1"},
		{"one is free for two", map[string]schema.Object{"a": gpu, "b": gpu}, []providers.Thing{inUse("1"), inUse("2"), bay("3", "r", "gpu")}, map[string]string{"a": "1", "b": "2"}, "a in 3\nb in 2"},
		{"its own is named by another", map[string]schema.Object{"a": gpu, "b": {"type": "gpu", "bay": "1"}}, []providers.Thing{inUse("1")}, map[string]string{"a": "1"},
			"b in 1\na refused: no far.bay can be chosen for its bay: 1: taken"},
		{"its own is another's too", map[string]schema.Object{"a": gpu}, []providers.Thing{inUse("1")}, map[string]string{"a": "1", "theirs": "1"},
			"a refused: no far.bay can be chosen for its bay: 1: taken"},
		{"another wants its own", map[string]schema.Object{"a": gpu, "b": gpu}, []providers.Thing{inUse("1")}, map[string]string{"b": "1"},
			"b in 1\na refused: no far.bay can be chosen for its bay: 1: taken"},
		{"its own is not well", map[string]schema.Object{"a": gpu}, []providers.Thing{unwell}, map[string]string{"a": "1"},
			"a refused: no far.bay can be chosen for its bay: 1: no power"},
		{"its own is to be repaired", map[string]schema.Object{"a": gpu}, []providers.Thing{inUse("1", "repair=today")}, map[string]string{"a": "1"},
			"a refused: no far.bay can be chosen for its bay: 1: today"},
		{"its own is of another type", map[string]schema.Object{"a": {"type": "cpu"}}, []providers.Thing{inUse("1")}, map[string]string{"a": "1"},
			"a refused: no far.bay can be chosen for its bay: 1: type is not cpu"},
	} {
		got, p := chosen(t, replacing(c.rigs, c.bays, c.there))
		if got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
		for _, s := range p.Steps {
			if s.Replace && s.Action == plan.Create && (len(s.Needs) != 1 || p.Steps[s.Needs[0]].Ref != s.Ref) {
				t.Errorf("%s: %s does not wait for its removal: %+v", c.name, s.Ref, p.Steps)
			}
		}
	}
}

// A rig that something refers to is made anew in another bay before the old one goes. In its own it can only follow the old one,
// and what refers to it has to let go meanwhile.
func TestReplacedInItsOwnPlaceGoesFirst(t *testing.T) {
	for _, c := range []struct {
		bays []providers.Thing
		want string
	}{
		{[]providers.Thing{bay("1", "r", "gpu"), bay("2", "r", "gpu")}, "create a, update w, delete a"},
		{[]providers.Thing{bay("1", "r", "gpu")}, "update w, delete a, create a, update w"},
	} {
		in := replacing(map[string]schema.Object{"a": {"type": "gpu"}}, c.bays, map[string]string{"a": "1"})
		in.Kinds["far.watch"] = &schema.Kind{Name: "far.watch", Fields: []schema.Field{{Name: "rigs", Type: schema.List, Elem: &schema.Field{Type: schema.String, Ref: "far.rig"}}}}
		traits := fake.SiteTraits()
		traits.Detach = []providers.Detachable{{Field: "rigs"}}
		in.Traits = func(string, string) (providers.Traits, bool) { return traits, true }
		rig, watch := in.Document.Resources[0].Ref, schema.Ref{Scope: "site", Kind: "far.watch", Name: "w"}
		spec := schema.Object{"rigs": []any{"a"}}
		in.Document.Resources = append(in.Document.Resources, schema.Resource{Ref: watch, Spec: spec, After: []schema.Ref{rig}})
		in.Recorded = append(in.Recorded, state.Record{Ref: watch, ID: "id-w", Incarnation: 1, Spec: spec, After: []schema.Ref{rig}})
		in.Observed.Things[watch.Place()] = []providers.Thing{{ID: "id-w", Name: "w", Spec: schema.Object{"rigs": []any{"id-a"}}, Phase: providers.Ready}}
		p, err := plan.Make(in)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range p.Steps {
			got = append(got, fmt.Sprintf("%s %s", s.Action, s.Ref.Name))
		}
		if text := strings.Join(got, ", "); text != c.want || len(p.Refusals) > 0 {
			t.Errorf("%d bays: got %s %v, want %s", len(c.bays), text, p.Refusals, c.want)
		}
	}
}

// A bay that is declared counts in its planned state, and is changed to it first.
func TestChoicesSeeWhatThePlanChanges(t *testing.T) {
	in := placing(map[string]schema.Object{"a": {"type": "gpu"}}, []providers.Thing{bay("1", "r", "cpu"), bay("2", "r", "gpu")}, nil)
	declare := func(id string, spec schema.Object) {
		ref := schema.Ref{Scope: "site", Kind: "far.bay", Name: "bay" + id}
		in.Document.Resources = append([]schema.Resource{{Ref: ref, Spec: spec}}, in.Document.Resources...)
		in.Recorded = append([]state.Record{{Ref: ref, ID: id, Incarnation: 1, Spec: schema.Object{}}}, in.Recorded...)
	}
	declare("2", schema.Object{"repair": "today"})
	declare("1", schema.Object{"type": "gpu"})
	got, p := chosen(t, in)
	if got != "a in 1" {
		t.Fatal(got)
	}
	made := p.Steps[len(p.Steps)-1]
	if made.Ref.Name != "a" || len(made.Needs) != 1 || p.Steps[made.Needs[0]].Ref.Name != "bay1" {
		t.Errorf("it does not wait for its bay: %+v", p.Steps)
	}
}

// A bay that a rig stands in keeps the type that the rig needs. Its type changes once the rig is gone, and before the rig comes
// anew.
func TestWhatWasChosenStaysFit(t *testing.T) {
	for _, c := range []struct {
		name, rig, was string // the rig's type in the document, empty when it has none; and the type that it has
		theirs         bool   // nobody recorded it
		want           string
	}{
		{"the rig stays", "cpu", "cpu", false, `refused: its type would change from cpu to gpu, but site/far.rig/a stays on it and needs cpu`},
		{"the rig never said", "any", "", false, `update bay1`},
		{"the rig is of that type", "gpu", "gpu", false, `update bay1`},
		{"the rig goes", "", "cpu", false, `delete a, update bay1`},
		{"the rig comes anew", "gpu", "cpu", false, `delete a, update bay1, create a`},
		{"the rig is another's", "", "cpu", true, `refused: its type would change from cpu to gpu, but far.rig a (id id-a) stays on it and needs cpu`},
	} {
		rigs := map[string]schema.Object{}
		there := providers.Thing{ID: "id-a", Name: "a", Spec: schema.Object{"bay": "1"}, Phase: providers.Ready}
		if c.was != "" {
			there.Spec["type"] = c.was
		}
		switch c.rig {
		case "":
		case "any":
			rigs["a"] = schema.Object{"bay": "1"}
		default:
			rigs["a"] = schema.Object{"type": c.rig, "bay": "1"}
		}
		in := placing(rigs, []providers.Thing{bay("1", "r", "cpu"), bay("2", "r", "gpu")}, []providers.Thing{there})
		in.Kinds["far.rig"].Field("type").Immutable = true
		declared := schema.Ref{Scope: "site", Kind: "far.bay", Name: "bay1"}
		for i := range in.Document.Resources {
			in.Document.Resources[i].After = []schema.Ref{declared}
		}
		in.Document.Resources = append([]schema.Resource{{Ref: declared, Spec: schema.Object{"type": "gpu"}}}, in.Document.Resources...)
		in.Recorded = []state.Record{{Ref: declared, ID: "1", Incarnation: 1, Spec: schema.Object{"type": "cpu"}}}
		if !c.theirs {
			in.Recorded = append(in.Recorded, state.Record{
				Ref: schema.Ref{Scope: "site", Kind: "far.rig", Name: "a"}, ID: "id-a", Incarnation: 1, Spec: there.Spec, After: []schema.Ref{declared},
			})
		}
		p, err := plan.Make(in)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range p.Steps {
			got = append(got, fmt.Sprintf("%s %s", s.Action, s.Ref.Name))
		}
		for _, r := range p.Refusals {
			got = append(got, "refused: "+r.Reason)
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, text, c.want)
		}
	}
}
