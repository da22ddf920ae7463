package event_test

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// everything returns one event of each sort.
func everything() []event.Event {
	s := &plan.Step{ID: 7, Ref: schema.Ref{Scope: "site", Kind: "carbide.vpc", Name: "prod"}, Action: plan.Create}
	run := state.Run{ID: "20261125-120000.000-abcdef", Op: "apply", Status: state.RunPartial, Steps: 9, Done: 8, Serial: 3, Epoch: 4}
	return []event.Event{
		event.LockWait{Holder: state.LockInfo{Operation: "apply", Who: "ann@host", PID: 12}},
		event.Observing{Scope: "site", Kind: "carbide.vpc"},
		event.Observing{Scope: "site", Kind: "carbide.vpc", Elapsed: time.Minute, More: 2},
		event.Observed{Scope: "site", Kind: "carbide.vpc", Things: 3},
		event.Observed{Scope: "site", Kind: "carbide.vpc", Err: errors.New("no route")},
		event.RunStarted{Run: run},
		event.StepStarted{Step: s},
		event.StepProgress{Step: s, Phase: event.Retrying, Detail: "busy", Attempt: 2},
		event.StepDone{Step: s, ID: "id-7"},
		event.StepFailed{Step: s, Undo: true, Class: providers.Invalid, Err: errors.New("refused"), Effect: true},
		event.PointOfNoReturn{Steps: 2},
		event.Interrupted{InFlight: 3, By: "bob"},
		event.RevertStarted{Cause: errors.New("refused"), Steps: 8},
		event.Verified{Things: 8},
		event.RunEnded{Run: run, Differences: []event.Difference{{}}, Holds: []state.Hold{{}}},
	}
}

// At debug each event has its own line; at info those that show the progress of a run, and at warn what goes wrong.
func TestLog(t *testing.T) {
	for level, want := range map[slog.Level][]string{
		slog.LevelDebug: {"waiting for the site lock", "observing", "still observing", "observed", "could not be observed", "run started", "step started", "step retrying", "step done", "step failed", "point of no return", "interrupted", "reverting", "verified", "run finished"},
		slog.LevelInfo:  {"waiting for the site lock", "still observing", "could not be observed", "run started", "step failed", "point of no return", "interrupted", "reverting", "verified", "run finished"},
		slog.LevelWarn:  {"could not be observed", "step failed"},
	} {
		var b bytes.Buffer
		sink := event.Log(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level})))
		for _, e := range everything() {
			sink(e)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%s: %d lines, want %d:\n%s", level, len(lines), len(want), b.String())
		}
		for i, text := range want {
			if !strings.Contains(lines[i], "msg="+text) && !strings.Contains(lines[i], `msg="`+text+`"`) {
				t.Errorf("%s: line %d is %s, want %q", level, i, lines[i], text)
			}
		}
		for _, line := range lines[slices.Index(want, "could not be observed")+1:] {
			if !strings.Contains(line, "run=20261125-120000.000-abcdef") && level < slog.LevelWarn {
				t.Errorf("%s: it does not say of which run that is: %s", level, line)
			}
		}
		if !strings.Contains(b.String(), `step=7 ref=site/carbide.vpc/prod action=create undo=true class=invalid effect=true`) {
			t.Errorf("%s: it does not say which step failed:\n%s", level, b.String())
		}
	}
}
