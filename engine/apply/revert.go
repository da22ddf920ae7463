package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/graph"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// turnBack makes it durable that the run is undone from here on, and how many of its first steps are kept, so that a process
// which continues the run goes on with the undo.
func (r *run) turnBack(keep int, cause *failure, ops ...state.Op) error {
	rec := journal.Record{Kind: journal.Revert, Step: -1, Keep: keep}
	if cause != nil {
		rec.Message = cause.err.Error()
	}
	if err := r.journal.Append(r.effects, rec, ops...); err != nil {
		return err
	}
	r.sum.Reverting, r.sum.Asked, r.sum.Keep = true, rec.Message == "", keep
	return nil
}

// revert undoes, in reverse order, what the run did according to its journal, and observes all of it once more. The run
// ends reverted when everything is as it was, rolled back when its first steps are kept and the rest is as it was, and
// otherwise partial, with the differences.
func (r *run) revert(ctx context.Context, cause *failure) (state.Run, []event.Difference, error) {
	if cause != nil && (errors.As(cause.err, new(*CutOffError)) || errors.As(cause.err, new(*UnconfirmedError))) {
		r.Run.Unconfirmed = true
	}
	if !r.sum.Reverting {
		if err := r.turnBack(0, cause); err != nil {
			return r.Run, nil, err
		}
	}
	if cause == nil && r.Run.Message != "" { // continued: the cause is remembered
		cause = r.remembered()
	}
	started := event.RevertStarted{Steps: r.sum.Count(), Keep: r.sum.Keep}
	if cause != nil {
		started.Cause = cause.err
		r.Run.Message, r.Run.Failed = cause.err.Error(), cause.step.Ref
		if _, err := r.Lock.Commit(r.effects, nil, []state.Op{r.Store.PutRunOp(r.Run)}); err != nil {
			return r.Run, nil, err
		}
	}
	r.Emit(started)
	r.describe("reverting")
	r.giveUp()
	if err := r.settleLate(ctx); err != nil {
		return r.Run, nil, err
	}
	schedule := graph.NewSchedule(graph.Reverse(r.Plan.Needs()), func(i int) bool { return !r.sum.Left(i) }, nil)
	failed, err := r.walk(ctx, schedule, true, nil)
	if err != nil {
		return r.leave(err)
	}
	things, ds, err := r.verify()
	if err == nil {
		err = failpoint.At("verify.after")
	}
	if err != nil {
		return r.Run, nil, r.unsettled(fmt.Errorf("verify what was reverted: %w", err))
	}
	if failed != nil {
		ds = r.notUndone(ds)
	}
	r.Emit(event.Verified{Undo: true, Things: things, Differences: ds, Remains: r.Run.Remains, Recreated: r.recreated()})
	switch {
	case len(ds) > 0:
		return r.end(state.RunPartial, ds, cause)
	case r.sum.Keep > 0:
		return r.end(state.RunRolledBack, nil, cause)
	}
	return r.end(state.RunReverted, nil, cause)
}

// recreated returns what has all that it had before the run, except its running state.
func (r *run) recreated() (refs []schema.Ref) {
	for i := r.sum.Keep; i < len(r.Plan.Steps); i++ {
		if s := &r.Plan.Steps[i]; s.Action == plan.Delete && s.Undo == providers.Restart && r.sum.Forward[i].Effect() && r.sum.Undo[i].Attempts > 0 {
			refs = append(refs, s.Ref)
		}
	}
	return schema.SortRefs(refs)
}

// settleLate waits, before anything is undone, until calls of unknown outcome have had their effect, if any:
// one wait for all of them, as long as the slowest kind may need. A create that can be repeated until its answer is
// definite needs no wait; see [worker.repeat].
func (r *run) settleLate(ctx context.Context) error {
	if err := failpoint.At("settle.before"); err != nil {
		return err
	}
	var late time.Duration
	var step *plan.Step
	for i := range r.Plan.Steps {
		s := &r.Plan.Steps[i]
		served, _, ok := r.Providers.Find(s.Ref.Scope, s.Ref.Kind)
		open := r.sum.Forward[i].Open
		if !ok || open == nil || s.Action == plan.Create && repeatable(served.Traits) {
			continue
		}
		rest := r.doubtful(s.Ref, served.Traits, open.Epoch)
		if at, ours := r.settled[s]; ours { // what the step has waited need not be waited again
			rest = min(rest, time.Until(at))
		}
		if rest > late {
			late, step = rest, s
		}
	}
	if step == nil {
		return failpoint.At("settle.after")
	}
	r.Emit(event.StepStarted{Step: step, Undo: true}) // the progress of what has not started is not shown
	r.gate.announced[step] = true
	r.Emit(event.StepProgress{Step: step, Undo: true, Phase: event.Settling, Detail: fmt.Sprintf("a call with an unknown outcome may still take effect within %s", late)})
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.C:
		return failpoint.At("settle.after")
	case <-r.effects.Done():
		return context.Cause(r.effects)
	case <-r.Interrupt:
	case <-ctx.Done():
	}
	return r.unsettled(fmt.Errorf("run %s was %w while waiting to be reverted", r.Run.ID, ErrInterrupted))
}

func (r *run) remembered() *failure {
	for i := range r.Plan.Steps {
		if r.Plan.Steps[i].Ref == r.Run.Failed {
			return &failure{&r.Plan.Steps[i], fmt.Errorf("%s", r.Run.Message)}
		}
	}
	return nil
}

