package apply

import (
	"context"
	"errors"
	"slices"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// taken lists what others have made, since the step began, of what its next call would change: that is not written over. Once
// a call was made, by the step or by what it undoes, a thing may be as it was, as it is to be, or have a part of either, or of
// neither; another value is somebody else's. What they changed beside what is undone is no matter of the call: it stays.
func (w *worker) taken(have *providers.Thing) (paths []string) {
	if !w.unsure || w.before == nil || w.action == plan.Create {
		return nil // it must be as the plan saw it, or is looked at as a whole
	}
	if w.name != "" && have.Name != w.name && have.Name != w.unnamed {
		paths = append(paths, plan.NamePath)
	}
	if have.Spec.Digest() == w.seen {
		return paths
	}
	from, to := w.dropped, w.stated
	if !w.undo {
		from, to = w.before, w.want
	}
	same := func(_, id string) string { return id }
	is := sealed.Assume(w.kind, diff.Assume(have.Spec, have.Unfilled, from), from)
	var changed, left []diff.Change
	if w.undo {
		is = pick(is, w.touched)
		changed, left = diff.Compare(w.kind, from, is, to, w.ignore, same), diff.Compare(w.kind, to, is, from, w.ignore, same)
	} else { // the call says all that the thing is to have: nothing, when it is to be deleted
		changed, left = diff.Compare(w.kind, is, from, nil, w.ignore, same), diff.Compare(w.kind, is, to, nil, w.ignore, same)
	}
	begun := w.seen == "" || w.called // and may have taken away what it was to change
	for _, c := range changed {
		absent := w.undo && c.Before == nil || !w.undo && c.After == nil
		ours := begun && (absent || w.halfway(c, from, to)) || slices.Contains(w.served.Traits.Itself, c.Field()) // the far side's own doing is nobody's
		if !ours && slices.ContainsFunc(left, func(l diff.Change) bool { return l.Path == c.Path }) {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

// halfway reports whether what is there at a path is an element of what the call changes from or to, under another key: it is
// there for as long as both stand side by side.
func (w *worker) halfway(c diff.Change, specs ...schema.Object) bool {
	f := w.kind.Field(c.Field())
	is, beside := c.Before.(map[string]any)
	if c.Before == nil {
		is, beside = c.After.(map[string]any)
	}
	if !beside || f.Key == "" || !slices.Contains(w.served.Traits.Overlap, f.Name) {
		return false
	}
	k := schema.Kind{Fields: slices.DeleteFunc(slices.Clone(f.Elem.Fields), func(e schema.Field) bool { return e.Name == f.Key })}
	same := func(_, id string) string { return id }
	return slices.ContainsFunc(specs, func(spec schema.Object) bool {
		list, _ := spec[f.Name].([]any)
		return slices.ContainsFunc(list, func(e any) bool {
			stated, _ := e.(map[string]any)
			return len(diff.Compare(&k, stated, is, nil, w.ignore, same)) == 0
		})
	})
}

// altered lists what others have made, since the step made it, of a thing that is to be deleted because the step is undone: that
// would go with it. Of a step that did not come to its end a part may be missing.
func (w *worker) altered(ctx context.Context, have *providers.Thing) (paths []string, err error) {
	if w.finished && w.served.Traits.Mark && have.Mark != w.mark {
		paths = append(paths, "its mark")
	}
	if w.finished && w.served.Traits.Named() && have.Name != w.step.Record.Called() {
		paths = append(paths, plan.NamePath)
	}
	if have.Spec.Digest() == w.seen {
		return paths, nil
	}
	same := func(_, id string) string { return id }
	itself := w.served.Traits.Itself
	if !w.finished { // what comes later may be as the far side made it
		itself = slices.Concat(itself, w.served.Traits.Later)
	}
	is := sealed.Assume(w.kind, diff.Assume(have.Spec, have.Unfilled, w.made), w.made)
	for _, c := range diff.Compare(w.kind, w.made, is, nil, slices.Concat(w.ignore, itself), same) {
		if c.Before != nil || w.finished {
			paths = append(paths, c.Path)
		}
	}
	r, err := w.store.Record(ctx, w.step.Ref)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return paths, nil
	case err != nil:
		return paths, err
	case r.Run != w.run || r.ID != w.id || r.Gone || !w.finished:
		return paths, nil
	}
	for _, c := range diff.Between(w.kind, r.Rest, diff.Rest(w.kind, have.Spec, r.Spec), same) {
		if !diff.Ignored(c.Path, slices.Concat(w.ignore, itself)) {
			paths = append(paths, c.Path)
		}
	}
	return paths, nil
}

// back is what the thing is to be like when the step is undone: what the step changed is as before, and all else as it is.
func (w *worker) back(have *providers.Thing) schema.Object {
	back := diff.Merge(w.kind, w.stated, have.Spec, w.dropped, w.ignore)
	for i := range w.kind.Fields { // what stays when nobody states it any more goes when it was not there
		f := &w.kind.Fields[i]
		if _, was := w.stated[f.Name]; (f.Kept || f.Choose != nil) && !was && slices.Contains(w.touched, f.Name) {
			delete(back, f.Name)
		}
	}
	return back
}
