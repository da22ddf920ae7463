package apply

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A sight is what is known of a create whose outcome is unknown, what is observed, and what must follow.
type sight struct {
	row    string // of the table in docs/reliability.md
	traits providers.Traits
	know   func(*known)
	have   *providers.Thing
	taken  bool // the id was reported as taken
	search bool // it was searched for
	do     move
	why    string
}

// sights are the table of docs/reliability.md, line by line.
func sights() []sight {
	mark := providers.Mark{Site: "site", Ref: theRef, Incarnation: 1}
	thing := func(spec schema.Object, change ...func(*providers.Thing)) *providers.Thing {
		t := &providers.Thing{ID: "id", Name: "a", Mark: mark, Spec: spec, Phase: providers.Ready}
		for _, c := range change {
			c(t)
		}
		return t
	}
	pending := func(t *providers.Thing) { t.Phase = providers.Pending }
	strangers := func(t *providers.Thing) { t.Mark = providers.Mark{Site: "other", Ref: theRef, Incarnation: 1} }
	marked := providers.Traits{Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Versioned, Mark: true}
	named, blind, burned := marked, marked, marked
	named.ID = "name"
	blind.Create = providers.Blind
	burned.IDsNotReusable = true
	late := func(k *known) { k.doubt = time.Unix(1, 0) }
	whole, part, other := schema.Object{"net": "n", "size": int64(1)}, schema.Object{"net": "n"}, schema.Object{"net": "n", "size": int64(2)}
	return []sight{
		{row: "ours, as wanted", traits: marked, have: thing(whole), do: awaits},
		{row: "ours, as wanted", traits: named, have: thing(whole), do: awaits},
		{row: "ours, as wanted", traits: marked, have: thing(whole), taken: true, do: awaits},
		{row: "ours, and a part is missing", traits: marked, know: late, have: thing(part), do: lingers},
		{row: "ours, and a part is missing", traits: marked, have: thing(part, pending), do: ripens},
		{row: "ours, and a part is missing", traits: marked, have: thing(part), do: calls},
		{row: "ours, and a part is missing", traits: marked, have: thing(schema.Object{"size": int64(1)}), do: leaves, why: "it was created, but differs in: net"},
		{row: "ours, with another value", traits: marked, know: late, have: thing(other), do: lingers},
		{row: "ours, with another value", traits: marked, have: thing(other), do: leaves, why: "it was created, but differs in: size"},
		{row: "another owner's", traits: named, have: thing(whole, strangers), do: fails, why: "it already exists"},
		{row: "another owner's", traits: named, have: thing(whole, strangers), taken: true, do: refuses, why: "taken"},
		{row: "nothing; a second create would be refused", traits: marked, do: searches},
		{row: "nothing; a second create would be refused", traits: marked, search: true, do: calls},
		{row: "nothing; a second create would be refused", traits: marked, taken: true, do: fails, why: "taken"},
		{row: "nothing, twice, and the id is reported as taken", traits: burned, taken: true, do: reincarnates},
		{row: "nothing; a second create would create a second object", traits: blind, do: searches},
		{row: "nothing; a second create would create a second object", traits: blind, search: true, do: doubts, why: "unknown whether it was created"},
		{row: "nothing under our id, but our mark under another", traits: marked, do: searches}, // and what bears our mark is found
		{row: "nothing under our id, but our mark under another", traits: marked, search: true, have: thing(whole, func(t *providers.Thing) { t.ID = "another" }), do: awaits},
	}
}

func aHost() *schema.Kind {
	return &schema.Kind{Name: "far.host", Fields: []schema.Field{{Name: "net", Type: schema.String, Immutable: true}, {Name: "size", Type: schema.Int}}}
}

var theRef = schema.Ref{Scope: "site", Kind: "far.host", Name: "a"}

