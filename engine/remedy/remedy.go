// Package remedy says what can be done about an error or a refusal. What converge itself can do stands there by name, for each view
// to word: as a command, a button, or a call.
package remedy

import "errors"

// A Remedy is something that an operator can do.
type Remedy struct {
	Text string   `json:"text"`         // a clause without a full stop, which says nothing that only one view has
	Do   []Action `json:"do,omitempty"` // what converge offers for it, in order
}

// Say returns a remedy.
func Say(text string, do ...Action) Remedy { return Remedy{text, do} }

// An Action is something that converge can do when it is asked to.
type Action struct {
	Verb Verb   `json:"verb"`
	Of   string `json:"of,omitempty"` // what it is done to, as the verb says
	To   string `json:"to,omitempty"`
}

// Of returns an action upon something.
func Of(verb Verb, what string) Action { return Action{Verb: verb, Of: what} }

// Verb is what is done. The names are a promise to programs.
type Verb string

// Verbs. Where one is about something, the comment says what [Action.Of] is.
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
	Rebuild  Verb = "rebuild"  // what bears our mark is recorded again
	Restored Verb = "restored" // the store was restored from a backup, or lost

	Abandon      Verb = "abandon"       // give up a run that cannot be read
	AllowPartial Verb = "allow-partial" // go on without what cannot be seen, or is left out
	AllowMissing Verb = "allow-missing" // go on although what was made is gone, or on another server
	AllowDestroy Verb = "allow-destroy" // how many things may be destroyed
)

// An Error is an error with what can be done about it.
type Error struct {
	Err      error
	Remedies []Remedy // one of them is enough
}

// For returns an error with what can be done about it.
func For(err error, remedies ...Remedy) error { return &Error{err, remedies} }

// Error is that of the cause alone.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Remedies returns what can be done about an error, as [For] was given it; nil when nobody has said.
func Remedies(err error) []Remedy {
	var e *Error
	if errors.As(err, &e) {
		return e.Remedies
	}
	return nil
}
