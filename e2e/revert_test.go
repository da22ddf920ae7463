package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers/carbide/forge"
)

// methods are the calls by which the steps from before.cue to after.cue act, by action and kind: each belongs to one.
var methods = map[string]string{
	"update carbide.tenant":                 "UpdateTenant",
	"create carbide.tenant_keyset":          "CreateTenantKeyset",
	"update carbide.tenant_keyset":          "UpdateTenantKeyset",
	"delete carbide.tenant_keyset":          "DeleteTenantKeyset",
	"create carbide.instance_type":          "CreateInstanceType",
	"update carbide.instance_type":          "UpdateInstanceType",
	"create carbide.network_security_group": "CreateNetworkSecurityGroup",
	"update carbide.network_security_group": "UpdateNetworkSecurityGroup",
	"create carbide.vpc":                    "CreateVpc",
	"update carbide.vpc":                    "UpdateVpc",
	"update carbide.vpc_prefix":             "UpdateVpcPrefix",
	"create carbide.network_segment":        "CreateNetworkSegment",
}

// looks are the calls by which things are observed, by kind.
var looks = map[string]string{
	"carbide.tenant":                 "FindTenantsByOrganizationIds",
	"carbide.tenant_keyset":          "FindTenantKeysetsByIds",
	"carbide.instance_type":          "FindInstanceTypesByIds",
	"carbide.network_security_group": "FindNetworkSecurityGroupsByIds",
	"carbide.vpc":                    "FindVpcsByIds",
	"carbide.vpc_prefix":             "GetVpcPrefixes",
	"carbide.network_segment":        "FindNetworkSegmentsByIds",
}

const steps = 12

// planned brings a new site to before.cue and plans the twelve steps to after.cue, which can all be undone.
func planned(t *testing.T) (s *site, p *plan.Plan, before string) {
	t.Helper()
	s = newSite(t)
	s.apply("before.cue")
	p = s.plan("after.cue", "plan")
	if len(p.Steps) != steps || p.NoReturn != steps {
		t.Fatalf("%d steps, of which the first %d can be undone, want %d", len(p.Steps), p.NoReturn, steps)
	}
	used := map[string]bool{}
	for i := range p.Steps {
		m := methodOf(&p.Steps[i])
		if m == "" || used[m] {
			t.Fatalf("step %s %s has no call of its own: %q", p.Steps[i].Action, p.Steps[i].Ref, m)
		}
		used[m] = true
	}
	return s, p, s.dump()
}

func methodOf(s *plan.Step) string { return methods[string(s.Action)+" "+s.Ref.Kind] }

// callsOf returns how many calls a step takes: what a security group permits is added before what it denies.
func callsOf(s *plan.Step) int {
	if methodOf(s) == "UpdateNetworkSecurityGroup" {
		return 2
	}
	return 1
}

// reverted fails unless the last apply reported that the step failed and that everything was undone and verified, and left
// the world as it was.
func (s *site) reverted(p *process, failed *plan.Step, before string) {
	s.Helper()
	p.says("failed and was reverted: ", failed.Ref.String()+": ")
	if !strings.Contains(p.stdout.String(), failed.Ref.String()+": ") {
		s.Errorf("the report does not name %s:\n%s", failed.Ref, p.stdout.String())
	}
	s.same(before)
	if run := s.lastRun(); run.Status != "reverted" || run.Failed != failed.Ref.String() {
		s.Errorf("the run is recorded as %+v", run)
	}
	s.settled("before.cue")
}

// Whichever of twelve steps is refused, the site is as it was before, byte for byte.
func TestRefusedStepIsReverted(t *testing.T) {
	t.Parallel()
	for n := range steps {
		if !chosen(n) {
			continue
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s, p, before := planned(t)
			step := &p.Steps[n]
			t.Logf("%s %s", step.Action, step.Ref)
			s.inject(carbidesim.Fault{Method: methodOf(step), Times: callsOf(step), Effect: carbidesim.Before, Code: codes.InvalidArgument})
			a := s.run(3, "apply", "-parallelism=1", "plan")
			done := len(regexp.MustCompile(`(?m): (created|changed|destroyed) after `).FindAllString(a.stderr.String(), -1))
			if done == 0 {
				a.says("Nothing left to revert")
			} else {
				things := fmt.Sprintf("the %d objects of this run are as they were before, verified by observing again", done)
				if done == 1 {
					things = "the one object of this run is as it was before, verified by observing again"
				}
				a.says(fmt.Sprintf("Reverting %d step", done), things)
			}
			s.reverted(a, step, before)
		})
	}
}

