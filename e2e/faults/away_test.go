package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// An absence is that of a daemon of the node n, in the middle of a run.
type absence struct {
	open  func(ctx context.Context) (*providers.Provider, error)
	away  func() (back func())
	waits string // what a step says that waits for the daemon

	// What the node has before the run, after it, and in a run that fails in the end: CUE, below nodes: n.
	first, last, failing string
}

// outlast checks that a run waits for the daemon, which is away from the first step on, or from the beginning of an undo, until the run is
// seen to wait for it. The forward direction ends applied, and an undo ends reverted.
func (a absence) outlast(t *testing.T, undo bool) {
	known, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	document := func(node string) *schema.Document {
		text := fmt.Sprintf("apiVersion: \"converge.dev/v1\"\nsite: {name: \"grid\", id: %q}\npolicy: max_destroy: \"100%%\"\nnodes: n: {%s}\n", siteID, node)
		doc, ds := load.Document(context.Background(), known, load.Options{}, load.Source{Name: "node.cue", Data: []byte(text)})
		if doc == nil {
			t.Fatalf("%v\n%s", ds.Err(), text)
		}
		return doc
	}
	emit := func(event.Event) {}
	e := engine.New(engine.Options{
		Kinds: known.Kinds(), Store: state.New(mem.New(mem.Options{}), "node"), Who: "test@here", Version: "test", Parallelism: 1,
		Emit: func(ev event.Event) { emit(ev) },
		Open: func(ctx context.Context, _ schema.Site, _ []providers.Need) (*providers.Set, error) {
			p, err := a.open(ctx)
			if err != nil {
				return nil, err
			}
			return providers.NewSet(p)
		},
	})
	defer e.Close()
	apply := func(doc *schema.Document) state.Run {
		p, err := e.Plan(t.Context(), doc, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
		if err != nil {
			t.Fatal(err)
		}
		return res.Run
	}
	first := document(a.first)
	if run := apply(first); run.Status != state.RunApplied {
		t.Fatalf("the beginning ended %s: %s", run.Status, run.Message)
	}

	want, last := state.RunApplied, a.last
	if undo {
		want, last = state.RunReverted, a.failing
	}
	var back func()
	waited := false
	emit = func(ev event.Event) {
		_, reverting := ev.(event.RevertStarted)
		_, starting := ev.(event.StepStarted)
		if back == nil && (reverting && undo || starting && !undo) {
			back = a.away()
		}
		if w, ok := ev.(event.StepProgress); ok && !waited && w.Phase == event.Waiting && strings.Contains(w.Detail, a.waits) {
			waited = true
			back()
		}
	}
	run := apply(document(last))
	emit = func(event.Event) {}
	if run.Status != want || !waited {
		t.Fatalf("it ended %s, and waited: %t; %s %v", run.Status, waited, run.Message, run.Partial)
	}
	r, err := e.Drift(t.Context(), first.Site)
	if err != nil || !r.Clean() {
		t.Errorf("drift: %+v, %v", r, err)
	}
}
