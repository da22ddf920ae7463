package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/state"
)

// followPause is how often Follow checks whether the journal has grown.
const followPause = 100 * time.Millisecond

// ErrAbandoned reports that a run is open and no process carries it out: Resume settles it.
var ErrAbandoned = errors.New("no process is running it")

// Follow reports what another process does: it emits the events of a run, from its journal, from the beginning until the
// run is no longer open. It fails with ErrAbandoned once no process carries the run out. What is not in the journal, such
// as the progress of a step, has no events.
func Follow(ctx context.Context, store *state.Store, run state.Run, emit event.Sink) error {
	p, _, err := planOf(ctx, store, run)
	if err != nil {
		return err
	}
	emit(event.RunStarted{Run: run, Plan: p, Ago: took(run.Started, time.Now())})
	f := follower{plan: p, emit: emit, since: map[call]time.Time{}}
	var seq int64
	return retry.Policy{First: followPause}.Do(ctx, func() (over bool, err error) {
		// In this order: a process ends its run before it releases the lock, and the journal of an ended run is complete.
		holder, err := store.LockInfo(ctx)
		if err != nil {
			return true, fmt.Errorf("follow run %s: %w", run.ID, err)
		}
		now, err := store.Run(ctx, run.ID)
		if err != nil {
			return true, fmt.Errorf("follow run %s: %w", run.ID, err)
		}
		for {
			rec, ok, err := journal.Next(ctx, store, run.ID, seq)
			if err != nil {
				return true, err
			}
			if !ok {
				break
			}
			seq++
			if err := f.tell(rec); err != nil {
				return true, err
			}
		}
		if now.Status != state.RunOpen {
			var took time.Duration
			if now.Ended != nil {
				took = now.Ended.Sub(now.Started)
			}
			emit(event.RunEnded{Run: now, Undoable: Undoable(ctx, store, now), Asked: f.asked, Took: took})
			return true, nil
		}
		if holder == nil {
			return true, fmt.Errorf("run %s is still open: %w", run.ID, ErrAbandoned)
		}
		return false, nil
	})
}

// A call is a call of a step, forward or back.
type call struct {
	step int
	undo bool
}

// A follower makes events of records.
type follower struct {
	plan  *plan.Plan
	emit  event.Sink
	since map[call]time.Time // when the calls in flight began
	told  []journal.Record
	asked bool // somebody asked to undo the run
}

func (f *follower) tell(rec journal.Record) error {
	f.told = append(f.told, rec)
	switch rec.Kind {
	case journal.NoReturn:
		f.emit(event.PointOfNoReturn{Steps: len(f.plan.Steps) - f.plan.NoReturn})
	case journal.Revert:
		var cause error
		if rec.Message != "" {
			cause = errors.New(rec.Message)
		}
		sum, err := journal.Sum(f.told, len(f.plan.Steps))
		if err != nil {
			return err
		}
		f.asked = sum.Asked
		f.emit(event.RevertStarted{Cause: cause, Steps: sum.Count(), Keep: rec.Keep})
	}
	if rec.Step < 0 || rec.Step >= len(f.plan.Steps) {
		return nil
	}
	step, c := &f.plan.Steps[rec.Step], call{rec.Step, rec.Undo}
	began, under := f.since[c]
	switch {
	case rec.Kind == journal.Intent && !under:
		f.since[c] = rec.Wall
		f.emit(event.StepStarted{Step: step, Undo: rec.Undo, Ago: took(rec.Wall, time.Now())})
	case rec.Kind == journal.Outcome && rec.Result == journal.Done:
		delete(f.since, c)
		f.emit(event.StepDone{Step: step, Undo: rec.Undo, ID: rec.ExternalID, Took: took(began, rec.Wall)})
	case rec.Kind == journal.Outcome:
		delete(f.since, c)
		f.emit(event.StepFailed{
			Step: step, Undo: rec.Undo, Class: rec.Error, Err: errors.New(rec.Message), Effect: rec.Result == journal.Partial, Took: took(began, rec.Wall),
		})
	}
	return nil
}

// took returns the time between two records, which may come from the clocks of two machines.
func took(from, to time.Time) time.Duration {
	if from.IsZero() {
		return 0
	}
	return max(0, to.Sub(from))
}
