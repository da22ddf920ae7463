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
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
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

// A slowDisk takes a second for each commit.
type slowDisk struct{ state.KV }

func (d slowDisk) Commit(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
	time.Sleep(time.Second)
	return d.KV.Commit(ctx, guards, ops)
}

// mostSteps sets most to how many steps are in progress at the same time, at the most.
func mostSteps(most *int) func(event.Event) {
	steps := 0
	return func(ev event.Event) {
		switch ev.(type) {
		case event.StepStarted:
			steps++
			*most = max(*most, steps)
		case event.StepDone:
			steps--
		}
	}
}

// A step that is done delays no other while its outcome is written: the next one begins, and writes its intent. Wherever the
// journal is cut off, no more steps are unfinished than may act.
func TestOutcomesAreWrittenBesideOtherSteps(t *testing.T) {
	const parallelism, all = 2, 12
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		resources := map[string]string{}
		for i := range all {
			resources[fmt.Sprintf("site/far.net/n%d", i)] = `{}`
		}
		p := s.Plan(t, s.Document(t, resources), plan.Options{})
		most := 0
		e := s.Engine(func(o *engine.Options) {
			o.Parallelism, o.Store, o.Emit = parallelism, state.New(slowDisk{s.KV}, "test"), mostSteps(&most)
		})
		defer e.Close()
		res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
		if err != nil || res.Run.Status != "applied" {
			t.Fatalf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
		}
		if most <= parallelism {
			t.Errorf("%d steps were in progress at the same time, want more than the %d that may act", most, parallelism)
		}
		log, err := journal.Read(context.Background(), s.Store, res.Run.ID)
		if err != nil {
			t.Fatal(err)
		}
		open := 0
		for _, rec := range log.Records {
			switch rec.Kind {
			case journal.Intent:
				open++
			case journal.Outcome:
				open--
			}
			if open > parallelism {
				t.Fatalf("%d steps are unfinished at record %d, and only %d may act", open, rec.Seq, parallelism)
			}
		}
	})
}

// What is in use is changed a few at a time: a step that changes it is in progress until it is ready again, and this is written.
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
		most := 0
		e := s.Engine(func(o *engine.Options) {
			o.Parallelism, o.Store, o.Emit = parallelism, state.New(slowDisk{s.KV}, "test"), mostSteps(&most)
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

// Steps that wait for things of one kind look together: what is asked in all grows with the time that they wait, not with how many
// wait. The first look of each is its own, and so is the one of a step that waits alone.
func TestWhatWaitsLooksTogether(t *testing.T) {
	const all, looks = 200, 10
	for _, slow := range []int{all, 1} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := enginetest.New()
				resources := map[string]string{}
				for i := range all {
					resources[fmt.Sprintf("site/far.guard/g%03d", i)] = `{"size": 1, "timeouts": {"create": "1h"}}`
				}
				p := s.Plan(t, s.Document(t, resources), plan.Options{})
				// Pauses of 20 ms, 40 ms … 1.28 s, and then of 2 s: it is ready right before the tenth look.
				if err := s.World.Fail(fake.Fault{Op: "create", Effect: fake.EffectSlow, Times: slow, Delay: fake.Duration(8500 * time.Millisecond)}); err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				seen, ready := 0, 0
				s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
					if mu.Lock(); op == "observe" && at == fake.Before && c.Ref.Kind == "far.guard" {
						seen++
					}
					mu.Unlock()
				}
				e := s.Engine(func(o *engine.Options) {
					o.Parallelism, o.Retry.Poll = 20, 0
					o.Emit = func(ev event.Event) {
						mu.Lock()
						defer mu.Unlock()
						switch ev.(type) {
						case event.RunStarted:
							seen = 0
						case event.StepDone:
							if ready++; ready == all {
								ready = seen
							}
						}
					}
				})
				defer e.Close()
				if res, err := e.Apply(context.Background(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != "applied" {
					t.Fatalf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
				}
				if least, most := all+looks, all+2*looks; ready < least || ready > most { // not all begin at the same moment
					t.Errorf("%d steps, of which %d waited, looked %d times, want %d to %d times", all, slow, ready, least, most)
				}
			})
		})
	}
}

// A step that begins to wait is looked for no later than its own pauses say, and does not make the others look as often.
func TestNewcomersDoNotWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		p := s.Plan(t, s.Document(t, map[string]string{
			"site/far.guard/old": `{"timeouts": {"create": "1h"}}`, "site/far.guard/new": `{"timeouts": {"create": "1h"}, "size": 1}`,
		}), plan.Options{})
		for name, delay := range map[string]time.Duration{"old": time.Minute, "new": 100 * time.Millisecond} {
			if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.guard/" + name, Effect: fake.EffectSlow, Delay: fake.Duration(delay)}); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		looks := 0
		began := time.Now()
		s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
			if at == fake.Before && c.Ref.Name == "new" {
				time.Sleep(15 * time.Second) // when the other has long been waiting
			}
			if mu.Lock(); op == "observe" && at == fake.Before {
				looks++
			}
			mu.Unlock()
		}
		var took time.Duration
		e := s.Engine(func(o *engine.Options) {
			o.Retry.Poll = 0
			o.Emit = func(ev event.Event) {
				mu.Lock()
				defer mu.Unlock()
				switch ev := ev.(type) {
				case event.RunStarted:
					looks = 0
				case event.StepDone:
					if ev.Step.Ref.Name == "new" {
						took = time.Since(began)
					}
				}
			}
		})
		defer e.Close()
		if res, err := e.Apply(context.Background(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != "applied" {
			t.Fatalf("the run ended %s: %s, %v", res.Run.Status, res.Run.Message, err)
		}
		if most := 15*time.Second + 140*time.Millisecond; took > most { // 20 ms, 40 ms and 80 ms
			t.Errorf("it was seen to be ready after %s, want %s at most", took, most)
		}
		if looks > 50 {
			t.Errorf("there were %d looks", looks)
		}
	})
}
