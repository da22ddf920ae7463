package engine_test

import (
	"slices"
	"strings"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
)

// gridLate is the time within which a call of unknown outcome may still have its effect, for every profile. It is much longer
// than all retries of a step together, which distinguishes a run that has waited for it from one that has not.
const gridLate = 5 * time.Minute

// gridPatience is how long every profile waits for a thing to become ready, or to be gone.
const gridPatience = 40 * time.Second

// A gridProfile is the traits of a family of kinds.
type gridProfile struct {
	name   string
	traits providers.Traits
}

// gridProfiles are the families that differ in what can be known after a call of unknown outcome.
func gridProfiles() []gridProfile {
	of := func(change func(*providers.Traits)) providers.Traits {
		t := fake.NodeTraits()
		t.EffectWithin, t.ReadyWithin, t.GoneWithin = gridLate, gridPatience, gridPatience
		change(&t)
		return t
	}
	return []gridProfile{
		{"carbide", of(func(t *providers.Traits) {
			t.ID, t.IDsNotReusable, t.Delete, t.UndoDelete = "", true, providers.Blind, providers.Replace
		})},
		{"ovs", of(func(*providers.Traits) {})},
		{"blind create", of(func(t *providers.Traits) { t.Create, t.Update = providers.Blind, providers.Blind })},
		{"blind delete", of(func(t *providers.Traits) { t.Delete = providers.Blind })},
		{"unmarked", of(func(t *providers.Traits) { t.Mark = false })},
	}
}

// A gridMethod is a call on x: on the way forward, or as the undo of a step that is done when a later one fails.
type gridMethod struct {
	name string // of the step: create, update, delete; mark: an update that adopts what others created
	undo bool
}

// gridMethods are the columns of the grid.
var gridMethods = []gridMethod{
	{"create", false}, {"update", false}, {"delete", false}, {"mark", false},
	{"create", true}, {"update", true}, {"delete", true}, {"mark", true},
}

// verb returns the call that the provider gets.
func (m gridMethod) verb() string {
	switch {
	case m.name == "mark":
		return "update"
	case m.name == "create" && m.undo:
		return "delete"
	case m.name == "delete" && m.undo:
		return "create"
	}
	return m.name
}

func (m gridMethod) String() string {
	if m.undo {
		return "~" + m.name
	}
	return m.name
}

// possible reports whether the method exists for the profile: what has no place for a mark is not marked, and the
// deletion of a thing that comes back only as another is never undone.
func (m gridMethod) possible(p gridProfile) bool {
	return !(m.name == "mark" && !p.traits.Mark) && !(m.name == "delete" && m.undo && !p.traits.UndoDelete.Reversible())
}

// A gridAct is what another client does to x, behind the back of the engine.
type gridAct string

const (
	gridTouch   gridAct = "touch"   // writes it again unchanged: only the version changes
	gridEdit    gridAct = "edit"    // changes one of its labels
	gridVanish  gridAct = "vanish"  // removes it
	gridBurn    gridAct = "burn"    // an earlier incarnation had its id, and is gone
	gridIntrude gridAct = "intrude" // creates a thing with other content, unmarked, under the id of x
	gridSeize   gridAct = "seize"   // replaces it with one of another site, with the same content
)

// A gridFault is what goes wrong at a call on x.
type gridFault struct {
	name     string
	verbs    string       // for which verbs it makes sense; empty: for all
	inject   []fake.Fault // Op empty: the verb; they begin when the step before x, or the step that fails, is in progress
	first    *fake.Fault  // of the forward call, although the undo is tested
	early    gridAct      // before the engine first observes x for this step
	just     gridAct      // when the call is on its way, after the last observation
	killed   fake.Moment  // the process dies in the call, and another one resumes
	patient  bool         // nothing is done until all late effects have come
	eventual bool         // the list of the kind may lag
	natural  bool         // only where the id is the name
	marked   bool         // only where there are marks
	burned   bool         // only where ids are used once
}

func (f gridFault) possible(p gridProfile, m gridMethod) bool {
	switch {
	case !m.possible(p), f.natural && p.traits.ID == "", f.marked && !p.traits.Mark, f.burned && !p.traits.IDsNotReusable:
		return false
	case f.first != nil && !m.undo, m.name == "mark" && m.undo && f.early == gridSeize: // it is not ours to begin with
		return false
	}
	return f.verbs == "" || slices.Contains(strings.Fields(f.verbs), m.verb())
}

