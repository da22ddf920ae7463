// Package apply carries a plan out, or back. It decides nothing: what to do is in the plan, what was done is in the journal.
//
// # Words
//
// A run is one application of a plan. One goroutine owns it: it decides which step may start, keeps count, writes the
// run and emits events. Workers carry out one step each and report. A step is done when its result has been observed,
// not when a call returns.
//
// # Promises
//
// Before a call that changes something, its intent is durable; afterwards its outcome is, together with what is to be
// remembered of the resource. A run ends applied, reverted or partial, each by observation: before it is called applied or
// reverted, everything that it touched is observed once more. A run that somebody asked to undo in part ends rolled back:
// what its later steps touched is observed; what its first steps made is kept, and no call is made for it. A run that was
// interrupted, or met a hold or a freeze, or whose far side was unavailable for longer than its steps may take, stays
// open, and [Carry] continues it from its journal. An interrupt ends all waiting. No step begins while its provider's far
// side is unavailable. When the site lock is lost, calls in flight are cancelled, none begins, and nothing more is written.
//
// # Files
//
// forward.go and revert.go walk the plan; gate.go and turns.go let steps begin; worker.go makes one call; judge.go compares what is
// there with what the call expects; orphans.go proves that nothing refers to what is deleted, outside.go that what nobody
// declares is still there; settle.go settles calls of unknown outcome; look.go observes, patiently while the far side is
// unavailable; together.go lets steps that wait look together; last.go observes all of it once more; outcome.go writes the
// journal; left.go records the state of what the run did not settle; end.go closes the run. guard.go keeps or gives up what guards
// protect, and waits for the confirmation of a run.
package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// OnFailure says what follows when a step fails.
type OnFailure string

// What may follow a failed step.
const (
	Rollback OnFailure = "rollback" // undo what was done, and verify it
	Stop     OnFailure = "stop"     // start no more steps; resume or rollback settles the run
	Continue OnFailure = "continue" // go on with what does not need the failed step
)

// Retry bounds how often calls that failed without effect are repeated, and how often things are observed.
type Retry struct {
	Base     time.Duration // first delay; doubles each time, with full jitter; 1 s when zero
	Cap      time.Duration // longest delay; 60 s when zero
	Attempts int           // calls in all; 5 when zero. A call refused as busy is repeated beyond that, within the step's own deadline
	Within   time.Duration // time for a whole step, not counting its waits; 10 min when zero
	Poll     time.Duration // first pause between two observations of a thing that is not ready; doubles up to 2 s; 20 ms when zero
	Guard    time.Duration // how long after its change a step is undone by its guard, unless what it may have cut off is reached anew; 2 min when zero
}

func (r Retry) defaults() Retry {
	if r.Base <= 0 {
		r.Base = time.Second
	}
	if r.Cap <= 0 {
		r.Cap = time.Minute
	}
	if r.Attempts <= 0 {
		r.Attempts = 5
	}
	if r.Within <= 0 {
		r.Within = 10 * time.Minute
	}
	if r.Poll <= 0 {
		r.Poll = 20 * time.Millisecond
	}
	if r.Guard <= 0 {
		r.Guard = 2 * time.Minute
	}
	return r
}

// calls returns how calls are repeated. The key, which names a run or step, spreads their retries over time.
func (r Retry) calls(key string) retry.Policy {
	return retry.Policy{First: r.Base, Cap: r.Cap, Key: key}
}

// polls returns the pauses between observations of a thing that is not ready.
func (r Retry) polls() (next func() time.Duration) {
	return retry.Policy{First: r.Poll, Cap: longestPoll}.Pauses()
}

// longestPoll is the longest pause between two observations of a thing that is not ready.
const longestPoll = 2 * time.Second

// Options say what to carry out. All fields are required unless their comment says otherwise.
type Options struct {
	Kinds       schema.Kinds
	Providers   *providers.Set
	Store       *state.Store
	Lock        *state.Lock
	Plan        *plan.Plan
	Run         state.Run      // Status is RunOpen; as stored, unless Undo is set: then it is stored with the first record
	Log         *journal.Log   // of the run so far
	Recorded    []state.Record // what the store recorded before this call, for looking up ids
	Undo        bool           // carry back instead of forward
	Keep        int            // with Undo: how many of the first steps are not undone
	OnFailure   OnFailure
	Confirm     time.Duration // undo the run unless it is confirmed within that time from now; zero: this process has nothing to wait for
	Parallelism int           // steps that act at the same time; see [turns]
	Retry       Retry
	Interrupt   <-chan struct{} // optional; when closed no more steps are started
	Emit        event.Sink
	Logger      *slog.Logger
}

