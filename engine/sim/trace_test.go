package sim

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/event"
)

// A trace is what happened, one line each. Lines of the same instant have no order among themselves.
type trace struct {
	start time.Time
	lines []line
}

type line struct {
	at   time.Duration
	text string
}

func (x *trace) add(format string, args ...any) {
	x.lines = append(x.lines, line{time.Since(x.start), fmt.Sprintf(format, args...)})
}

func (x *trace) String() string {
	lines := slices.Clone(x.lines)
	slices.SortStableFunc(lines, func(a, b line) int {
		if a.at != b.at {
			return int(min(max(a.at-b.at, -1), 1))
		}
		return strings.Compare(a.text, b.text)
	})
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%14.6f %s\n", l.at.Seconds(), l.text)
	}
	return b.String()
}

// describe returns a reproducible description of an event.
func describe(e event.Event) string {
	back := func(undo bool) string {
		if undo {
			return "undo "
		}
		return ""
	}
	switch e := e.(type) {
	case event.RunStarted:
		return fmt.Sprintf("run %s starts, %d done", e.Run.ID, e.Done)
	case event.StepStarted:
		return fmt.Sprintf("%s%s %s starts", back(e.Undo), e.Step.Action, e.Step.Ref)
	case event.StepDone:
		return fmt.Sprintf("%s%s %s done: %s", back(e.Undo), e.Step.Action, e.Step.Ref, e.ID)
	case event.StepFailed:
		return fmt.Sprintf("%s%s %s failed: %s effect=%v: %v", back(e.Undo), e.Step.Action, e.Step.Ref, e.Class, e.Effect, firstLine(e.Err))
	case event.StepProgress:
		if e.Phase == event.Acting {
			return ""
		}
		return fmt.Sprintf("%s%s %s %s: %s", back(e.Undo), e.Step.Action, e.Step.Ref, e.Phase, firstLine(fmt.Errorf("%s", e.Detail)))
	case event.PointOfNoReturn:
		return "no return"
	case event.Interrupted:
		return fmt.Sprintf("interrupted, %d in flight", e.InFlight)
	case event.RevertStarted:
		return fmt.Sprintf("revert of %d", e.Steps)
	case event.Verified:
		said := fmt.Sprintf("verified %d, remains %v, differences %v", e.Things, e.Remains, e.Differences)
		return firstLine(errors.New(said)) // the stack of a panic has numbers that differ
	case event.RunEnded:
		return fmt.Sprintf("run %s %s, %d done, %d differences", e.Run.ID, e.Run.Status, e.Run.Done, len(e.Differences))
	}
	return ""
}

func firstLine(err error) string {
	if err == nil {
		return ""
	}
	s, _, _ := strings.Cut(err.Error(), "\n")
	return s
}

// chance returns a number that follows only from the seed and from what it is about.
func (s *sim) chance(about string, args ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d ", s.seed)
	fmt.Fprintf(h, about, args...)
	v := h.Sum64()
	v ^= v >> 31 // the low bits of similar texts are similar
	v *= 0x9e3779b97f4a7c15
	return v ^ v>>29
}

// pace returns a time that nothing else in the bubble takes, so that no two things happen at the same instant.
func (s *sim) pace(longest time.Duration, about string, args ...any) time.Duration {
	return time.Duration(s.chance(about, args...)%uint64(longest)) + 1
}
