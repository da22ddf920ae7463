package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// What is known of a step, and of what earlier calls of it may have done. Everything that is decided about the step follows from
// this and from what is seen.
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
	name        string // what it is to be called afterwards; empty: as it is called
	unnamed     string // what it may be called until then
	mark        providers.Mark
	before      schema.Object // to be seen right before acting, with external ids; nil: nothing
	want        schema.Object // the whole spec to have, with external ids; nil: nothing
	stated      schema.Object // what must be seen of it afterwards; equal to want when all of it must
	dropped     schema.Object // what was recorded before: what it states and stated does not must be gone
	unsure      bool          // an earlier call may have had its effect, or may have it yet
	doubt       time.Time     // when the last call of this direction whose effect may still come was made; zero: none
	called      bool          // a call was made, whatever it said
	made        schema.Object // undone create: what was to be made
	lost        bool          // undone create: nobody knows whether the thing was made
	missing     bool          // undone create: the far side accepted it, and it was never seen
	sent        bool          // the call was accepted: the secrets that never come back are as they were sent
	ignore      []string      // what is ignored of the spec: nobody asks how it is afterwards, and an undo leaves it so
	touched     []string      // undone update: the fields that the step changed; what others changed meanwhile stays
	seen        string        // undone: digest of what was seen when the step ended; empty when it did not come to that
	finished    bool          // undone: the step was done
	recorded    *state.Record // undone create: what is recorded of it now; nil: nothing
}

// A verdict is what is to be done about a step, now that something is seen, or nothing.
type verdict struct {
	do   move
	why  error            // of all that ends the step otherwise than well
	left *providers.Thing // how it leaves the thing, where somebody has to be told
}

// A move is what a worker does next.
type move int

// Moves.
const (
	calls move = iota // makes the call, for what is there is what the call expects

	reincarnates // makes the call with the next id: this one is used up
	searches     // looks for what may be there and is not seen, as long as it may take to show
	lingers      // waits until a call of unknown outcome can have no effect any more, and looks again
	ripens       // waits until what is there takes a change, and looks again
	awaits       // looks until it is as wanted, or gone
	finishes     // ends the step: all is as it should be
	leaves       // ends it partial: something was changed, and is not as it should be
	refuses      // ends it: nothing was changed
	fails        // ends it: refused, or in doubt while an earlier call is
	doubts       // ends it in doubt, for whoever resumes the run
)

// decide says what to do about a step when that is what is there; nil: nothing. Searched says that it was searched for already,
// waited that it has had all the time to become ready that the step has.
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

// collides says what to do about a create when its id is said to be taken, and that is what is found there: what an earlier attempt
// made, something of somebody else's, or nothing, for a thing that was deleted long ago had the id, and it cannot be used again.
func (k *known) collides(have *providers.Thing, cause error) verdict {
	switch {
	case have != nil && k.ours(have):
		return k.conclude(have)
	case have != nil:
		return verdict{do: refuses, why: cause}
	case k.traits.Burned && k.traits.ID == "":
		return verdict{do: reincarnates}
	}
	return verdict{do: fails, why: cause} // a name is taken by something else
}

// conclude compares what is there right before a call, or after one that was refused, with what the call expects.
func (k *known) conclude(have *providers.Thing) verdict {
	here := have != nil && have.Phase != providers.Leaving
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
			return verdict{do: leaves, why: k.conflict(errTaken), left: have}
		case k.undo && !k.ours(have) && k.lost:
			return verdict{do: leaves, why: errCollision}
		case k.undo && !k.ours(have) && !(k.finished && (k.traits.UsedOnce() || have.Spec.Digest() == k.seen)):
			return verdict{do: finishes} // nothing of ours is there
		case k.undo:
			if altered := k.altered(have); len(altered) > 0 {
				return verdict{do: leaves, why: k.conflict("somebody has changed " + strings.Join(altered, ", ") + " since the run made it")}
			}
		case !k.undo && k.stranger(have):
			return verdict{do: refuses, why: k.conflict(errTaken)}
		case len(taken) > 0:
			return verdict{do: leaves, why: k.conflict("somebody has changed " + strings.Join(taken, ", ") + " since the run began to delete it")}
		case k.before != nil && !k.unsure && have.Spec.Digest() != k.before.Digest():
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
			return verdict{do: leaves, why: k.conflict("it was created, but differs: " + strings.Join(k.unmet(have), ", "))} // as others left it
		default:
			return verdict{do: fails, why: &providers.Error{Op: "create", Ref: k.step.Ref, Class: providers.Exists, Err: errors.New("it is there already and was not made by this step")}}
		}
	case plan.Update:
		switch {
		case !here:
			return verdict{do: fails, why: k.conflict("it is gone")}
		case k.stranger(have):
			return verdict{do: fails, why: k.conflict(errTaken)}
		case len(k.unmet(have)) == 0:
			return verdict{do: awaits}
		case len(taken) > 0: // what is there now is not how the step left it
			return verdict{do: leaves, why: k.conflict("somebody has changed " + strings.Join(taken, ", ") + " since the run did")}
		case k.unsure:
		case k.name != "" && have.Name != k.unnamed:
			return verdict{do: refuses, why: k.renamed(have)}
		case k.before != nil && have.Spec.Digest() != k.before.Digest():
			return verdict{do: refuses, why: k.conflict("it changed since the plan was made")}
		}
	}
	return verdict{}
}