// Carry carries the plan out, or back, from the point that the journal has reached. The returned run is as it was stored.
// An error means that the end could not be reached or written: the run is still open. It wraps ErrInterrupted when an
// interrupt was requested.
func Carry(ctx context.Context, o Options) (state.Run, []event.Difference, error) {
	sum, err := journal.Sum(o.Log.Records, len(o.Plan.Steps))
	if err != nil {
		return o.Run, nil, err
	}
	j, err := journal.Open(ctx, o.Store, o.Lock, o.Run.ID, o.Log)
	if err != nil {
		return o.Run, nil, err
	}
	defer j.Close()
	r := &run{
		Options: o, sum: sum, journal: j, started: time.Now(),
		ids:     externalIDs(o.Recorded, o.Plan, func(a plan.Action) bool { return a != plan.Delete && a != plan.Forget }),
		were:    externalIDs(o.Recorded, o.Plan, func(a plan.Action) bool { return a != plan.Create }),
		uids:    recordedUIDs(o.Recorded, o.Run.ID),
		results: make(chan result, o.Parallelism),
		notes:   make(chan event.Event),
		flying:  map[*plan.Step]time.Time{},
		settled: map[*plan.Step]time.Time{},
		turns:   newTurns(o.Parallelism),
		halt:    make(chan struct{}),
		waves:   map[int]int{},
		failed:  map[int]int{},
		gate:    newGate(),
		guards:  newGuards(o),
	}
	for i := range o.Plan.Steps {
		r.waves[o.Plan.Steps[i].Wave]++
	}
	r.Retry = o.Retry.defaults()
	r.effects = o.Lock.Context(context.WithoutCancel(ctx)) // a user's cancel lets a step finish; losing the lock does not
	run, ds, err := r.carry(ctx)
	if lost := o.Lock.Held(); err != nil && lost != nil && !errors.Is(err, state.ErrFenced) {
		err = fmt.Errorf("%w: %w", lost, err) // a call that was cut off does not know the reason
	}
	return run, ds, err
}

// ErrInterrupted reports that the run was stopped before its end.
var ErrInterrupted = errors.New("interrupted")

// unsettled adds to an error how the run that is left open can be settled.
func (r *run) unsettled(err error) error {
	return remedy.For(err, remedy.Say("resume it", remedy.Of(remedy.Resume, r.Run.ID)))
}

type run struct {
	Options
	sum     journal.Replay
	journal *journal.Journal
	started time.Time
	effects context.Context
	ids     map[schema.Ref]string // external ids after the plan; owned by the run's goroutine
	were    map[schema.Ref]string // external ids before the plan
	uids    map[schema.Ref]string // uids of things as this run recorded them, before this call
	results chan result
	notes   chan event.Event // from workers, emitted in order by the run's goroutine
	flying  map[*plan.Step]time.Time
	settled map[*plan.Step]time.Time // when nothing more can come of calls of unknown outcome that this process made
	turns   *turns
	halt    chan struct{} // closed when the run is asked to stop: no step waits for anything from then on
	waves   map[int]int   // steps of each wave
	failed  map[int]int   // those of them that failed
	shared  sharedList
	glances glances
	gate    *gate
	guards  *guards
}

// A CancelledError is the cause of a context that was cancelled because somebody asked from elsewhere to end the run.
type CancelledError struct{ By string }

func (e *CancelledError) Error() string { return "cancelled by " + e.By }

// canceller returns who asked from elsewhere to end the run; empty when nobody did.
func canceller(ctx context.Context) string {
	if asked, ok := errors.AsType[*CancelledError](context.Cause(ctx)); ok {
		return asked.By
	}
	return ""
}

// recordedUIDs maps refs to the uids that a run recorded.
func recordedUIDs(recorded []state.Record, run string) map[schema.Ref]string {
	uids := map[schema.Ref]string{}
	for i := range recorded {
		if r := &recorded[i]; r.Run == run && r.UID != "" {
			uids[r.Ref] = r.UID
		}
	}
	return uids
}

// externalIDs maps refs to ids: those recorded, and those of the steps whose action is on the requested side of the plan.
func externalIDs(recorded []state.Record, p *plan.Plan, side func(plan.Action) bool) map[schema.Ref]string {
	ids := make(map[schema.Ref]string, len(recorded))
	for i := range recorded {
		if !recorded[i].Gone {
			ids[recorded[i].Ref] = recorded[i].ID
		}
	}
	for i := range p.Steps {
		if s := &p.Steps[i]; side(s.Action) && (!s.Stray || s.Replace) { // the old half of a handover is what was there before, even once the new one is recorded
			ids[s.Ref] = s.ExternalID
		}
	}
	return ids
}

