package apply

import (
	"errors"
	"maps"
	"slices"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// taken lists the paths that the next call would change and that others have changed since the step began: they are not
// overwritten. Once a call was made, by the step or by what it undoes, a value may be the old one, the new one, a part of
// either, or absent; any other value is somebody else's. Changes that others made beside what is undone do not concern the
// call: they stay.
func (k *known) taken(have *providers.Thing) (paths []string) {
	if !k.unsure || k.before == nil || k.action == plan.Create {
		return nil // it must be as the plan saw it, or is compared as a whole
	}
	if k.name != "" && have.Name != k.name && have.Name != k.unnamed {
		paths = append(paths, plan.NamePath)
	}
	if have.Spec.Digest() == k.seen {
		return paths
	}
	from, to := k.dropped, k.stated
	if !k.undo {
		from, to = k.before, k.want
	}
	same := func(_, id string) string { return id }
	is := sealed.Assume(k.kind, diff.Assume(have.Spec, have.Unfilled, from), from)
	var changed, left []diff.Change
	if k.undo {
		is = pick(is, k.touched)
		changed, left = diff.Compare(k.kind, from, is, to, k.ignore, same), diff.Compare(k.kind, to, is, from, k.ignore, same)
	} else { // the call states everything that the thing should have: nothing, when it is deleted
		changed, left = diff.Compare(k.kind, is, from, nil, k.ignore, same), diff.Compare(k.kind, is, to, nil, k.ignore, same)
	}
	begun := k.seen == "" || k.called // and may have removed what it was to change
	for _, c := range changed {
		absent := k.undo && c.Before == nil || !k.undo && c.After == nil
		ours := begun && (absent || k.halfway(c, from, to) || slices.Contains(k.traits.SetLast, c.Field())) || slices.Contains(k.traits.SelfChanging, c.Field()) // what the far side does by itself counts as nobody's
		if !ours && slices.ContainsFunc(left, func(l diff.Change) bool { return l.Path == c.Path }) {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

// halfway reports whether the value at a path is an element of what the call changes from or to, under another key: it exists
// for as long as both are there side by side.
func (k *known) halfway(c diff.Change, specs ...schema.Object) bool {
	f := k.kind.Field(c.Field())
	is, beside := c.Before.(map[string]any)
	if c.Before == nil {
		is, beside = c.After.(map[string]any)
	}
	if !beside || f.Key == "" || !slices.Contains(k.traits.Overlap, f.Name) {
		return false
	}
	elements := schema.Kind{Fields: slices.DeleteFunc(slices.Clone(f.Elem.Fields), func(e schema.Field) bool { return e.Name == f.Key })}
	same := func(_, id string) string { return id }
	return slices.ContainsFunc(specs, func(spec schema.Object) bool {
		list, _ := spec[f.Name].([]any)
		return slices.ContainsFunc(list, func(e any) bool {
			stated, _ := e.(map[string]any)
			return len(diff.Compare(&elements, stated, is, nil, k.ignore, same)) == 0
		})
	})
}

// altered lists what others have changed in a thing, since the step made it, that is to be deleted because the step is undone:
// their changes would be lost with it. When the step did not finish, a part may be missing.
func (k *known) altered(have *providers.Thing) (paths []string) {
	if k.finished && k.traits.Mark && have.Mark != k.mark {
		paths = append(paths, "its ownership mark")
	}
	if k.finished && k.traits.Named() && have.Name != k.step.Record.Called() {
		paths = append(paths, plan.NamePath)
	}
	if have.Spec.Digest() == k.seen {
		return paths
	}
	same := func(_, id string) string { return id }
	itself := k.traits.SelfChanging
	if !k.finished { // fields that are set later may be as the far side made them
		itself = slices.Concat(itself, k.traits.Later)
	}
	if k.seen == "" || k.called { // and what was cut, the call that deletes it too, may have left anything in those that are set last
		itself = slices.Concat(itself, k.traits.SetLast)
	}
	is := sealed.Assume(k.kind, diff.Assume(have.Spec, have.Unfilled, k.made), k.made)
	for _, c := range diff.Compare(k.kind, k.made, is, nil, slices.Concat(k.ignore, itself), same) {
		if c.Before != nil || k.finished {
			paths = append(paths, c.Path)
		}
	}
	r := k.recorded
	if r == nil || r.Run != k.run || r.ID != k.id || r.Gone || !k.finished {
		return paths
	}
	for _, c := range diff.Between(k.kind, r.Rest, diff.Rest(k.kind, have.Spec, r.Spec), same) {
		if !diff.Ignored(c.Path, slices.Concat(k.ignore, itself)) {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

// missed lists what is not yet as it must be afterwards.
func (k *known) missed(have *providers.Thing) []diff.Change {
	same := func(_, id string) string { return id }
	known := k.dropped
	if k.sent || k.action == plan.Create { // what our create made has everything that it sent
		known = k.stated
	}
	spec := sealed.Assume(k.kind, diff.Assume(have.Spec, have.Unfilled, known), known)
	return diff.Compare(k.kind, k.restored(have), spec, k.dropped, k.ignore, same)
}

// restored returns what must be stated of a thing afterwards. An update that is undone and was cut may have left one that has failed, and no
// longer shows what else it had: that is restored with the rest.
func (k *known) restored(have *providers.Thing) schema.Object {
	if !k.undo || k.action != plan.Update || have.Phase != providers.Failed {
		return k.stated
	}
	whole := maps.Clone(k.before)
	for name := range have.Spec {
		delete(whole, name)
	}
	maps.Copy(whole, k.stated)
	return whole
}

// unmet lists the paths of what [known.missed] lists.
func (k *known) unmet(have *providers.Thing) []string {
	changes := k.missed(have)
	paths := make([]string, len(changes))
	for i, c := range changes {
		paths[i] = c.Path
	}
	if k.action == plan.Update && k.traits.Mark && have.Mark != k.mark {
		paths = append(paths, "its ownership mark")
	}
	if k.name != "" && have.Name != k.name {
		paths = append(paths, "its name")
	}
	return paths
}

func (k *known) conflict(detail string) error {
	return &providers.Error{Op: string(k.action), Ref: k.step.Ref, Class: providers.Conflict, Err: errors.New(detail)}
}
