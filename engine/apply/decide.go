package apply

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// known is what is known of a step, and of what its earlier calls may have done. Everything that is decided about the step
// follows from this and from what is observed.
type known struct {
	step        *plan.Step
	undo        bool
	action      plan.Action // of the call: an undone create is a delete
	kind        *schema.Kind
	traits      providers.Traits
	site        string
	run         string
	id          string
	incarnation int
	name        string // its name afterwards; empty: the name stays
	unnamed     string // the name that it may have until then
	mark        providers.Mark
	before      schema.Object // expected right before acting, with external ids; nil: nothing
	want        schema.Object // the whole spec to have, with external ids; nil: nothing
	stated      schema.Object // what must be observed of it afterwards; equal to want when all of it must
	dropped     schema.Object // what was recorded before: fields in it that are not in stated must be gone
	unsure      bool          // an earlier call may have had its effect, or may still have it
	doubt       time.Time     // when the last call in this direction was made whose effect may still come; zero: none
	called      bool          // a call was made, and did not find its id taken
	made        schema.Object // undone create: what should have been made
	lost        bool          // undone create: it is unknown whether the thing was made
	missing     bool          // undone create: the far side accepted it, but it was never observed
	sent        bool          // the call was accepted: secrets that never come back are taken to be as sent
	ignore      []string      // paths of the spec that are ignored: they are not checked afterwards, and an undo leaves them alone
	touched     []string      // undone update: the fields that the step changed; what others have changed since stays
	changed     schema.Object // undone update: what the step should have made
	seen        string        // undone: digest of what was observed when the step ended; empty when it did not get that far
	finished    bool          // undone: the step was done
	recorded    *state.Record // undone create: its current record; nil: none
	kept        string        // undone: the uid of the thing as the run recorded it; empty: it did not
}

// A verdict is what to do next about a step, given what was observed.
type verdict struct {
	do   move
	why  error            // for every move that ends the step unsuccessfully
	left *providers.Thing // the state in which it leaves the thing, where that has to be reported
}

// A move is what a worker does next.
type move int

// Moves.
const (
	calls move = iota // makes the call, because what is there is what the call expects

	reincarnates // makes the call with the next id: this one is used up
	searches     // looks for what may exist but is not listed yet, for as long as listing may take
	lingers      // waits until a call of unknown outcome can no longer have an effect, and looks again
	ripens       // waits until what is there accepts a change, and looks again
	awaits       // looks until it is as wanted, or gone
	finishes     // ends the step: everything is as it should be
	leaves       // ends it as partial: something was changed and is not as it should be
	refuses      // ends it as refused: nothing was changed
	fails        // ends it as refused, or as in doubt while an earlier call is
	doubts       // ends it as in doubt, to be settled when the run is resumed
)

// decide returns what to do about a step, given what is there; nil: nothing. Searched means that the thing was already searched
// for, waited that it has had all the time that the step has to become ready.
func (k *known) decide(have *providers.Thing, searched, waited bool) verdict {
	blind := k.traits.Create == providers.Blind
	switch {
	case have == nil && !searched && k.unsure && (k.lost || k.missing || k.action == plan.Create && (!k.undo || blind && k.called)):
		return verdict{do: searches}
	case k.unsettled(have):
		return verdict{do: lingers}
	case (k.half(have) || k.later(have)) && have.Phase == providers.Pending && !waited:
		return verdict{do: ripens}
	}
	return k.conclude(have)
}

// collides returns what to do about a create whose id is reported as taken, given what is found there: the result of an earlier
// attempt, somebody else's thing, or nothing, because a thing deleted long ago had the id and it cannot be reused.
func (k *known) collides(have *providers.Thing, cause error) verdict {
	switch {
	case have != nil && k.ours(have):
		return k.conclude(have)
	case have != nil:
		return verdict{do: refuses, why: cause}
	case k.traits.IDsNotReusable && k.traits.ID == "":
		return verdict{do: reincarnates}
	}
	return verdict{do: fails, why: cause} // the name is taken by something else
}

