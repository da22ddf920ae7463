package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidesim/devcert"
)

// The exit statuses that scripts know from Terraform.
func TestDetailedExitCode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.run(2, "plan", "-detailed-exitcode", "before.cue").says("Plan: 8 to add, 0 to change, 0 to destroy")
	s.run(0, "plan", "before.cue")
	s.apply("before.cue")
	s.run(0, "plan", "-detailed-exitcode", "before.cue").says("No changes")
	s.run(0, "plan", "-detailed-exitcode").says("No changes")
	s.run(2, "plan", "-detailed-exitcode", "after.cue").says("5 to add, 6 to change, 1 to destroy")
	s.run(0, "apply", "-auto-approve", "before.cue").says("No changes")
	s.run(1, "plan", "-detailed-exitcode", "nowhere.cue").says("nowhere.cue")
}

// A saved plan is carried out as it is: without a question, and once.
func TestSavedPlanRunsOnce(t *testing.T) {
	t.Parallel()
	s, _, _ := planned(t)
	s.run(0, "show", "plan").says("5 to add, 6 to change, 1 to destroy")
	s.run(0, "apply", "-input=false", "plan").says("5 added, 6 changed, 1 destroyed")
	s.settled("after.cue")
	world := s.dump()
	s.run(6, "apply", "plan").says("the plan was already applied", s.lastRun().ID)
	s.same(world)
}

// A stale plan is refused, and the resource is named.
func TestStalePlanIsRefused(t *testing.T) {
	t.Parallel()
	s, _, _ := planned(t)
	s.stranger("mine now")
	world := s.dump()
	s.run(6, "apply", "plan").says("the plan is stale", "site/carbide.vpc/prod", "mine now", "Plan again")
	s.same(world)
	s.run(2, "drift").says("site/carbide.vpc/prod", "mine now")

	// What the plan does not touch may change.
	s.run(0, "plan", "-out=narrow", "-target=site/carbide.tenant/acme", "after.cue")
	s.run(0, "apply", "narrow").says("1 changed")
}

// Any answer but yes changes nothing.
func TestDeclinedApplyChangesNothing(t *testing.T) {
	t.Parallel()
	s, _, before := planned(t)
	s.run(1, "apply", "after.cue").says("standard input is not a terminal", "-auto-approve")
	s.same(before)
	for answer, status := range map[string]int{"no": 1, "y": 1, "": 1, "yes": 0} {
		user, terminal := openTerminal(s)
		p := s.prepare("apply", "after.cue")
		p.cmd.Stdin = terminal
		p.start()
		p.await(&p.stdout, "Only 'yes' will be accepted", 1)
		_, err := user.WriteString(answer + "\n")
		s.must(err)
		p.ended(status)
		if status == 0 {
			p.says("Apply complete!")
			s.settled("after.cue")
			break
		}
		p.says("Apply cancelled.", "Nothing was changed.")
		s.same(before)
	}
}

// openTerminal opens a terminal: what the user writes is what a program reads.
func openTerminal(s *site) (user, terminal *os.File) {
	s.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	s.must(err)
	s.must(unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	s.must(err)
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	s.must(err)
	s.Cleanup(func() {
		terminal.Close()
		user.Close()
	})
	return user, terminal
}

// While one process works, another is told which one it is.
func TestLockedSiteSaysWho(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if shared {
				newCluster(s, false)
			}
			s.apply("before.cue")
			s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Hang})
			first := s.start("apply", "-auto-approve", "after.cue")
			s.struck()
			pid := strconv.Itoa(first.cmd.Process.Pid)
			s.run(5, "apply", "-auto-approve", "before.cue", "-max-destroy=100%").says(pid, "apply", "-lock-timeout")
			s.run(0, "lock", "status").says(pid, "apply")
			first.kill()
			s.run(0, "resume", "-lock-timeout=1m")
			s.settled("after.cue")
		})
	}
}

// A process that is to wait for another takes its turn, and plans on what the other left.
func TestSecondApplyTakesItsTurn(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if shared {
				newCluster(s, false)
			}
			s.apply("before.cue")
			s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Slow, Delay: 2 * time.Second})
			first := s.start("apply", "-auto-approve", "after.cue")
			s.struck()
			second := s.start("apply", "-auto-approve", "-max-destroy=100%", "-lock-timeout=1m", "before.cue")
			first.ended(0)
			second.ended(7).says("needs its own approval") // it observed after the first had ended
			s.approved(0, "apply", "-auto-approve", "-max-destroy=100%", "before.cue")
			s.settled("before.cue")
		})
	}
}