// The same with ten steps at a time: those that were in progress beside the refused one are undone as well.
func TestRefusedStepAmongOthersIsReverted(t *testing.T) {
	t.Parallel()
	for n := range steps {
		if !chosen(n + 1) { // the others
			continue
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s, p, before := planned(t)
			step := &p.Steps[n]
			s.inject(carbidesim.Fault{Method: methodOf(step), Times: callsOf(step), Effect: carbidesim.Before, Code: codes.InvalidArgument})
			s.reverted(s.run(3, "apply", "plan"), step, before)
		})
	}
}

// Whichever of twelve calls is carried out without a reply, its outcome is determined by an observation, and it is not
// repeated.
func TestLostReplyIsSettledByLooking(t *testing.T) {
	t.Parallel()
	for n := range steps {
		if !chosen(n) {
			continue
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s, p, _ := planned(t)
			step := &p.Steps[n]
			effect := []carbidesim.Effect{carbidesim.ReplyLost, carbidesim.Cut}[n/2%2]
			s.inject(carbidesim.Fault{Method: methodOf(step), Effect: effect})
			s.world.ResetCalls()
			s.run(0, "apply", "plan").says("Apply complete!")
			if got, want := s.world.Calls()[methodOf(step)], callsOf(step); got != want {
				t.Errorf("%s was called %d times, want %d", methodOf(step), got, want)
			}
			s.settled("after.cue")
		})
	}
}

// Whichever of twelve calls is carried out without a reply and cannot be observed afterwards, the step has failed with an
// unseen effect; it is undone nevertheless. Before that the engine waits as long as the call could still have its effect,
// which is a minute.
func TestLostReplyThatCannotBeSettledIsReverted(t *testing.T) {
	t.Parallel()
	if !realRequired() {
		t.Skip("it waits for a minute of real time: set CONVERGE_REAL=1")
	}
	type attempt struct {
		s      *site
		step   *plan.Step
		before string
		apply  *process
	}
	var all []attempt // they wait at the same time
	for n := range steps {
		if !chosen(n + 1) {
			continue
		}
		s, p, before := planned(t)
		step := &p.Steps[n]
		s.inject(carbidesim.Fault{Method: methodOf(step), Effect: carbidesim.ReplyLost}, lookAfter(step, carbidesim.Before))
		all = append(all, attempt{s, step, before, s.start("apply", "plan")})
	}
	for _, a := range all {
		t.Run(a.step.Ref.Name, func(t *testing.T) {
			a.s.T = t
			a.apply.ended(3)
			if f := a.s.world.Faults(); len(f) > 0 {
				t.Errorf("these faults met no call: %v", f)
			}
			a.s.reverted(a.apply, a.step, a.before)
		})
	}
}

// lookAfter returns a fault of the observation that follows the call of a step when a saved plan is applied. The thing was
// observed before to make sure that the plan is not stale, right before a change, and for the version that a change is based
// on; what is missing is requested twice.
func lookAfter(s *plan.Step, e carbidesim.Effect) carbidesim.Fault {
	before := map[plan.Action]int{plan.Create: 2, plan.Update: 3, plan.Delete: 2}[s.Action]
	id := s.ExternalID[strings.LastIndexByte(s.ExternalID, '/')+1:] // a keyset is requested by tenant and name
	return carbidesim.Fault{Method: looks[s.Ref.Kind], Match: id, Effect: e, Code: codes.PermissionDenied, Nth: before + 1}
}

