package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/graph"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
)

// A failure is the first step that went wrong, and why.
type failure struct {
	step *plan.Step
	err  error
}

// A result is a worker's report about one step.
type result struct {
	step    *plan.Step
	outcome journal.Record
	id      string // the final external id; a create may have had to take another
	err     error  // nil when the step is done
	fatal   error  // the journal could not be written, or the lock was lost: the run must stop
	shut    error  // why it was not begun: its provider is unavailable
	took    time.Duration
	turn    bool // it still holds its turn

	attempts int // intents so far

	settled time.Time // when nothing more can come of its calls; only where their outcome is unknown
}

// forward carries out the steps that are not done: first all that can be undone, then the rest. It returns the first
// failure; an error means that the run cannot go on and stays open.
func (r *run) forward(ctx context.Context) (*failure, error) {
	p := r.Plan
	needs := p.Needs()
	done := func(i int) bool { return r.sum.Forward[i].Finished() }
	failed, err := r.walk(ctx, graph.NewSchedule(needs, func(i int) bool { return i >= p.NoReturn || done(i) }, p.Stage), false, nil)
	if err == nil && failed == nil {
		failed, err = r.confirmed(ctx)
	}
	if err != nil || (failed != nil && r.OnFailure != Continue) || p.NoReturn == len(p.Steps) {
		return failed, err
	}
	if !r.sum.NoReturn {
		switch failed, err := r.foreseen(ctx); {
		case err != nil:
			return nil, err
		case failed != nil:
			return failed, nil
		}
		if err := r.journal.Append(r.effects, journal.Record{Kind: journal.NoReturn, Step: -1}); err != nil {
			return nil, err
		}
		r.sum.NoReturn = true
		r.Emit(event.PointOfNoReturn{Steps: len(p.Steps) - p.NoReturn})
	}
	after := func(i int) bool { return i < p.NoReturn || done(i) }
	return r.walk(ctx, graph.NewSchedule(needs, after, p.Stage), false, failed)
}

// foreseen returns, right before the point of no return, the first delete beyond it that the far side would refuse: then the run is undone
// while that is possible. With OnFailure Continue the steps fail one by one.
func (r *run) foreseen(ctx context.Context) (*failure, error) {
	asking, cancel := context.WithCancel(r.effects)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() { // an interrupt ends the waiting
		select {
		case <-r.Interrupt:
		case <-ctx.Done():
		case <-over:
		}
		cancel()
	}()
	var found []plan.Obstructed
	if r.OnFailure != Continue {
		var err error
		found, err = r.Plan.Obstructions(asking, r.Providers, func(i int) bool { return i >= r.Plan.NoReturn })
		if err != nil { // each delete finds out by itself
			r.Logger.Warn("not known whether what cannot be undone would be refused", "run", r.Run.ID, "error", err)
		}
	}
	select {
	case <-asking.Done():
		if r.effects.Err() != nil {
			return nil, context.Cause(r.effects)
		}
		r.stop(ctx)
		return nil, r.cutShort()
	default:
	}
	if len(found) == 0 {
		return nil, nil
	}
	s := found[0].Step
	err := &providers.Error{Op: string(s.Action), Ref: s.Ref, Class: providers.Invalid, Err: errors.New(found[0].Why)}
	r.Emit(event.StepStarted{Step: s})
	r.Emit(event.StepFailed{Step: s, Class: providers.Invalid, Err: err})
	return &failure{s, err}, nil
}

// cutShort returns the error of a run that stopped on request before its end.
func (r *run) cutShort() error {
	return r.unsettled(fmt.Errorf("run %s was %w; %d of %d steps are done", r.Run.ID, ErrInterrupted, r.finished(), len(r.Plan.Steps)))
}

