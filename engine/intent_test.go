package engine_test

import (
	"context"
	"sync/atomic"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// W1: when a call that changes something arrives, forward or as an undo, the store holds its intent: the thing, the
// external id and the idempotency key, and no outcome yet.
func TestIntentIsDurableBeforeEveryEffect(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, twelve), plan.Options{})
	last := p.Steps[len(p.Steps)-1]
	if err := s.World.Fail(fake.Fault{Op: string(last.Action), Ref: last.Ref.String(), Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		if at != fake.Before || op == "observe" {
			return
		}
		calls.Add(1)
		if open := openIntent(t, s, c.Ref); open == nil || open.ExternalID != c.ID || open.Key != c.Key {
			t.Errorf("%s of %s (id %s, key %s) was called, and the journal says %+v", op, c.Ref, c.ID, c.Key, open)
		}
	}
	res, err := s.Apply(p, engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	if n := calls.Load(); n < int64(len(p.Steps)) {
		t.Errorf("only %d calls were seen", n)
	}
}

// openIntent returns the last record of the newest run about a thing, when that is an intent.
func openIntent(t *testing.T, s *enginetest.Site, ref schema.Ref) *journal.Record {
	runs, err := s.Store.Runs(context.Background())
	if err != nil || len(runs) == 0 {
		t.Error(runs, err)
		return nil
	}
	log, err := journal.Read(context.Background(), s.Store, runs[0].ID)
	if err != nil {
		t.Error(err)
		return nil
	}
	records := log.Records
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Ref == ref {
			if records[i].Kind == journal.Intent {
				return &records[i]
			}
			return nil
		}
	}
	return nil
}
