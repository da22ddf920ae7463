package apply

import (
	"slices"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// meanwhile tells what others have made of what the step had changed, between its end and the first call that undoes it: that
// is not written over. What they changed beside it is no matter of the call; it stays, and the run says that it is not as before.
func (w *worker) meanwhile(have *providers.Thing) (taken []string) {
	if w.seen == "" || w.called {
		return nil
	}
	if w.name != "" && have.Name != w.name && have.Name != w.unnamed {
		taken = append(taken, plan.NamePath)
	}
	if have.Spec.Digest() == w.seen {
		return taken
	}
	same := func(_, id string) string { return id }
	is := pick(sealed.Assume(w.kind, diff.Assume(have.Spec, have.Unfilled, w.dropped), w.dropped), w.touched)
	undone := diff.Compare(w.kind, w.stated, is, w.dropped, w.ignore, same)
	for _, c := range diff.Compare(w.kind, w.dropped, is, w.stated, w.ignore, same) {
		ours := slices.Contains(w.served.Traits.Itself, c.Field()) // the far side's own doing is nobody's
		if !ours && slices.ContainsFunc(undone, func(u diff.Change) bool { return u.Path == c.Path }) {
			taken = append(taken, c.Path)
		}
	}
	return taken
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
