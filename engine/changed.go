package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Revision is a document, compared with an earlier one, whose resources are read on demand.
type Revision interface {
	// Since returns the serial of the earlier document.
	Since() int64

	// Len returns how many resources the document has.
	Len() int

	// Changed lists the resources that differ from the earlier document: those that are new, different or gone.
	Changed() []schema.Ref

	// Referring lists the resources that refer directly to one of these, by name, or by id where a ref has an id in place of a name. It
	// also lists those that may do so unseen: they ignore a field that can refer to it, or are external and may be the thing with that id.
	Referring(to []schema.Ref) []schema.Ref

	// Read reads those of the given resources that exist, and all that they refer to. The returned document has no other
	// resources, and is otherwise that of the revision.
	Read(ctx context.Context, refs []schema.Ref) (*schema.Document, error)
}

// A WholeError says why a plan has to cover everything that the document describes.
type WholeError struct{ Reason string }

func (e *WholeError) Error() string { return "a plan of the whole site is needed: " + e.Reason }

// Applied returns the serial of the document revision that the site is at: the one that the newest run applied as a whole. It
// fails with a *WholeError when nothing was applied, or when a later run, or an earlier one that was resumed or undone since,
// left the site in a state that no document describes.
func (e *Engine) Applied(ctx context.Context) (int64, error) {
	runs, err := e.o.Store.Runs(ctx)
	if err != nil {
		return 0, err
	}
	for i, r := range runs {
		switch {
		case r.Status == state.RunReverted: // and the site was verified to be as before
			continue
		case r.Status != state.RunApplied:
			return 0, &WholeError{fmt.Sprintf("run %s is %s", r.ID, r.Stands())}
		case !r.Complete:
			return 0, &WholeError{fmt.Sprintf("run %s did not apply the whole document", r.ID)}
		}
		amended, err := e.o.Store.Amended(ctx)
		if err != nil {
			return 0, err
		}
		if amended.Epoch > r.Epoch {
			return 0, &WholeError{fmt.Sprintf("the state has since been changed outside of any run (%s)", amended.Action)}
		}
		for _, old := range runs[i+1:] {
			if old.Epoch > r.Epoch {
				return 0, &WholeError{fmt.Sprintf("run %s is older than the last applied run, but was resumed or rolled back after it", old.ID)}
			}
		}
		return r.Serial, nil
	}
	return 0, &WholeError{"no revision of the document has been applied yet"}
}

// PlanChanged is [Engine.Plan] for what a revision changes compared with an earlier, applied one, and for what refers to that and
// has to follow. It observes nothing else, and assumes that everything else is as it was left. It fails with a *WholeError when
// the changes cannot be planned on their own.
func (e *Engine) PlanChanged(ctx context.Context, rev Revision, o plan.Options) (*plan.Plan, error) {
	worked, err := e.worked(ctx)
	if err != nil {
		return nil, err
	}
	refs := rev.Changed()
	f := following{changed: map[schema.Ref]bool{}, gone: map[schema.Ref]bool{}, turned: map[schema.Ref]bool{}}
	for _, ref := range refs {
		f.changed[ref] = true
	}
	for {
		doc, err := rev.Read(ctx, refs)
		if err == nil {
			doc, err = e.readable(ctx, doc)
		}
		if err != nil {
			return nil, err
		}
		in, more, err := e.lookAt(ctx, doc, refs, f.gone)
		if err != nil {
			return nil, err
		}
		if len(more) > 0 {
			refs = append(refs, more...)
			continue
		}
		in.Part.Since, in.Part.Declared = rev.Since(), rev.Len()
		in.Part.Of += rev.Len()
		p, err := e.decide(ctx, &in, o)
		if err != nil {
			return nil, err
		}
		read := map[schema.Ref]bool{}
		for i := range doc.Resources {
			read[doc.Resources[i].Ref] = true
		}
		turned, orphans := f.follow(p, &in, read)
		more = slices.DeleteFunc(rev.Referring(turned), func(ref schema.Ref) bool { return read[ref] })
		if len(more) > 0 || orphans {
			refs = append(refs, more...)
			continue
		}
		for i := range p.Steps {
			s := &p.Steps[i]
			if by := plan.Unsettles(e.o.Kinds, s); len(by) > 0 {
				return nil, &WholeError{fmt.Sprintf("%s changes its %s, by which it may have been chosen for a %s", s.Ref, by[0].Same, by[0].Kind.Name)}
			}
			if s.Action == plan.Create {
				if err := e.stated(&schema.Resource{Ref: s.Ref, Spec: s.Want}); err != nil {
					return nil, err
				}
			}
		}
		if len(p.Refusals) > 0 { // a plan of the whole site may know better, and says more
			return nil, &WholeError{fmt.Sprintf("%s cannot be planned on its own (%s)", p.Refusals[0].Ref, p.Refusals[0].Reason)}
		}
		p.Worked = worked
		p.Unmanaged = nil // what nothing declares cannot be distinguished from what was not read
		live, removed := max(1, state.Live(in.Recorded)), 0
		for i := range p.Steps {
			if s := &p.Steps[i]; (s.Action == plan.Delete || s.Action == plan.Forget) && !s.Replace {
				removed++
			}
		}
		if removed > 0 { // the limits are about all that is recorded
			all, err := e.o.Store.Records(ctx)
			if err != nil {
				return nil, err
			}
			live = state.Live(all)
			kept := slices.ContainsFunc(doc.Resources, func(r schema.Resource) bool { return r.External == nil })
			if removed >= live && !kept {
				return nil, &WholeError{"the revision no longer contains anything for converge to manage"}
			}
		}
		return p, e.judge(ctx, p, doc, live)
	}
}

