package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// since returns what has happened to the things of a run since it left them that forbids undoing it: a later run or somebody
// else has changed one of them, or something now refers to what would be deleted. The last two are checked for finished steps
// only; the state in which the run left unfinished ones is found out when they are undone.
//
// It fails with an *UnknownError when it cannot observe what the run touched.
func (e *Engine) since(ctx context.Context, run state.Run, p *plan.Plan, sum journal.Replay) ([]plan.Refusal, error) {
	u, err := since(ctx, e.o.Store, run, p, sum)
	if err == nil {
		u.leaveAside(p, sum)
	}
	if err != nil || len(u.refusals) > 0 || len(u.steps) == 0 {
		return u.sorted(), err
	}
	touched := schema.Document{Site: p.Site} // what to observe, recorded or not
	for ref := range u.steps {
		touched.Resources = append(touched.Resources, schema.Resource{Ref: ref, External: &schema.External{}})
	}
	in, err := e.look(ctx, &touched, true) // things that others made may refer to ours
	if err != nil {
		return nil, err
	}
	in.Document = &schema.Document{Site: p.Site}
	if err := e.distrust(ctx, &in); err != nil {
		return nil, err
	}
	err = u.compare(in)
	return u.sorted(), err
}

// since returns the part of [Engine.since] that the store alone shows.
func since(ctx context.Context, store *state.Store, run state.Run, p *plan.Plan, sum journal.Replay) (undo, error) {
	u, err := recorded(ctx, store, run, p, sum.Left)
	if err != nil {
		return u, err
	}
	return u, u.released(ctx, store, p, func(step int) bool { return sum.Left(step) && unsettled(sum, step) })
}

// unsettled reports whether a run has begun a step, or its undo, and has not finished it.
func unsettled(sum journal.Replay, step int) bool {
	did, undid := sum.Forward[step], sum.Undo[step]
	return did.Effect() && !did.Finished() || undid.Effect() && !undid.Finished()
}

// recorded compares the records with those that a run found and left behind.
func recorded(ctx context.Context, store *state.Store, run state.Run, p *plan.Plan, left func(step int) bool) (undo, error) {
	u := undo{run: run, records: map[schema.Ref]*state.Record{}, steps: map[schema.Ref]*plan.Step{}, aside: map[schema.Ref]string{}, found: map[schema.Ref][]string{}}
	recorded, err := store.Records(ctx)
	if err != nil {
		return u, err
	}
	for i := range recorded {
		u.records[recorded[i].Ref] = &recorded[i]
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Prior != nil {
			u.found[s.Ref] = append(u.found[s.Ref], s.Prior.Run)
		}
		if first := s.Detaches || s.Replace && s.Action == plan.Delete; left(i) && (!first || u.steps[s.Ref] == nil) {
			u.steps[s.Ref] = s
		}
	}
	u.overtaken(ended(run))
	return u, nil
}

// leaveAside narrows what is to be undone to what the run finished, whose state is known. It refuses what the run itself did
// not undo because others had changed it.
func (u *undo) leaveAside(p *plan.Plan, sum journal.Replay) {
	for i := range p.Steps {
		ref := p.Steps[i].Ref
		if !unsettled(sum, i) || u.steps[ref] == nil {
			continue
		}
		delete(u.steps, ref)
		u.aside[ref] = p.Steps[i].ExternalID
		for _, rec := range []*journal.Record{sum.Forward[i].Outcome, sum.Forward[i].Open} { // a create may have had to take another id
			if rec != nil && rec.ExternalID != "" {
				u.aside[ref] = rec.ExternalID
			}
		}
		if did := sum.Undo[i]; did.Spared() {
			_, why, _ := strings.Cut(did.Outcome.Message, ref.String()+": ")
			u.refuse(ref, remedy.Say("revert that change and resume the run", remedy.Of(remedy.Resume, u.run.ID)), "the run did not revert it: %s", why)
		}
	}
}

