package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
)

// LeftoversText says what an import could not write as a document, kind by kind and reason by reason, and what it could not
// see.
func LeftoversText(left []engine.Leftover, unknown []plan.Unknown) string {
	t := planText{}
	type group struct{ at, why string }
	counts := map[group]int{}
	for _, l := range left {
		counts[group{l.Scope + "/" + l.Kind, l.Reason}]++
	}
	if len(left) > 0 {
		t.head("Left out, because no document can describe it:")
		for _, g := range slices.SortedFunc(maps.Keys(counts), func(a, b group) int {
			return cmp.Or(strings.Compare(a.at, b.at), strings.Compare(a.why, b.why))
		}) {
			t.line("     %d × %s  %s", counts[g], clean(g.at), clean(g.why))
		}
	}
	t.places("Unknown, so that it is missing here:", unknown)
	return t.b.String()
}

// RebuiltText says what was recorded anew.
func RebuiltText(refs []string, dry bool) string {
	if len(refs) == 0 {
		return "Nothing bears the mark of this site that is not recorded.\n"
	}
	done := "Recorded"
	if dry {
		done = "Would record"
	}
	return fmt.Sprintf("%s %s:\n  %s\n", done, count(len(refs), "resource"), strings.Join(refs, "\n  "))
}

// RepairsText says what becomes of what is damaged in the store.
func RepairsText(repairs []engine.Repair, dry bool) string {
	if len(repairs) == 0 {
		return "Nothing in the store that a command depends on is damaged.\n"
	}
	var b strings.Builder
	if dry {
		b.WriteString("Would be done:\n")
	}
	for _, r := range repairs {
		fmt.Fprintf(&b, "%s\n  %s\n  %s\n", clean(r.Key), clean(r.Damage), clean(r.Done))
	}
	return b.String()
}