// carry is the whole life of a run.
func (r *run) carry(ctx context.Context) (state.Run, []event.Difference, error) {
	if r.Undo {
		if err := r.turnBack(r.Keep, nil, r.Store.PutRunOp(r.Run)); err != nil {
			return r.Run, nil, err
		}
	}
	r.describe("applying")
	r.Emit(event.RunStarted{Run: r.Run, Plan: r.Plan, Done: r.finished()})
	if r.sum.Reverting {
		return r.revert(ctx, nil)
	}
	if r.Run.Confirm > 0 && !r.guards.whole() && !r.sum.Confirmed {
		return r.revert(ctx, r.unconfirmed("the process that waited for that has ended"))
	}
	failure, err := r.forward(ctx)
	switch {
	case errors.Is(err, ErrInterrupted):
		return r.interrupted(ctx, err)
	case err != nil:
		return r.leave(err)
	case failure == nil:
		return r.conclude(ctx)
	case r.OnFailure == Stop:
		r.Run.Message, r.Run.Failed = "stopped: "+failure.err.Error(), failure.step.Ref
		return r.save(r.Run, failure.err, nil)
	case r.OnFailure == Continue || r.irreversible():
		return r.end(state.RunPartial, r.differences(), failure)
	}
	return r.revert(ctx, failure)
}

// interrupted leaves open a run that was asked to stop.
func (r *run) interrupted(ctx context.Context, err error) (state.Run, []event.Difference, error) {
	r.Run.Message = "interrupted"
	if by := canceller(ctx); by != "" {
		r.Run.Message, r.Run.Cancelled = "cancelled by "+by, r.Lock.Epoch()
	}
	run, ds, serr := r.save(r.Run, nil, nil)
	return run, ds, errors.Join(err, serr)
}

// describe writes into the lock what the run is doing, and since when, for those that wait for it. It does so from time to
// time, and the text stays when the process dies. A failure to write it stops nothing.
func (r *run) describe(doing string) {
	text := fmt.Sprintf("%s run %s, %d of %d steps done as of %s", doing, r.Run.ID, r.finished(), len(r.Plan.Steps), time.Now().UTC().Format("15:04:05 UTC"))
	if err := r.Lock.Describe(r.effects, r.Run.ID, text); err != nil {
		r.Logger.Warn("lock description not updated", "error", err)
	}
}

func (r *run) finished() int {
	n := 0
	for i := range r.sum.Forward {
		if r.sum.Forward[i].Finished() {
			n++
		}
	}
	return n
}

// irreversible reports whether a step beyond the point of no return had an effect: then the run cannot be undone exactly.
func (r *run) irreversible() bool {
	for i := r.Plan.NoReturn; i < len(r.Plan.Steps); i++ {
		if !r.Plan.Steps[i].Undo.Reversible() && r.sum.Forward[i].Effect() {
			return true
		}
	}
	return false
}

// differences lists, for a run that stopped on its way forward, what differs from the plan.
func (r *run) differences() []event.Difference {
	var ds []event.Difference
	for i := range r.Plan.Steps {
		s, at := &r.Plan.Steps[i], r.sum.Forward[i]
		switch {
		case at.Finished():
		case at.Outcome != nil:
			ds = append(ds, event.Difference{Ref: s.Ref, Detail: string(s.Action) + " failed: " + at.Outcome.Message})
		case at.Open != nil:
			ds = append(ds, event.Difference{Ref: s.Ref, Detail: string(s.Action) + " has an unknown outcome"})
		default:
			ds = append(ds, event.Difference{Ref: s.Ref, Detail: string(s.Action) + " was not started"})
		}
	}
	return ds
}

// save stores the run as it is, still open. Holds are those that stopped it.
func (r *run) save(run state.Run, cause error, holds []state.Hold) (state.Run, []event.Difference, error) {
	run.Done = r.finished()
	_, err := r.Lock.Commit(r.effects, nil, []state.Op{r.Store.PutRunOp(run)})
	if err != nil {
		return run, nil, errors.Join(cause, err)
	}
	r.Run = run
	r.Emit(event.RunEnded{Run: run, Differences: r.differences(), Holds: holds, Undoable: !r.irreversible(), Asked: r.sum.Asked, Took: time.Since(r.started)})
	return run, r.differences(), nil
}

// leave abandons a run that stays open, and records why where that is still possible.
func (r *run) leave(err error) (state.Run, []event.Difference, error) {
	var held *journal.StoppedError
	var silent unreachable
	if errors.As(err, &held) || errors.As(err, &silent) {
		r.Run.Message = err.Error()
		var holds []state.Hold
		if held != nil {
			holds = held.Holds
		}
		_, _, serr := r.save(r.Run, nil, holds)
		return r.Run, nil, errors.Join(err, serr)
	}
	return r.Run, nil, err
}