// conclude compares what is there right before a call, or after a refused one, with what the call expects.
func (k *known) conclude(have *providers.Thing) verdict {
	here := have != nil && have.Phase != providers.Deleting
	var taken []string
	if here {
		taken = k.taken(have)
	}
	switch k.action {
	case plan.Delete:
		switch {
		case have == nil && k.lost && k.traits.Create == providers.Blind:
			return verdict{do: leaves, why: errBlind}
		case have == nil && k.missing:
			return verdict{do: leaves, why: errMissing}
		case have == nil:
			return verdict{do: finishes}
		case !here:
			return verdict{do: awaits}
		case k.undo && k.traits.ID == "" && k.stranger(have):
			return verdict{do: leaves, why: k.conflict(k.taking(have)), left: have}
		case k.undo && k.madeSince(have):
			return verdict{do: finishes} // ours is gone, and what took its place stays
		case k.undo && !k.ours(have) && k.lost:
			return verdict{do: leaves, why: errCollision}
		case k.undo && !k.ours(have) && !(k.finished && (k.traits.UsedOnce() || have.Spec.Digest() == k.seen)):
			return verdict{do: finishes} // nothing of ours is there
		case k.undo:
			if altered := k.altered(have); len(altered) > 0 {
				return verdict{do: leaves, why: k.conflict("another client changed " + strings.Join(altered, ", ") + " after the run created it")}
			}
		case !k.undo && k.unsure && !k.marked(have) && k.another(have): // ours is gone, and what took its place stays
			return verdict{do: finishes}
		case !k.undo && k.stranger(have):
			return verdict{do: refuses, why: k.conflict(k.taking(have))}
		case len(taken) > 0:
			return verdict{do: leaves, why: k.conflict("another client changed " + strings.Join(taken, ", ") + " after the run started deleting it")}
		case k.before != nil && !k.unsure && !have.Spec.Equal(k.before):
			return verdict{do: refuses, why: k.conflict("it changed since the plan was made")}
		case k.step.Called != "" && !k.unsure && have.Name != k.step.Called:
			return verdict{do: refuses, why: k.renamed(have)}
		}
	case plan.Create:
		switch {
		case have == nil && k.unsure && !k.undo && k.traits.Create == providers.Blind:
			return verdict{do: doubts, why: errBlind}
		case have == nil && k.unsure && k.called && k.traits.Create == providers.Blind:
			return verdict{do: leaves, why: errBlind}
		case !here:
		case len(k.unmet(have)) == 0 && k.ours(have):
			return verdict{do: awaits}
		case k.half(have), k.later(have):
		case k.unsure && k.ours(have):
			return verdict{do: leaves, why: k.conflict("it was created, but differs in: " + strings.Join(k.unmet(have), ", "))} // it is as others left it
		default:
			return verdict{do: fails, why: &providers.Error{Op: "create", Ref: k.step.Ref, Class: providers.Exists, Err: errors.New("it already exists and was not created by this step")}}
		}
	case plan.Update:
		switch {
		case have == nil && k.vanished():
		case !here:
			return verdict{do: fails, why: k.conflict("it no longer exists")}
		case k.stranger(have):
			return verdict{do: fails, why: k.conflict(k.taking(have))}
		case len(k.unmet(have)) == 0:
			return verdict{do: awaits}
		case len(taken) > 0: // what is there now is not what the step left
			return verdict{do: leaves, why: k.conflict("another client changed " + strings.Join(taken, ", ") + " after the run did")}
		case k.unsure:
		case k.name != "" && have.Name != k.unnamed:
			return verdict{do: refuses, why: k.renamed(have)}
		case k.before != nil && !have.Spec.Equal(k.before):
			return verdict{do: refuses, why: k.conflict("it changed since the plan was made")}
		}
	}
	return verdict{}
}

func (k *known) renamed(have *providers.Thing) error {
	return k.conflict(fmt.Sprintf("it was renamed to %q after the plan was made", have.Name))
}

// taking returns why a stranger is left alone.
func (k *known) taking(have *providers.Thing) string {
	if k.another(have) {
		return "it was deleted and created again outside converge since the plan was made"
	}
	return "its ownership mark changed since the plan was made"
}

// half reports whether an interrupted create has made a part of the thing, and the rest can be changed in place. The same step
// then changes it: a healthy thing need not be deleted because the far side was unavailable for a moment. A value that is
// there but differs is not a part of ours.
func (k *known) half(have *providers.Thing) bool {
	if k.action != plan.Create || !k.unsure || have == nil || have.Phase == providers.Deleting || have.Phase == providers.Failed || !k.ours(have) {
		return false
	}
	missing := k.missed(have)
	return len(missing) > 0 && !slices.ContainsFunc(missing, func(c diff.Change) bool {
		if f := k.kind.Field(c.Field()); c.Before == nil || f != nil && schema.Equal(c.Before, f.Default) {
			return c.Replaces
		}
		return c.Replaces || !slices.Contains(slices.Concat(k.traits.SelfChanging, k.traits.SetLast), c.Field())
	})
}

// vanished reports whether an update, or the one that is undone, may have been cut while the thing was not there. It is created then.
func (k *known) vanished() bool {
	return k.traits.Vanishes && k.unsure && (k.called || k.seen == "")
}

