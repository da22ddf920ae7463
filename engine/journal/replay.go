package journal

import (
	"fmt"
	"time"

	"converge.dev/converge/providers"
)

// Standing is how far a step got in one direction.
type Standing struct {
	Attempts int       // intents written
	Open     *Record   // the last intent, when no outcome followed it
	Outcome  *Record   // the last outcome, when it is newer than the last intent
	Began    time.Time // when the first of these records was written, by its writer's clock
}

// Effect reports whether something was changed, or may have been.
func (s Standing) Effect() bool {
	return s.Open != nil || (s.Outcome != nil && s.Outcome.Result != Refused)
}

// Finished reports whether the result of the step was observed to be as it should be.
func (s Standing) Finished() bool { return s.Outcome != nil && s.Outcome.Result == Done }

// Unseen reports whether the far side accepted the call of the step, but its result was never observed.
func (s Standing) Unseen() bool {
	return s.Outcome != nil && s.Outcome.Result == Partial && s.Outcome.Seen == "" && s.Outcome.Error != providers.Conflict
}

// Spared reports whether no call was made because the thing was not as expected: others have changed or removed it.
func (s Standing) Spared() bool {
	return s.Attempts == 0 && s.Outcome != nil && s.Outcome.Error == providers.Conflict
}

// A Replay is the state that the records of a run add up to.
type Replay struct {
	Plan      string     // digest of the plan
	Forward   []Standing // per step
	Undo      []Standing // per step
	NoReturn  bool       // the point of no return was passed
	Confirmed bool       // what came before that was confirmed, and its guards are ended
	Reverting bool       // undoing has begun
	Asked     bool       // somebody asked for the undo; no step failed
	Keep      int        // how many of the first steps are not undone, according to the last request
	Ended     bool
}

// Left reports whether a step still has to be undone when all but the kept first steps are.
func (r *Replay) Left(step int) bool {
	return step >= r.Keep && r.Forward[step].Effect() && !r.Undo[step].Finished()
}

// Count returns the number of steps that are left to undo.
func (r *Replay) Count() int {
	n := 0
	for i := range r.Forward {
		if r.Left(i) {
			n++
		}
	}
	return n
}

// Unsettled reports whether a step changed something, or may have, and did not finish in the direction that the run
// has taken.
func (r *Replay) Unsettled(step int) bool {
	if r.Reverting {
		return r.Left(step)
	}
	return r.Forward[step].Effect() && !r.Forward[step].Finished()
}

// Sum adds up the records of a run whose plan has n steps.
func Sum(records []Record, n int) (Replay, error) {
	r := Replay{Forward: make([]Standing, n), Undo: make([]Standing, n)}
	for i := range records {
		rec := &records[i]
		if (i == 0) != (rec.Kind == Begin) {
			return r, fmt.Errorf("journal of run %s: record %d has kind %q: the first record, and no other, opens a journal", rec.Run, rec.Seq, rec.Kind)
		}
		switch rec.Kind {
		case Begin:
			r.Plan = rec.Plan
		case NoReturn:
			r.NoReturn = true
		case Confirm: // until its guards are ended, it is as if it were not
		case Kept:
			r.Confirmed = true
		case Revert:
			if rec.Keep < 0 || rec.Keep > n {
				return r, fmt.Errorf("journal of run %s: record %d keeps %d steps; the plan has %d", rec.Run, rec.Seq, rec.Keep, n)
			}
			r.Reverting, r.Asked, r.Keep, r.Ended = true, rec.Message == "", rec.Keep, false
		case End:
			r.Ended = true
		case Intent, Outcome:
			if rec.Step < 0 || rec.Step >= n {
				return r, fmt.Errorf("journal of run %s: record %d is about step %d; the plan has %d", rec.Run, rec.Seq, rec.Step, n)
			}
			s := &r.Forward[rec.Step]
			if rec.Undo {
				s = &r.Undo[rec.Step]
			}
			if s.Began.IsZero() {
				s.Began = rec.Wall
			}
			if rec.Kind == Intent {
				s.Attempts++
				s.Open, s.Outcome = rec, nil
			} else {
				s.Open, s.Outcome = nil, rec
			}
		default:
			return r, fmt.Errorf("journal of run %s: record %d has unknown kind %q", rec.Run, rec.Seq, rec.Kind)
		}
	}
	return r, nil
}