// passed returns why a run that ended partial cannot be resumed: a later run has changed what it touched, or has decided
// about what it still has to do or undo.
func passed(ctx context.Context, store *state.Store, run state.Run, p *plan.Plan, sum journal.Replay) error {
	if run.Status != state.RunPartial {
		return nil
	}
	u, err := recorded(ctx, store, run, p, func(step int) bool { return !sum.Reverting || step >= sum.Keep && sum.Forward[step].Effect() })
	if err == nil {
		err = u.released(ctx, store, p, func(step int) bool {
			s := &p.Steps[step]
			givenUp := s.Replace && s.Action == plan.Delete // no document can ask for the old one again
			return sum.Reverting && sum.Left(step) || !sum.Reverting && !sum.Forward[step].Finished() && !givenUp
		})
	}
	if err == nil && len(u.refusals) > 0 {
		err = &RefusedError{u.sorted()}
	}
	return err
}

// undo is a run to be undone, and what stands in the way.
type undo struct {
	run      state.Run
	records  map[schema.Ref]*state.Record
	steps    map[schema.Ref]*plan.Step // steps to be undone; for a change in two halves, the second
	aside    map[schema.Ref]string     // also to be undone, but not checked: their external ids
	found    map[schema.Ref][]string   // the last runs that changed it before this one
	refusals []plan.Refusal
}

func (u *undo) refuse(ref schema.Ref, first remedy.Remedy, reason string, args ...any) {
	remedies := []remedy.Remedy{remedy.Say(writeAnew)}
	if first.Text != "" {
		remedies = append([]remedy.Remedy{first}, remedies...)
	}
	u.refusals = append(u.refusals, plan.Refusal{Ref: ref, Reason: fmt.Sprintf(reason, args...), Remedies: remedies})
}

// none is for what only a new document can solve.
var none remedy.Remedy

func undoFirst(run string) remedy.Remedy {
	return remedy.Say("roll back that run first", remedy.Of(remedy.Rollback, run))
}

func (u *undo) sorted() []plan.Refusal {
	slices.SortFunc(u.refusals, func(a, b plan.Refusal) int { return a.Ref.Compare(b.Ref) })
	return u.refusals
}

// overtaken refuses what a later run has changed or, when the run was settled, somebody has removed from the records.
func (u *undo) overtaken(settled bool) {
	owners := u.owners()
	for ref, s := range u.steps {
		r := u.records[ref]
		now, renamed := owners[ref.Place()][s.ExternalID]
		switch {
		case r != nil && r.Run == "" && !u.was(r, s):
			u.refuse(ref, none, "its record has since been rebuilt from its mark alone")
		case r == nil && settled && renamed:
			u.refuse(ref, remedy.Say("rename it back", remedy.Action{Verb: remedy.Rename, Of: now.String(), To: ref.String()}), "it is now recorded as %s", now)
		case r != nil && r.Run != u.run.ID && !u.was(r, s):
			u.refuse(ref, undoFirst(r.Run), "run %s has changed it since", r.Run)
		case r == nil && settled && s.Record != nil && !s.Record.Gone:
			u.refuse(ref, none, "it is no longer recorded")
		}
	}
}

// released refuses what a partial run has left over when its hold was released, and another run was carried out since: that run
// has decided about it, whether or not there was anything to change.
func (u *undo) released(ctx context.Context, store *state.Store, p *plan.Plan, over func(step int) bool) error {
	if u.run.Status != state.RunPartial {
		return nil
	}
	runs, err := store.Runs(ctx)
	if err != nil {
		return err
	}
	this := slices.IndexFunc(runs, func(r state.Run) bool { return r.ID == u.run.ID })
	later := slices.IndexFunc(runs[:max(this, 0)], func(r state.Run) bool { return r.Status != state.RunReverted })
	if later < 0 {
		return nil
	}
	stops, err := store.Stops(ctx)
	if err != nil {
		return err
	}
	for i := range p.Steps {
		ref := p.Steps[i].Ref
		held := slices.ContainsFunc(stops.On(ref, ""), func(h state.Hold) bool { return h.Run == u.run.ID })
		told := slices.ContainsFunc(u.refusals, func(r plan.Refusal) bool { return r.Ref == ref })
		if over(i) && !held && !told {
			u.refuse(ref, none, "the run's hold on it was released, and run %s has been carried out since", runs[later].ID)
		}
	}
	return nil
}

