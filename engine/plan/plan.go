// Package plan decides what to do about a site. It is pure: three inputs (desired, observed, recorded), one value out;
// no clock, no I/O. What it decides is carried out byte for byte by package apply, which decides nothing.
//
// # Words
//
// A [Plan] is an ordered list of [Step] values. Each step does one thing to one resource: it creates, updates, deletes,
// adopts or forgets it. A replacement is two steps. Steps name the steps they need; everything that can be undone comes
// before [Plan.NoReturn], what cannot be undone exactly comes after it. A thing that nothing declares is unmanaged: it
// is reported and never touched. A scope that could not be observed completely is unknown: nothing is decided about it, because
// unknown is not absent.
package plan

import (
	"errors"
	"slices"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Format is the version of the saved form. A plan with another format is refused. Format 1 held the document.
const Format = 2

// NamePath is the path of a change of a thing's name on the far side, which is not a field of its spec.
const NamePath = "name"

// Action is what a step does.
type Action string

// Actions.
const (
	Create Action = "create"
	Update Action = "update"
	Delete Action = "delete"
	Adopt  Action = "adopt"  // record an existing thing, without changing it
	Forget Action = "forget" // drop the record, leave the thing
)

// A Plan is a decision about a whole site.
type Plan struct {
	Format   int           `json:"format"`
	ID       string        `json:"id"` // distinguishes this plan from an equal one made at another time: each is applied once
	Site     schema.Site   `json:"site"`
	Digest   string        `json:"document_digest,omitempty"`   // of the desired document; empty when the plan only removes
	Revision int64         `json:"document_revision,omitempty"` // of the store's head, if planned from it
	Author   schema.Author `json:"author,omitzero"`             // of the document
	Worked   int64         `json:"worked,omitempty"`            // the highest epoch of a run before the site was observed; -1 when one was open
	Destroy  bool          `json:"destroy,omitempty"`
	Sweep    bool          `json:"sweep,omitempty"` // the plan removes strays, and nothing else

	// MaxDestroy is how many things the plan may destroy at most, as "3" or "10%"; empty: any number. It is the document's
	// own limit unless Asked is set: then it was set by whoever made the plan.
	MaxDestroy string `json:"max_destroy,omitempty"`
	Asked      bool   `json:"max_destroy_asked,omitempty"`

	// Servers are the servers that the plan was made for; others are not changed.
	Servers []state.Server `json:"servers,omitempty"`

	Steps    []Step `json:"steps"`
	NoReturn int    `json:"no_return"` // index of the first step that cannot be undone exactly; len(Steps) when none

	Unchanged int       `json:"unchanged"` // number of declared resources that are as they should be
	Unknown   []Unknown `json:"unknown,omitempty"`

	// Unsupported lists declared kinds that the far side does not have, for example because it is an older server. They are
	// left out, and so is what refers to them; the rest is planned.
	Unsupported []Unknown `json:"unsupported,omitempty"`

	// Omitted are the declared resources that are left out because of what is unsupported or unknown: those of an unsupported
	// kind, and those that need something about which nothing can be decided. What is itself unknown is in Unknown.
	Omitted []Omission `json:"omitted,omitempty"`

	Externals []External `json:"externals,omitempty"` // what is only referred to

	Narrowed *Narrowed `json:"narrowed,omitempty"` // set when the plan covers only a part of the site, see [Options] and [Part]

	Refusals []Refusal `json:"refusals,omitempty"` // why this plan may not be applied

	// What follows is for readers of the plan, and not a part of it: the size of a plan follows what it changes. A plan file has
	// it beside the plan, see [File]; a run keeps the plan alone.

	Document  Verbatim    `json:"-"` // the desired document that Digest is of
	Drift     []Drift     `json:"-"`
	Unmanaged []Unmanaged `json:"-"`
	Remarks   []Remark    `json:"-"`

	// Passing says that the digests of secrets in the plan are made with a key that no store has: the plan is for looking at, and
	// has no approval.
	Passing bool `json:"-"`

	Undoes string `json:"-"` // the run that the plan would undo; see [Plan.Inverse]
	Keeps  int    `json:"-"` // how many of the first steps of that run stay done
}

// A Step does one thing to one resource.
type Step struct {
	ID      int        `json:"id"` // its index in the plan
	Ref     schema.Ref `json:"ref"`
	Action  Action     `json:"action"`
	Replace bool       `json:"replace,omitempty"` // one half of a replacement
	Beside  bool       `json:"beside,omitempty"`  // creates the new thing while the old one still exists
	Reason  string     `json:"reason"`            // why, in words
	Needs   []int      `json:"needs,omitempty"`   // steps that come before
	Wave    int        `json:"wave"`              // steps of one wave do not need each other
	Stage   int        `json:"stage,omitempty"`   // stage of the node, from 1; 0: the step waits for no stage. See [Stages]
	Stray   bool       `json:"stray,omitempty"`   // removes an incarnation that was given up; the resource stays as it is

	// An update may be two steps: the first removes references, because their target is deleted before its successor is
	// made; the second leads from there to the desired state. Its Before is the result of the first.
	Detaches bool `json:"detaches,omitempty"`
	Attaches bool `json:"attaches,omitempty"`

	Changes []diff.Change `json:"changes,omitempty"`
	Before  schema.Object `json:"before,omitzero"` // as observed, references as names; absent for create
	After   schema.Object `json:"after,omitzero"`  // the whole spec to have; absent for delete and forget
	Want    schema.Object `json:"want,omitzero"`   // what the document states; saved where it differs from After

	ExternalID  string         `json:"external_id"`
	Incarnation int            `json:"incarnation"`
	UID         string         `json:"uid,omitempty"` // of the thing that the step changes or deletes
	Mark        providers.Mark `json:"mark,omitzero"` // the mark observed on the thing
	Version     string         `json:"version,omitempty"`
	Called      string         `json:"called,omitempty"` // the name on the far side of a thing to delete: under another name it stays

	Undo       providers.Revert `json:"undo"` // how the step can be undone
	Disruption string           `json:"disruption,omitempty"`
	Leaves     bool             `json:"leaves,omitempty"` // what it creates can never be deleted: an undo only forgets it

	Prior  *state.Record `json:"prior,omitempty"`  // the record before the step
	Record *state.Record `json:"record,omitempty"` // the record after the step, without run and time; nil: none. Its spec is saved where it differs from Want

	Chosen []Chosen `json:"chosen,omitempty"` // fields of After that the document left to the planner

	Within time.Duration `json:"within,omitempty"` // longest wait for the result, after the call was accepted
}

// Consequence returns how the step can be undone, and whether what it creates can never be deleted. It follows from the
// kind and its traits alone: it is determined when the plan is made, and once more before it is applied.
func (s *Step) Consequence(k *schema.Kind, t providers.Traits) (undo providers.Revert, leaves bool) {
	switch s.Action {
	case Create:
		undo, leaves = t.UndoCreate, t.Delete == providers.Never
	case Update:
		undo = t.UndoUpdate
	case Delete:
		undo = t.UndoDelete
	case Adopt, Forget:
		undo = providers.Exact
	}
	if undo == "" || s.Stray && !s.Replace || s.losesSecret(k) {
		undo = providers.NoUndo
	}
	return undo, leaves
}

// losesSecret reports whether a step removes a secret of which only the digest is known: it cannot be restored.
func (s *Step) losesSecret(k *schema.Kind) bool {
	switch {
	case s.Action != Update && s.Action != Delete || !sealed.Held(k):
		return false
	case s.Action == Update:
		return slices.ContainsFunc(s.Changes, func(c diff.Change) bool { return c.Secret || sealed.Within(c.Before) || sealed.Within(c.After) })
	}
	return sealed.Within(s.Before) || s.Prior != nil && !s.Prior.Gone && sealed.Within(s.Prior.Spec)
}

// Inverse returns the action that undoes the step.
func (s *Step) Inverse() Action {
	switch {
	case s.Action == Create && s.Leaves:
		return Forget
	case s.Action == Create:
		return Delete
	case s.Action == Delete:
		return Create
	case s.Action == Adopt:
		return Forget
	case s.Action == Forget:
		return Adopt
	}
	return s.Action
}

// Drift is a recorded resource that is no longer as it was left.
type Drift struct {
	Ref     schema.Ref    `json:"ref"`
	Missing bool          `json:"missing,omitempty"`
	Changes []diff.Change `json:"changes,omitempty"` // Before is what was left, After what is observed
	Failed  string        `json:"failed,omitempty"`  // why the thing has failed, as the far side reports it

	Unmarked bool   `json:"unmarked,omitempty"` // somebody has removed our mark from it
	Renamed  string `json:"renamed,omitempty"`  // its id now, where ids are names; set when Rest is
	Remade   bool   `json:"remade,omitempty"`   // it was deleted, and somebody else has made another thing with its id; set when Rest is

	TakenBy  providers.Mark `json:"taken_by,omitzero"`  // the mark of another site that the thing bears now; set when Rest is
	Unstated []diff.Change  `json:"unstated,omitempty"` // the same for fields that the record does not state; set when Rest is
}

// A Remark is what is wrong with a declared thing although it is as declared, or will be, such as that it must be restarted to run with what
// it has.
type Remark struct {
	Ref    schema.Ref `json:"ref"`
	Detail string     `json:"detail"`
}

// A Unmanaged is a thing that no resource declares.
type Unmanaged struct {
	Scope string `json:"scope"`
	Kind  string `json:"kind"`
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
	Stray bool   `json:"stray,omitempty"` // bears this site's mark, but is not recorded
}

// Unknown is a kind that could not be observed completely in a scope, and why.
type Unknown struct {
	Scope string `json:"scope"`
	Kind  string `json:"kind"`
	Error string `json:"error"`

	OtherServer bool `json:"other_server,omitempty"` // it was observed, but on a server other than the one on which the recorded things were made
}

// A Refusal is a reason why a plan may not be applied.
type Refusal struct {
	Ref      schema.Ref      `json:"ref,omitzero"`
	Rule     Rule            `json:"rule,omitempty"` // the rule that is broken, where it concerns the site as a whole
	Reason   string          `json:"reason"`
	Remedies []remedy.Remedy `json:"remedies"` // one of them is enough
}

// Refuse returns a refusal with one remedy.
func Refuse(ref schema.Ref, reason, remedies string, do ...remedy.Action) Refusal {
	return Refusal{Ref: ref, Reason: reason, Remedies: []remedy.Remedy{remedy.Say(remedies, do...)}}
}

// breaking returns the refusal with the rule that is broken.
func (r Refusal) breaking(rule Rule) Refusal {
	r.Rule = rule
	return r
}

// A Rule is a rule that a plan as a whole keeps or breaks. The names are a promise to programs that read plans.
type Rule string

// Rules.
const (
	RuleMaxDestroy    Rule = "max_destroy"        // no more is destroyed than the budget allows
	RuleDisappearance Rule = "mass_disappearance" // neither the document nor the site has lost most of what is recorded
	RuleSameSite      Rule = "same_site"          // the id of the site matches the records
	RuleSerial        Rule = "serial"             // the document is newer than the newest revision
)

// AskedReplace is the reason for replacing a resource that need not be replaced.
const AskedReplace = "as requested"

// ErrFormat reports that a saved plan is not of this version.
var ErrFormat = errors.New("not a valid plan for this version of converge")

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.Steps) == 0 }

