package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// Wherever a rollback to a step is killed, and its recovery is killed, the run comes to that step: not further back, and not
// forward again.
func TestTortureKilledRollbackToStep(t *testing.T) {
	t.Parallel()
	base, run, keep := appliedPlan(t)
	defer base.remove()
	command := []string{"rollback", "-auto-approve", fmt.Sprintf("-to-step=%d", keep), run}
	ref, err := base.copy("reference")
	if err != nil {
		t.Fatal(err)
	}
	defer ref.remove()
	p, err := ref.run("", command...)
	if err != nil || p.code() != 0 {
		t.Fatalf("without a crash: %v\n%s", err, ref.report())
	}
	want, err := ref.dump()
	if err != nil {
		t.Fatal(err)
	}
	passed := p.passed()
	if want == base.before || !slices.Contains(passed, "undo.delete.after") {
		t.Fatalf("nothing was undone:\n%s", ref.report())
	}
	points := slices.Compact(slices.Sorted(slices.Values(passed)))
	if !torture.Full() {
		points = []string{"journal.revert.before", "journal.revert.after", "undo.delete.after", "journal.end.before"}
	}
	covered := torture.Cover(t, "points at which a rollback was killed", points)
	kills := 0
	for i, point := range points {
		n := 0
		for _, at := range passed {
			if at == point {
				n++
			}
		}
		s, err := base.copy("cycle")
		if err != nil {
			t.Fatal(err)
		}
		err = func() error {
			p, err := s.run(fmt.Sprintf("%s:%d=kill", point, 1+n/2), command...)
			if err == nil && !p.killed() {
				err = errors.New("it was not killed")
			}
			if err != nil {
				return err
			}
			// The recovery too, where it gets that far.
			again, err := s.run(points[(i+len(points)/2)%len(points)]+":1=kill", "resume")
			if err != nil {
				return err
			}
			if kills++; again.killed() {
				kills++
			}
			if p, err = s.run("", "resume"); err == nil && p.code() == 1 && strings.Contains(p.said(), "there is no run to resume") {
				p, err = s.run("", command...) // nothing had begun, or everything had ended
			}
			if err == nil && p.code() != 0 {
				err = fmt.Errorf("it ended with %d", p.code())
			}
			if err != nil {
				return err
			}
			return s.look(func(ctx context.Context, store *state.Store) error {
				got, err := store.Run(ctx, run)
				if err == nil && (got.Status != state.RunRolledBack || got.Kept != keep) {
					err = fmt.Errorf("the run is %s", got.Stands())
				}
				return err
			})
		}()
		if err == nil {
			var dump string
			if dump, err = s.dump(); err == nil && dump != want {
				err = fmt.Errorf("the world is not as without a crash:\n%s", difference(want, dump))
			}
		}
		if err != nil {
			t.Errorf("killed at %s: %v\n%s", point, err, s.report())
		}
		covered.Reach(point)
		s.remove()
	}
	torture.Report(t, "A", "a rollback to a step killed at %d points, %d kills: each came to that step", len(points), kills)
}

// appliedPlan returns a site on which a drawn plan was applied, the run, and a step in its middle to which it can be rolled back.
func appliedPlan(t *testing.T) (base *template, run string, keep int) {
	for seed := range 200 {
		drawn, err := makeTemplate(seed)
		if err != nil {
			t.Fatal(err)
		}
		keep = len(drawn.plan.Steps) / 2
		below, _ := drawn.plan.Whole(keep)
		removes := func(st plan.Step) bool { return st.Inverse() == plan.Delete }
		if !slices.ContainsFunc(drawn.plan.Steps[keep:], removes) || drawn.exit != 0 || len(drawn.plan.Irreversible()) > 0 || len(drawn.plan.Steps) < 4 || below < keep {
			drawn.remove()
			continue
		}
		s := drawn.site
		if p, err := s.apply(""); err != nil || p.code() != 0 {
			t.Fatalf("%v\n%s", err, s.report())
		}
		if err := s.look(func(ctx context.Context, store *state.Store) error {
			r, _, err := last(ctx, store, drawn.plan)
			run = r.ID
			return err
		}); err != nil {
			t.Fatal(err)
		}
		base = &template{site: s, plan: drawn.plan}
		if base.before, err = s.dump(); err != nil {
			t.Fatal(err)
		}
		return base, run, keep
	}
	t.Fatal("no seed draws such a plan")
	return nil, "", 0
}