// notUndone adds the things whose undo failed to those that differ, with the reason. Some may look as before: the effect
// of the call may still come.
func (r *run) notUndone(ds []event.Difference) []event.Difference {
	differs := map[schema.Ref]int{} // the first difference of each
	for i, d := range slices.Backward(ds) {
		differs[d.Ref] = i
	}
	for i := range r.Plan.Steps {
		s, at := &r.Plan.Steps[i], r.sum.Undo[i]
		if i < r.sum.Keep || !r.sum.Forward[i].Effect() || at.Finished() {
			continue
		}
		why := ""
		if at.Outcome != nil && at.Outcome.Message != "" {
			why = "revert failed: " + at.Outcome.Message
		}
		known, differ := differs[s.Ref]
		switch {
		case !differ:
			differs[s.Ref] = len(ds)
			ds = append(ds, event.Difference{Ref: s.Ref, Detail: cmp.Or(why, "revert failed or was not attempted")})
		case why != "" && !strings.Contains(ds[known].Detail, at.Outcome.Message):
			ds[known].Detail += "; " + why
		}
	}
	return ds
}

// verify observes everything that the run touched, except what is kept of it, and compares it with what was there before.
func (r *run) verify() (things int, ds []event.Difference, err error) {
	if err := failpoint.At("verify.before"); err != nil {
		return 0, nil, err
	}
	byPlace := map[schema.Place][]*worker{}
	strays := map[schema.Place][]*worker{} // there may be more than one of each: their creates were tried more than once
	r.Run.Remains = nil
	for i := range r.Plan.Steps {
		s := &r.Plan.Steps[i]
		if i < r.sum.Keep || !r.sum.Forward[i].Effect() || s.Action == plan.Forget && s.Before == nil || s.Attaches { // the step that detached it knows how it was
			continue
		}
		if s.Leaves {
			r.Run.Remains = append(r.Run.Remains, s.Ref)
			continue
		}
		at := s.Ref.Place()
		w, did := r.worker(s, true), r.sum.Forward[i]
		byPlace[at] = append(byPlace[at], w)
		if s.Action == plan.Create && w.traits.Mark && (did.Attempts > 1 || did.Open != nil || did.Unseen()) {
			strays[at] = append(strays[at], w)
		}
		things++
	}
	for _, ws := range byPlace {
		ids := make([]string, len(ws))
		for i, w := range ws {
			ids[i] = w.id
		}
		seen, _, err := r.look(Some(ws[0].served.Kind, ids...), r.halt, r.tell(ws[0]))
		if err != nil {
			return things, nil, err
		}
		byID := make(map[string]*providers.Thing, len(seen))
		for i := range seen {
			if seen[i].Phase != providers.Deleting {
				byID[seen[i].ID] = &seen[i]
			}
		}
		for _, w := range ws {
			if at := r.sum.Undo[w.step.ID]; at.Outcome != nil && at.Outcome.Result == journal.Partial && byID[w.id] == nil && w.step.Before == nil {
				ds = append(ds, event.Difference{Ref: w.step.Ref, Detail: at.Outcome.Message}) // what is unknown is not reported as gone
				continue
			}
			if d := w.differs(byID[w.id], r.resolve(w.step.Ref, w.step.Before, r.were)); d != "" {
				ds = append(ds, event.Difference{Ref: w.step.Ref, Detail: d})
			}
		}
	}
	for _, ws := range strays {
		all, _, err := r.look(All(ws[0].served.Kind), r.halt, r.tell(ws[0]))
		if err != nil {
			return things, nil, err
		}
		marked := map[schema.Ref][]*providers.Thing{}
		for i := range all {
			if t := &all[i]; t.Mark.Site == r.Plan.Site.ID && t.Phase != providers.Deleting {
				marked[t.Mark.Ref] = append(marked[t.Mark.Ref], t)
			}
		}
		for _, w := range ws {
			for _, t := range marked[w.step.Ref] {
				if t.ID != w.id && t.Mark.Incarnation >= w.step.Incarnation {
					ds = append(ds, event.Difference{Ref: w.step.Ref, Detail: fmt.Sprintf("it was created under another id, %s, and still exists", t.ID)})
				}
			}
		}
	}
	slices.SortFunc(ds, func(a, b event.Difference) int { return a.Ref.Compare(b.Ref) })
	return things, ds, nil
}

// look repeats a look on behalf of the run itself, as [Look.patient] does.
func (r *run) look(look Look, halt <-chan struct{}, say func(why string)) (things []providers.Thing, away bool, err error) {
	ctx, cancel := context.WithTimeout(r.effects, r.Retry.Within)
	defer cancel()
	return look.patient(ctx, r.Retry, r.Run.ID+"/verify", until(halt), say)
}

// tell returns a function that reports what the run itself waits for.
func (r *run) tell(w *worker) func(why string) {
	return func(why string) {
		r.Emit(event.StepProgress{Step: w.step, Undo: r.sum.Reverting, Phase: event.Waiting, Detail: why})
	}
}

// differs returns how a thing is not as it was before; empty when it is.
func (w *worker) differs(have *providers.Thing, before schema.Object) string {
	switch {
	case before == nil && have == nil:
		return ""
	case before == nil && !w.ours(have):
		return ""
	case before == nil:
		return "it was created and still exists"
	case have == nil:
		return "it existed before, but no longer exists"
	case w.stranger(have):
		return w.taking(have)
	}
	is := have.Spec
	before = diff.Spare(before, is, w.ignore)
	renamed := w.name != "" && have.Name != w.name
	if is.Equal(before) && !renamed {
		return ""
	}
	var paths []string
	for _, c := range diff.Between(w.kind, before, is, func(_, id string) string { return id }) {
		paths = append(paths, c.Path)
	}
	if renamed {
		paths = append(paths, plan.NamePath)
	}
	return "it differs from its previous state: " + strings.Join(paths, ", ")
}
