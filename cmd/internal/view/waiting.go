package view

import (
	"fmt"
	"strings"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/state"
)

// WaitingText lists the plan that waits for approval, nil when none does, and who has approved it.
func WaitingText(w *state.Waiting, approvals []state.Approval, s Style) string {
	if w == nil {
		return "Nothing waits for approval.\n"
	}
	var by []string
	for _, a := range approvals {
		by = append(by, clean(a.By))
	}
	given := fmt.Sprintf("%d of %d", len(approvals), w.Needs)
	if len(by) > 0 {
		given += ": " + strings.Join(by, ", ")
	}
	text := table(s, [][]string{
		{"DIGEST", "SERIAL", "STEPS", "SINCE", "APPROVED"},
		{w.Approval[:min(len(w.Approval), plan.ShortApproval)], fmt.Sprint(w.Site.Serial), fmt.Sprint(w.Steps), at(w.Since), given},
	})
	if len(approvals) >= w.Needs {
		return text + "\nIt has the approvals that it needs, and is applied unless what it changes is on hold; see: converge hold list\n"
	}
	text += "\nIt waits because: " + clean(w.Why) + "\n"
	if len(w.By) > 0 {
		text += "It may be approved by: " + clean(strings.Join(w.By, ", ")) + "\n"
	}
	if w.Lapsed != "" {
		text += "An approval does not count any more: " + clean(w.Lapsed) + "\n"
	}
	return text + "To see it: converge approve -show\nTo see and approve it: converge approve " + w.Approval[:min(len(w.Approval), plan.ShortApproval)] + "\n"
}
