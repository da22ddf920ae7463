package view_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/state"
)

// In a pipe the current activity is written every 30 s, so that the log of a long run does not look dead.
func TestHeartbeatInAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var progress bytes.Buffer
		h := view.NewHuman(view.Options{Out: &progress, Err: &progress})
		p := samplePlan()
		time.Sleep(time.Hour - 10*time.Second) // nothing is in progress, and nothing is written
		h.Event(event.LockWait{Holder: state.LockInfo{Who: "ci@runner", Operation: "apply", Created: start}})
		time.Sleep(31 * time.Second)
		h.Event(event.Observing{Scope: "site", Kind: "carbide.vpc"})
		time.Sleep(31 * time.Second)
		h.Event(event.Observed{Scope: "site", Kind: "carbide.vpc"})
		h.Event(event.RunStarted{Run: state.Run{ID: "R"}, Plan: p, Ago: time.Hour})
		h.Event(event.StepStarted{Step: &p.Steps[1], Ago: time.Minute})
		h.Event(event.StepStarted{Step: &p.Steps[0]})
		h.Event(event.StepProgress{Step: &p.Steps[1], Phase: event.Waiting, Detail: "pulling the image"})
		h.Event(event.StepProgress{Step: &p.Steps[1], Phase: event.Acting, Elapsed: 10 * time.Second})
		time.Sleep(61 * time.Second)
		h.Event(event.StepDone{Step: &p.Steps[1], Took: 2 * time.Minute})
		h.Event(event.StepDone{Step: &p.Steps[0], Took: time.Minute})
		time.Sleep(time.Hour)
		h.Close()
		golden(t, "heartbeat.txt", progress.String())
	})
}