// gridAlways means every call from now on.
const gridAlways = -1

// gridFaults returns the rows of the grid.
func gridFaults() []gridFault {
	const unknown, after, lateEffect = providers.Unknown, fake.EffectAfter, fake.EffectLate
	one := func(name string, f fake.Fault) gridFault { return gridFault{name: name, inject: []fake.Fault{f}} }
	seconds := func(n int) fake.Duration { return fake.Duration(time.Duration(n) * time.Second) }
	stale := one("stale list", fake.Fault{Op: "observe", Ref: "far.host", Effect: fake.EffectStale, Times: 3})
	stale.eventual = true
	both := one("stale, reply lost", fake.Fault{Op: "observe", Ref: "far.host", Effect: fake.EffectStale, Times: 2})
	both.inject, both.eventual = append(both.inject, fake.Fault{Effect: after}), true
	wrong := func(name, verbs string, f fake.Fault) gridFault {
		return gridFault{name: name, verbs: verbs, inject: []fake.Fault{f}}
	}
	return []gridFault{
		{name: "none"},
		one("refused", fake.Fault{Class: providers.Invalid}),
		one("overloaded", fake.Fault{Class: providers.Transient, Times: 3}),
		one("overloaded for good", fake.Fault{Class: providers.Transient, Times: gridAlways}),
		one("busy", fake.Fault{Class: providers.Busy, Times: 3}),
		one("busy for good", fake.Fault{Class: providers.Busy, Times: gridAlways}),
		one("request lost", fake.Fault{Class: unknown}),
		one("requests lost", fake.Fault{Class: unknown, Times: gridAlways}),
		one("reply lost", fake.Fault{Class: unknown, Effect: after}),
		one("replies lost", fake.Fault{Class: unknown, Effect: after, Times: gridAlways}),
		one("late", fake.Fault{Effect: lateEffect, Delay: seconds(2)}),
		one("late each time", fake.Fault{Effect: lateEffect, Delay: seconds(2), Times: gridAlways}),
		one("late, many looks", fake.Fault{Effect: lateEffect, Delay: seconds(240), Times: gridAlways}),
		one("slow", fake.Fault{Effect: fake.EffectSlow, Delay: seconds(20)}),
		one("too slow", fake.Fault{Effect: fake.EffectSlow, Delay: seconds(200)}),
		wrong("never ready", "create update", fake.Fault{Effect: fake.EffectFailed}),
		one("done, said invalid", fake.Fault{Effect: after, Class: providers.Invalid}),
		one("done, said transient", fake.Fault{Effect: after, Class: providers.Transient}),
		wrong("not there, said exists", "create", fake.Fault{Class: providers.Exists}),
		wrong("there, said absent", "update delete", fake.Fault{Class: providers.Absent}),
		one("partial list", fake.Fault{Op: "observe", Ref: "far.host", Times: 3}),
		one("no list", fake.Fault{Op: "observe", Ref: "far.host", Class: providers.Denied, Times: gridAlways}),
		stale,
		both,
		one("lost server", fake.Fault{Op: "any", Ref: "far.host", Times: gridAlways}),
		one("flapping", fake.Fault{Op: "any", Ref: "far.host", Every: 3, Times: gridAlways}),
		one("flapping in step", fake.Fault{Op: "any", Ref: "far.host", Every: 2, Times: gridAlways}),
		{name: "late, then undone", first: &fake.Fault{Effect: lateEffect, Delay: seconds(2)}, patient: true},
		{name: "version moved", verbs: "update delete", just: gridTouch},
		{name: "edited", verbs: "update delete", just: gridEdit},
		{name: "edited early", verbs: "update delete", early: gridEdit},
		{name: "vanished", verbs: "update delete", just: gridVanish},
		{name: "id burned", verbs: "create", early: gridBurn, burned: true},
		{name: "foreign", verbs: "create", early: gridIntrude, natural: true},
		{name: "foreign, no reply", verbs: "create", just: gridIntrude, natural: true, inject: []fake.Fault{{Class: unknown}}},
		{name: "changed hands", verbs: "update delete", early: gridSeize, natural: true, marked: true},
		{name: "killed before", inject: []fake.Fault{{Class: unknown}}, killed: fake.Before},
		{name: "killed after", killed: fake.After},
	}
}
