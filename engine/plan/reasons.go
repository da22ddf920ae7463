package plan

import "converge.dev/converge/providers"

// What follows says why there is a step, in the words of the plan.

func whyReplace(it *item) string {
	for _, c := range it.changes {
		if c.Replaces {
			return c.Path + " cannot be changed in place"
		}
	}
	if len(it.changes) > 0 && it.traits.Update == providers.Never {
		return it.changes[0].Path + " differs, and a " + it.kind.Name + " cannot be changed in place"
	}
	return ""
}

func whyCreate(it *item) string {
	switch {
	case it.record != nil:
		return "it was removed outside converge"
	case it.born > 0:
		return "declared again"
	}
	return "declared, but does not exist yet"
}

func whyUpdate(it *item) string {
	switch {
	case it.renewed != "":
		return it.renewed
	case it.moved():
		return whyMoved(it)
	case it.remade(it.thing):
		return whyRemade + "; differs from the document"
	case it.record == nil:
		return "adopted; differs from the document"
	case it.recordStale:
		return "the document changed"
	}
	return "changed outside converge"
}

func whyMoved(it *item) string {
	return "it was renamed: its mark still says " + it.thing.Mark.Ref.String()
}

func whyUnmarked(it *item) string {
	if it.remade(it.thing) {
		return whyRemade + "; ownership mark added"
	}
	return "its ownership mark was removed outside converge"
}

// whyRemade is why what is there is taken over although something else is recorded.
const whyRemade = "deleted and created again outside converge, and adopted"

func whyAdopt(it *item) string {
	switch {
	case it.remade(it.thing):
		return whyRemade
	case it.record == nil && it.thing.Mark.IsZero():
		return "already exists and matches the document"
	case it.record == nil:
		return "carries this site's mark, but was not recorded"
	}
	return "it matches the document; only its record changes"
}