// Ctrl-C once: what is in progress ends, nothing more is started, and resume continues from there.
func TestInterruptedApplyIsResumed(t *testing.T) {
	t.Parallel()
	for signal, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			s, _, _ := planned(t)
			slow(s, nil)
			a := s.start("apply", "-parallelism=1", "plan")
			a.await(&a.stderr, `: (created|changed|destroyed) after `, 2)
			s.must(a.cmd.Process.Signal(signal))
			a.ended(status).says("Gracefully shutting down", "converge resume")
			s.world.ClearFaults()
			if r := s.lastRun(); r.Status != "open" {
				t.Errorf("the run is %s", r.Status)
			}
			done := strings.Count(a.stderr.String(), " after ")
			if done >= steps {
				t.Errorf("all %d steps were done: the signal came too late", done)
			}
			s.run(0, "resume").says(fmt.Sprintf("%d already done", done), "Apply complete!")
			s.settled("after.cue")
		})
	}
}

// Of two processes that start at the same moment, exactly one acts.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if shared {
				newCluster(s, false)
			}
			s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Slow, Delay: 3 * time.Second}) // neither process is that late
			a, b := s.start("apply", "-auto-approve", "before.cue"), s.start("apply", "-auto-approve", "before.cue")
			codes := [2]int{a.wait(), b.wait()}
			winner, loser := a, b
			if codes[1] == 0 {
				winner, loser = b, a
				codes[0], codes[1] = codes[1], codes[0]
			}
			if codes[0] != 0 || codes[1] != 5 {
				t.Fatalf("exit statuses %v, want 0 and 5\n%s\n%s", codes, a.report(), b.report())
			}
			winner.says("Apply complete! Resources: 8 added")
			loser.says(strconv.Itoa(winner.cmd.Process.Pid))
			s.settled("before.cue")
			for _, method := range methods {
				if n := s.world.Calls()[method]; strings.HasPrefix(method, "Create") && method != "CreateTenantKeyset" && n > 1 {
					t.Errorf("%s was called %d times", method, n)
				}
			}
			if runs := s.run(0, "runs").stdout.String(); strings.Count(runs, "\n") != 2 {
				t.Errorf("there is not exactly one run:\n%s", runs)
			}
		})
	}
}

// A reader that goes away has read enough: that is no error, neither of a plan nor of a run.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	closed := func(args ...string) *process {
		r, w, err := os.Pipe()
		s.must(err)
		r.Close()
		defer w.Close()
		p := s.prepare(args...)
		p.cmd.Stdout = w
		p.start()
		return p
	}
	for _, args := range [][]string{{"plan", "before.cue"}, {"plan", "-json", "before.cue"}} {
		if p := closed(args...).ended(0); strings.Contains(p.stderr.String(), "broken pipe") {
			t.Errorf("%v: %s", args, p.stderr.String())
		}
	}
	closed("apply", "-json", "-auto-approve", "before.cue").ended(0)
	s.settled("before.cue")
	closed("apply", "-auto-approve", "after.cue").ended(0)
	s.settled("after.cue")
	closed("drift", "-json")
	closed("schema", "-json")
}

// A site that does not answer is named, and nothing waits for it for long.
func TestDeadSite(t *testing.T) {
	t.Parallel()
	s, _, _ := planned(t)
	world := s.dump()
	s.server.Stop()
	for _, args := range [][]string{{"plan"}, {"plan", "after.cue"}, {"drift"}, {"apply", "-auto-approve", "after.cue"}, {"apply", "plan"}} {
		s.run(8, append(args, "-timeout=30s")...).says(s.address)
	}
	s.same(world)
	s.run(0, "lock", "status").says("not locked")
	if runs := s.run(0, "runs").stdout.String(); strings.Count(runs, "\n") != 2 {
		t.Errorf("a run was opened although nothing could be seen:\n%s", runs)
	}
}

// A site that accepts connections and never answers is given up in time.
func TestSilentSite(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.inject(carbidesim.Fault{Method: "*", Times: -1, Effect: carbidesim.Hang})
	s.run(8, "plan", "before.cue").says(s.address)
	s.run(8, "plan", "-json", "before.cue").says(s.address)
}

// The wrong certificates are distinguished from a site that is away.
func TestRefusedCertificate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other, err := devcert.Ensure(filepath.Join(s.dir, "other"))
	s.must(err)
	s.write("converge.yaml", fmt.Sprintf("carbide:\n  address: %s\n  tls:\n    ca: %s\n    cert: %s\n    key: %s\n", s.address, s.certs.CA, other.ClientCert, other.ClientKey))
	s.run(8, "plan", "before.cue").says(s.address, "rejects the client certificate")
	s.write("converge.yaml", fmt.Sprintf("carbide:\n  address: %s\n  tls:\n    ca: %s\n    cert: %s\n    key: %s\n", s.address, other.CA, s.certs.ClientCert, s.certs.ClientKey))
	s.run(8, "plan", "before.cue").says(s.address, "is not signed by a CA in ")
}
