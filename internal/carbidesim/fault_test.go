package carbidesim

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers/carbide/forge"
)

func (b *workbench) inject(f Fault) {
	b.Helper()
	if err := b.world.Inject(f); err != nil {
		b.Fatal(err)
	}
}

func TestFaultEffects(t *testing.T) {
	for _, c := range []struct {
		fault    Fault
		code     codes.Code
		happened bool
	}{
		{Fault{Effect: Before}, codes.Unavailable, false},
		{Fault{Effect: Before, Code: codes.Internal}, codes.Internal, false},
		{Fault{Effect: After, Code: codes.Internal}, codes.Internal, true},
		{Fault{Effect: ReplyLost}, codes.Unavailable, true},
		{Fault{Effect: ReplyLost, Code: codes.DeadlineExceeded}, codes.DeadlineExceeded, true},
		{Fault{Effect: Cut}, codes.Unavailable, true},
		{Fault{Effect: Slow, Delay: time.Microsecond}, codes.OK, true},
	} {
		b := start(t, Options{})
		c.fault.Method = "CreateVpc"
		b.inject(c.fault)
		_, err := b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(1))})
		if status.Code(err) != c.code {
			t.Errorf("%s: got %v, want %s", c.fault.Effect, err, c.code)
		}
		if got := len(ok(b.FindVpcIds(ctx, &forge.VpcSearchFilter{})).VpcIds) == 1; got != c.happened {
			t.Errorf("%s: happened is %v", c.fault.Effect, got)
		}
		// The fault is spent: the same create reports what the site has.
		again := failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(1))}))
		if want := map[bool]codes.Code{true: codes.Internal, false: codes.OK}[c.happened]; status.Code(again) != want {
			t.Errorf("%s: repeated call: %v", c.fault.Effect, again)
		}
	}
}

// A call that hangs, or is slow, waits: it ends with its caller, and nothing has happened.
func TestAWaitingCallEndsWithItsCaller(t *testing.T) {
	for _, fault := range []Fault{{Effect: Hang}, {Effect: Slow, Delay: time.Hour}} {
		b := start(t, Options{})
		fault.Method = "CreateVpc"
		b.inject(fault)
		mine, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- failed(b.CreateVpc(mine, &forge.VpcCreationRequest{})) }()
		for b.world.Calls()["CreateVpc"] == 0 { // until it has arrived
			ok(b.Version(ctx, &forge.VersionRequest{}))
		}
		cancel()
		b.refuses(<-ended, codes.Canceled, "")
		if got := ok(b.FindVpcIds(ctx, &forge.VpcSearchFilter{})).VpcIds; len(got) != 0 {
			t.Errorf("a call that is %s has happened: %v", fault.Effect, got)
		}
	}
}

func TestALateCallHappensWhenItsCallerHasGone(t *testing.T) {
	b := start(t, Options{})
	vpcs := func() int { return len(ok(b.FindVpcIds(ctx, &forge.VpcSearchFilter{})).VpcIds) }
	b.inject(Fault{Method: "CreateVpc", Effect: Late, Delay: time.Minute, Code: codes.DeadlineExceeded})
	mine, cancel := context.WithCancel(ctx)
	b.refuses(failed(b.CreateVpc(mine, &forge.VpcCreationRequest{Id: vpcID(uid(1))})), codes.DeadlineExceeded, "late")
	cancel()
	b.world.ClearFaults()
	b.world.Advance(59 * time.Second)
	if n := vpcs(); n != 0 {
		t.Errorf("before its time the call has happened: %d VPCs", n)
	}
	b.world.Advance(time.Second)
	if n := vpcs(); n != 1 {
		t.Errorf("after its time the call has not happened: %d VPCs", n)
	}
	// What conflicts with it by then refuses it.
	b.inject(Fault{Method: "CreateVpc", Effect: Late, Delay: time.Minute})
	_ = failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(2))}))
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(2))}))
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(2))}))
	b.world.Advance(time.Hour)
	if n := vpcs(); n != 1 {
		t.Errorf("a late call used a burned id: %d VPCs", n)
	}
}

func TestAnswersThatAreNotWhole(t *testing.T) {
	b := start(t, Options{})
	for i := range byte(5) {
		ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(i + 1))}))
	}
	listed := func() int { return len(ok(b.FindVpcIds(ctx, &forge.VpcSearchFilter{})).VpcIds) }
	b.inject(Fault{Method: "*", Effect: Half, Times: 2})
	b.inject(Fault{Method: "FindVpcsByIds", Effect: Half, Nth: 2})
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(6))})) // a call that does not read
	if n := listed(); n != 3 {
		t.Errorf("half of 6 ids are %d", n)
	}
	asked := &forge.VpcsByIdsRequest{VpcIds: []*forge.VpcId{vpcID(uid(1)), vpcID(uid(2)), vpcID(uid(3))}}
	got := ok(b.FindVpcsByIds(ctx, asked)).Vpcs
	if len(got) != 1 || got[0].Id.Value != uid(2) {
		t.Errorf("half of three VPCs are %v", got)
	}
	if n := len(ok(b.FindVpcsByIds(ctx, asked)).Vpcs); n != 1 {
		t.Errorf("the second call is not hit: %d", n)
	}
	if n := listed(); n != 6 {
		t.Errorf("afterwards %d are listed", n)
	}

	b.inject(Fault{Method: "FindVpcIds", Effect: Stale, Times: 2})
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(7))}))
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))}))
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(2))}))
	for i, want := range []int{6, 6, 5} {
		if n := listed(); n != want {
			t.Errorf("look %d shows %d, want %d", i+1, n, want)
		}
	}
	for _, f := range []Fault{{Method: "CreateVpc", Effect: Half}, {Method: "DeleteVpc", Effect: Stale}} {
		if b.world.Inject(f) == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
}