// Partial reports whether something that the plan covers could not be observed, or is left out.
func (p *Plan) Partial() bool { return len(p.Unknown)+len(p.Omitted) > 0 }

// Complete reports whether the site is as the document says once the plan is carried out, at least as far as the document has
// changed.
func (p *Plan) Complete() bool {
	return !p.Destroy && !p.Sweep && !p.Partial() && len(p.Unsupported) == 0 && (p.Narrowed == nil || p.Narrowed.Since > 0)
}

// Counts are the numbers of a summary. A replacement counts as one to add and one to destroy, an update in two steps as one.
type Counts struct {
	Create  int `json:"add"`
	Update  int `json:"change"`
	Replace int `json:"replace"`
	Delete  int `json:"remove"`
	Adopt   int `json:"adopt"`
	Forget  int `json:"forget"`
}

// Counts returns the numbers of what the plan does.
func (p *Plan) Counts() Counts {
	var c Counts
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.Replace && s.Action == Create:
			c.Replace++
			c.Create++
		case s.Replace:
			c.Delete++
		case s.Detaches:
		case s.Action == Create:
			c.Create++
		case s.Action == Update:
			c.Update++
		case s.Action == Delete:
			c.Delete++
		case s.Action == Adopt:
			c.Adopt++
		case s.Action == Forget:
			c.Forget++
		}
	}
	return c
}

// Irreversible returns the steps that cannot be undone exactly.
func (p *Plan) Irreversible() []*Step {
	var steps []*Step
	for i := range p.Steps {
		if !p.Steps[i].Undo.Reversible() {
			steps = append(steps, &p.Steps[i])
		}
	}
	return steps
}

// Needs returns the steps that each step needs, for package graph. A step after the point of no return also needs every
// step before that point; that is left to the caller that walks the plan.
func (p *Plan) Needs() [][]int {
	needs := make([][]int, len(p.Steps))
	for i := range p.Steps {
		needs[i] = p.Steps[i].Needs
	}
	return needs
}

// Stage returns the stage of a step, for package graph.
func (p *Plan) Stage(i int) int { return p.Steps[i].Stage }

// Renames returns the change of the thing's name, which an update may make among others; nil when there is none.
func (s *Step) Renames() *diff.Change {
	if i := slices.IndexFunc(s.Changes, func(c diff.Change) bool { return s.Action == Update && c.Path == NamePath }); i >= 0 {
		return &s.Changes[i]
	}
	return nil
}