// TestWhatFollowsAnUnknownCreate checks the table of docs/reliability.md: each of its lines, and nothing else, has a case here.
func TestWhatFollowsAnUnknownCreate(t *testing.T) {
	rows := table(t)
	kind := aHost()
	covered := map[string]bool{}
	for _, c := range sights() {
		want := schema.Object{"net": "n", "size": int64(1)}
		k := &known{
			step: &plan.Step{Ref: theRef, Action: plan.Create}, action: plan.Create, kind: kind, traits: c.traits, site: "site", run: "run", id: "id",
			incarnation: 1, mark: providers.Mark{Site: "site", Ref: theRef, Incarnation: 1}, want: want, stated: want, unsure: true, called: true,
		}
		if c.know != nil {
			c.know(k)
		}
		v := k.decide(c.have, c.search, false)
		if c.taken {
			v = k.collides(c.have, errors.New("taken"))
		}
		if v.do != c.do || c.why == "" != (v.why == nil) || c.why != "" && !strings.Contains(v.why.Error(), c.why) {
			t.Errorf("%s (%+v): %d because of %v, want %d because of %q", c.row, c.have, v.do, v.why, c.do, c.why)
		}
		if covered[c.row] = true; !rows[c.row] {
			t.Errorf("docs/reliability.md has no line %q", c.row)
		}
	}
	for row := range rows {
		if !covered[row] {
			t.Errorf("the line %q of docs/reliability.md has no case", row)
		}
	}
}

// table reads the first column of the table of what follows an unknown create.
func table(t *testing.T) map[string]bool {
	text, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	_, below, ok := strings.Cut(string(text), "| we see | so | and do |\n|---|---|---|\n")
	if !ok {
		t.Fatal("docs/reliability.md has no such table")
	}
	rows := map[string]bool{}
	for line := range strings.Lines(below) {
		cells := regexp.MustCompile(`^\| ([^|]+) \|`).FindStringSubmatch(line)
		if cells == nil {
			break
		}
		rows[cells[1]] = true
	}
	if len(rows) < 8 {
		t.Fatalf("only %d lines were read", len(rows))
	}
	return rows
}

// TestWhatPrecedesACall: nothing is changed or deleted that differs from what the plan saw, or the run left.
func TestWhatPrecedesACall(t *testing.T) {
	kind := aHost()
	marked := providers.Traits{Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Versioned, Mark: true}
	mine, theirs := providers.Mark{Site: "site", Ref: theRef, Incarnation: 1}, providers.Mark{Site: "other", Ref: theRef, Incarnation: 1}
	was, will, other := schema.Object{"net": "n", "size": int64(1)}, schema.Object{"net": "n", "size": int64(2)}, schema.Object{"net": "n", "size": int64(3)}
	seen := func(spec schema.Object, mark providers.Mark) *providers.Thing {
		return &providers.Thing{ID: "id", Name: "a", Mark: mark, Spec: spec, Phase: providers.Ready}
	}
	leaving := seen(was, mine)
	leaving.Phase = providers.Deleting
	for _, c := range []struct {
		what   string
		action plan.Action
		unsure bool
		have   *providers.Thing
		do     move
		why    string
	}{
		{"as it was", plan.Update, false, seen(was, mine), calls, ""},
		{"as it was, and a call is in doubt", plan.Update, true, seen(was, mine), calls, ""},
		{"as it is to be", plan.Update, false, seen(will, mine), awaits, ""},
		{"otherwise", plan.Update, false, seen(other, mine), refuses, "it changed since the plan"},
		{"otherwise, and a call is in doubt", plan.Update, true, seen(other, mine), leaves, "changed size after the run did"},
		{"gone", plan.Update, false, nil, fails, "no longer exists"},
		{"going", plan.Update, false, leaving, fails, "no longer exists"},
		{"another owner's", plan.Update, false, seen(was, theirs), fails, "its ownership mark changed"},
		{"as it was", plan.Delete, false, seen(was, mine), calls, ""},
		{"otherwise", plan.Delete, false, seen(other, mine), refuses, "it changed since the plan"},
		{"otherwise, and a call is in doubt", plan.Delete, true, seen(other, mine), leaves, "after the run started deleting it"},
		{"gone", plan.Delete, false, nil, finishes, ""},
		{"going", plan.Delete, false, leaving, awaits, ""},
		{"another owner's", plan.Delete, false, seen(was, theirs), refuses, "its ownership mark changed"},
	} {
		k := &known{
			step: &plan.Step{Ref: theRef, Action: c.action, Mark: mine}, action: c.action, kind: kind, traits: marked, site: "site", run: "run", id: "id",
			incarnation: 1, mark: mine, before: was, unsure: c.unsure, called: c.unsure,
		}
		if c.action == plan.Update {
			k.want, k.stated = will, will
		}
		v := k.decide(c.have, false, false)
		if v.do != c.do || c.why == "" != (v.why == nil) || c.why != "" && !strings.Contains(v.why.Error(), c.why) {
			t.Errorf("%s of what is %s: %d because of %v, want %d because of %q", c.action, c.what, v.do, v.why, c.do, c.why)
		}
	}
}

