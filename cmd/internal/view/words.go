package view

import (
	"fmt"
	"strings"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/state"
)

// verbs are the words for an action: what is being done, what was done, what failed.
type verbs struct{ doing, done, noun string }

func verbsOf(s *plan.Step, undo bool) verbs {
	v := map[plan.Action]verbs{
		plan.Create: {"creating", "created", "creation"},
		plan.Update: {"changing", "changed", "change"},
		plan.Delete: {"destroying", "destroyed", "destruction"},
		plan.Adopt:  {"adopting", "adopted", "adoption"},
		plan.Forget: {"forgetting", "forgotten", "forgetting"},
	}[s.Action]
	if undo {
		return verbs{"reverting " + v.noun, v.noun + " reverted", "reverting the " + v.noun}
	}
	return v
}

// phaseText returns what a long-running step is doing.
func phaseText(e event.StepProgress) string {
	text := map[event.Phase]string{
		event.Settling: "checking the outcome",
		event.Waiting:  "waiting",
		event.Retrying: "retrying",
		event.Guarded:  "guarded",
	}[e.Phase]
	if e.Phase == event.Retrying && e.Attempt > 0 {
		text += fmt.Sprintf(" (attempt %d)", e.Attempt)
	}
	if e.Detail != "" {
		text += ": " + clean(e.Detail)
	}
	return text
}

// took returns a duration in people's words.
func took(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// holder returns who holds a lock, in one line.
func holder(l state.LockInfo) string {
	text := clean(l.Who)
	if l.PID != 0 {
		text += fmt.Sprintf(" (PID %d)", l.PID)
	}
	text += fmt.Sprintf(", %s since %s", clean(l.Operation), l.Created.UTC().Format(time.DateTime+" UTC"))
	if l.Info != "" {
		text += ", " + clean(l.Info)
	}
	return text
}

// counted returns what a plan that was carried out has done, in Terraform's words.
func counted(c plan.Counts) string {
	parts := []string{
		fmt.Sprintf("%d added", c.Create), fmt.Sprintf("%d changed", c.Update), fmt.Sprintf("%d destroyed", c.Delete),
	}
	for _, more := range []struct {
		n    int
		done string
	}{{c.Adopt, "adopted"}, {c.Forget, "forgotten"}} {
		if more.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", more.n, more.done))
		}
	}
	return strings.Join(parts, ", ")
}

// operation returns what has ended, as the first word of a sentence.
func operation(e event.RunEnded) string {
	switch {
	case e.Asked:
		return "Rollback"
	case e.Run.Op == "destroy":
		return "Destroy"
	}
	return "Apply"
}
