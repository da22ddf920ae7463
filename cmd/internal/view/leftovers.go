package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
)

// LeftoversText returns what an import could not write as a document, by kind and reason, what it could not observe, and what is wrong
// with the document that it has written.
func LeftoversText(left []survey.Leftover, unknown []plan.Unknown, wrong load.Diagnostics) string {
	t := planText{}
	type group struct{ at, why string }
	named := map[group][]string{}
	for _, l := range left {
		g := group{l.Scope + "/" + l.Kind, l.Reason}
		named[g] = append(named[g], cmp.Or(l.Name, l.ID))
	}
	if len(left) > 0 {
		t.head("Left out:")
		for _, g := range slices.SortedFunc(maps.Keys(named), func(a, b group) int {
			return cmp.Or(strings.Compare(a.at, b.at), strings.Compare(a.why, b.why))
		}) {
			t.line("     %d × %s  %s: %s", len(named[g]), clean(g.at), clean(some(named[g])), clean(g.why))
		}
	}
	t.places("Unknown, so not included here:", unknown)
	if wrong.HasErrors() {
		t.head("The written document is not valid yet. Correct these first:")
		for _, d := range wrong {
			if d.Severity == load.Error {
				t.line("     %s  %s", clean(d.Path), clean(d.Detail))
			}
		}
	}
	return t.b.String()
}

// some returns the first few of many names.
func some(names []string) string {
	const few = 5
	if more := len(names) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Rebuilt is what was, or would be, recorded anew from marks.
type Rebuilt struct {
	Resources  []schema.Ref   `json:"resources"`
	Undeclared []schema.Ref   `json:"undeclared,omitempty"` // of these: the next apply removes them
	Left       []schema.Ref   `json:"external,omitempty"`   // bear our mark, and the document leaves them to others
	Unknown    []plan.Unknown `json:"unknown"`
	Dry        bool           `json:"dry_run"`
}

// Text returns it for people.
func (r Rebuilt) Text() string {
	if len(r.Resources)+len(r.Left) == 0 {
		return "No unrecorded object carries this site's mark.\n"
	}
	done, left := "Recorded", "Left to others, as declared in the document"
	if r.Dry {
		done, left = "Would record", "Would be left to others, as declared in the document"
	}
	var b strings.Builder
	list := func(title string, refs []schema.Ref) {
		if len(refs) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s:\n", title)
		for _, ref := range refs {
			fmt.Fprintf(&b, "  %s\n", clean(ref.String()))
		}
	}
	list(done+" "+count(len(r.Resources), "resource"), r.Resources)
	list(left, r.Left)
	list("The following of these are not declared in the document, and the next apply removes them. Declare those that should stay; use external: true for those that had been left to others (on_remove: forget)", r.Undeclared)
	return b.String()
}

// RepairsText returns what is done about damage in the store.
func RepairsText(repairs []engine.Repair, dry bool) string {
	if len(repairs) == 0 {
		return "Nothing in the store that a command depends on is corrupt.\n"
	}
	var b strings.Builder
	if dry {
		b.WriteString("This would be done:\n")
	}
	for _, r := range repairs {
		fmt.Fprintf(&b, "%s\n  %s\n  %s\n", clean(r.Key), clean(r.Damage), clean(Advice([]remedy.Remedy{{Text: r.Done, Do: r.Do}})))
	}
	return b.String()
}