// walk runs a schedule, forward or as an undo, with as many concurrent steps as there are [turns]. Steps that need a failed
// step are not started; the others are, when undoing or when OnFailure is Continue. It returns the first failure.
func (r *run) walk(ctx context.Context, s *graph.Schedule, undo bool, failed *failure) (*failure, error) {
	var fatal error
	goOn := undo || r.OnFailure == Continue
	stopped, interrupted := failed != nil && !goOn, false
	interrupt, cancelled := r.Interrupt, ctx.Done()
	interrupts := func() { interrupt, cancelled, stopped, interrupted = nil, nil, true, true }
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	stop, told := make(chan struct{}), false
	lanes := newLanes()
	for {
		select { // before any step begins, whatever else has happened meanwhile
		case <-interrupt:
			interrupts()
		case <-cancelled:
			interrupts()
		default:
		}
		if interrupted {
			r.stop(ctx)
		}
		if stopped && !told {
			close(stop)
			told = true
		}
		for !stopped && len(r.flying) < r.turns.most() && r.turns.try() {
			step := r.next(s, lanes, undo)
			if step == nil {
				<-r.turns.taken // nothing waits for it
				break
			}
			r.start(step, undo)
		}
		if len(r.flying) == 0 && len(r.gate.waiting) == 0 {
			break
		}
		select {
		case res := <-r.results:
			delete(r.flying, res.step)
			lanes.leave(res.step)
			if res.turn {
				<-r.turns.taken
			}
			if res.shut != nil {
				r.wait(res.step, undo, res.shut, stop)
				continue
			}
			r.settle(res, undo)
			switch {
			case errors.Is(res.fatal, ErrInterrupted):
				stopped, interrupted = true, true
			case res.fatal != nil:
				stopped = true
				if fatal == nil {
					fatal = res.fatal
				}
			case res.err != nil:
				s.Drop(res.step.ID)
				if failed == nil {
					failed = &failure{res.step, res.err}
				}
				if !undo {
					r.failed[res.step.Wave]++
					_, many := r.tooMany(res.step.Wave)
					stopped = stopped || many
				}
				stopped = stopped || !goOn
			default:
				s.Done(res.step.ID)
			}
		case <-r.turns.given: // the next step may begin
		case o := <-r.gate.opened:
			r.gate.open(o.provider)
			if o.err != nil && !stopped { // the lock was lost
				stopped, fatal = true, o.err
			}
		case ev := <-r.notes:
			r.Emit(ev)
		case <-beat.C:
			for step, since := range r.flying {
				r.Emit(event.StepProgress{Step: step, Undo: undo, Phase: event.Acting, Elapsed: time.Since(since)})
			}
			if undo {
				r.describe("reverting")
			} else {
				r.describe("applying")
			}
		case <-interrupt:
			interrupts()
		case <-cancelled:
			interrupts()
		}
	}
	r.leaveWaiting(undo)
	if fatal != nil {
		return failed, fatal
	}
	if interrupted && (undo || failed == nil) && s.Left() > 0 {
		return nil, r.cutShort()
	}
	return failed, nil
}

// stop makes the steps in flight stop waiting.
func (r *run) stop(ctx context.Context) {
	select {
	case <-r.halt:
	default:
		r.Emit(event.Interrupted{InFlight: len(r.flying), By: canceller(ctx)})
		close(r.halt)
	}
}

// next returns the step to start now; nil when there is none. Steps that wait for their provider or in their lane are passed over.
func (r *run) next(s *graph.Schedule, lanes *lanes, undo bool) *plan.Step {
	for {
		step := lanes.pop()
		if step == nil {
			step = r.gate.pop()
		}
		if step == nil {
			i, ok := s.Next()
			if !ok {
				return nil
			}
			if step = &r.Plan.Steps[i]; !undo && !r.ready(i) {
				s.Drop(i)
				continue
			}
		}
		served, p, _ := r.Providers.Find(step.Ref.Scope, step.Ref.Kind)
		if !r.gate.join(step, p) && lanes.enter(step, served.Traits.Serial) {
			return step
		}
	}
}

