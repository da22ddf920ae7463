package e2e

import (
	"fmt"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
)

// A successful run can later be undone as a whole, as long as every step of it can.
func TestRollbackOfAppliedRun(t *testing.T) {
	t.Parallel()
	s, _, before := planned(t)
	s.run(0, "apply", "plan")
	run := s.lastRun().ID
	s.run(0, "rollback", "-auto-approve", run).says("was reverted", "the 12 objects of this run are as they were before, verified by observing again")
	s.same(before)
	s.settled("before.cue")
	s.run(1, "rollback", "-auto-approve", run).says("already reverted")
	s.run(1, "resume", run).says("nothing to resume")

	// What was undone can be applied again, with the same end.
	s.apply("after.cue")
	s.settled("after.cue")
}

// A run that was made to stop where it failed continues when the cause is gone, or is undone.
func TestStoppedRunGoesOnOrBack(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprintf("back=%v", back), func(t *testing.T) {
			t.Parallel()
			s, p, before := planned(t)
			s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Before, Code: codes.InvalidArgument})
			a := s.run(4, "apply", "-on-failure=stop", "plan")
			run := s.lastRun().ID
			a.says("stopped after", "site/carbide.vpc/staging", "site/carbide.network_segment/staging-a: create was not started", "converge resume "+run, "converge rollback "+run)
			if got := s.lastRun().Failed; got != stepOf(p, "CreateVpc").Ref.String() {
				t.Errorf("the run says that %s failed", got)
			}
			if back {
				s.run(0, "rollback", "-auto-approve", run)
				s.same(before)
				s.settled("before.cue")
				return
			}
			s.run(0, "resume").says("Apply complete!")
			s.settled("after.cue")
		})
	}
}

// Ctrl-C twice: the process exits although a call hangs; resume determines the outcome of the call.
func TestSecondInterruptLeavesAtOnce(t *testing.T) {
	t.Parallel()
	s, _, _ := planned(t)
	s.inject(carbidesim.Fault{Method: "UpdateVpc", Effect: carbidesim.Hang})
	a := s.start("apply", "plan")
	s.struck()
	s.must(a.cmd.Process.Signal(syscall.SIGINT))
	a.await(&a.stderr, "Gracefully shutting down", 1)
	s.must(a.cmd.Process.Signal(syscall.SIGINT))
	a.ended(130).says("converge resume")
	s.run(0, "resume")
	s.settled("after.cue")
}

// Ctrl-C while converge only observes ends it at once, and nothing is left to settle.
func TestInterruptedPlan(t *testing.T) {
	t.Parallel()
	s, _, before := planned(t)
	for _, command := range [][]string{{"plan", "after.cue"}, {"drift"}, {"apply", "-auto-approve", "after.cue"}} {
		s.inject(carbidesim.Fault{Method: "FindVpcIds", Effect: carbidesim.Hang})
		a := s.start(command...)
		s.struck()
		s.must(a.cmd.Process.Signal(syscall.SIGINT))
		a.ended(130)
	}
	s.same(before)
	s.settled("before.cue")
}

// Two resumes of one run: one settles it, the other is told so.
func TestTwoResumes(t *testing.T) {
	t.Parallel()
	s, _, _ := planned(t)
	s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Hang}, carbidesim.Fault{Method: "CreateVpc", Nth: 2, Effect: carbidesim.Hang})
	a := s.start("apply", "plan")
	s.until("the first call hangs", func() bool { return len(s.world.Faults()) == 1 })
	a.kill()
	first := s.start("resume")
	s.struck()
	s.run(5, "resume").says(fmt.Sprint(first.cmd.Process.Pid))
	first.kill()
	s.run(0, "resume")
	s.settled("after.cue")
}
