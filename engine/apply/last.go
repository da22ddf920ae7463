package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// conclude ends a run whose steps are all done: it is applied when a last look finds everything as the steps left it. A
// far side that has restarted empty since then undid no step, and yet nothing is as planned. Anything that differs makes
// the run partial; nothing is undone, because nothing that the run did went wrong.
func (r *run) conclude(ctx context.Context) (state.Run, []event.Difference, error) {
	if r.finished() < len(r.Plan.Steps) {
		return r.end(state.RunApplied, nil, nil) // which reports why it cannot be
	}
	things, ds, err := r.last(ctx)
	if err == nil {
		err = failpoint.At("verify.after")
	}
	switch {
	case errors.Is(err, ErrInterrupted):
		return r.interrupted(ctx, r.unsettled(fmt.Errorf("run %s was %w; all of its steps are done, but the result was not verified", r.Run.ID, ErrInterrupted)))
	case err != nil:
		return r.leave(fmt.Errorf("verify what was applied: %w", err))
	}
	r.Emit(event.Verified{Things: things, Differences: ds})
	if len(ds) == 0 {
		return r.end(state.RunApplied, nil, nil)
	}
	i := slices.IndexFunc(r.Plan.Steps, func(s plan.Step) bool { return s.Ref == ds[0].Ref })
	return r.end(state.RunPartial, ds, &failure{&r.Plan.Steps[i], fmt.Errorf(
		"all %d steps were done, but verification found that %d of %d objects no longer match the plan. To verify again, resume the run; to fix them, release the holds and plan again", len(r.Plan.Steps), len(ds), things)})
}

// last observes once more everything that the steps left, by ids and kind by kind: in as few calls as there are kinds.
// Where a list may lag, or a thing may change by itself, it waits for as long as the step would have waited.
func (r *run) last(ctx context.Context) (things int, ds []event.Difference, err error) {
	if err := failpoint.At("verify.before"); err != nil {
		return 0, nil, err
	}
	over, halt := make(chan struct{}), make(chan struct{})
	go func() { // an interrupt ends all waiting
		defer close(halt)
		select {
		case <-r.halt:
		case <-r.Interrupt:
		case <-ctx.Done():
		case <-over:
		}
	}()
	defer func() { close(over); <-halt }()

	left := map[schema.Place]map[string]*worker{} // of several steps for one thing, the last one decides how it should be
	for i := range r.Plan.Steps {
		s := &r.Plan.Steps[i]
		if s.Action == plan.Forget {
			continue
		}
		at, w := s.Ref.Place(), r.worker(s, false)
		if left[at] == nil {
			left[at] = map[string]*worker{}
		}
		left[at][w.id] = w
	}
	type found struct {
		ds  []event.Difference
		err error
	}
	results, slots := make(chan found, len(left)), make(chan struct{}, r.Parallelism)
	for _, ws := range left {
		things += len(ws)
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ds, err := r.lastOf(ws, halt)
			results <- found{ds, err}
		}()
	}
	for n := 0; n < len(left); {
		select {
		case ev := <-r.notes:
			r.Emit(ev)
		case f := <-results:
			n++
			ds = append(ds, f.ds...)
			if err == nil {
				err = f.err
			}
		}
	}
	slices.SortFunc(ds, func(a, b event.Difference) int { return a.Ref.Compare(b.Ref) })
	return things, ds, err
}

// lastOf observes things of one kind in one scope, by their ids.
func (r *run) lastOf(left map[string]*worker, halt <-chan struct{}) (ds []event.Difference, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the provider panicked: %v", p)
		}
	}()
	ids := make([]string, 0, len(left))
	for id := range left {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	first := left[ids[0]]
	for begun, next := time.Now(), r.Retry.polls(); ; {
		seen, away, err := r.look(Some(first.served.Kind, ids...), halt, func(why string) { first.note(event.Waiting, why, 0) })
		if err != nil {
			return nil, err
		}
		if away {
			begun = time.Now()
		}
		byID := make(map[string]*providers.Thing, len(seen))
		for i := range seen {
			byID[seen[i].ID] = &seen[i]
		}
		ds = nil
		var amiss []string
		late := ""
		for _, id := range ids {
			w, have := left[id], byID[id]
			detail := w.amiss(have)
			if detail == "" {
				continue
			}
			amiss, ds = append(amiss, id), append(ds, event.Difference{Ref: w.step.Ref, Detail: detail})
			if w.passes(have) && time.Since(begun) < w.within() {
				late = detail
			}
		}
		if late == "" {
			return ds, nil
		}
		first.note(event.Waiting, late, 0)
		if err := pause(r.effects, next(), halt); err != nil {
			return nil, err
		}
		ids = amiss
	}
}

// amiss returns how a thing differs from what its step left; empty when it does not.
func (w *worker) amiss(have *providers.Thing) string {
	here := have != nil && have.Phase != providers.Deleting
	switch {
	case w.action == plan.Delete && (!here || w.stranger(have)):
		return ""
	case w.action == plan.Delete:
		return "it was destroyed, but exists again"
	case !here:
		return "it matched the plan, but no longer exists"
	case have.Phase == providers.Failed && w.action != plan.Adopt:
		return "it has failed since: " + cmp.Or(have.Detail, "no reason given")
	}
	w.sent = true
	unmet := w.unmet(have)
	if w.action == plan.Create && w.traits.Mark && have.Mark != w.mark {
		unmet = append(unmet, "its ownership mark")
	}
	if len(unmet) == 0 {
		return ""
	}
	return "it no longer matches the plan: " + strings.Join(unmet, ", ")
}

// passes reports whether a thing that differs from what its step left may still become so.
func (w *worker) passes(have *providers.Thing) bool {
	return w.traits.Eventual || have != nil && have.Phase == providers.Pending
}
