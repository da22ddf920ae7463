//go:build cgo && libvirt_dlopen

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
	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A run waits for a libvirtd that stands still, or is gone: the forward direction ends applied, and an undo ends reverted. The outage lasts
// until the run is seen to wait for it.
func TestLibvirtdAway(t *testing.T) {
	for _, way := range []struct {
		name string
		away func(*testing.T, *libvirttest.Host) (back func())
	}{
		{"stands still", func(t *testing.T, h *libvirttest.Host) func() {
			h.Freeze(t)
			return func() { h.Thaw(t) }
		}},
		{"killed", func(t *testing.T, h *libvirttest.Host) func() {
			h.Kill(t)
			h.Sweep(t)
			return func() { h.Restart(t) }
		}},
	} {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, undo %t", way.name, undo), func(t *testing.T) {
				t.Parallel()
				h := libvirttest.Start(t)
				known, err := compiled()
				if err != nil {
					t.Fatal(err)
				}
				document := func(kinds string) *schema.Document {
					text := fmt.Sprintf("apiVersion: \"converge.dev/v1\"\nsite: {name: \"grid\", id: %q}\npolicy: max_destroy: \"100%%\"\nnodes: n: libvirt: {%s}\n", siteID, kinds)
					doc, ds := load.Document(context.Background(), known, load.Options{}, load.Source{Name: "libvirt.cue", Data: []byte(text)})
					if doc == nil {
						t.Fatalf("%v\n%s", ds.Err(), text)
					}
					return doc
				}
				store, emit := state.New(mem.New(mem.Options{}), "libvirt"), func(event.Event) {}
				e := engine.New(engine.Options{
					Kinds: known.Kinds(), Store: store, Who: "test@here", Version: "test", Parallelism: 1, Emit: func(ev event.Event) { emit(ev) },
					Open: func(ctx context.Context, _ schema.Site, _ []providers.Need) (*providers.Set, error) {
						p, err := libvirt.Open(ctx, libvirt.Options{URI: h.URI(), Node: "n", Site: siteID, Settle: time.Second})
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
				first := document(`network: {a0: {bridge: "br-a0", domain: "one"}, a1: bridge: "br-a1"}`)
				if run := apply(first); run.Status != state.RunApplied {
					t.Fatalf("the beginning ended %s: %s", run.Status, run.Message)
				}

				want, last := state.RunApplied, fmt.Sprintf(`network: {a0: {bridge: "br-a0", domain: "two"}, a2: bridge: "br-a2"}, pool: p: path: "%s/srv"`, h.Dir)
				if undo { // the node cannot run such a machine
					want = state.RunReverted
					last += `, domain: bad: {type: "kvm", vcpus: 1, memory: 67108864, depends_on: ["n/libvirt.network/a0", "n/libvirt.network/a2", "n/libvirt.pool/p"]}`
				}
				var back func()
				waited := false
				emit = func(ev event.Event) {
					_, reverting := ev.(event.RevertStarted)
					_, starting := ev.(event.StepStarted)
					if back == nil && (reverting && undo || starting && !undo) {
						back = way.away(t, h)
					}
					if w, ok := ev.(event.StepProgress); ok && !waited && w.Phase == event.Waiting && strings.Contains(w.Detail, "connect to libvirt at ") {
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
