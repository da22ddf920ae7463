package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
)

// What the far side does one after the other takes three places, and the others are left to what can be done meanwhile: in the time of
// eight calls in a row, eight others are made beside them, also when all is undone, and when the provider is unavailable again and again.
func TestSerialKindsLeaveRoom(t *testing.T) {
	const each = 8
	for _, fails := range []bool{false, true} {
		for _, flaps := range []bool{false, true} {
			t.Run(fmt.Sprintf("fails %v, flaps %v", fails, flaps), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := enginetest.New()
					serial := fake.NodeTraits()
					serial.Serial = true
					s.World.Traits = map[string]providers.Traits{"far.guard": serial}
					resources := map[string]string{}
					for i := range each {
						resources[fmt.Sprintf("site/far.guard/g%d", i)] = `{"size": 1}` // they come first in the order of the plan
						resources[fmt.Sprintf("site/far.net/n%d", i)] = `{}`
					}
					last := fmt.Sprintf("site/far.guard/g%d", each-1)
					if fails {
						if err := s.World.Fail(fake.Fault{Op: "create", Ref: last, Times: -1}); err != nil {
							t.Fatal(err)
						}
					}
					p := s.Plan(t, s.Document(t, resources), plan.Options{})

					var mu sync.Mutex
					here, most, begun := 0, 0, 0
					beside := map[string]int{} // calls for nets that were begun before the last one for a guard, by verb
					turn := make(chan struct{}, 1)
					s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
						if op == "observe" || at != fake.Before {
							return
						}
						guard := c.Ref.Kind == "far.guard"
						mu.Lock()
						if begun++; guard {
							here++
							most = max(most, here)
							beside[op] = 0
						} else {
							beside[op]++
						}
						mu.Unlock()
						if guard {
							turn <- struct{}{}
							defer func() { <-turn }()
						}
						time.Sleep(time.Second)
						mu.Lock()
						if guard {
							here--
						}
						mu.Unlock()
					}
					patient := &patient{down: func(asked int) bool { return flaps && asked%5 == 4 }}
					e := patient.engine(s, time.Minute, 6)
					defer e.Close()
					res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
					want := state.RunApplied
					if fails {
						want = state.RunReverted
					}
					if err != nil || res.Run.Status != want {
						t.Fatalf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
					}
					if most > 3 {
						t.Errorf("%d calls for guards were made at the same time, want 3", most)
					}
					for op, n := range beside {
						if n > each/4 && !flaps {
							t.Errorf("%s: %d nets were left for after the last guard was begun", op, n)
						}
					}
				})
			})
		}
	}
}
