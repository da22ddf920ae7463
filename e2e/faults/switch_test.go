package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A run waits for an ovs-vswitchd that is away while its database answers: the forward direction ends applied, and an undo
// ends reverted. The outage lasts until the run is seen to wait for it.
func TestSwitchDaemonAway(t *testing.T) {
	still := func(t *testing.T, s *ovstest.Switch) (back func()) {
		s.Freeze(t)
		return func() { s.Thaw(t) }
	}
	killed := func(t *testing.T, s *ovstest.Switch) (back func()) {
		s.Kill(t)
		return func() { s.Restart(t) }
	}
	for _, way := range []struct {
		name  string
		start func(testing.TB) *ovstest.Switch
		away  func(*testing.T, *ovstest.Switch) (back func())
	}{
		{"simulated, stands still", ovstest.Fake, still},
		{"stands still", ovstest.Start, still},
		{"killed", ovstest.Start, killed},
	} {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, undo %t", way.name, undo), func(t *testing.T) {
				t.Parallel()
				sw := way.start(t)
				known, err := compiled()
				if err != nil {
					t.Fatal(err)
				}
				document := func(ports string) *schema.Document {
					text := fmt.Sprintf("apiVersion: \"converge.dev/v1\"\nsite: {name: \"grid\", id: %q}\npolicy: max_destroy: \"100%%\"\n"+
						"nodes: n: ovs: bridge: br: datapath_type: %q\nnodes: n: ovs: port: [string]: bridge: \"br\"\nnodes: n: ovs: port: {%s}\n", siteID, ovstest.Datapath, ports)
					doc, ds := load.Document(context.Background(), known, load.Options{}, load.Source{Name: "switch.cue", Data: []byte(text)})
					if doc == nil {
						t.Fatalf("%v\n%s", ds.Err(), text)
					}
					return doc
				}
				store, emit := state.New(mem.New(mem.Options{}), "switch"), func(event.Event) {}
				e := engine.New(engine.Options{
					Kinds: known.Kinds(), Store: store, Who: "test@here", Version: "test", Parallelism: 1, Emit: func(ev event.Event) { emit(ev) },
					Open: func(ctx context.Context, _ schema.Site, _ []providers.Need) (*providers.Set, error) {
						p, err := ovs.Open(ctx, ovs.Options{Endpoint: sw.Endpoint, Node: "n", Site: siteID, Settle: time.Second})
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
				const internal = `interface: type: "internal"`
				first := document(`a0: {tag: 1, ` + internal + `}, a1: {` + internal + `}`)
				if run := apply(first); run.Status != state.RunApplied {
					t.Fatalf("the beginning ended %s: %s", run.Status, run.Message)
				}

				want, last := state.RunApplied, `a0: {tag: 2, `+internal+`}, a2: {`+internal+`}`
				if undo { // a port of this name has no device
					want, last = state.RunReverted, last+`, bad0: {}`
				}
				var back func()
				waited := false
				emit = func(ev event.Event) {
					_, reverting := ev.(event.RevertStarted)
					_, starting := ev.(event.StepStarted)
					if back == nil && (reverting && undo || starting && !undo) {
						back = way.away(t, sw)
					}
					if w, ok := ev.(event.StepProgress); ok && !waited && w.Phase == event.Waiting && strings.Contains(w.Detail, "ovs-vswitchd is not applying changes") {
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
			})
		}
	}
}
