package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers/fake"
)

// Waiting is reported with its reason and duration, and if it was in vain, with how long it was.
func TestWaitingSaysForHowLong(t *testing.T) {
	s := enginetest.New()
	doc := s.Document(t, map[string]string{"site/far.net/n": `{"cidr": "10.0.0.0/24", "timeouts": {"create": "60ms"}}`})
	p := s.Plan(t, doc, plan.Options{})
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.net/n", Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	var waits []string
	e := s.Engine(func(o *engine.Options) {
		o.Emit = func(ev event.Event) {
			if w, ok := ev.(event.StepProgress); ok && w.Phase == event.Waiting && !w.Undo {
				waits = append(waits, w.Detail)
			}
		}
	})
	defer e.Close()
	res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
	if err != nil || len(waits) == 0 || !strings.HasSuffix(waits[0], " (for up to 60ms)") {
		t.Errorf("it waits for %q, %v", waits, err)
	}
	if !strings.Contains(res.Run.Message, "after 60ms: ") {
		t.Errorf("the run ended %s: %s", res.Run.Status, res.Run.Message)
	}
}

// What takes the far side an hour blocks nothing: as many creates as may be in progress wait for it, and what does not need them
// is done at once. With a parallelism of 1 one step ends before the next begins, as that setting demands.
func TestLongCreatesStopNobody(t *testing.T) {
	const parallelism, quick = 8, 20
	for _, parallelism := range []int{parallelism, 1} {
		t.Run(fmt.Sprint(parallelism), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := enginetest.New()
				resources := map[string]string{}
				for i := range parallelism { // they come first in the order of the plan
					resources[fmt.Sprintf("site/far.guard/g%d", i)] = `{"size": 1, "timeouts": {"create": "2h"}}`
				}
				for i := range quick {
					resources[fmt.Sprintf("site/far.net/n%d", i)] = `{}`
				}
				p := s.Plan(t, s.Document(t, resources), plan.Options{})
				if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.guard/*", Effect: fake.EffectSlow, Times: -1, Delay: fake.Duration(time.Hour)}); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				var mu sync.Mutex
				early := 0 // steps that were done while others waited for their hour
				e := s.Engine(func(o *engine.Options) {
					o.Parallelism = parallelism
					o.Emit = func(ev event.Event) {
						if _, ok := ev.(event.StepDone); ok && time.Since(began) < time.Minute {
							mu.Lock()
							early++
							mu.Unlock()
						}
					}
				})
				defer e.Close()
				res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
				if err != nil || res.Run.Status != "applied" {
					t.Fatalf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
				}
				want := quick
				if parallelism == 1 {
					want = 0
				}
				if took := time.Since(began).Round(time.Minute); early != want || took != time.Hour {
					t.Errorf("%d of %d quick steps were done beside those that wait, and all took %s, want %d and 1h", early, quick, took, want)
				}
			})
		})
	}
}

// What is in use is changed a few at a time: a step that changes it is in progress until it is ready again.
func TestChangesOfWhatIsInUseKeepTheirTurn(t *testing.T) {
	const parallelism, all = 3, 12
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		resources := func(size int) map[string]string {
			rs := map[string]string{}
			for i := range all {
				rs[fmt.Sprintf("site/far.guard/g%d", i)] = fmt.Sprintf(`{"size": %d, "timeouts": {"update": "1m"}}`, size)
			}
			return rs
		}
		s.Converge(t, s.Document(t, resources(1)))
		p := s.Plan(t, s.Document(t, resources(2)), plan.Options{})
		if err := s.World.Fail(fake.Fault{Op: "update", Effect: fake.EffectSlow, Times: -1, Delay: fake.Duration(10 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		flying, most := 0, 0
		e := s.Engine(func(o *engine.Options) {
			o.Parallelism = parallelism
			o.Emit = func(ev event.Event) {
				switch ev.(type) {
				case event.StepStarted:
					flying++
					most = max(most, flying)
				case event.StepDone:
					flying--
				}
			}
		})
		defer e.Close()
		if res, err := e.Apply(context.Background(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != "applied" {
			t.Fatalf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
		}
		if most != parallelism {
			t.Errorf("%d things were being changed at the same time, want %d", most, parallelism)
		}
	})
}
