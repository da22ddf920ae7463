package event

import (
	"context"
	"log/slog"

	"converge.dev/converge/engine/plan"
)

// Log returns a sink that writes events as structured lines, with which an operator follows a run: its start and its end at level
// info, each step and each observation at debug, failures at warn. Lines about a run have its id, those about a step its
// number and its ref, under the same keys everywhere. The sink is for one goroutine at a time.
func Log(to *slog.Logger) Sink {
	run := "" // the run in progress
	return func(e Event) {
		if started, ok := e.(RunStarted); ok {
			run = started.Run.ID
		}
		if !to.Enabled(context.Background(), slog.LevelWarn) { // there is an event for everything that a run does
			return
		}
		if level, text, attrs := line(e); text != "" {
			if run != "" {
				attrs = append([]slog.Attr{slog.String("run", run)}, attrs...)
			}
			to.LogAttrs(context.Background(), level, text, attrs...)
		}
		if _, ended := e.(RunEnded); ended {
			run = ""
		}
	}
}

func line(e Event) (slog.Level, string, []slog.Attr) {
	switch e := e.(type) {
	case Observing:
		if e.Elapsed > 0 {
			return slog.LevelInfo, "still observing", []slog.Attr{slog.String("scope", e.Scope), slog.String("kind", e.Kind), slog.Duration("elapsed", e.Elapsed), slog.Int("others", e.More)}
		}
		return slog.LevelDebug, "observing", []slog.Attr{slog.String("scope", e.Scope), slog.String("kind", e.Kind)}
	case Observed:
		attrs := []slog.Attr{slog.String("scope", e.Scope), slog.String("kind", e.Kind), slog.Int("things", e.Things), slog.Duration("took", e.Took)}
		if e.Err != nil {
			return slog.LevelWarn, "could not be observed", append(attrs, slog.Any("error", e.Err))
		}
		return slog.LevelDebug, "observed", attrs
	case LockWait:
		return slog.LevelInfo, "waiting for the site lock", []slog.Attr{
			slog.String("operation", e.Holder.Operation), slog.String("who", e.Holder.Who), slog.Int("pid", e.Holder.PID), slog.String("held_by", e.Holder.Run), slog.Int64("epoch", e.Holder.Epoch),
		}
	case RunStarted:
		return slog.LevelInfo, "run started", []slog.Attr{
			slog.String("operation", e.Run.Op), slog.Int64("serial", e.Run.Serial), slog.Int64("epoch", e.Run.Epoch), slog.Int("steps", e.Run.Steps), slog.Int("done", e.Done),
		}
	case StepStarted:
		return slog.LevelDebug, "step started", step(e.Step, e.Undo)
	case StepProgress:
		return slog.LevelDebug, "step " + string(e.Phase), append(step(e.Step, e.Undo), slog.String("detail", e.Detail), slog.Int("attempt", e.Attempt), slog.Duration("elapsed", e.Elapsed))
	case StepDone:
		return slog.LevelDebug, "step done", append(step(e.Step, e.Undo), slog.String("id", e.ID), slog.Duration("took", e.Took))
	case StepFailed:
		return slog.LevelWarn, "step failed", append(step(e.Step, e.Undo), slog.String("class", string(e.Class)), slog.Bool("effect", e.Effect), slog.Duration("took", e.Took), slog.Any("error", e.Err))
	case ConfirmWait:
		return slog.LevelInfo, "waiting for the confirmation of the run", []slog.Attr{slog.Duration("within", e.Within)}
	case Confirmed:
		return slog.LevelInfo, "confirmed", []slog.Attr{slog.String("by", e.By)}
	case PointOfNoReturn:
		return slog.LevelInfo, "point of no return", []slog.Attr{slog.Int("steps", e.Steps)}
	case Interrupted:
		return slog.LevelInfo, "interrupted", []slog.Attr{slog.Int("in_flight", e.InFlight), slog.String("by", e.By)}
	case RevertStarted:
		return slog.LevelInfo, "reverting", []slog.Attr{slog.Int("steps", e.Steps), slog.Int("keep", e.Keep), slog.Any("cause", e.Cause)}
	case Verified:
		return slog.LevelInfo, "verified", []slog.Attr{slog.Bool("undo", e.Undo), slog.Int("things", e.Things), slog.Int("differences", len(e.Differences))}
	case RunEnded:
		return slog.LevelInfo, "run finished", []slog.Attr{
			slog.String("status", e.Run.Stands()), slog.Int("done", e.Run.Done), slog.Int("differences", len(e.Differences)), slog.Int("holds", len(e.Holds)), slog.Duration("took", e.Took),
		}
	}
	return 0, "", nil
}

func step(s *plan.Step, undo bool) []slog.Attr {
	return []slog.Attr{slog.Int("step", s.ID), slog.String("ref", s.Ref.String()), slog.String("action", string(s.Action)), slog.Bool("undo", undo)}
}
