package replicas

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	sites "converge.dev/converge/site"
	"converge.dev/converge/state"
)

// unreached are points that no run of a site agent on these nodes passes by itself: package crash has them.
var unreached = []string{
	"journal.no-return.before", "journal.no-return.after", // what cannot be undone is left to people
}

// crashing returns the points at which a keeper is killed while it applies, and while it reverts.
func crashing() (forward, back []string) {
	for _, p := range failpoint.Points {
		first, _, _ := strings.Cut(p, ".")
		switch {
		case slices.Contains(unreached, p):
		case first == "undo" || first == "settle" || strings.HasPrefix(p, "journal.revert"):
			back = append(back, p)
		default:
			forward = append(forward, p)
		}
	}
	return forward, back
}

// A keeper that is killed at any point of a run is replaced, and what it has begun is ended once: applied, or reverted where a node refuses
// a step.
func TestTortureKeeperKilled(t *testing.T) {
	full(t)
	t.Parallel()
	forward, back := crashing()
	reached := torture.Cover(t, "points at which the keeper is killed", slices.Concat(forward, back))
	var applied, reverted, resumed atomic.Int64
	t.Cleanup(func() {
		torture.Report(t, "A", "the keeper of a site with three site agents killed at %d points: %d runs ended applied and %d reverted, %d of them resumed by the next keeper; each change was made once",
			len(forward)+len(back), applied.Load(), reverted.Load(), resumed.Load())
	})
	rounds := torture.Scale(0, 1, 10)
	// A site goes through some of the points, one after the other; most of the time it waits for a lease.
	for i := range 6 {
		t.Run(fmt.Sprint("forward ", i), func(t *testing.T) {
			t.Parallel()
			c := newCrashes(t)
			for round := range rounds {
				for n := i; n < len(forward); n += 6 {
					resumed.Add(c.forward(forward[n], 1+round))
					applied.Add(1)
					reached.Reach(forward[n])
				}
			}
		})
	}
	for i := range 3 {
		t.Run(fmt.Sprint("back ", i), func(t *testing.T) {
			t.Parallel()
			c := newCrashes(t)
			c.must(c.nodes[2].control().Fail(t.Context(), fake.Fault{Op: "create", Ref: "*/ovs.port/bad", Class: providers.Invalid, Times: -1}))
			for round := range rounds {
				for n := i; n < len(back); n += 3 {
					resumed.Add(c.back(back[n], 1+round))
					reverted.Add(1)
					reached.Reach(back[n])
				}
			}
		})
	}
}

// A crashes is a site that changes between two revisions, which differ by something to create, to change and to delete on each node.
type crashes struct {
	*site
	second bool
	seen   map[bool]string // what the nodes have in each
}

const crashWidth = 4 // ports of each node

func newCrashes(t *testing.T) *crashes {
	t.Helper()
	c := &crashes{site: newSite(t, 3), seen: map[bool]string{}}
	c.put(c.revision(false))
	c.stands(sites.InSync)
	c.seen[false] = c.specs()
	return c
}

// revision returns one of both.
func (c *crashes) revision(second bool) string {
	return c.document(func(int) bed {
		if second {
			return bed{tag: 200, ports: ports(crashWidth + 1)[1:]}
		}
		return bed{tag: 100, ports: ports(crashWidth)}
	})
}

// died waits until a process has died at a point.
func (c *crashes) died(r *replica, point string) {
	c.Helper()
	c.until("the keeper dies at "+point, func() bool {
		if st := c.status(); !r.now.gone() && st.Site.Serial == c.serial && (st.Phase == sites.InSync || st.Phase == sites.Held) && !r.now.gone() {
			c.Fatalf("the keeper has never passed %s:\n%s", point, r.now.out.String())
		}
		return r.now.gone()
	})
	status := r.now.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != syscall.SIGKILL || !r.now.passed(point) {
		c.Fatalf("the keeper ended (%v) and not at %s:\n%s", r.now.cmd.ProcessState, point, r.now.out.String())
	}
}

// nth is which passing of a point is meant: what every run passes once, and what it may pass several times.
func nth(point string, n int) int {
	for _, several := range []string{"call.", "undo.", "journal.intent", "journal.outcome"} {
		if strings.HasPrefix(point, several) {
			return min(n, 3) // there are three nodes, with one thing to create and to delete on each
		}
	}
	return 1
}

// forward kills the keeper at a point of a run that is to end applied. It returns 1 when the next keeper resumed that run.
func (c *crashes) forward(point string, n int) int64 {
	c.Helper()
	before := c.effects()
	runs, _ := c.journals()
	first := c.hand(fmt.Sprintf("%s:%d=kill", point, nth(point, n)))
	c.second = !c.second
	c.put(c.revision(c.second))
	c.died(first, point)
	c.stands(sites.InSync)
	for i, now := range c.effects() {
		if now-before[i] != crashWidth { // all but one are changed, and one is made
			c.Errorf("%s: %s was changed %d times, want %d", point, c.nodes[i].name, now-before[i], crashWidth)
		}
	}
	specs := c.specs()
	if was := c.seen[c.second]; was != "" && specs != was {
		c.Errorf("%s: the nodes have\n%s\nand had in the same revision\n%s", point, specs, was)
	}
	c.seen[c.second] = specs
	c.settled()
	return c.ended(point, len(runs)+1, state.RunApplied)
}

// back kills the keeper at a point of a run that is to end reverted.
func (c *crashes) back(point string, n int) int64 {
	c.Helper()
	runs, _ := c.journals()
	first := c.hand(fmt.Sprintf("%s:%d=kill", point, nth(point, n)))
	c.put(c.document(func(node int) bed {
		b := bed{tag: 200, ports: ports(crashWidth + 1)[1:]}
		if node == 2 {
			b.ports = append(b.ports, "bad")
			b.extra = `{"depends_on": ["gpu-03/ovs.port/p01", "gpu-03/ovs.port/p04"]}`
		}
		return b
	}))
	c.died(first, point)
	c.stands(sites.Held)
	if specs := c.specs(); specs != c.seen[false] {
		c.Errorf("%s: the nodes have\n%s\nand had before\n%s", point, specs, c.seen[false])
	}
	resumed := c.ended(point, len(runs)+1, state.RunReverted)
	c.run("release", "-all") // three runs that fail within an hour hold the site
	c.put(c.revision(false))
	c.stands(sites.InSync)
	c.settled()
	return resumed
}

// ended fails unless there are so many runs, and the last one ended so. It returns 1 when that was begun by one keeper and ended by another.
func (c *crashes) ended(point string, n int, how state.RunStatus) int64 {
	c.Helper()
	runs, records := c.journals()
	if len(runs) != n || runs[0].Status != how {
		c.Errorf("%s: there are %d runs, want %d; the last one is %s, want %s", point, len(runs), n, runs[0].Status, how)
	}
	all := records[runs[0].ID]
	if all[0].Kind == journal.Begin && all[0].Epoch < all[len(all)-1].Epoch {
		return 1
	}
	return 0
}
