package replicas

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/internal/torture"
	sites "converge.dev/converge/site"
	"converge.dev/converge/state"
)

// failures are ways in which a site agent fails, and how it comes back.
var failures = []struct {
	name       string
	fail, heal func(s *site, r *replica)
}{
	{"kill", func(_ *site, r *replica) { r.now.kill() }, nil},
	{"stop", func(_ *site, r *replica) { r.now.signal(syscall.SIGSTOP) }, func(_ *site, r *replica) { r.now.signal(syscall.SIGCONT) }},
	{"etcd", func(_ *site, r *replica) { r.etcd.cut(true); r.now.signal(syscall.SIGCONT) }, func(_ *site, r *replica) { r.etcd.cut(false) }},
	{"network", func(s *site, r *replica) { s.isolate(r, true); r.now.signal(syscall.SIGCONT) }, func(s *site, r *replica) { s.isolate(r, false) }},
}

// isolate cuts a site agent off from everything, or ends that.
func (s *site) isolate(r *replica, is bool) {
	r.etcd.cut(is)
	for _, n := range s.nodes {
		n.gates[r.nth].cut(is)
	}
}

// However the keeper fails, another one ends what it has begun, each change is made once, and the first one changes nothing more.
func TestTortureFailover(t *testing.T) {
	full(t)
	t.Parallel()
	const width = 8
	var cells []string
	for _, f := range failures {
		cells = append(cells, f.name+" idle", f.name+" in a run")
	}
	reached := torture.Cover(t, "failures of the keeper", cells)
	var mu sync.Mutex
	var took []time.Duration
	t.Cleanup(func() {
		slices.Sort(took)
		if n := len(took); n > 0 {
			torture.Report(t, "S", "%d failovers (%s): first effect of the next keeper after %.1f s (median), %.1f s (99th percentile); the lease has %v",
				n, reached, took[n/2].Seconds(), took[min(n-1, n*99/100)].Seconds(), state.DefaultTTL)
		}
	})
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 3)
			revision := func() string {
				return s.document(func(int) bed { return bed{tag: 100 + int(s.serial), ports: ports(width)} })
			}
			s.put(revision())
			s.stands(sites.InSync)
			want := int64(1 + width) // the bridge and its ports
			exactly := func() {
				t.Helper()
				for i, got := range s.effects() {
					if got != want {
						t.Errorf("%s was changed %d times, want %d", s.nodes[i].name, got, want)
					}
				}
			}
			exactly()
			for round := range torture.Scale(0, 2, 14) {
				name, rules, busy := f.name+" idle", "", round%2 == 1
				if busy {
					name, rules = f.name+" in a run", fmt.Sprintf("call.update.before:%d=stop", 3+round%10) // others are done, and others are in flight
				}
				old := s.hand(rules)
				if busy {
					s.put(revision())
					old.now.stopped()
				}
				epoch, err := s.store.Epoch(t.Context())
				s.must(err)
				begun := time.Now()
				f.fail(s, old)
				if !busy {
					s.put(revision())
				}
				s.stands(sites.InSync)
				want += width
				exactly()
				after := s.first(begun, epoch)
				mu.Lock()
				took = append(took, after)
				mu.Unlock()
				s.settled()
				runs, records := s.journals()
				resumed := records[runs[0].ID][0].Epoch <= epoch
				if len(runs) != 2+round || runs[0].Status != state.RunApplied || resumed != busy {
					t.Errorf("%s: there are %d runs, the last one is %s, and it was resumed: %v", name, len(runs), runs[0].Status, resumed)
				}
				if f.heal != nil { // it learns that it is no longer the keeper, and changes nothing
					from := len(old.now.out.String())
					f.heal(s, old)
					old.now.await(0, "this site agent no longer keeps the site", 1)
					old.now.await(from, "another site agent keeps the site; this one waits", 1)
					exactly()
					s.settled()
				}
				reached.Reach(name)
			}
		})
	}
}

// first returns how long after a failure somebody with a later epoch has made a change.
func (s *site) first(begun time.Time, epoch int64) time.Duration {
	s.Helper()
	_, records := s.journals()
	var first time.Time
	for _, all := range records {
		called := map[int]bool{} // not what was found to be done already
		for _, r := range all {
			switch {
			case r.Epoch <= epoch || r.Wall.Before(begun):
			case r.Kind == journal.Intent:
				called[r.Step] = true
			case r.Kind == journal.Outcome && called[r.Step] && (first.IsZero() || r.Wall.Before(first)):
				first = r.Wall
			}
		}
	}
	if first.IsZero() {
		s.Fatal("no later keeper has changed anything")
	}
	return first.Sub(begun)
}
