package apply

import (
	"errors"
	"slices"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// intend makes the intent of the next call durable.
func (w *worker) intend(action plan.Action, have *providers.Thing) error {
	rec := w.recordOf(journal.Intent)
	rec.Attempt, rec.Action, rec.Class = w.attempts+1, action, w.step.Undo
	if w.undo {
		rec.Class = providers.Exact
	}
	if have != nil {
		rec.Before, rec.Version = have.Spec.Digest(), have.Version
	}
	if w.want != nil {
		rec.Want = w.want.Digest()
	}
	var ops []state.Op
	if w.undo && action == plan.Create && w.action == plan.Create && w.record != nil {
		// What is made again is recorded from here on: even if its outcome is never learned, it must still be removed.
		ops = append(ops, w.store.RecordOp(*w.record))
	}
	err := w.journal.Append(w.effects, rec, ops...)
	var held *journal.StoppedError
	if err == nil || !errors.As(err, &held) { // what was held is certainly not written
		w.attempts, w.last = rec.Attempt, rec
	}
	return err
}

func (w *worker) recordOf(kind journal.Kind) journal.Record {
	return journal.Record{
		Kind: kind, Epoch: w.epoch, Step: w.step.ID, Undo: w.undo, Action: w.action, Ref: w.step.Ref,
		ExternalID: w.id, Incarnation: w.incarnation, Key: w.key(),
	}
}

// finish writes that the step is done, together with the new record of the resource. What its guard protects has to be kept before.
func (w *worker) finish(have *providers.Thing) result {
	if res, over := w.keep(); over {
		return res
	}
	rec := w.recordOf(journal.Outcome)
	rec.Result = journal.Done
	if have != nil {
		rec.Seen = have.Spec.Digest()
	}
	var ops []state.Op
	switch {
	case w.step.Stray: // the resource is another thing, and its record stays
	case w.record == nil:
		ops = append(ops, w.store.ForgetOp(w.step.Ref))
	default:
		r := *w.record
		if !w.undo && !r.Gone {
			r.ID, r.Incarnation = w.id, w.incarnation
		}
		switch {
		case w.undo && r.Run == "" && !r.Gone: // it was known only by its mark, and is so again
		case w.undo && r.Run != "":
			w.leave(&r, have)
		default:
			r.Run, r.At = w.run, w.begun.UTC()
			w.leave(&r, have)
		}
		ops = append(ops, w.store.RecordOp(r))
	}
	written := w.journal.Queue(w.effects, rec, ops...)
	if !w.disturbs {
		w.turns.give() // it acts no more, and whatever begins now is written after this
		w.turns = nil
	}
	if err := written(); err != nil {
		return result{step: w.step, attempts: w.attempts, outcome: w.last, fatal: err}
	}
	return result{step: w.step, attempts: w.attempts, outcome: rec, id: w.id}
}

// leave adds to a record what was observed last beyond what the record states, so that drift can report what changed of it.
func (w *worker) leave(r *state.Record, have *providers.Thing) {
	if have != nil && !r.Gone {
		r.Rest = diff.Rest(w.kind, have.Spec, r.Spec)
		switch {
		case w.action == plan.Adopt && !w.undo: // it is as the plan says
		case !w.undo, w.action == plan.Create:
			r.UID = have.UID
		case w.kept != "" && w.step.Prior != nil && w.step.Prior.UID == w.step.UID: // it was made again since
			r.UID = w.kept
		}
	}
}

// refuse writes that nothing was changed.
func (w *worker) refuse(err error) result { return w.outcome(journal.Refused, err, nil) }

// partial writes that something was changed and is not as it should be. The guard of a node that was cut off may be the reason.
func (w *worker) partial(err error, have *providers.Thing) result {
	if res, over := w.keep(); over {
		return res
	}
	return w.outcome(journal.Partial, w.lapsed(err), have)
}

// failed ends a step that may or may not have had an effect: while an earlier call is unsettled, so is the step.
func (w *worker) failed(err error) result {
	if abandoned(err) {
		return w.abandon(err)
	}
	if w.unsure && !w.undo || !w.doubt.IsZero() {
		return w.unknown(err)
	}
	return w.refuse(err)
}

// abandoned reports whether a step ended before its outcome was known: its run stays open.
func abandoned(err error) bool {
	var silent unreachable
	return errors.Is(err, ErrInterrupted) || errors.As(err, &silent)
}

// abandon ends a step and with it the run, which stays open: the outcome of the step is found out when the run is resumed. A
// step that certainly had no effect is written as refused.
func (w *worker) abandon(err error) result {
	if w.last.Kind == "" || w.unsure && !w.undo || !w.doubt.IsZero() || w.sent {
		return w.stopped(err)
	}
	res := w.refuse(err)
	res.err, res.fatal = nil, errors.Join(err, res.fatal)
	return res
}

// unknown leaves the last intent open: the outcome is settled when the run is continued.
func (w *worker) unknown(err error) result {
	if abandoned(err) {
		return w.abandon(err)
	}
	if res, over := w.keep(); over { // which makes it known
		return res
	}
	if w.last.Kind == "" { // no call was made in this attempt
		if w.attempts == 0 {
			return w.refuse(err)
		}
		w.last = w.recordOf(journal.Intent)
	}
	return result{step: w.step, attempts: w.attempts, outcome: w.last, id: w.id, err: err}
}

func (w *worker) outcome(as journal.Result, err error, have *providers.Thing) result {
	rec := w.recordOf(journal.Outcome)
	rec.Result, rec.Error, rec.Message = as, providers.ClassOf(err), err.Error()
	if have != nil {
		rec.Seen = have.Spec.Digest()
	}
	var ops []state.Op
	if r := w.left(); as == journal.Partial && r != nil {
		r.ID, r.Incarnation, r.Run, r.At = w.id, w.incarnation, w.run, w.begun.UTC()
		w.leave(r, have)
		ops = append(ops, w.store.RecordOp(*r))
	}
	if as == journal.Refused && !w.undo && w.action == plan.Create && w.incarnation > w.step.Incarnation && !w.step.Beside {
		// Ids that were found to be used up need not be tried again.
		r := state.Record{Ref: w.step.Ref, Incarnation: w.incarnation - 1, Gone: true, Run: w.run, At: w.begun.UTC()}
		ops = append(ops, w.store.RecordOp(r))
	}
	if jerr := w.journal.Append(w.effects, rec, ops...); jerr != nil {
		return result{step: w.step, attempts: w.attempts, outcome: w.last, fatal: errors.Join(err, jerr)}
	}
	return result{step: w.step, attempts: w.attempts, outcome: rec, id: w.id, err: err}
}

// left returns the record of a thing that is not as it should be; nil when the record does not change. What was made must
// be recorded, or nothing would remove it. What an update should have removed may still be there, and is ours just like
// what it should have added.
func (w *worker) left() *state.Record {
	s := w.step
	switch {
	case s.Stray, w.undo && w.attempts == 0: // it is as the step left it, or as others changed it
		return nil
	case s.Action == plan.Update && s.Record != nil:
		r := *s.Record
		if s.Prior != nil {
			r.Spec = diff.Merge(w.kind, r.Spec, s.Prior.Spec, nil, nil)
			r.After = slices.Concat(r.After, s.Prior.After)
			slices.SortFunc(r.After, schema.Ref.Compare)
			r.After = slices.Compact(r.After)
		}
		return &r
	case !w.undo && w.record != nil && !w.record.Gone:
		r := *w.record
		return &r
	}
	return nil
}