func (k *known) renamed(have *providers.Thing) error {
	return k.conflict(fmt.Sprintf("it is called %q since the plan was made", have.Name))
}

// errTaken is why a thing is left alone that bears another mark than it did.
const errTaken = "it changed hands since the plan was made"

// half reports whether a create that broke off has made a part of the thing, and the rest is a change that can be made in
// place. It is made then, in the same step: what is healthy need not go because a far side was away for a moment. A value that
// is there and is another one is no part of ours.
func (k *known) half(have *providers.Thing) bool {
	if k.action != plan.Create || !k.unsure || have == nil || have.Phase == providers.Leaving || have.Phase == providers.Failed || !k.ours(have) {
		return false
	}
	missing := k.missed(have)
	return len(missing) > 0 && !slices.ContainsFunc(missing, func(c diff.Change) bool {
		if f := k.kind.Field(c.Field()); c.Before == nil || f != nil && diff.Same(schema.Object{c.Path: c.Before}, schema.Object{c.Path: f.Default}) {
			return c.Replaces
		}
		return c.Replaces || !slices.Contains(k.traits.Itself, c.Field())
	})
}

// later reports whether what is there, made or changed by this step, lacks nothing but what can be asked for only once all
// else is done.
func (k *known) later(have *providers.Thing) bool {
	if len(k.traits.Later) == 0 || !k.unsure && !k.sent || k.action == plan.Delete || have == nil || have.Phase == providers.Leaving || have.Phase == providers.Failed || !k.ours(have) {
		return false
	}
	missing := k.missed(have)
	return len(missing) > 0 && !slices.ContainsFunc(missing, func(c diff.Change) bool {
		return c.Replaces || !slices.Contains(k.traits.Later, c.Field())
	})
}

// unsettled reports whether what is seen after a call of unknown outcome does not tell what came of it: a create has made a
// part, and may make the rest yet; an update shows what the far side may have brought about by itself. Nothing is concluded
// from it while the call may still have its effect.
func (k *known) unsettled(have *providers.Thing) bool {
	if have == nil || have.Phase == providers.Leaving || k.doubt.IsZero() {
		return false
	}
	switch k.action {
	case plan.Create:
		return k.ours(have) && len(k.unmet(have)) > 0
	case plan.Delete: // what others have changed is not deleted again, and may be gone yet
		return len(k.taken(have)) > 0
	case plan.Update:
		return slices.ContainsFunc(k.step.Changes, func(c diff.Change) bool { return slices.Contains(k.traits.Itself, c.Field()) })
	}
	return false
}

// ours reports whether a thing found under our id was made by us. An id that we chose says so by itself.
func (k *known) ours(have *providers.Thing) bool {
	if k.traits.ID == "" {
		return true
	}
	if k.traits.Mark {
		return have.Mark == k.mark
	}
	switch { // nothing tells but what it is like
	case k.action == plan.Create:
		return (k.unsure || k.called) && len(k.unmet(have)) == 0
	case k.lost:
		return diff.Same(have.Spec, k.made)
	}
	return k.unsure
}

// stranger reports whether a thing is no longer whose it was when the plan was made, nor ours.
func (k *known) stranger(have *providers.Thing) bool {
	mine := providers.Mark{Site: k.site, Ref: k.step.Ref, Incarnation: max(k.incarnation, 1)}
	return k.traits.Mark && have.Mark != k.step.Mark && have.Mark != mine
}
