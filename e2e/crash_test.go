package e2e

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
)

// A moment is when a run is killed.
type moment struct {
	name   string
	faults func(s *site, p *plan.Plan) // declared before the apply starts
	flags  []string
	wait   func(p *process)
	ends   []int // statuses with which resume may end; nil: the run had not begun
}

var (
	applied  = []int{0}
	reverted = []int{3}
)

// stepOf returns the step that makes the call.
func stepOf(p *plan.Plan, method string) *plan.Step {
	for i := range p.Steps {
		if methodOf(&p.Steps[i]) == method {
			return &p.Steps[i]
		}
	}
	panic("no step calls " + method)
}

// during kills while a call is in progress and the site has not received it.
func during(method string, nth int) func(*site, *plan.Plan) {
	return func(s *site, _ *plan.Plan) {
		s.inject(carbidesim.Fault{Method: method, Nth: nth, Effect: carbidesim.Hang})
	}
}

// after kills when a call has had its effect, and neither its reply nor an observation has revealed it.
func after(method string) func(*site, *plan.Plan) {
	return func(s *site, p *plan.Plan) {
		s.inject(carbidesim.Fault{Method: method, Effect: carbidesim.ReplyLost}, lookAfter(stepOf(p, method), carbidesim.Hang))
	}
}

// failing makes the last step fail, so that everything is undone, in addition to other faults.
func failing(more func(*site, *plan.Plan)) func(*site, *plan.Plan) {
	return func(s *site, p *plan.Plan) {
		s.inject(carbidesim.Fault{Method: "CreateNetworkSegment", Effect: carbidesim.Before, Code: codes.InvalidArgument})
		more(s, p)
	}
}

// slow makes every call take long enough for a reader of the output to act in between.
func slow(s *site, _ *plan.Plan) {
	s.inject(carbidesim.Fault{Method: "*", Times: -1, Effect: carbidesim.Slow, Delay: 50 * time.Millisecond})
}

// lines waits for so many lines of a type in the output.
func lines(kind string, n int) func(*process) {
	return func(p *process) { p.await(&p.stdout, `"type":"`+kind+`"`, n) }
}

func hit(p *process) { p.s.struck() }

var oneByOne = []string{"-parallelism=1"}

var moments = []moment{
	{"before the run", during("FindTenantsByOrganizationIds", 1), nil, hit, nil},
	{"after the first step", slow, oneByOne, lines("apply_complete", 1), applied},
	{"after four steps", slow, nil, lines("apply_complete", 4), applied},
	{"after eight steps", slow, oneByOne, lines("apply_complete", 8), applied},
	{"in a create", during("CreateVpc", 1), nil, hit, applied},
	{"in an update", during("UpdateTenantKeyset", 1), oneByOne, hit, applied},
	{"in a delete", during("DeleteTenantKeyset", 1), nil, hit, applied},
	{"after a create", after("CreateVpc"), nil, hit, applied},
	{"after an update", after("UpdateNetworkSecurityGroup"), oneByOne, hit, applied},
	{"after a delete", after("DeleteTenantKeyset"), nil, hit, applied},
	{"at the start of the undoing", failing(slow), oneByOne, lines("rollback_start", 1), reverted},
	{"in the undoing of an update", failing(during("UpdateVpc", 2)), nil, hit, reverted},
	{"in the undoing of a create", failing(during("DeleteInstanceType", 1)), oneByOne, hit, reverted},
	{"in the undoing of a delete", failing(func(s *site, _ *plan.Plan) {
		s.inject(carbidesim.Fault{Method: "CreateTenantKeyset", Match: "old", Effect: carbidesim.Hang})
	}), nil, hit, reverted},
}

// Whenever the process is killed, resume brings the site to one of its two ends, with every thing there once; also when
// resume is killed itself.
func TestKilledRunIsResumed(t *testing.T) {
	t.Parallel()
	want := converged(t)
	for i, m := range moments {
		for j, twice := range []bool{false, true} {
			if !chosen(i + j) {
				continue
			}
			name := m.name
			if twice {
				name += ", twice"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s, p, before := planned(t)
				m.faults(s, p)
				a := s.start(append(append([]string{"apply", "-json"}, m.flags...), "plan")...)
				m.wait(a)
				a.kill()
				if code := a.cmd.ProcessState.ExitCode(); code != -1 {
					t.Fatalf("it was not killed but ended with %d:\n%s", code, a.report())
				}
				s.world.ClearFaults()
				if m.ends == nil {
					s.run(1, "resume").says("there is no run to resume")
					s.run(0, "apply", "plan")
					s.settled("after.cue")
					s.same(want)
					return
				}
				s.run(7, "apply", "-auto-approve", "-max-destroy=100%", "before.cue").says("converge resume " + s.lastRun().ID)
				if twice {
					slow(s, nil)
					r := s.start("resume", "-json", "-parallelism=1")
					r.await(&r.stdout, `"type":"(apply|rollback)_start"`, 1)
					r.kill()
					s.world.ClearFaults()
				}
				code := s.start("resume").wait()
				switch {
				case code == 0 && m.ends[0] == 0:
					s.settled("after.cue")
					s.same(want)
				case code == 3 && m.ends[0] == 3:
					s.settled("before.cue")
					s.same(before)
				default:
					t.Fatalf("resume ended with %d, want %v", code, m.ends)
				}
			})
		}
	}
}

// converged returns the world after an apply in which nothing went wrong.
func converged(t *testing.T) string {
	t.Helper()
	s, _, _ := planned(t)
	s.run(0, "apply", "plan").says("5 added, 6 changed, 1 destroyed")
	s.settled("after.cue")
	world := s.dump()
	for _, name := range []string{"vpc/staging", "network_segment/staging-a", "network_security_group/strict", "instance_type/cpu"} {
		found := 0
		for _, o := range s.world.Objects() {
			if nameOf(o) == name {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s is there %d times", name, found)
		}
	}
	if strings.Contains(world, "bob@acme") {
		t.Error("the old keyset is still there")
	}
	return world
}

// A call whose outcome was unknown when the process was killed is undone too, when the resumed run fails before it settles
// that call, whether it had its effect or not. The engine waits for a minute, as long as a call may be late, for each of
// them.
func TestUnknownCallIsUndone(t *testing.T) {
	t.Parallel()
	if !realRequired() {
		t.Skip("it waits for a minute of real time: set CONVERGE_REAL=1")
	}
	type attempt struct {
		name   string
		s      *site
		step   *plan.Step
		before string
		resume *process
	}
	var all []attempt // they wait at the same time
	for _, method := range []string{"DeleteTenantKeyset", "UpdateInstanceType", "UpdateTenant"} {
		for name, faults := range map[string]func(*site, *plan.Plan){"with effect": after(method), "without effect": during(method, 1)} {
			s, p, before := planned(t)
			during("CreateInstanceType", 1)(s, p)
			faults(s, p)
			a := s.start("apply", "plan")
			s.struck()
			a.kill()
			s.world.ClearFaults()
			s.inject(carbidesim.Fault{Method: "CreateInstanceType", Effect: carbidesim.Before, Code: codes.InvalidArgument})
			all = append(all, attempt{method + " " + name, s, stepOf(p, "CreateInstanceType"), before, s.start("resume", "-parallelism=1")})
		}
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			a.s.T = t
			a.s.reverted(a.resume.ended(3), a.step, a.before)
		})
	}
}