// TestWhatAnUndoRecognizes: a thing without a mark was made by a create of unknown outcome when it is as that made it, as far as is told.
func TestWhatAnUndoRecognizes(t *testing.T) {
	for _, c := range []struct {
		spec     schema.Object
		unfilled []string
		do       move
	}{
		{schema.Object{"net": "n", "size": int64(1)}, nil, calls},
		{schema.Object{"net": "n"}, nil, leaves},
		{schema.Object{"net": "n"}, []string{"size"}, calls},
		{schema.Object{"net": "other"}, []string{"size"}, leaves},
		{schema.Object{"net": "n", "size": int64(1), "uuid": "chosen by the far side"}, nil, calls},
		{schema.Object{"net": "n", "size": int64(1), "groups": []any{}}, nil, calls},
		{schema.Object{"net": "n", "size": int64(1), "note": "of others"}, nil, leaves},
	} {
		kind := aHost()
		kind.Fields = []schema.Field{
			{Name: "groups", Type: schema.List, Elem: &schema.Field{Type: schema.String}}, kind.Fields[0], {Name: "note", Type: schema.String}, kind.Fields[1],
			{Name: "uuid", Type: schema.String, Kept: true},
		}
		k := &known{
			step: &plan.Step{Ref: theRef, Action: plan.Create}, undo: true, action: plan.Delete, kind: kind, lost: true, unsure: true,
			traits: providers.Traits{ID: "{name}", Create: providers.Conditional, Delete: providers.Blind}, site: "site", run: "run", id: "id", incarnation: 1,
			made: schema.Object{"net": "n", "size": int64(1)},
		}
		if v := k.decide(&providers.Thing{ID: "id", Name: "a", Spec: c.spec, Unfilled: c.unfilled, Phase: providers.Ready}, true, false); v.do != c.do {
			t.Errorf("of %v without %q: %d because of %v, want %d", c.spec, c.unfilled, v.do, v.why, c.do)
		}
	}
}

// TestWhatAnUndoRemoves: it does not remove what others have made of a thing.
func TestWhatAnUndoRemoves(t *testing.T) {
	kind := aHost()
	mine := providers.Mark{Site: "site", Ref: theRef, Incarnation: 1}
	made := schema.Object{"net": "n", "size": int64(1)}
	have := &providers.Thing{ID: "id", Name: "a", Mark: mine, Spec: schema.Object{"net": "n", "size": int64(1), "note": "theirs"}, Phase: providers.Ready}
	k := &known{
		step: &plan.Step{Ref: theRef, Action: plan.Create, Record: &state.Record{Ref: theRef}}, undo: true, action: plan.Delete, kind: kind,
		traits: providers.Traits{Create: providers.Conditional, Delete: providers.Versioned, Mark: true}, site: "site", run: "run", id: "id", incarnation: 1, mark: mine,
		made: made, unsure: true, finished: true, seen: made.Digest(),
	}
	kind.Fields = append(kind.Fields, schema.Field{Name: "note", Type: schema.String})
	if v := k.decide(have, false, false); v.do != calls { // it is unknown what else was different when the run created it
		t.Errorf("without a record: %d because of %v", v.do, v.why)
	}
	k.recorded = &state.Record{Ref: theRef, ID: "id", Run: "run", Spec: made, Rest: schema.Object{}}
	if v := k.decide(have, false, false); v.do != leaves || !strings.Contains(v.why.Error(), "note") {
		t.Errorf("with a record: %d because of %v", v.do, v.why)
	}
	have.Spec = made
	if v := k.decide(have, false, false); v.do != calls {
		t.Errorf("as the run made it: %d because of %v", v.do, v.why)
	}
	if v := k.decide(nil, false, false); v.do != finishes {
		t.Errorf("gone: %d because of %v", v.do, v.why)
	}
}