// was reports whether a record is as the run found it or left it.
func (u *undo) was(r *state.Record, s *plan.Step) bool {
	if u.run.Status == state.RunPartial { // a later run may have reached the same result
		return slices.Contains(u.found[s.Ref], r.Run)
	}
	return alike(r, s.Record) || alike(r, s.Prior)
}

// alike reports whether two records say the same about a resource, whichever run wrote them. A record that says that it is gone
// equals no record at all.
func alike(a, b *state.Record) bool {
	if a == nil || b == nil || a.Gone || b.Gone {
		return (a == nil || a.Gone) == (b == nil || b.Gone)
	}
	return a.Incarnation == b.Incarnation && a.Protect == b.Protect && a.OnRemove == b.OnRemove && slices.Equal(a.After, b.After) && slices.Equal(a.Ignore, b.Ignore) && a.Name == b.Name &&
		a.Spec.Equal(b.Spec)
}

// compare refuses what is no longer as the run left it, and what something else now refers to.
func (u *undo) compare(in plan.Input) error {
	unknown := &UnknownError{}
	seen := map[schema.Place]bool{}
	for ref := range u.steps {
		at := ref.Place()
		if why, hidden := in.Observed.Unknown[at]; hidden && !seen[at] {
			unknown.Unknown = append(unknown.Unknown, plan.Unknown{Scope: at.Scope, Kind: at.Kind, Error: why})
		}
		seen[at] = true
	}
	if len(unknown.Unknown) > 0 {
		slices.SortFunc(unknown.Unknown, func(a, b plan.Unknown) int { return strings.Compare(a.Scope+"/"+a.Kind, b.Scope+"/"+b.Kind) })
		return unknown
	}
	now := u.standing(in)
	forgotten := map[schema.Ref]state.Record{}
	for ref, s := range u.steps {
		if r := u.records[ref]; s.Action == plan.Forget && s.Before != nil && (r == nil || r.Gone) {
			forgotten[ref] = asForgotten(s)
		}
		if s.Action == plan.Forget || s.Action == plan.Delete {
			u.occupied(now, s)
		}
	}
	in.Recorded = slices.DeleteFunc(in.Recorded, func(r state.Record) bool {
		_, again := forgotten[r.Ref]
		return again
	})
	in.Recorded = slices.AppendSeq(in.Recorded, maps.Values(forgotten))
	slices.SortFunc(in.Recorded, state.ByRef)
	report, err := drift.Compare(in, u.run.Started)
	if err != nil {
		return err
	}
	for _, d := range slices.Concat(report.Drifted, report.Unstated) {
		switch s := u.steps[d.Ref]; {
		case s == nil || s.Action == plan.Delete:
		case !d.TakenBy.IsZero():
			u.refuse(d.Ref, remedy.Say("find out who adopted it"), "the object is now marked as %s of site %s", d.TakenBy.Ref, d.TakenBy.Site)
		case d.Unmarked && s.Action != plan.Forget: // whoever it was left to may have done that
			u.refuse(d.Ref, remedy.Say("have converge mark it again", remedy.Action{Verb: remedy.Apply}), "its ownership mark was removed outside converge")
		case d.Renamed != "":
			u.refuse(d.Ref, remedy.Say("rename it back"), "it was renamed to %s outside converge", d.Renamed)
		case d.Remade:
			u.refuse(d.Ref, remedy.Say("find out who created the new one"), "it was deleted, and another one with its name was created outside converge")
		case d.Missing && s.Action == plan.Forget:
			u.refuse(d.Ref, remedy.Say("have its new owner recreate it"), "it is gone")
		case d.Missing && s.Action != plan.Create:
			u.refuse(d.Ref, remedy.Say("recreate it", remedy.Action{Verb: remedy.Apply}), "it is gone")
		case len(d.Changes) > 0:
			u.refuse(d.Ref, remedy.Say("revert that change", remedy.Action{Verb: remedy.Drift}), "another client has changed %s since", paths(d.Changes))
		}
	}
	for ref, s := range u.steps {
		if r := u.records[ref]; r != nil && !r.Gone && s.Inverse() == plan.Delete {
			u.referred(now, r)
		}
	}
	return nil
}