// later reports whether what this step made or changed lacks only fields that can be set once everything
// else is done.
func (k *known) later(have *providers.Thing) bool {
	if len(k.traits.Later) == 0 || !k.unsure && !k.sent || k.action == plan.Delete || have == nil || have.Phase == providers.Deleting || have.Phase == providers.Failed || !k.ours(have) {
		return false
	}
	missing := k.missed(have)
	return len(missing) > 0 && !slices.ContainsFunc(missing, func(c diff.Change) bool {
		return c.Replaces || !slices.Contains(k.traits.Later, c.Field())
	})
}

// unsettled reports whether what is observed after a call of unknown outcome leaves open what the call did: a create has
// made a part and may still make the rest; an update shows what the far side may have done by itself. Nothing is concluded
// from it while the call may still have its effect.
func (k *known) unsettled(have *providers.Thing) bool {
	if have == nil || have.Phase == providers.Deleting || k.doubt.IsZero() {
		return false
	}
	switch k.action {
	case plan.Create:
		return k.ours(have) && len(k.unmet(have)) > 0
	case plan.Delete: // what others have changed is not deleted again, but may still go
		return len(k.taken(have)) > 0
	case plan.Update:
		return slices.ContainsFunc(k.step.Changes, func(c diff.Change) bool { return slices.Contains(k.traits.SelfChanging, c.Field()) })
	}
	return false
}

// ours reports whether a thing found under our id was made by us. An id that we chose is proof enough.
func (k *known) ours(have *providers.Thing) bool {
	if k.traits.ID == "" {
		return true
	}
	if k.traits.Mark {
		return have.Mark == k.mark
	}
	switch { // only its spec can show it
	case k.action == plan.Create && len(k.unmet(have)) == 0:
		return k.unsure || k.called
	case k.action == plan.Create:
		missed := k.missed(have)
		return k.unsure && len(missed) > 0 && !slices.ContainsFunc(missed, func(c diff.Change) bool { return !slices.Contains(k.traits.SetLast, c.Field()) })
	case k.lost:
		return k.resembles(have)
	}
	return k.unsure
}

// resembles reports whether a thing is as our create makes it, apart from what a call sets last, and from what the far side chooses itself.
func (k *known) resembles(have *providers.Thing) bool {
	same := func(_, id string) string { return id }
	made, is := k.early(k.made), k.early(diff.Assume(have.Spec, have.Unfilled, k.made))
	if len(diff.Compare(k.kind, made, is, nil, nil, same)) > 0 {
		return false
	}
	for name := range diff.Rest(k.kind, is, made) {
		if f := k.kind.Field(name); !f.Kept && f.Choose == nil {
			return false
		}
	}
	return true
}

// early returns what a spec has besides what a call sets last.
func (k *known) early(spec schema.Object) schema.Object {
	spec = maps.Clone(spec)
	for _, f := range k.traits.SetLast {
		delete(spec, f)
	}
	return spec
}

// stranger reports whether a thing is not the one for which the plan was made, or no longer bears the mark that it had then, nor ours. What
// bears ours is ours, wherever it comes from.
func (k *known) stranger(have *providers.Thing) bool {
	if k.marked(have) {
		return false
	}
	return k.another(have) || k.traits.Mark && have.Mark != k.step.Mark
}

// marked reports whether a thing bears our mark.
func (k *known) marked(have *providers.Thing) bool {
	return k.traits.Mark && have.Mark == providers.Mark{Site: k.site, Ref: k.step.Ref, Incarnation: max(k.incarnation, 1)}
}

// another reports whether a thing is certainly not the one for which the plan was made.
func (k *known) another(have *providers.Thing) bool {
	uid := k.uid()
	return uid != "" && have.UID != "" && have.UID != uid
}

// uid returns the uid of the thing for which the plan was made; empty: unknown. What an undone delete makes again has another one, and so has
// what a later run deleted and its undo made again.
func (k *known) uid() string {
	switch {
	case k.undo && k.step.Action == plan.Delete:
		return ""
	case k.undo && k.kept != "":
		return k.kept
	}
	return k.step.UID
}

// madeSince reports whether a thing is certainly not the one that an undone create made and recorded.
func (k *known) madeSince(have *providers.Thing) bool {
	uid := k.recordedUID()
	return uid != "" && have.UID != "" && have.UID != uid && !k.marked(have)
}

// recordedUID returns the uid of the thing that an undone create made, as the run recorded it; empty: it is unknown.
func (k *known) recordedUID() string {
	if r := k.recorded; k.undo && k.step.Action == plan.Create && r != nil && r.Run == k.run && !r.Gone {
		return r.UID
	}
	return ""
}

// owned returns the uid of a thing when that, and not its mark, shows that it is ours; empty otherwise.
func (k *known) owned(have *providers.Thing) string {
	switch {
	case k.marked(have):
		return ""
	case k.step.Action == plan.Create:
		return k.recordedUID()
	case k.step.Prior == nil || k.step.Prior.UID != k.step.UID:
		return ""
	}
	return k.uid()
}
