package apply

import (
	"context"
	"errors"
	"slices"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// longestLeft is how long the end of a run waits for an observation that it can do without.
const longestLeft = time.Minute

// Unsettled returns what a run has not finished, forward or back, according to its journal: the resources of steps that changed
// something and are not done, and what refers to a resource whose replacement has got so far that its name now means another
// thing.
func Unsettled(p *plan.Plan, sum *journal.Replay) map[schema.Ref]bool {
	refs, halfway := map[schema.Ref]bool{}, map[schema.Ref]bool{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if sum.Unsettled(i) {
			refs[s.Ref] = true
		}
		if s.Replace && sum.Forward[i].Effect() {
			halfway[s.Ref] = true
		}
	}
	refers := func(r *state.Record) bool {
		return r != nil && slices.ContainsFunc(r.After, func(to schema.Ref) bool { return halfway[to] })
	}
	for i := range p.Steps {
		if s := &p.Steps[i]; refers(s.Prior) || refers(s.Record) {
			refs[s.Ref] = true
		}
	}
	return refs
}

// left records, when a run ends partial, the state of the things that it did not settle: later differences from that are not
// its doing. What cannot be observed keeps its record, and so does what was not undone because others had changed it:
// that is drift.
func (r *run) left() error {
	byPlace := map[schema.Place][]state.Record{}
	first := map[schema.Place]*worker{}
	unsettled := Unsettled(r.Plan, &r.sum)
	for i := range r.Plan.Steps {
		s := &r.Plan.Steps[i]
		if !unsettled[s.Ref] {
			continue
		}
		delete(unsettled, s.Ref)
		if undo := r.sum.Undo[i]; r.sum.Forward[i].Finished() && undo.Spared() { // the record holds what the step left
			continue
		}
		rec, err := r.Store.Record(r.effects, s.Ref)
		switch w := r.worker(s, r.sum.Reverting); {
		case errors.Is(err, state.ErrNotFound):
		case err != nil:
			return err
		case !rec.Gone && w.kind != nil && w.served.Kind != nil:
			at := s.Ref.Place()
			byPlace[at], first[at] = append(byPlace[at], rec), w
		}
	}
	for at, recs := range byPlace {
		ids := make([]string, len(recs))
		for i := range recs {
			ids[i] = recs[i].ID
		}
		w := first[at]
		ctx, cancel := context.WithTimeout(r.effects, min(r.Retry.Within, longestLeft))
		things, _, err := Some(w.served.Kind, ids...).patient(ctx, r.Retry, r.Run.ID+"/left", until(r.halt), r.tell(w))
		cancel()
		if err != nil {
			continue
		}
		staying := plan.Staying(things)
		for _, rec := range recs {
			rec.Left = &state.Left{Gone: true}
			if have := staying[rec.ID]; have != nil {
				rec.Left = &state.Left{Failed: have.Phase == providers.Failed, Spec: diff.Rest(w.kind, have.Spec, nil)}
			}
			if _, err := r.Lock.Commit(r.effects, nil, []state.Op{r.Store.RecordOp(rec)}); err != nil {
				return err
			}
		}
	}
	return context.Cause(r.effects)
}
