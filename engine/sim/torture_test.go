package sim

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"converge.dev/converge/internal/torture"
)

var seedFlag = flag.Uint64("sim.seed", 0, "play this seed alone, and tell what happens")

// play plays one seed in a bubble of its own.
func play(t *testing.T, seed uint64) (s *sim) {
	synctest.Test(t, func(t *testing.T) { s = simulate(t, seed) })
	return s
}

// outcomes are the ways in which a command may end, and what the engine is known to do on the way.
var outcomes = []string{"applied", "reverted", "partial", "open", "held", "stopped by a hold", "interrupted", "fenced", "not seen", "stale", "failed",
	"approved", "settled", "quarantined", "refused", "frozen", "held by hand", "two at once", "parallelism 1", "parallelism 4",
	"apply rollback", "apply stop", "apply continue",
	"command apply", "command release", "command resume", "command resume and continue", "command rollback"}

// whatIsReached returns everything that must have occurred when the promised number of seeds was played.
func whatIsReached() []string {
	all := slices.Concat(outcomes, storeFaults, callFaults)
	for _, e := range effects {
		all = append(all, "effect "+e)
	}
	for name := range profiles {
		all = append(all, "profile "+name)
	}
	return all
}

// W1-W5, F1-F5, S1-S3: from any document to any other, whatever goes wrong on the way.
func TestTortureSimulation(t *testing.T) {
	if *seedFlag != 0 {
		s := play(t, *seedFlag)
		t.Logf("\n%s", s.trace.String())
		for _, b := range s.broken {
			t.Error(b)
		}
		return
	}
	n := torture.Scale(100, 2500, 200000)
	var cover *torture.Coverage // a sample covers only a part
	must := whatIsReached()
	if torture.Full() {
		cover = torture.Cover(t, "what goes wrong, and what comes of it,", must)
	}
	const lanes = 2
	var mu sync.Mutex
	reached, effects, broken := map[string]int{}, 0, 0
	t.Run("seeds", func(t *testing.T) {
		for lane := range lanes {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				for seed := uint64(lane + 1); seed <= uint64(n); seed += lanes {
					s := play(t, seed)
					mu.Lock()
					effects += s.effects
					for what, n := range s.reached {
						reached[what] += n
					}
					if len(s.broken) > 0 {
						broken++
						t.Errorf("go test ./engine/sim -run TestTortureSimulation -sim.seed=%d: %s", seed, s.broken[0])
					}
					enough := broken > 10
					mu.Unlock()
					if enough {
						return
					}
				}
			})
		}
	})
	for what, n := range reached {
		for range n {
			if cover != nil && slices.Contains(must, what) {
				cover.Reach(what)
			}
		}
	}
	var figures []string
	for _, what := range slices.Sorted(maps.Keys(reached)) {
		figures = append(figures, fmt.Sprintf("%s %d", what, reached[what]))
	}
	torture.Report(t, "B", "%d seeds, %d changes of the far side, %d seeds broke a promise; %s", n, effects, broken, strings.Join(figures, ", "))
}

// A seed that failed once fails again: the same seed results in the same calls, records and events.
func TestSeedsRepeat(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		first, second := play(t, seed).story(), play(t, seed).story()
		if first != second {
			a, b := strings.Split(first, "\n"), strings.Split(second, "\n")
			for i := range a {
				if i >= len(b) || a[i] != b[i] {
					t.Errorf("seed %d tells two stories from line %d on:\n%s\n---\n%s", seed, i, strings.Join(a[i:min(i+4, len(a))], "\n"), strings.Join(b[min(i, len(b)):min(i+4, len(b))], "\n"))
					break
				}
			}
		}
	}
}