// asForgotten returns a record of what a step forgot, as it was then: with everything that was observed of it, not only
// what was stated.
func asForgotten(s *plan.Step) state.Record {
	r := *s.Prior
	r.Spec, r.Rest, r.Left = s.Before, schema.Object{}, nil
	return r
}

// owners returns which resource a thing belongs to, by its id, even for a thing that the run did not get to record.
func (u *undo) owners() map[schema.Place]map[string]schema.Ref {
	owners := map[schema.Place]map[string]schema.Ref{}
	add := func(ref schema.Ref, id string) {
		at := ref.Place()
		if owners[at] == nil {
			owners[at] = map[string]schema.Ref{}
		}
		owners[at][id] = ref
	}
	for ref, id := range u.aside {
		add(ref, id)
	}
	for ref, r := range u.records {
		if !r.Gone {
			add(ref, r.ID)
		}
	}
	return owners
}

// A standing answers questions about the site as it is now. Each answer is found for a whole place at once, when it is first asked
// for: what one thing costs does not grow with the site.
type standing struct {
	owners    map[schema.Place]map[string]schema.Ref                  // which resource a thing belongs to, by its id
	present   func(schema.Place) map[string]*providers.Thing          // what is there to stay, by id
	referrers func(kind string) []*schema.Kind                        // the kinds that can refer to a kind
	referring func(schema.Place) map[plan.Referent][]*providers.Thing // the things that refer to others
}

func (u *undo) standing(in plan.Input) standing {
	return standing{
		owners:    u.owners(),
		present:   remember(func(at schema.Place) map[string]*providers.Thing { return plan.Staying(in.Observed.Things[at]) }),
		referrers: remember(func(kind string) []*schema.Kind { return plan.Referrers(in.Kinds, kind) }),
		referring: remember(func(at schema.Place) map[plan.Referent][]*providers.Thing {
			return plan.ByReferent(in.Kinds[at.Kind], in.Observed.Things[at])
		}),
	}
}

// remember returns f, which is called once for each argument.
func remember[K comparable, V any](f func(K) V) func(K) V {
	known := map[K]V{}
	return func(k K) V {
		v, ok := known[k]
		if !ok {
			v = f(k)
			known[k] = v
		}
		return v
	}
}

// occupied refuses to record anew what is now recorded under another name, and to make anew what somebody else has made.
func (u *undo) occupied(now standing, s *plan.Step) {
	at := s.Ref.Place()
	owner, ours := now.owners[at][s.ExternalID]
	switch {
	case ours && owner != s.Ref:
		u.refuse(s.Ref, remedy.Say("forget that resource", remedy.Of(remedy.Forget, owner.String())), "its object (id %s) is now recorded as %s", s.ExternalID, owner)
	case ours || s.Action != plan.Delete:
	case now.present(at)[s.ExternalID] != nil:
		u.refuse(s.Ref, remedy.Say("remove that object"), "an unmanaged %s with its id (%s) exists again", s.Ref.Kind, s.ExternalID)
	}
}

func paths(changes []diff.Change) string {
	const shown = 5
	var names []string
	for _, c := range changes[:min(len(changes), shown)] {
		names = append(names, c.Path)
	}
	if len(changes) > shown {
		names = append(names, "more")
	}
	return strings.Join(names, ", ")
}

// referred refuses to delete what something refers to that is not itself undone.
func (u *undo) referred(now standing, to *state.Record) {
	for _, k := range now.referrers(to.Ref.Kind) {
		at := schema.Place{Scope: to.Ref.Scope, Kind: k.Name}
		for _, t := range now.referring(at)[plan.Referent{Kind: to.Ref.Kind, ID: to.ID}] {
			if t.Derived || t.Phase == providers.Deleting {
				continue
			}
			owner, ours := now.owners[at][t.ID]
			_, aside := u.aside[owner]
			switch {
			case !ours:
				u.refuse(to.Ref, remedy.Say("remove that object"), "the unmanaged %s %s (id %s) refers to it", k.Name, t.Name, t.ID)
			case u.steps[owner] == nil && !aside:
				run := u.records[owner].Run
				u.refuse(to.Ref, undoFirst(run), "%s, left by run %s, refers to it", owner, run)
			}
		}
	}
}
