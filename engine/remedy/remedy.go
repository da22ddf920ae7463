// Package remedy says what can be done about an error or a refusal. What converge itself can do is an action by name, for each
// view to word: as a command, a button, or a call.
package remedy

import "errors"

// A Remedy is something that an operator can do.
type Remedy struct {
	Text string   `json:"text"`         // a clause without a full stop, free of terms of a particular view
	Do   []Action `json:"do,omitempty"` // the actions that converge offers for it, in order
}

// Say returns a remedy.
func Say(text string, do ...Action) Remedy { return Remedy{text, do} }

// An Action is something that converge can do on request.
type Action struct {
	Verb Verb   `json:"verb"`
	Of   string `json:"of,omitempty"` // what it is done to, as the verb says
	To   string `json:"to,omitempty"`
}

// Of returns an action on something.
func Of(verb Verb, what string) Action { return Action{Verb: verb, Of: what} }

// Verb is what an action does. The names are a promise to programs.
type Verb string

// The verbs. Where a verb has an object, the comment says what [Action.Of] is.
const (
	Apply   Verb = "apply"
	Drift   Verb = "drift"
	Destroy Verb = "destroy"

	Resume   Verb = "resume"   // the id of a run
	Rollback Verb = "rollback" // the id of a run
	ShowRun  Verb = "show-run" // the id of a run
	Runs     Verb = "runs"

	Release  Verb = "release" // the scope of a hold
	Unfreeze Verb = "unfreeze"

	ForceUnlock Verb = "force-unlock" // the id of a lock

	Forget   Verb = "forget"   // a ref
	Rename   Verb = "rename"   // a ref, To another one
	Rebuild  Verb = "rebuild"  // record again what bears our mark
	Restored Verb = "restored" // the store was restored from a backup, or lost

	Abandon      Verb = "abandon"       // give up a run that cannot be read
	AllowPartial Verb = "allow-partial" // continue without what cannot be observed, or is left out
	AllowMissing Verb = "allow-missing" // continue although what was made is gone, or on another server
	AllowDestroy Verb = "allow-destroy" // how many things may be destroyed
)

// An Error is an error with its remedies.
type Error struct {
	Err      error
	Remedies []Remedy // one of them is enough
}

// For returns an error with its remedies.
func For(err error, remedies ...Remedy) error { return &Error{err, remedies} }

// Error returns the text of the cause alone.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Remedies returns the remedies that [For] attached to an error; nil when there are none.
func Remedies(err error) []Remedy {
	var e *Error
	if errors.As(err, &e) {
		return e.Remedies
	}
	return nil
}
