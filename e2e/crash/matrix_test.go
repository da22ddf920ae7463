package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// sample are the points that every test run tries.
var sample = []string{"run.open.before", "call.create.after", "journal.outcome.before", "journal.no-return.after", "undo.delete.after", "journal.end.before"}

// workers is how many plans are tried at the same time. Two cores are kept busy by more, because some calls are only
// retried after a while.
var workers = torture.Scale(4, 8, 16)

// A matrix counts what was tried at which point.
type matrix struct {
	t        *testing.T
	points   []string
	first    *torture.Coverage
	recovery *torture.Coverage

	mu     sync.Mutex
	left   map[string]int // cycles that a point still needs
	second map[string]int // recoveries that were to be killed at a point
	cycles int
	twice  int // cycles in which the recovery was killed as well
	ends   map[int]int
	spent  time.Duration
}

// Wherever converge is killed, and its recovery is killed, the site reaches the end that it would otherwise have reached.
func TestTortureKilled(t *testing.T) {
	t.Parallel()
	m := &matrix{t: t, points: failpoint.Points, left: map[string]int{}, second: map[string]int{}, ends: map[int]int{}}
	each := torture.Scale(1, 5, 330)
	switch {
	case *onlyPlan >= 0:
		each = 1
	case !torture.Full():
		m.points = sample
	}
	for _, p := range m.points {
		m.left[p] = each
	}
	if *onlyPlan < 0 {
		m.first = torture.Cover(t, "points at which an apply was killed", m.points)
		if torture.Full() {
			m.recovery = torture.Cover(t, "points at which a recovery was killed", m.points)
		}
	}
	begin := time.Now()
	seeds := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for seed := range seeds {
				if err := m.tryPlan(seed); err != nil {
					t.Errorf("plan %d: %v", seed, err)
				}
			}
		})
	}
	seed := 0
	for ; m.wanted() && !t.Failed() && *onlyPlan < 0 && seed < 10*each+10; seed++ {
		seeds <- seed
	}
	if *onlyPlan >= 0 {
		seeds <- *onlyPlan
	}
	close(seeds)
	wg.Wait()
	if *onlyPlan < 0 && !t.Failed() {
		for p, n := range m.left {
			if n > 0 {
				t.Errorf("%s: %d of %d cycles were tried", p, each-n, each)
			}
		}
		if m.twice*2 < m.cycles {
			t.Errorf("only %d of %d recoveries were killed", m.twice, m.cycles)
		}
	}
	took := time.Since(begin)
	torture.Report(t, "A", "%d cycles at %d points, %d plans, %d kills (%d in a recovery); ended applied %d, reverted %d, partial %d; %s a cycle (%s each, %d at a time)",
		m.cycles, len(m.points), seed, m.cycles+m.twice, m.twice, m.ends[0], m.ends[3], m.ends[4],
		(took / time.Duration(max(1, m.cycles))).Round(time.Millisecond), (m.spent / time.Duration(max(1, m.cycles))).Round(time.Millisecond), workers)
	if m.recovery != nil {
		t.Logf("apply killed: %s", m.first)
		t.Logf("recovery killed: %s", m.recovery)
	}
}

func (m *matrix) wanted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.left {
		if n > 0 {
			return true
		}
	}
	return false
}

// tryPlan draws a plan and tries it at the points that it reaches and that still need cycles.
func (m *matrix) tryPlan(seed int) error {
	t, err := makeTemplate(seed)
	if err != nil {
		return err
	}
	defer t.remove()
	r := rand.New(rand.NewPCG(uint64(seed), 2))
	for i, point := range m.points {
		// Points that every plan passes are spread over all plans.
		common := !strings.HasPrefix(point, "undo.") && !slices.Contains([]string{"journal.no-return.before", "journal.no-return.after", "journal.revert.before",
			"journal.revert.after", "settle.before", "settle.after", "verify.before", "verify.after"}, point)
		if t.points[point] == 0 || common && *onlyPlan < 0 && torture.Full() && (seed*7+i)%5 >= 3 || !m.take(point) {
			continue
		}
		nth := 1 + r.IntN(t.points[point])
		begin := time.Now()
		err := m.cycle(t, rand.New(rand.NewPCG(uint64(seed), uint64(100+i))), point, nth)
		m.mu.Lock()
		m.spent += time.Since(begin)
		m.mu.Unlock()
		if err != nil {
			return fmt.Errorf("killed at %s, time %d: %w", point, nth, err)
		}
	}
	return nil
}