func (r *run) provider(s *plan.Step) *providers.Provider {
	_, p, _ := r.Providers.Find(s.Ref.Scope, s.Ref.Kind)
	return p
}

// tooMany reports whether too many steps of a wave have failed to try the rest, and returns the size of the wave.
func (r *run) tooMany(wave int) (size int, many bool) {
	size = r.waves[wave]
	return size, size >= smallWave && r.failed[wave]*100 > failedShare*size
}

// ready reports whether everything that a step needs is done; beyond the point of no return, some of it may have failed before.
func (r *run) ready(i int) bool {
	for _, n := range r.Plan.Steps[i].Needs {
		if !r.sum.Forward[n].Finished() {
			return false
		}
	}
	return true
}

// heartbeat is how often an event reports that a step is still running.
const heartbeat = 10 * time.Second

// start hands a step, with the turn that was taken for it, to a worker, which begins unless the step's provider is unavailable.
// Everything that the worker needs of the run is looked up here.
func (r *run) start(s *plan.Step, undo bool) {
	r.flying[s] = time.Now()
	if !r.gate.announced[s] {
		r.Emit(event.StepStarted{Step: s, Undo: undo})
	}
	delete(r.gate.announced, s)
	w, provider := r.worker(s, undo), r.provider(s)
	w.turns = r.turns
	go func() {
		res := result{step: s}
		if res.shut = r.gate.ask(r.effects, provider, r.Retry.Within); res.shut == nil {
			w.begun = time.Now()
			res = w.guarded()
			res.settled = w.acted.Add(shown(w.traits))
		}
		res.took, res.turn = time.Since(w.begun), w.turns != nil
		r.results <- res
	}()
}

// wait lets a step wait for its provider without blocking others. The first step that waits for a provider reports why.
func (r *run) wait(s *plan.Step, undo bool, why error, stop <-chan struct{}) {
	p := r.provider(s)
	r.gate.announced[s] = true
	if r.gate.join(s, p) {
		return
	}
	r.gate.begin(s, p)
	since := time.Now()
	go func() {
		err := r.gate.pass(r.effects, p, r.Retry, stop, why, func(why error) {
			r.notes <- event.StepProgress{Step: s, Undo: undo, Phase: event.Waiting, Detail: why.Error(), Elapsed: time.Since(since)}
		})
		r.gate.opened <- opening{p, err}
	}()
}

// leaveWaiting reports that the steps which were announced as started, and still wait at the end of the walk, did not begin.
func (r *run) leaveWaiting(undo bool) {
	r.gate.ready = nil
	for i := range r.Plan.Steps {
		if step := &r.Plan.Steps[i]; r.gate.announced[step] {
			r.Emit(event.StepFailed{Step: step, Undo: undo, Class: providers.Transient, Err: errNotBegun})
		}
	}
	clear(r.gate.announced)
}

// settle takes a worker's report into the run's state and emits its events.
func (r *run) settle(res result, undo bool) {
	at := &r.sum.Forward[res.step.ID]
	if undo {
		at = &r.sum.Undo[res.step.ID]
	}
	at.Attempts = res.attempts
	switch {
	case res.outcome.Kind == journal.Outcome:
		out := res.outcome
		at.Open, at.Outcome = nil, &out
	case res.outcome.Kind == journal.Intent: // its outcome is unknown
		in := res.outcome
		at.Open, at.Outcome = &in, nil
		if !undo {
			r.settled[res.step] = res.settled
		}
	}
	if res.id != "" && !undo && res.step.Action != plan.Delete {
		r.ids[res.step.Ref] = res.id
	}
	if res.err == nil && res.fatal == nil {
		r.Emit(event.StepDone{Step: res.step, Undo: undo, ID: res.id, Took: res.took})
		return
	}
	err := res.err
	if err == nil {
		err = res.fatal
	}
	r.Emit(event.StepFailed{Step: res.step, Undo: undo, Class: providers.ClassOf(err), Err: err, Effect: at.Effect(), Took: res.took})
}
