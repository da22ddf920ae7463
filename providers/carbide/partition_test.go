package carbide_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

func (s *site) all(noun string) []string {
	s.Helper()
	things, err := providers.Collect(s.kind(noun).List(s.Context()))
	if err != nil {
		s.Fatal(err)
	}
	var ids []string
	for _, th := range things {
		ids = append(ids, th.ID)
	}
	slices.Sort(ids)
	return ids
}

// TestPeeringAndItsVpc: a peering is deleted with either VPC, and its own delete then has nothing left to do.
func TestPeeringAndItsVpc(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{Peering: carbidesim.PeeringMixed}})
	for _, name := range []string{"one", "two"} {
		s.make("vpc", name, schema.Object{"tenant": "acme"})
	}
	c := s.make("vpc_peering", "both", schema.Object{"vpcs": []any{id("vpc", "two"), id("vpc", "one")}})
	if err := s.kind("vpc").Delete(t.Context(), call("vpc", "two")); err != nil {
		t.Fatal(err)
	}
	if ids := s.all("vpc_peering"); len(ids) != 0 {
		t.Errorf("the peerings %v outlive their VPC", ids)
	}
	s.ResetCalls()
	if err := s.kind("vpc_peering").Delete(t.Context(), c); err != nil {
		t.Error(err)
	}
	if n := s.Calls()["DeleteVpcPeering"]; n != 0 {
		t.Errorf("a peering that is gone was deleted %d times", n)
	}
}

// TestFailedPartition: waiting does not make a partition ready that the fabric refuses, and it can be deleted.
func TestFailedPartition(t *testing.T) {
	s := newSite(t, carbidesim.Options{Timing: lawTiming})
	c := s.make("ib_partition", "train", schema.Object{"tenant": "acme"})
	check := func(phase providers.Phase, state string) {
		t.Helper()
		th := s.see("ib_partition", c.ID)
		if th.Phase != phase || th.Status["state"] != state || (th.Detail == "") != (phase == providers.Ready) {
			t.Errorf("phase %s, state %v (%s), want %s and %s", th.Phase, th.Status["state"], th.Detail, phase, state)
		}
		if th.Status["allocated_pkey"] != "0x100" || th.Spec["pkey"] != nil {
			t.Errorf("the key is %v, asked for was %v", th.Status["allocated_pkey"], th.Spec["pkey"])
		}
	}
	check(providers.Pending, "provisioning")
	broken := forge.TenantState_FAILED
	if err := s.SetIBPartitionState(c.ID, &broken); err != nil {
		t.Fatal(err)
	}
	check(providers.Failed, "failed")
	if err := s.SetIBPartitionState(c.ID, nil); err != nil {
		t.Fatal(err)
	}
	s.Advance(time.Minute)
	check(providers.Ready, "ready")
	if err := s.kind("ib_partition").Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	check(providers.Deleting, "terminating")
	s.Advance(time.Minute)
	if ids := s.all("ib_partition"); len(ids) != 0 {
		t.Errorf("the partitions %v outlive their deletion", ids)
	}
}

// TestPartitionVersion: the version of a partition protects nothing, so none is reported; where a newer service begins to
// change it, a change between our read and our write is not overwritten.
func TestPartitionVersion(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	for noun, method := range map[string]string{"ib_partition": "UpdateIBPartition", "nvlink_logical_partition": "UpdateNVLinkLogicalPartition"} {
		c := s.make(noun, "p0", schema.Object{"tenant": "acme"})
		s.Advance(time.Minute)
		if v := s.see(noun, c.ID).Version; v != "" {
			t.Errorf("%s reports version %q", noun, v)
		}
		if err := s.Inject(carbidesim.Fault{Method: method, Effect: carbidesim.Before, Code: codes.FailedPrecondition}); err != nil {
			t.Fatal(err)
		}
		u := s.change(noun, "p0", c.ID, schema.Object{"description": "ours"})
		s.class("an update into which somebody came", s.kind(noun).Update(t.Context(), u), conflict)
	}
}

