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
	"converge.dev/converge/schema/kinds"
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
	g := newGround(t, func(ctx context.Context) ([]*providers.Provider, error) {
		p, err := a.open(ctx)
		return []*providers.Provider{p}, err
	})
	if run := g.apply(a.first); run.Status != state.RunApplied {
		t.Fatalf("the beginning ended %s: %s", run.Status, run.Message)
	}

	want, last := state.RunApplied, a.last
	if undo {
		want, last = state.RunReverted, a.failing
	}
	var back func()
	waited := false
	g.emit = func(ev event.Event) {
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
	run := g.apply(last)
	g.emit = func(event.Event) {}
	if run.Status != want || !waited {
		t.Fatalf("it ended %s, and waited: %t; %s %v", run.Status, waited, run.Message, run.Partial)
	}
	g.clean()
}

// A ground is a site with one node, n, and its engine.
type ground struct {
	*testing.T
	known *kinds.Schema
	store *state.Store
	*engine.Engine
	emit func(event.Event)
}

func newGround(t *testing.T, open func(ctx context.Context) ([]*providers.Provider, error)) *ground {
	known, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{T: t, known: known, store: state.New(mem.New(mem.Options{}), "node"), emit: func(event.Event) {}}
	g.Engine = engine.New(engine.Options{
		Kinds: known.Kinds(), Store: g.store, Who: "test@here", Version: "test", Parallelism: 1,
		Emit: func(ev event.Event) { g.emit(ev) },
		Open: func(ctx context.Context, _ schema.Site, _ []providers.Need) (*providers.Set, error) {
			ps, err := open(ctx)
			if err != nil {
				return nil, err
			}
			return providers.NewSet(ps...)
		},
	})
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// document returns a document whose node is given as CUE.
func (g *ground) document(node string) *schema.Document {
	g.Helper()
	text := fmt.Sprintf("apiVersion: \"converge.dev/v1\"\nsite: {name: \"grid\", id: %q}\npolicy: max_destroy: \"100%%\"\nnodes: n: {%s}\n", siteID, node)
	doc, ds := load.Document(context.Background(), g.known, load.Options{}, load.Source{Name: "node.cue", Data: []byte(text)})
	if doc == nil {
		g.Fatalf("%v\n%s", ds.Err(), text)
	}
	return doc
}

// apply brings the node to what is given as CUE; all of it is deleted when that is empty.
func (g *ground) apply(node string) state.Run {
	g.Helper()
	p, err := g.Plan(context.Background(), g.document(node), plan.Options{Destroy: node == ""})
	if err != nil {
		g.Fatal(err)
	}
	res, err := g.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	if err != nil {
		g.Fatal(err)
	}
	return res.Run
}

// clean checks that the node is as it was applied.
func (g *ground) clean() {
	g.Helper()
	r, err := g.Drift(context.Background(), g.document("").Site)
	if err != nil || !r.Clean() {
		g.Errorf("drift: %+v, %v", r, err)
	}
}