// following collects what a change has to be followed for.
type following struct {
	changed map[schema.Ref]bool // resources that the document describes differently
	gone    map[schema.Ref]bool // resources that are removed, or become another thing
	turned  map[schema.Ref]bool // names, and ids, that no longer stand for the same thing
}

// follow adds what a plan makes of what was read so far. It returns the names and ids that are new in turned, and reports whether a
// thing goes whose kind leaves behind what still refers to it, which has not been looked for yet.
func (f *following) follow(p *plan.Plan, in *plan.Input, read map[schema.Ref]bool) (turned []schema.Ref, orphans bool) {
	turn := func(ref schema.Ref) {
		if !f.turned[ref] {
			f.turned[ref] = true
			turned = append(turned, ref)
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		made := s.Action == plan.Create || s.Action == plan.Delete
		if made && !f.gone[s.Ref] {
			f.gone[s.Ref] = true
			traits, _ := in.Traits(s.Ref.Scope, s.Ref.Kind)
			orphans = orphans || traits.DeleteUnchecked && read[s.Ref]
		}
		if made || s.Action == plan.Forget || s.Prior == nil || s.Prior.Gone || s.Prior.ID != s.ExternalID {
			turn(s.Ref)
			if s.Action != plan.Create { // nothing refers to a new id yet
				turn(schema.Ref{Scope: s.Ref.Scope, Kind: s.Ref.Kind, Name: s.ExternalID})
			}
		}
	}
	for _, x := range p.Externals {
		if id := (schema.Ref{Scope: x.Ref.Scope, Kind: x.Ref.Kind, Name: x.ID}); f.changed[x.Ref] || f.turned[id] {
			turn(x.Ref)
			turn(id)
		}
	}
	return turned, orphans
}

// lookAt makes the inputs of a plan about a part of a document, and about those of refs that are recorded. Gone is what will no
// longer be there, or not as the same thing. When more has to be read first, it returns the refs of that and nothing else.
func (e *Engine) lookAt(ctx context.Context, doc *schema.Document, refs []schema.Ref, gone map[schema.Ref]bool) (in plan.Input, more []schema.Ref, err error) {
	runs, _ := e.o.Store.Runs(ctx) // what cannot be read is reported by whoever needs it
	in = plan.Input{Kinds: e.o.Kinds, Document: doc, Begun: e.unresolved(ctx, runs), Part: &plan.Part{Owners: map[schema.Place]map[string]schema.Ref{}}}
	chosen, declared := map[schema.Ref]bool{}, map[schema.Ref]bool{}
	for _, ref := range refs {
		chosen[ref] = true
	}
	for i := range doc.Resources {
		chosen[doc.Resources[i].Ref], declared[doc.Resources[i].Ref] = true, true
	}
	if in.Recorded, err = e.recordsOf(ctx, chosen); err != nil {
		return in, nil, err
	}
	for i := range in.Recorded {
		r := &in.Recorded[i]
		for _, to := range r.After { // what it refers to now
			if !chosen[to] && !r.Gone {
				chosen[to] = true
				more = append(more, to)
			}
		}
	}
	if len(more) > 0 {
		return in, more, nil
	}
	records := map[schema.Ref]*state.Record{}
	for i := range in.Recorded {
		if r := &in.Recorded[i]; !r.Gone {
			records[r.Ref] = r
			if !declared[r.Ref] {
				in.Part.Of++
			}
		}
	}
	e.register(ctx, in.Recorded, nil)
	set, err := e.connect(ctx, doc.Site, needs(places(slices.Collect(maps.Keys(chosen)))))
	if err != nil {
		return in, nil, err
	}
	in.Traits = set.Traits
	ids := liveIDs(in.Recorded)
	at := map[schema.Place]bool{} // whether all of the place is observed
	for i := range doc.Resources {
		r := &doc.Resources[i]
		place := r.Ref.Place()
		switch {
		case r.External != nil && r.External.ID != "":
			ids[place] = append(ids[place], r.External.ID)
		case r.External != nil: // found by name, which other things may share
			at[place] = true
		case records[r.Ref] == nil: // it may exist under any id
			at[place] = true
			if err := e.stated(r); err != nil {
				return in, nil, err
			}
		}
		for _, to := range r.Outside {
			ids[to.Place()] = append(ids[to.Place()], to.Name)
		}
	}
	for ref := range chosen { // what refers to a thing decides whether it may be deleted
		if k, _, ok := set.Find(ref.Scope, ref.Kind); ok && k.Traits.DeleteUnchecked && (gone[ref] || records[ref] != nil && !declared[ref]) {
			for _, by := range plan.Referrers(e.o.Kinds, ref.Kind) {
				at[schema.Place{Scope: ref.Scope, Kind: by.Name}] = true
			}
		}
	}
	for p := range ids {
		slices.Sort(ids[p])
		ids[p] = slices.Compact(ids[p])
		if _, asked := at[p]; !asked {
			at[p] = false
		}
	}
	in.Observed = e.observe(ctx, set, at, ids)
	again := map[schema.Place]bool{}
	for p, all := range at { // a missing thing's mark may be on another thing
		if things, seen := in.Observed.Things[p]; seen && !all && len(things) < len(ids[p]) {
			at[p], again[p] = true, true
		}
	}
	if len(again) > 0 {
		more := e.observe(ctx, set, again, ids)
		maps.Copy(in.Observed.Things, more.Things)
		maps.Copy(in.Observed.Unknown, more.Unknown)
		maps.Copy(in.Observed.Unsupported, more.Unsupported)
	}
	in.Servers, _ = e.servers(ctx, set.All())
	more, err = e.owners(ctx, &in, at, chosen)
	return in, more, err
}

// fewRecords is up to how many records are read one by one: reading all takes as long as that many single reads,
// however large the site is.
const fewRecords = 500

// recordsOf reads the records of some resources, in the order of their refs.
func (e *Engine) recordsOf(ctx context.Context, refs map[schema.Ref]bool) (records []state.Record, err error) {
	if len(refs) > fewRecords {
		all, err := e.o.Store.Records(ctx)
		return slices.DeleteFunc(all, func(r state.Record) bool { return !refs[r.Ref] }), err
	}
	for _, ref := range slices.SortedFunc(maps.Keys(refs), schema.Ref.Compare) {
		r, err := e.o.Store.Record(ctx, ref)
		switch {
		case err == nil:
			records = append(records, r)
		case !errors.Is(err, state.ErrNotFound):
			return nil, err
		}
	}
	return records, nil
}

// owners finds the owners of the things that were observed beside those of the chosen resources, and returns the refs of other
// resources to which things of the chosen refer.
func (e *Engine) owners(ctx context.Context, in *plan.Input, at map[schema.Place]bool, chosen map[schema.Ref]bool) (more []schema.Ref, err error) {
	owners, known := map[schema.Place]map[string]schema.Ref{}, map[schema.Place]map[string]bool{}
	for p, ids := range liveIDs(in.Recorded) {
		known[p] = make(map[string]bool, len(ids))
		for _, id := range ids {
			known[p][id] = true
		}
	}
	owned := func(p schema.Place) map[string]schema.Ref {
		if owners[p] == nil && err == nil {
			owners[p] = map[string]schema.Ref{}
			var records []state.Record
			records, err = e.o.Store.RecordsOf(ctx, p.Scope, p.Kind)
			for i := range records {
				if r := &records[i]; !r.Gone && !chosen[r.Ref] {
					owners[p][r.ID] = r.Ref
				}
			}
		}
		return owners[p]
	}
	for i := range in.Document.Resources { // a raw id, or an external, may be something that another resource declares
		r := &in.Document.Resources[i]
		ids := slices.Clone(r.Outside)
		if r.External != nil {
			for j := range in.Observed.Things[r.Ref.Place()] {
				if t := &in.Observed.Things[r.Ref.Place()][j]; plan.Meant(r, t) {
					ids = append(ids, schema.Ref{Scope: r.Ref.Scope, Kind: r.Ref.Kind, Name: t.ID})
				}
			}
		}
		for _, to := range ids {
			if p := to.Place(); !known[p][to.Name] {
				if ref, ours := owned(p)[to.Name]; ours {
					more = append(more, ref)
				}
			}
		}
	}
	for p, whole := range at {
		if whole {
			in.Part.Owners[p] = owned(p)
		}
		for i := range in.Observed.Things[p] {
			t := &in.Observed.Things[p][i]
			if !known[p][t.ID] && !chosen[t.Mark.Ref] {
				continue
			}
			for kind, id := range e.o.Kinds[p.Kind].Refs(t.Spec) {
				to := e.o.Kinds.Target(p.Scope, kind, "").Place()
				if !known[to][id] {
					if ref, ours := owned(to)[id]; ours {
						more = append(more, ref)
					}
				}
			}
		}
	}
	return schema.SortRefs(more), err
}

// stated fails with a *WholeError when the planner would have to choose a field of a resource that is to be created.
func (e *Engine) stated(r *schema.Resource) error {
	for _, f := range chooses(e.o.Kinds[r.Ref.Kind], r) {
		return &WholeError{fmt.Sprintf("%s leaves %s to the planner, which must choose among all existing objects", r.Ref, f.Name)}
	}
	return nil
}
