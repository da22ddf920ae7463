package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
)

// gridCalls applies a plan that creates one host, whose create meets a fault, and returns the times at which it was called,
// and how long the run took. Another seed makes another run of the same.
func gridCalls(t *testing.T, seed int, retry apply.Retry, f fake.Fault) (at []time.Duration, took time.Duration) {
	t.Helper()
	s := enginetest.New()
	ids := seed * 1000
	e := s.Engine(func(o *engine.Options) {
		o.Retry = retry
		o.NewID = func(now time.Time) string {
			ids++
			return fmt.Sprintf("%s-%06d", now.UTC().Format("20060102-150405.000"), ids)
		}
	})
	defer e.Close()
	begin := time.Now()
	s.World.Hook = func(op string, m fake.Moment, c providers.Call) {
		if op == "create" && m == fake.Before && c.Ref == gridHost {
			at = append(at, time.Since(begin))
		}
	}
	f.Op, f.Ref, f.Times = "create", gridHost.String(), gridAlways
	if err := s.World.Fail(f); err != nil {
		t.Fatal(err)
	}
	d := s.Document(t, map[string]string{gridHost.String(): `{"size":1}`})
	p, err := e.Plan(context.Background(), d, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	if err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	return at, time.Since(begin)
}

// S2: only transient and busy are retried, at most five times, with full jitter up to 1 s·2ⁿ and never more than
// 60 s, and a step ends within ten minutes.
func TestTortureRetry(t *testing.T) {
	classes := []providers.Class{providers.Transient, providers.Busy, providers.Conflict, providers.Absent, providers.Denied, providers.Invalid, providers.Unsupported}
	names := make([]string, len(classes))
	for i, c := range classes {
		names[i] = string(c)
	}
	cover := torture.Cover(t, "classes", names)
	const runs = 50
	gaps := 0
	for _, class := range classes {
		t.Run(string(class), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cover.Reach(string(class))
				if class != providers.Transient && class != providers.Busy {
					if at, _ := gridCalls(t, 0, apply.Retry{}, fake.Fault{Class: class}); len(at) != 1 {
						t.Errorf("%s was tried %d times", class, len(at))
					}
					return
				}
				var low, high [5]time.Duration
				for seed := range runs {
					at, _ := gridCalls(t, seed, apply.Retry{}, fake.Fault{Class: class})
					if len(at) != 5 {
						t.Fatalf("%s was tried %d times, want 5", class, len(at))
					}
					for n := 1; n < 5; n++ {
						gap, most := at[n]-at[n-1], time.Second<<(n-1)
						if gap <= 0 || gap > most {
							t.Errorf("run %d waits %s after try %d, want up to %s", seed, gap, n, most)
						}
						if gaps++; low[n] == 0 || gap < low[n] {
							low[n] = gap
						}
						high[n] = max(high[n], gap)
					}
				}
				for n := 1; n < 5; n++ { // full jitter covers the whole range: it fails to by chance once in a million
					if most := time.Second << (n - 1); low[n] > most/4 || high[n] < most*3/4 {
						t.Errorf("after try %d, %d runs wait %s to %s, want about 0 to %s", n, runs, low[n], high[n], most)
					}
				}
			})
		})
	}
	t.Run("cap", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var longest time.Duration
			for seed := range runs {
				at, _ := gridCalls(t, seed, apply.Retry{Attempts: 12, Within: time.Hour}, fake.Fault{})
				if len(at) != 12 {
					t.Fatalf("tried %d times, want 12", len(at))
				}
				for n := 1; n < len(at); n++ {
					longest = max(longest, at[n]-at[n-1])
				}
			}
			if longest > time.Minute || longest < 45*time.Second {
				t.Errorf("the longest wait is %s, want about and at most a minute", longest)
			}
		})
	})
	t.Run("ten minutes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			at, took := gridCalls(t, 0, apply.Retry{}, fake.Fault{Delay: fake.Duration(4 * time.Minute)})
			if took < 9*time.Minute || took > 10*time.Minute+time.Second {
				t.Errorf("a step whose calls take 4 minutes each took %s and %d calls, want ten minutes", took, len(at))
			}
		})
	})
	torture.Report(t, "E", "S2: %d runs of each class that is repeated, %d waits measured in virtual time", runs, gaps)
}