func TestWhichCallsAFaultHits(t *testing.T) {
	b := start(t, Options{})
	hits := func(n int) string {
		out := ""
		for i := range n {
			name := []string{"even", "odd"}[i%2]
			if _, err := b.CreateVpc(ctx, &forge.VpcCreationRequest{Metadata: named(name)}); err != nil {
				out += "x"
			} else {
				out += "."
			}
		}
		return out
	}
	for _, c := range []struct {
		fault Fault
		want  string
	}{
		{Fault{Method: "CreateVpc"}, "x....."},
		{Fault{Method: "CreateVpc", Nth: 3}, "..x..."},
		{Fault{Method: "CreateVpc", Nth: 2, Times: 3}, ".xxx.."},
		{Fault{Method: "CreateVpc", Times: -1}, "xxxxxx"},
		{Fault{Method: "CreateVpc", Nth: 2, Every: 3, Times: -1}, ".x..x."},
		{Fault{Method: "CreateVpc", Every: 2, Times: 2}, "x.x..."},
		{Fault{Method: "*", Match: "odd", Nth: 2, Times: 9}, "...x.x"},
		{Fault{Method: "DeleteVpc", Times: -1}, "......"},
	} {
		c.fault.Effect = Before
		b.inject(c.fault)
		if got := hits(6); got != c.want {
			t.Errorf("%+v hit %s, want %s", c.fault, got, c.want)
		}
		b.world.ClearFaults()
	}
	// A match looks into lists and inner messages as well.
	b.inject(Fault{Method: "*", Match: uid(7), Effect: Before})
	b.refuses(failed(b.FindVpcsByIds(ctx, &forge.VpcsByIdsRequest{VpcIds: []*forge.VpcId{vpcID(uid(1)), vpcID(uid(7))}})), codes.Unavailable, "injected")
	b.inject(Fault{Method: "*", Match: "a-tenant", Effect: Before})
	b.refuses(failed(b.FindTenantsByOrganizationIds(ctx, &forge.TenantByOrganizationIdsRequest{OrganizationIds: []string{"one", "a-tenant"}})), codes.Unavailable, "injected")
	if len(b.world.Faults()) != 0 {
		t.Errorf("spent faults are listed: %v", b.world.Faults())
	}
	for _, f := range []Fault{{Method: "MakeVpc", Effect: Before}, {Method: "*", Effect: "sideways"}} {
		if b.world.Inject(f) == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
}

func TestFaultJSON(t *testing.T) {
	for _, f := range []Fault{
		{Method: "*", Effect: Hang},
		{Method: "CreateVpc", Match: "prod", Nth: 2, Every: 4, Times: -1, Effect: ReplyLost, Code: codes.DeadlineExceeded, Delay: 1500 * time.Millisecond},
	} {
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var got Fault
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Errorf("%s: %s", b, diff)
		}
	}
	var f Fault
	if err := json.Unmarshal([]byte(`{"method":"*","effect":"before","code":"SAD"}`), &f); err == nil {
		t.Error("an unknown code was accepted")
	}
	if err := json.Unmarshal([]byte(`{"method":"*","effect":"before","time":3}`), &f); err == nil || !strings.Contains(err.Error(), "time") {
		t.Errorf("an unknown field: %v", err)
	}
}

func TestCallsAreCountedAndStrangersAreNot(t *testing.T) {
	b := start(t, Options{})
	b.inject(Fault{Method: "CreateVpc", Effect: Before})
	b.inject(Fault{Method: "*", Effect: Before, Nth: 2, Times: -1})
	stranger := b.world.Stranger()
	ok(stranger.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(1))})) // past the faults
	b.refuses(failed(stranger.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID("x")})), codes.Internal, "decode")
	_ = failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{}))
	_ = failed(b.Version(ctx, &forge.VersionRequest{}))
	want := map[string]int{"CreateVpc": 1, "Version": 1}
	if diff := cmp.Diff(want, b.world.Calls()); diff != "" {
		t.Error(diff)
	}
	b.world.ResetCalls()
	if len(b.world.Calls()) != 0 {
		t.Error("calls after a reset")
	}
	reply, err := b.world.Call(ctx, "FindVpcIds", []byte(`{"tenantOrgId": "acme"}`))
	if err != nil || string(reply) != "{}\n" {
		t.Errorf("call by JSON: %s, %v", reply, err)
	}
	b.refuses(failed(b.world.Call(ctx, "MakeVpc", []byte("{}"))), codes.Unimplemented, "MakeVpc")
	b.refuses(failed(b.world.Call(ctx, "CreateVpc", []byte(`{"nmae": "x"}`))), codes.InvalidArgument, "nmae")
}