// Replies that are lost while everything is undone do not change its end.
func TestLostReplyWhileUndoing(t *testing.T) {
	t.Parallel()
	faults := map[string]carbidesim.Fault{
		"create of a VPC":           {Method: "DeleteVpc"},
		"create of a group":         {Method: "DeleteNetworkSecurityGroup"},
		"create of a type":          {Method: "DeleteInstanceType"},
		"create of a keyset":        {Method: "DeleteTenantKeyset", Match: "new"},
		"delete of a keyset":        {Method: "CreateTenantKeyset", Match: "old"},
		"update of a VPC":           {Method: "UpdateVpc", Nth: 2},
		"update of a prefix":        {Method: "UpdateVpcPrefix", Nth: 2},
		"update of a group":         {Method: "UpdateNetworkSecurityGroup", Nth: 2},
		"update of a type":          {Method: "UpdateInstanceType", Nth: 2},
		"update of a keyset":        {Method: "UpdateTenantKeyset", Nth: 2},
		"update of a tenant":        {Method: "UpdateTenant", Nth: 2},
		"look at what was reverted": {Method: "FindVpcsByIds", Nth: 9},
	}
	for i, name := range slices.Sorted(maps.Keys(faults)) {
		for j, effect := range []carbidesim.Effect{carbidesim.ReplyLost, carbidesim.Cut} {
			if !chosen(i + 3*j) {
				continue
			}
			f := faults[name]
			t.Run(name+" "+string(effect), func(t *testing.T) {
				t.Parallel()
				s, p, before := planned(t)
				f.Effect = effect
				s.inject(carbidesim.Fault{Method: "CreateNetworkSegment", Effect: carbidesim.Before, Code: codes.InvalidArgument}, f)
				a := s.run(3, "apply", "plan")
				if left := s.world.Faults(); len(left) > 0 {
					t.Errorf("these faults met no call: %v", left)
				}
				s.reverted(a, stepOf(p, "CreateNetworkSegment"), before)
			})
		}
	}
}

// What another client changes while a run is in progress is not overwritten: the step that finds it fails, the rest is
// undone, and the other's change stays.
func TestStrangerDuringRunIsRespected(t *testing.T) {
	t.Parallel()
	s, _, before := planned(t)
	s.inject(carbidesim.Fault{Method: "CreateInstanceType", Effect: carbidesim.Slow, Delay: 2 * time.Second})
	a := s.start("apply", "-parallelism=1", "plan")
	s.struck()
	s.stranger("mine now")
	a.ended(3).says("site/carbide.vpc/prod", "it changed since the plan was made", "was reverted: ")
	s.same(strings.Replace(before, `"description": "Production"`, `"description": "mine now"`, 1))
	s.run(2, "drift").says("site/carbide.vpc/prod", "mine now")
	s.apply("before.cue")
	s.settled("before.cue")
	s.same(before)
}

// stranger changes the description of the VPC prod behind converge's back.
func (s *site) stranger(description string) {
	s.Helper()
	for _, o := range s.world.Objects() {
		if nameOf(o) != "vpc/prod" {
			continue
		}
		v := o.Message.(*forge.Vpc)
		_, err := s.world.Stranger().UpdateVpc(s.ctx, &forge.VpcUpdateRequest{
			Id: v.GetId(), Metadata: &forge.Metadata{Name: "prod", Description: description, Labels: v.GetMetadata().GetLabels()},
			NetworkSecurityGroupId: v.NetworkSecurityGroupId,
		})
		s.must(err)
		return
	}
	s.Fatal("there is no VPC prod")
}

// When undoing fails too, the site is held, the run reports what is not as it should be, and resume finishes the undoing
// once the cause is gone.
func TestFailedUndoIsHeldAndResumed(t *testing.T) {
	t.Parallel()
	s, p, before := planned(t)
	last := &p.Steps[steps-1]
	s.inject(
		carbidesim.Fault{Method: methodOf(last), Effect: carbidesim.Before, Code: codes.InvalidArgument},
		carbidesim.Fault{Method: "DeleteInstanceType", Effect: carbidesim.Before, Code: codes.PermissionDenied, Times: -1})
	a := s.run(4, "apply", "plan")
	a.says("left the site in an intermediate state", "Not as expected:", "site/carbide.instance_type/cpu: ", "converge resume "+s.lastRun().ID, last.Ref.String())
	_, list, _ := strings.Cut(a.stdout.String(), "Not as expected:\n")
	if list, _, _ = strings.Cut(list, "To resume:"); strings.Count(list, "\n") != 1 {
		t.Errorf("one thing is not as it should be, and the report lists:\n%s", list)
	}
	s.run(0, "hold", "list").says("site", s.lastRun().ID, "ended partial (differences: 1)")
	s.run(7, "apply", "-auto-approve", "before.cue").says("is on hold")

	// Still refused: nothing is lost.
	s.run(4, "resume").says("site/carbide.instance_type/cpu: ")

	s.world.ClearFaults()
	r := s.run(3, "resume")
	s.reverted(r, last, before)
}