// TestWhatACutUndoLeaves: the call that deletes what a step made may be cut too, and leave anything in what is set last; that is no change of
// others. What they have changed elsewhere still is.
func TestWhatACutUndoLeaves(t *testing.T) {
	kind := aHost()
	kind.Fields = slices.Insert(kind.Fields, 0, schema.Field{Name: "active", Type: schema.Bool})
	made := schema.Object{"net": "n", "size": int64(1), "active": true}
	for _, c := range []struct {
		called bool
		have   schema.Object
		do     move
	}{
		{false, schema.Object{"net": "n", "size": int64(1), "active": false}, leaves},
		{true, schema.Object{"net": "n", "size": int64(1), "active": false}, calls},
		{true, schema.Object{"net": "n", "size": int64(2), "active": false}, leaves},
	} {
		k := &known{
			step: &plan.Step{Ref: theRef, Action: plan.Create, Record: &state.Record{Ref: theRef}}, undo: true, action: plan.Delete, kind: kind,
			traits: providers.Traits{ID: "{name}", Create: providers.Conditional, Delete: providers.Blind, SetLast: []string{"active"}}, site: "site", run: "run", id: "id",
			incarnation: 1, made: made, unsure: true, finished: true, seen: made.Digest(), called: c.called,
			recorded: &state.Record{Ref: theRef, ID: "id", Run: "run", Spec: made, Rest: schema.Object{}},
		}
		if v := k.decide(&providers.Thing{ID: "id", Name: "a", Spec: c.have, Phase: providers.Ready}, false, false); v.do != c.do {
			t.Errorf("called %t, and it is %v: %d because of %v, want %d", c.called, c.have, v.do, v.why, c.do)
		}
	}
}

// TestWhatAFailedThingGetsBack: an undo that is cut may leave a thing that has failed and shows little of what it has. All that it had is
// restored then, also what the step did not change; what is shown stays as it is.
func TestWhatAFailedThingGetsBack(t *testing.T) {
	before := schema.Object{"net": "n", "size": int64(1)}
	for phase, want := range map[providers.Phase]schema.Object{
		providers.Ready:  {"size": int64(1)},
		providers.Failed: {"net": "n", "size": int64(1)},
	} {
		k := &known{
			step: &plan.Step{Ref: theRef, Action: plan.Update}, undo: true, action: plan.Update, kind: aHost(), site: "site", run: "run", id: "id", incarnation: 1,
			before: before, touched: []string{"size"}, stated: schema.Object{"size": int64(1)}, dropped: schema.Object{"size": int64(2)}, unsure: true,
		}
		if got := k.restored(&providers.Thing{ID: "id", Phase: phase, Spec: schema.Object{}}); !got.Equal(want) {
			t.Errorf("%s: %v is restored, want %v", phase, got, want)
		}
		if got := k.restored(&providers.Thing{ID: "id", Phase: phase, Spec: schema.Object{"net": "theirs"}}); !got.Equal(schema.Object{"size": int64(1)}) {
			t.Errorf("%s, with a net of others: %v is restored", phase, got)
		}
	}
}

// TestWhatComesAfterReady: what can be requested only once the thing is ready is requested then, and not before, for as long as
// the step has time.
func TestWhatComesAfterReady(t *testing.T) {
	kind := &schema.Kind{Name: "far.host", Fields: []schema.Field{{Name: "net", Type: schema.String, Immutable: true}, {Name: "power", Type: schema.String}}}
	mark := providers.Mark{Site: "site", Ref: theRef, Incarnation: 1}
	want := schema.Object{"net": "n", "power": "off"}
	k := &known{
		step: &plan.Step{Ref: theRef, Action: plan.Create}, action: plan.Create, kind: kind, site: "site", id: "id", incarnation: 1, mark: mark,
		traits: providers.Traits{Create: providers.Conditional, Update: providers.Versioned, Mark: true, Later: []string{"power"}},
		want:   want, stated: want, unsure: true, called: true, sent: true,
	}
	have := &providers.Thing{ID: "id", Name: "a", Mark: mark, Spec: schema.Object{"net": "n", "power": "on"}, Phase: providers.Pending}
	for _, c := range []struct {
		phase  providers.Phase
		waited bool
		do     move
	}{{providers.Pending, false, ripens}, {providers.Pending, true, calls}, {providers.Ready, false, calls}, {providers.Failed, false, leaves}} {
		have.Phase = c.phase
		if v := k.decide(have, true, c.waited); v.do != c.do {
			t.Errorf("%s, waited %v: %d because of %v, want %d", c.phase, c.waited, v.do, v.why, c.do)
		}
	}
	have.Spec["power"] = "off"
	if have.Phase = providers.Ready; k.decide(have, true, false).do != awaits {
		t.Error("what is as wanted is called for")
	}
}
