package engine

import (
	"context"
	"time"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A StepReport is the state of one step of a run according to the journal of the run.
type StepReport struct {
	Step   int         `json:"step"` // of the plan
	Action plan.Action `json:"action"`
	Ref    schema.Ref  `json:"ref"`
	StepResult
	Undo *StepResult `json:"undo,omitempty"` // nil when its undo has not begun
}

// A StepResult is the result of a step, forward or as an undo. Its times are those of the journal: from the first call
// until the result was observed, including any time that the run stood still.
type StepResult struct {
	Result   StepState  `json:"result"`
	Began    *time.Time `json:"began,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
	Seconds  *float64   `json:"elapsed_seconds,omitempty"` // also nil when the clock was set back meanwhile
	Attempts int        `json:"attempts,omitempty"`        // calls
	ID       string     `json:"external_id,omitempty"`
	Message  string     `json:"message,omitempty"` // why it is not done
}

// StepState is how far a step got.
type StepState string

// How far a step got. A step with an outcome has the state that the journal names.
const (
	StepPending StepState = "pending" // not begun
	StepRunning StepState = "running" // a process carries it out
	StepUnknown StepState = "unknown" // no process carries it out, and the outcome of its last call is unknown: resume finds out
	StepDone    StepState = StepState(journal.Done)
	StepRefused StepState = StepState(journal.Refused)
	StepPartial StepState = StepState(journal.Partial)
)

// Steps returns the state of each step of a run, in the order of the plan. It reads the journal only, never the site, and
// fails when the plan or the journal of the run cannot be read.
func Steps(ctx context.Context, store *state.Store, run state.Run) ([]StepReport, error) {
	p, _, err := planOf(ctx, store, run)
	if err != nil {
		return nil, err
	}
	holder, err := store.LockInfo(ctx) // before the journal: what is open there was open while the lock was held
	if err != nil {
		return nil, err
	}
	sum, err := sumOf(ctx, store, run, len(p.Steps))
	if err != nil {
		return nil, err
	}
	open := StepUnknown
	if holder != nil && holder.Run == run.ID {
		open = StepRunning
	}
	reports := make([]StepReport, len(p.Steps))
	for i := range p.Steps {
		s := &p.Steps[i]
		reports[i] = StepReport{Step: i, Action: s.Action, Ref: s.Ref, StepResult: resultOf(sum.Forward[i], open)}
		if undo := resultOf(sum.Undo[i], open); undo.Result != StepPending {
			reports[i].Undo = &undo
		}
	}
	return reports, nil
}

// Finished returns how many steps of a run were observed to be done. The stored number is written when the run ends; for an
// open run it is counted from the journal.
func Finished(ctx context.Context, store *state.Store, run state.Run) (int, error) {
	if run.Status != state.RunOpen {
		return run.Done, nil
	}
	sum, err := sumOf(ctx, store, run, run.Steps)
	n := 0
	for _, s := range sum.Forward {
		if s.Finished() {
			n++
		}
	}
	return n, err
}

func resultOf(s journal.Standing, open StepState) StepResult {
	r := StepResult{Result: StepPending, Attempts: s.Attempts}
	if !s.Began.IsZero() {
		r.Began = &s.Began
	}
	switch {
	case s.Open != nil:
		r.Result, r.ID = open, s.Open.ExternalID
	case s.Outcome != nil:
		r.Result, r.ID, r.Message = StepState(s.Outcome.Result), s.Outcome.ExternalID, s.Outcome.Message
		r.Ended = &s.Outcome.Wall
		if d := s.Outcome.Wall.Sub(s.Began); d >= 0 {
			r.Seconds = new(d.Seconds())
		}
	}
	return r
}
