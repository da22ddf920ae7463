package e2e

import (
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/providers/carbide/carbidesim"
)

// ended is a line about a step that was carried out.
var ended = regexp.MustCompile(`: (created|changed|destroyed) after `)

// A run goes on when the process ends that has served the store to it, in whatever way.
func TestRunOutlivesServerOfStore(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			s, _, _ := planned(t)
			s.inject(carbidesim.Fault{Method: "FindVpcIds", Effect: carbidesim.Hang})
			server := s.start("plan", "after.cue")
			s.struck()
			slow(s, nil)
			run := s.start("apply", "-parallelism=1", "plan")
			run.await(&run.stderr, ended.String(), 2)
			if pid, _, _ := strings.Cut(s.read(".converge/lock"), " "); pid != pidOf(server) {
				t.Errorf("the store is served by %s, not by %s", pid, pidOf(server))
			}
			s.must(server.cmd.Process.Signal(signal))
			server.wait()
			s.run(0, "lock", "status").says(pidOf(run))
			run.await(&run.stderr, ended.String(), 5)
			s.run(5, "resume").says(pidOf(run))
			run.ended(0).says("Apply complete!")
			s.world.ClearFaults()
			s.settled("after.cue")
		})
	}
}

// In a second terminal everything works while a run is under way, and a freeze stops the run before its next effect.
func TestSecondTerminal(t *testing.T) {
	t.Parallel()
	s, _, _ := planned(t)
	s.run(0, "put", "before.cue")
	s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Slow, Delay: 20 * time.Second}) // longer than a freeze takes
	run := s.start("apply", "-parallelism=1", "plan")
	s.struck()
	s.run(0, "freeze", "-reason=fire")
	done := len(ended.FindAllString(run.stderr.String(), -1))
	for _, args := range [][]string{
		{"plan", "after.cue"}, {"runs"}, {"state", "list"}, {"show"}, {"history"}, {"lock", "status"},
		{"hold", "set", "gpu-01", "-reason=a look at its fans"}, {"release", "gpu-01"},
	} {
		s.run(0, args...)
	}
	run.ended(4).says("fire")
	if n := len(ended.FindAllString(run.stderr.String(), -1)); n > done+1 {
		t.Errorf("%d steps were done under the freeze, want the one at most that was under way", n-done)
	}
	s.run(0, "freeze", "-off")
	s.run(0, "resume")
	s.settled("after.cue")
}

func pidOf(p *process) string { return strconv.Itoa(p.cmd.Process.Pid) }
