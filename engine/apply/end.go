package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Limits beyond which a site or a node is held although the run did what it promises.
const (
	failedRuns   = 3 // failed runs that hold the site
	failedWithin = time.Hour
	heldNodes    = 5 // held nodes: more than these hold the site
	heldWithin   = 30 * time.Minute
	smallWave    = 5  // a wave with fewer steps says nothing about the rest
	failedShare  = 20 // percent of the steps of one wave: more than these
)

// end closes the run. A partial run holds what is not as it should be; a run that did not reach its desired state holds
// that revision of the document, so that it is not tried again unnoticed; the other holds of the run are released.
func (r *run) end(status state.RunStatus, ds []event.Difference, failure *failure) (state.Run, []event.Difference, error) {
	if done, all := r.finished(), len(r.Plan.Steps); status == state.RunApplied && done < all {
		return r.leave(fmt.Errorf("run %s cannot finish as applied: %d of %d steps are done, and the others were never started", r.Run.ID, done, all))
	}
	now := time.Now().UTC()
	r.Run.Status, r.Run.Ended, r.Run.Done, r.Run.Kept = status, &now, r.finished(), 0
	if status == state.RunRolledBack {
		r.Run.Kept = r.sum.Keep
	}
	r.Run.Message = ""
	if failure != nil {
		r.Run.Message, r.Run.Failed = failure.err.Error(), failure.step.Ref
	}
	r.Run.Partial = nil
	for _, d := range ds {
		r.Run.Partial = append(r.Run.Partial, d.Ref.String()+": "+d.Detail)
	}
	held, err := r.Store.Holds(r.effects)
	if err != nil {
		return r.Run, ds, err
	}
	wanted, err := r.holds(now, ds, held)
	if err != nil {
		return r.Run, ds, err
	}
	if status == state.RunPartial {
		if err := r.left(); err != nil {
			return r.Run, ds, err
		}
	}
	ops := []state.Op{r.Store.PutRunOp(r.Run)}
	for _, h := range wanted {
		ops = append(ops, r.Store.HoldOp(h))
	}
	for _, h := range held {
		if (h.Run == r.Run.ID || h.Before(r.Run.Serial)) && !slices.ContainsFunc(wanted, func(w state.Hold) bool { return w.Scope == h.Scope }) {
			ops = append(ops, r.Store.ReleaseOp(h))
		}
	}
	if err := r.journal.Append(r.effects, journal.Record{Kind: journal.End, Step: -1, Message: string(status)}, ops...); err != nil {
		return r.Run, ds, err
	}
	r.Emit(event.RunEnded{Run: r.Run, Differences: ds, Holds: wanted, Undoable: !r.irreversible(), Asked: r.sum.Asked, Took: time.Since(r.started)})
	return r.Run, ds, nil
}

// holds returns the holds with which the run ends.
func (r *run) holds(now time.Time, ds []event.Difference, held []state.Hold) ([]state.Hold, error) {
	status := r.Run.Status
	if status == state.RunApplied {
		return nil, nil
	}
	var holds []state.Hold
	hold := func(scope, run, reason string, args ...any) {
		if !slices.ContainsFunc(holds, func(h state.Hold) bool { return h.Scope == scope }) {
			holds = append(holds, state.Hold{Scope: scope, Run: run, At: now, Reason: fmt.Sprintf(reason, args...)})
		}
	}
	if status == state.RunPartial {
		scopes := map[string]int{}
		for _, d := range ds {
			scopes[d.Ref.Scope]++
		}
		if scopes[schema.ScopeSite] > 0 || len(ds) == 0 { // nodes depend on what the site has
			scopes = map[string]int{schema.ScopeSite: len(ds)}
		}
		nodes := slices.Collect(maps.Keys(scopes))
		for _, h := range held {
			if h.OnNode() && !slices.Contains(nodes, h.Scope) && now.Sub(h.At) <= heldWithin {
				nodes = append(nodes, h.Scope)
			}
		}
		if scopes[schema.ScopeSite] == 0 && len(nodes) > heldNodes {
			hold(schema.ScopeSite, r.Run.ID, "%d nodes were put on hold within %s, the last by run %s", len(nodes), heldWithin, r.Run.ID)
		}
		for scope, n := range scopes {
			hold(scope, r.Run.ID, "run %s ended partial (differences: %d)", r.Run.ID, n)
		}
	}
	if r.Run.Serial > 0 && !r.Plan.Destroy && !r.Plan.Sweep {
		hold(state.SerialScope(r.Run.Serial), r.Run.ID, "run %s tried this revision of the document and ended %s", r.Run.ID, r.Run.Stands())
	}
	for wave, n := range r.failed {
		if size, many := r.tooMany(wave); many {
			hold(schema.ScopeSite, "", "%d of %d steps in the same wave failed in run %s", n, size, r.Run.ID)
		}
	}
	n, err := r.failures(now)
	if err != nil { // a damaged record of another run, or of what a person did, must not keep this run from ending
		hold(schema.ScopeSite, "", "the number of runs that failed within %s could not be determined: %v", failedWithin, err)
	}
	if n >= failedRuns {
		hold(schema.ScopeSite, "", "%d runs failed within %s, the last was %s", n, failedWithin, r.Run.ID)
	}
	slices.SortFunc(holds, func(a, b state.Hold) int { return strings.Compare(a.Scope, b.Scope) })
	return holds, nil
}

// failures counts the recent failed runs, including this one, since somebody last released a hold: that person has seen
// the earlier ones.
func (r *run) failures(now time.Time) (int, error) {
	if r.Run.Message == "" {
		return 0, nil // undone on request
	}
	runs, err := r.Store.Runs(r.effects)
	if err != nil {
		return 0, err
	}
	audits, err := r.Store.Audits(r.effects)
	if err != nil {
		return 0, err
	}
	since := now.Add(-failedWithin)
	for _, a := range audits {
		if a.Action == "release" && a.At.After(since) {
			since = a.At
		}
	}
	n := 1
	for _, run := range runs {
		short := run.Status != state.RunOpen && run.Status != state.RunApplied
		if run.ID != r.Run.ID && short && run.Message != "" && run.Ended != nil && run.Ended.After(since) {
			n++
		}
	}
	return n, nil
}
