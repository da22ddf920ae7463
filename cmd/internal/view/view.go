// Package view shows what commands find and do: as text for people, and as JSON for programs.
//
// # Words
//
// A [View] follows one command: it shows plans, the events of the engine, diagnostics and the error that ends it.
// There are three: [Human] writes text, [JSON] lines, and [Document] belongs to a command that prints a single JSON value.
//
// # Promises
//
// JSON is a promise to programs: the lines have the envelope and the types of Terraform's JSON UI, the documents the
// keys of Terraform's plan and validate formats, with what converge adds beside them. Text is for people and may change.
//
// The result goes to standard output; progress, diagnostics and errors go to standard error, except that the JSON view
// writes everything to standard output. Values of secret fields are never shown. Text from outside is printed without
// control characters that a terminal could obey.
package view

import (
	"io"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
)

// A View shows what one command does. Its methods may be called concurrently.
type View interface {
	// Event shows what the engine is doing. The event that ends a run causes the report about it.
	Event(event.Event)
	// Plan shows what will be done.
	Plan(*plan.Plan)
	// Diagnostics shows the problems of a document.
	Diagnostics(load.Diagnostics)
	// Error shows why the command ends.
	Error(error)
	// Warn shows something that is probably not intended.
	Warn(text string)
	// Note shows one sentence to a person: what happened, or what to do next.
	Note(text string)
	// Close ends all drawing. Nothing is shown afterwards.
	Close()
}

// Options configure a view.
type Options struct {
	Out, Err io.Writer        // required: standard output and standard error
	Kinds    schema.Kinds     // optional: says which fields are secret; when nil, none is known to be
	Now      func() time.Time // optional; time.Now when nil

	// Human only.
	OutStyle, ErrStyle Style
	Layout             PlanLayout         // of plans
	Together           bool               // standard output and standard error have the same reader: nothing is shown on both
	Live               func() (width int) // optional: redraw what is running on Err, a terminal of that many columns
	Quiet              bool               // no progress

	// JSON only.
	Version string // of converge
}

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}
