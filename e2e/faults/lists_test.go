package faults

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// E: a list that is older than what was created, and one of which a part is missing, do not make a recorded thing count as gone:
// the plan is empty, and nothing is created twice.
func TestTortureCarbideLists(t *testing.T) {
	_, reads := called(t)
	lists := map[carbidesim.Effect][]string{}
	for _, m := range reads {
		if strings.HasSuffix(m, "Ids") {
			lists[carbidesim.Stale] = append(lists[carbidesim.Stale], m)
		}
		if strings.HasSuffix(m, "Ids") || strings.HasPrefix(m, "List") || strings.HasPrefix(m, "GetAll") && !strings.HasSuffix(m, "Linked") {
			lists[carbidesim.Half] = append(lists[carbidesim.Half], m)
		}
	}
	var tried, met atomic.Int64
	t.Cleanup(func() {
		torture.Report(t, "E", "Carbide: %d plans on lists that are old or not whole, %d such lists, were empty", tried.Load(), met.Load())
	})
	for _, s := range scenes(t) {
		if s.way != "create" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &cell{T: t, scene: s}
				defer c.end()
				c.begin()
				inject := func(effect carbidesim.Effect, nth int) {
					for _, m := range lists[effect] {
						if err := c.world.Inject(carbidesim.Fault{Method: m, Effect: effect, Nth: nth}); err != nil {
							t.Fatal(err)
						}
					}
				}
				look := func(effect carbidesim.Effect) {
					e := c.process()
					defer e.Close()
					p, err := e.Plan(context.Background(), s.last, plan.Options{})
					if err != nil {
						t.Fatal(err)
					}
					if len(p.Steps)+len(p.Drift)+len(p.Refusals) > 0 {
						t.Errorf("a list is %s: steps %+v, drift %+v, refusals %+v", effect, p.Steps, p.Drift, p.Refusals)
					}
					tried.Add(1)
					met.Add(int64(len(lists[effect]) - len(c.world.Faults())))
					c.mend()
				}
				inject(carbidesim.Stale, 2) // the first list is that of the plan that creates x
				if res := c.apply(s.last, nil); res.Run.Status != state.RunApplied {
					t.Fatalf("it ended %s: %s", res.Run.Status, res.Run.Message)
				}
				look(carbidesim.Stale)
				inject(carbidesim.Half, 1)
				look(carbidesim.Half)
			})
		})
	}
}
