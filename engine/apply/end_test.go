package apply_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A run whose steps wait for one another ends without having begun them. It is not applied: it stays open, and says so.
// plan.Check refuses such plans; this is the second line of defence.
func TestNothingDoneIsNotApplied(t *testing.T) {
	ctx := context.Background()
	for name, needs := range map[string][2][]int{
		"one needs itself":       {nil, {1}},
		"they need one another":  {{1}, {0}},
		"the point of no return": {{1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			p := s.Plan(t, s.Document(t, map[string]string{"site/far.guard/a": `{}`, "site/far.guard/b": `{}`}), plan.Options{})
			p.Steps[0].Needs, p.Steps[1].Needs = needs[0], needs[1]
			if needs[1] == nil { // it needs the step after it
				p.Steps[1].Undo, p.NoReturn = providers.NoUndo, 1
			}
			saved, err := p.Encode()
			if err != nil {
				t.Fatal(err)
			}
			lock, err := s.Store.Lock(ctx, state.LockInfo{Operation: "apply"}, state.LockOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			run := state.Run{ID: "r", Op: "apply", Status: state.RunOpen, Plan: saved.Digest, Epoch: lock.Epoch(), Started: time.Now(), Steps: len(p.Steps)}
			if run.Body, err = s.Store.PutBlob(ctx, saved.Data); err != nil {
				t.Fatal(err)
			}
			log, err := journal.Start(ctx, s.Store, lock, run.ID, saved.Digest, nil, []state.Op{s.Store.PutRunOp(run)})
			if err != nil {
				t.Fatal(err)
			}
			set, err := providers.NewSet(s.World.Provider("far", schema.ScopeSite))
			if err != nil {
				t.Fatal(err)
			}
			ended, _, err := apply.Carry(ctx, apply.Options{
				Kinds: s.Kinds, Providers: set, Store: s.Store, Lock: lock, Plan: p, Run: run, Log: log,
				OnFailure: apply.Rollback, Parallelism: 2, Emit: func(event.Event) {}, Logger: slog.New(slog.DiscardHandler),
			})
			if err == nil || !strings.Contains(err.Error(), "cannot finish as applied") {
				t.Errorf("the error is %v", err)
			}
			stored, rerr := s.Store.Run(ctx, run.ID)
			if rerr != nil || ended.Status != state.RunOpen || stored.Status != state.RunOpen {
				t.Errorf("the run is %s, and stored as %s: %v", ended.Status, stored.Status, rerr)
			}
			kept, err := journal.Read(ctx, s.Store, run.ID)
			if err != nil || slices.ContainsFunc(kept.Records, func(r journal.Record) bool { return r.Kind == journal.End }) {
				t.Errorf("the journal says that it ended: %v", err)
			}
		})
	}
}