// take takes one of the cycles that a point still needs.
func (m *matrix) take(point string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left[point] == 0 {
		return false
	}
	m.left[point]--
	return true
}

// cycle kills an apply at a point, kills its recovery, lets it recover, and checks the result.
func (m *matrix) cycle(t *template, r *rand.Rand, point string, nth int) (err error) {
	s, err := t.copy("cycle")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, s.report())
			if *keep != "" {
				err = errors.Join(err, exec.Command("cp", "-a", s.dir, filepath.Join(*keep, filepath.Base(s.dir))).Run())
			}
		}
		s.remove()
	}()
	killing, err := s.apply(fmt.Sprintf("%s:%d=kill", point, nth))
	switch {
	case err != nil:
		return err
	case !killing.killed():
		// With several steps at a time, fewer may have begun when one fails, even none that reaches this point. Such a cycle has
		// proven something else, and the point still needs one.
		if killing.code() != t.exit {
			return fmt.Errorf("it was not killed and ended with %d", killing.code())
		}
		m.mu.Lock()
		m.left[point]++
		m.mu.Unlock()
		return s.proven(t)
	}
	if m.first != nil {
		m.first.Reach(point)
	}
	rule := m.drawSecond(t, r, killing.passed())
	again := false
	for ended := false; !ended; rule = "" {
		p, done, err := s.recovery(t, rule)
		if err != nil {
			return err
		}
		if ended = done; p != nil && p.killed() {
			at, _, _ := strings.Cut(rule, ":")
			if !slices.Contains(p.passed(), at) {
				return fmt.Errorf("it was killed, yet not at %s", at)
			}
			again = true
			if m.recovery != nil {
				m.recovery.Reach(at)
			}
		}
	}
	m.mu.Lock()
	m.cycles++
	if again {
		m.twice++
	}
	m.ends[t.exit]++
	m.mu.Unlock()
	return s.proven(t)
}

// recovery does what an operator does after a crash: resume, or apply again when no run had begun. It reports whether the
// run has ended.
func (s *site) recovery(t *template, rule string) (p *process, ended bool, err error) {
	p, err = s.run(rule, s.resuming()...)
	if err != nil || p.killed() {
		return p, false, err
	}
	if p.code() == 1 && strings.Contains(p.said(), "there is no run to resume") {
		if p, err = s.apply(rule); err != nil || p.killed() {
			return p, false, err
		}
		if p.code() == 6 { // it had ended, and nothing reported it
			return nil, true, s.look(func(ctx context.Context, store *state.Store) error {
				run, _, err := last(ctx, store, t.plan)
				if err == nil && run.Status != statusOf[t.exit] {
					err = fmt.Errorf("the plan was already applied, and run %s is %s", run.ID, run.Status)
				}
				return err
			})
		}
	}
	if p.code() != t.exit {
		return p, false, fmt.Errorf("it ended with %d, want %d", p.code(), t.exit)
	}
	return p, true, nil
}

// drawSecond draws where the recovery is killed: at the least tried point so far, of those that it may pass after what the
// killed process did.
func (m *matrix) drawSecond(t *template, r *rand.Rand, passed []string) (rule string) {
	did := map[string]int{}
	for _, p := range passed {
		did[p]++
	}
	if did["journal.end.after"] > 0 && t.exit != 4 {
		return ""
	}
	begun := did["run.open.after"] > 0
	left := map[string]int{}
	for _, p := range failpoint.Points {
		n := t.points[p]
		switch {
		case n == 0 || !begun: // all of it is repeated
		case strings.HasPrefix(p, "document."), strings.HasPrefix(p, "plan."), strings.HasPrefix(p, "run."):
			n = 0
		case strings.HasPrefix(p, "lock."), strings.HasPrefix(p, "settle."), strings.HasPrefix(p, "verify."), strings.HasPrefix(p, "journal.end"):
			n = 1
		case strings.HasSuffix(p, ".before"): // what was begun may be begun again
			n -= did[strings.TrimSuffix(p, ".before")+".after"]
		default:
			n -= did[p]
		}
		if n > 0 {
			left[p] = n
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	least, chosen := 0, ""
	points := slices.Clone(failpoint.Points)
	r.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	for _, p := range points {
		if left[p] > 0 && (chosen == "" || m.second[p] < least) {
			least, chosen = m.second[p], p
		}
	}
	if chosen == "" {
		return ""
	}
	m.second[chosen]++
	nth := 1
	if r.IntN(2) == 0 {
		nth += r.IntN(left[chosen])
	}
	return fmt.Sprintf("%s:%d=kill", chosen, nth)
}
