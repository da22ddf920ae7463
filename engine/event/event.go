// Package event is what the engine reports while it works: one sum type of small structs, sent in order from
// one goroutine. Views turn events into text and JSON; nothing below them prints.
package event

import (
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// An Event is one of the types of this package.
type Event interface{ event() }

// A Sink receives events. It must not block for long: the run waits for it.
type Sink func(Event)

// Observing reports that a kind is being observed, once at the beginning and from time to time while no answer comes;
// Observed reports that it was, or why it could not be.
type Observing struct {
	Scope, Kind string
	Elapsed     time.Duration // zero at the beginning
	More        int           // how many others have not answered yet either; zero at the beginning
}

// Observed reports the result of Observing.
type Observed struct {
	Scope, Kind string
	Things      int
	Took        time.Duration
	Err         error
}

// LockWait reports who holds the site lock that the command waits for.
type LockWait struct{ Holder state.LockInfo }

// RunStarted reports that a run was opened or resumed.
type RunStarted struct {
	Run  state.Run
	Plan *plan.Plan
	Done int           // steps that an earlier attempt finished
	Ago  time.Duration // how long before this it was opened; zero where this is news
}

// StepStarted reports that a step begins, forward or as an undo.
type StepStarted struct {
	Step *plan.Step
	Undo bool
	Ago  time.Duration // how long before this it began; zero where this is news
}

// Phase is the phase that a step is in.
type Phase string

// Phases of a step.
const (
	Acting   Phase = "acting"
	Settling Phase = "settling" // finding out the outcome of a call whose reply was lost
	Waiting  Phase = "waiting"  // waiting for the thing to be ready, or gone
	Retrying Phase = "retrying"
	Guarded  Phase = "guarded" // waiting until what was changed can be reached anew
)

// StepProgress reports what a running step waits for.
type StepProgress struct {
	Step    *plan.Step
	Undo    bool
	Phase   Phase
	Detail  string
	Attempt int
	Elapsed time.Duration
}

// StepDone reports that a step's result was observed.
type StepDone struct {
	Step *plan.Step
	Undo bool
	ID   string // external id
	Took time.Duration
}

// StepFailed reports that a step ended in any other way.
type StepFailed struct {
	Step   *plan.Step
	Undo   bool
	Class  providers.Class
	Err    error
	Effect bool // something has changed, or may have
	Took   time.Duration
}

// ConfirmWait reports that a run is undone unless somebody confirms it.
type ConfirmWait struct {
	Run    string
	Within time.Duration // from now
}

// Confirmed reports that somebody has confirmed the run.
type Confirmed struct{ By string }

// PointOfNoReturn reports that steps cannot be undone exactly from here on.
type PointOfNoReturn struct{ Steps int }

// Interrupted reports that no more steps are started, and how many are still in flight.
type Interrupted struct {
	InFlight int
	By       string // who asked for it from elsewhere; empty when it was this process
}

// RevertStarted reports that what was done is being undone.
type RevertStarted struct {
	Cause error
	Steps int // to be undone
	Keep  int // how many of the first steps are not undone, because somebody wanted them kept
}

// A Difference is something that is not as it should be at the end of a run.
type Difference struct {
	Ref    schema.Ref `json:"ref"`
	Detail string     `json:"detail"`
}

// Verified reports that everything that a run touched was observed once more, before the run is called applied or reverted.
type Verified struct {
	Undo        bool
	Things      int
	Differences []Difference
	Remains     []schema.Ref // what the run created and cannot delete: it is forgotten
	Recreated   []schema.Ref // what the run deleted and its undo created again, without its running state
}

// RunEnded reports the end of a run.
type RunEnded struct {
	Run         state.Run
	Differences []Difference
	Holds       []state.Hold // holds that the run set, or that stopped it
	Undoable    bool         // it did nothing that cannot be undone exactly
	Asked       bool         // it was being undone because somebody asked for that
	Took        time.Duration
}

func (Observing) event()       {}
func (Observed) event()        {}
func (LockWait) event()        {}
func (RunStarted) event()      {}
func (StepStarted) event()     {}
func (StepProgress) event()    {}
func (StepDone) event()        {}
func (StepFailed) event()      {}
func (ConfirmWait) event()     {}
func (Confirmed) event()       {}
func (PointOfNoReturn) event() {}
func (Interrupted) event()     {}
func (RevertStarted) event()   {}
func (Verified) event()        {}
func (RunEnded) event()        {}