// TestForgottenPartition: a deleted NVLink partition is gone at once, whether or not the site ever forgets it, and its id is
// not used again.
func TestForgottenPartition(t *testing.T) {
	for _, without := range []bool{false, true} {
		s := newSite(t, carbidesim.Options{Timing: lawTiming, Rules: carbidesim.Rules{NoNVLink: without}})
		c := s.make("nvlink_logical_partition", "rack", schema.Object{"tenant": "acme", "description": "one rack"})
		k := s.kind("nvlink_logical_partition")
		if th := s.see("nvlink_logical_partition", c.ID); th.Name != "rack" || th.Status["state"] != "ready" || !th.Mark.IsZero() {
			t.Errorf("the partition is %+v", th)
		}
		if err := k.Delete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(s.Dump()), "TERMINATING") {
			t.Error("the site has forgotten the partition already: the test proves nothing")
		}
		if ids := s.all("nvlink_logical_partition"); len(ids) != 0 {
			t.Errorf("the partitions %v are listed", ids)
		}
		if things, err := k.Get(t.Context(), []string{c.ID}); err != nil || len(things) != 0 {
			t.Errorf("a look shows %v, %v", things, err)
		}
		s.class("its id again", k.Create(t.Context(), c), exists)
		s.class("an update", k.Update(t.Context(), c), absent)
		s.Advance(time.Hour)
		if err := k.Delete(t.Context(), c); err != nil {
			t.Errorf("without NVLink %v: deleting it again: %v", without, err)
		}
		if kept := strings.Contains(string(s.Dump()), "TERMINATING"); kept != without {
			t.Errorf("without NVLink %v: the site keeps it: %v", without, kept)
		}
	}
}

// TestSecondDelete: a Spectrum-X partition that is gone is not deleted again, because its number has another holder by now.
func TestSecondDelete(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{AutoSPXVNIs: carbidesim.Range{First: 100, Last: 110}}})
	k := s.kind("spx_partition")
	first := s.make("spx_partition", "east", schema.Object{"tenant": "acme"})
	if err := s.Inject(carbidesim.Fault{Method: "DeleteSpxPartition", Effect: carbidesim.ReplyLost}); err != nil {
		t.Fatal(err)
	}
	s.class("a delete without an answer", k.Delete(t.Context(), first), unknown)
	second := s.make("spx_partition", "west", schema.Object{"tenant": "acme"})
	for range 2 {
		if err := k.Delete(t.Context(), first); err != nil {
			t.Error(err)
		}
	}
	third := s.make("spx_partition", "north", schema.Object{"tenant": "acme"})
	vni := func(c providers.Call) any { return s.see("spx_partition", c.ID).Spec["vni"] }
	if vni(second) != int64(100) || vni(third) != int64(101) {
		t.Errorf("the partitions have the numbers %v and %v", vni(second), vni(third))
	}
	if n := s.Calls()["DeleteSpxPartition"]; n != 1 {
		t.Errorf("%d deletes were sent, want 1", n)
	}
	for _, k := range s.Kinds { // a delete in progress is waited for before the next
		if k.Name == "carbide.spx_partition" && !k.Traits.Eventual {
			t.Error("nothing makes the engine wait for a late delete")
		}
	}
	if err := s.Inject(carbidesim.Fault{Method: "FindSpxPartitionIds", Effect: carbidesim.Before}); err != nil {
		t.Fatal(err)
	}
	s.class("a delete before which the look failed", k.Delete(t.Context(), second), transient)
}

// TestNamelessPartition: strangers' partitions may have no name.
func TestNamelessPartition(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	if _, err := s.Stranger().CreateSpxPartition(t.Context(), &forge.SpxPartitionCreationRequest{TenantOrganizationId: "acme"}); err != nil {
		t.Fatal(err)
	}
	things, err := providers.Collect(s.kind("spx_partition").List(t.Context()))
	if err != nil || len(things) != 1 || things[0].Name != things[0].ID {
		t.Errorf("seen: %+v, %v", things, err)
	}
}
