package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
)

// ended is a line about a step that was carried out.
var ended = regexp.MustCompile(`: (created|changed|destroyed) after `)

// A run continues when the process ends that has served the store to it, in whatever way.
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

// In a second terminal everything works while a run is in progress, and a freeze stops the run before its next effect.
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
		{"hold", "set", "-force", "gpu-01", "-reason=a look at its fans"}, {"release", "gpu-01"},
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

// For three minutes of an apply, everything works in a second terminal after each of its steps, and how long it takes is
// reported; then a freeze stops it.
func TestTortureSecondTerminal(t *testing.T) {
	t.Parallel()
	if torture.Scale(0, 0, 1) == 0 {
		t.Skip("it takes three minutes: set CONVERGE_TORTURE=nightly")
	}
	s, p, _ := planned(t)
	for i := range p.Steps {
		s.inject(carbidesim.Fault{Method: methodOf(&p.Steps[i]), Effect: carbidesim.Slow, Delay: 18 * time.Second})
	}
	took := map[string][]time.Duration{}
	timed := func(args ...string) {
		begun := time.Now()
		s.run(0, args...)
		took[args[0]] = append(took[args[0]], time.Since(begun).Round(time.Millisecond))
	}
	begun := time.Now()
	run := s.start("apply", "-parallelism=1", "plan")
	run.await(&run.stderr, "creating…|changing…|destroying…", 1)
	for done := range len(p.Steps) - 1 {
		run.await(&run.stderr, ended.String(), done)
		timed("plan", "after.cue")
		timed("hold", "set", "-force", "gpu-01", "-reason=a look at its fans")
		timed("release", "gpu-01")
		timed("runs")
		before := time.Now()
		follow := s.start("runs", "-follow")
		follow.await(&follow.stdout, "Run ", 1)
		took["runs -follow"] = append(took["runs -follow"], time.Since(before).Round(time.Millisecond))
		follow.kill()
	}
	timed("freeze", "-reason=fire")
	done := len(ended.FindAllString(run.stderr.String(), -1))
	run.ended(4).says("fire")
	lasted := time.Since(begun)
	if n := len(ended.FindAllString(run.stderr.String(), -1)); n > done+1 {
		t.Errorf("%d steps were done under the freeze, want the one at most that was under way", n-done)
	}
	var figures []string
	for _, command := range slices.Sorted(maps.Keys(took)) {
		all := slices.Sorted(slices.Values(took[command]))
		figures = append(figures, fmt.Sprintf("%s %s (%s)", command, all[len(all)/2], all[len(all)-1]))
	}
	torture.Report(t, "E", "a second terminal beside an apply of %s: median and longest: %s; a freeze was obeyed before the next effect", lasted.Round(time.Second), strings.Join(figures, ", "))
	s.world.ClearFaults()
	s.run(0, "freeze", "-off")
	s.run(0, "resume")
	s.settled("after.cue")
}

// A process that follows a run sees its steps begin and end, and how it ends, whichever process serves the store meanwhile.
func TestFollow(t *testing.T) {
	t.Parallel()
	s, p, _ := planned(t)
	s.run(0, "runs", "-follow").says("No run is open")
	s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Before, Code: codes.InvalidArgument},
		carbidesim.Fault{Method: "UpdateVpc", Effect: carbidesim.Slow, Delay: 5 * time.Second}) // longer than it takes to start following
	slow(s, nil)
	run := s.start("apply", "-parallelism=1", "plan")
	run.await(&run.stderr, ended.String(), 1)
	text, lines, brief := s.start("runs", "-follow"), s.start("runs", "-follow", "-json"), s.start("runs", "-follow")
	brief.await(&brief.stdout, ended.String(), 1)
	s.must(brief.cmd.Process.Signal(syscall.SIGINT))
	brief.ended(130)
	run.ended(3)
	text.ended(0)
	lines.ended(0)
	failed := stepOf(p, "CreateVpc").Ref.String()
	for _, line := range strings.Split(run.stderr.String(), "\n") {
		if began, ok := strings.CutSuffix(line, "…"); ok && !strings.Contains(line, "still") && !strings.Contains(line, "Observing") && strings.HasPrefix(line, "site/") {
			text.says(began)
		}
	}
	text.says("Run "+s.lastRun().ID, failed+": creation failed after ", "Reverting ", "Apply failed and was reverted")
	lines.says(`"type":"apply_start"`, `"type":"apply_complete"`, `"type":"apply_errored"`, `"type":"rollback_complete"`, s.lastRun().ID)
	if text.stderr.String() != "" {
		t.Errorf("standard error has %s", text.stderr.String())
	}
	s.world.ClearFaults()
	s.settled("before.cue")
}

func pidOf(p *process) string { return strconv.Itoa(p.cmd.Process.Pid) }
