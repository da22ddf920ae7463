package carbidesim

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

func TestSegmentLife(t *testing.T) {
	b := start(t, Options{})
	b.vpc(uid(1), ethernet)
	if err := b.segment(uid(2), uid(1), "10.0.0.0/24", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	expect := func(state forge.TenantState, word string) {
		t.Helper()
		n := b.findSegment(uid(2))
		//lint:ignore SA1019 the flat fields are checked too
		if n.State != state || n.Status.TenantState != state || !strings.Contains(n.Status.Lifecycle.State, `{"state":"`+word) {
			t.Errorf("state %s, lifecycle %s; want %s", n.Status.TenantState, n.Status.Lifecycle.State, state)
		}
	}
	b.clock.pass(RealTiming.Tick - 1)
	expect(forge.TenantState_PROVISIONING, "provisioning")
	b.clock.pass(1)
	expect(forge.TenantState_READY, "ready")

	n := b.findSegment(uid(2))
	//lint:ignore SA1019 the flat fields are checked too
	flatFieldsSame := n.Name == "subnet" && n.VpcId.Value == n.Config.VpcId.Value && n.GetMtu() == n.Config.GetMtu() && proto.Equal(n.Prefixes[0], n.Config.Prefixes[0])
	if !flatFieldsSame || n.Metadata.Name != "subnet" || n.Config.GetMtu() != 9000 {
		t.Errorf("nested and flat fields: %v", n)
	}
	if p := n.Config.Prefixes[0]; p.Id.GetValue() == "" || p.FreeIpCount != 253 {
		t.Errorf("prefix %v", p)
	}

	remove := func() error {
		return failed(b.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: segmentID(uid(2))}))
	}
	b.refusals([]refusal{{"delete", remove(), codes.OK, ""}, {"delete again", remove(), codes.OK, ""}})
	expect(forge.TenantState_TERMINATING, "deleting")
	b.refusals([]refusal{
		{"id still there", b.segment(uid(2), uid(1), "10.9.0.0/24", "10.9.0.1"), codes.Internal, "duplicate key"},
		{"prefix still there", b.segment(uid(3), uid(1), "10.0.0.0/25", "10.0.0.1"), codes.InvalidArgument, "overlaps"},
	})
	b.clock.pass(RealTiming.Drain - 1)
	expect(forge.TenantState_TERMINATING, "deleting")
	b.clock.pass(1)
	if b.findSegment(uid(2)) != nil {
		t.Error("the segment outlives its drain time")
	}
	b.refuses(remove(), codes.NotFound, "network segment")
	if err := b.segment(uid(2), uid(1), "10.0.0.0/24", "10.0.0.1"); err != nil {
		t.Errorf("id and prefix cannot be used again: %v", err)
	}
}

// A timer of a segment that is gone does not affect another one with the same id.
func TestASegmentIsNotHurriedByItsPredecessor(t *testing.T) {
	b := start(t, Options{Timing: Timing{Tick: 100, Drain: 10}})
	b.vpc(uid(1), ethernet)
	create := func() {
		if err := b.segment(uid(2), uid(1), "10.0.0.0/24", "10.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	create()
	ok(b.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: segmentID(uid(2))}))
	b.clock.pass(50)
	create()
	b.clock.pass(50) // the first one would be ready now
	if got := b.findSegment(uid(2)).Status.TenantState; got != forge.TenantState_PROVISIONING {
		t.Errorf("state %s after half of its time", got)
	}
	b.clock.pass(50)
	if got := b.findSegment(uid(2)).Status.TenantState; got != forge.TenantState_READY {
		t.Errorf("state %s after its time", got)
	}
}

func TestSegmentAdmission(t *testing.T) {
	b := start(t, Options{Rules: Rules{FabricPrefixes: prefixList("10.0.0.0/8", "fd00::/8"), RoutingProfiles: profiles}})
	b.tenant("acme")
	b.vpc(uid(1), ethernet)
	b.vpc(uid(2), fnn)
	b.vpc(uid(3), flat)
	type change func(*forge.NetworkSegmentCreationRequest)
	create := func(changes ...change) error {
		r := &forge.NetworkSegmentCreationRequest{VpcId: vpcID(uid(1)), Prefixes: []*forge.NetworkPrefix{{Prefix: "10.0.0.0/24"}}}
		for _, c := range changes {
			c(r)
		}
		n, err := b.CreateNetworkSegment(ctx, r)
		if err == nil { // make room for the next case
			ok(b.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: n.Id}))
			b.clock.pass(RealTiming.Drain)
		}
		return err
	}
	prefix := func(texts ...string) change {
		return func(r *forge.NetworkSegmentCreationRequest) {
			r.Prefixes = nil
			for _, p := range texts {
				r.Prefixes = append(r.Prefixes, &forge.NetworkPrefix{Prefix: p})
			}
		}
	}
	in := func(vpc string) change { return func(r *forge.NetworkSegmentCreationRequest) { r.VpcId = vpcID(vpc) } }
	outside := func(r *forge.NetworkSegmentCreationRequest) { r.VpcId = nil }
	gateway := func(g string) change {
		return func(r *forge.NetworkSegmentCreationRequest) { r.Prefixes[0].Gateway = &g }
	}
	mtu := func(n int32) change { return func(r *forge.NetworkSegmentCreationRequest) { r.Mtu = &n } }
	as := func(k forge.NetworkSegmentType) change {
		return func(r *forge.NetworkSegmentCreationRequest) { r.SegmentType = k }
	}
	const inband, admin = forge.NetworkSegmentType_HOST_INBAND, forge.NetworkSegmentType_ADMIN
	b.refusals([]refusal{
		{"plain", create(), codes.OK, ""},
		{"no prefix", create(prefix()), codes.InvalidArgument, "at least one prefix"},
		{"prefix with an id", create(func(r *forge.NetworkSegmentCreationRequest) { r.Prefixes[0].Id = &forge.NetworkPrefixId{Value: uid(9)} }), codes.InvalidArgument, "id"},
		{"host bits", create(prefix("10.0.0.1/24")), codes.InvalidArgument, "host bits"},
		{"two of a family", create(prefix("10.0.0.0/24", "10.0.1.0/24")), codes.Internal, "violates"},
		{"/31", create(prefix("10.0.0.0/31")), codes.InvalidArgument, "too small"},
		{"/127", create(in(uid(2)), prefix("fd00::/127")), codes.InvalidArgument, "too small"},
		{"/31 for the operator", create(as(admin), prefix("10.0.0.0/31")), codes.OK, ""},
		{"outside the fabric", create(prefix("192.168.0.0/24")), codes.InvalidArgument, "fabric"},
		{"operator outside the fabric", create(as(admin), prefix("192.168.0.0/24")), codes.OK, ""},
		{"gateway outside", create(gateway("10.0.1.1")), codes.Internal, "violates"},
		{"gateway is text", create(gateway("first")), codes.InvalidArgument, "gateway"},
		{"gateway in IPv6", create(in(uid(2)), prefix("fd00::/64"), gateway("fd00::1")), codes.Internal, "violates"},
		{"unknown VPC", create(in(uid(9))), codes.Internal, "violates"},
		{"no VPC", create(outside), codes.OK, ""},
		{"small MTU", create(mtu(575)), codes.Internal, "violates"},
		{"large MTU", create(mtu(9001)), codes.Internal, "violates"},
		{"least MTU", create(mtu(576)), codes.OK, ""},
		{"unknown type", create(as(9)), codes.InvalidArgument, "type"},
		{"tenant in FLAT", create(in(uid(3))), codes.InvalidArgument, "FLAT"},
		{"in-band in FLAT", create(in(uid(3)), as(inband)), codes.OK, ""},
		{"in-band in Ethernet", create(as(inband)), codes.InvalidArgument, "HOST_INBAND"},
		{"tenant in FNN, both families", create(in(uid(2)), prefix("10.0.0.0/24", "fd00::/64")), codes.OK, ""},
		{"IPv6 in Ethernet", create(prefix("fd00::/64")), codes.InvalidArgument, "IPv6"},
	})
}

// Which networks a VPC can have: FLAT ones accept only those of hosts without a DPU, and IPv6 needs FNN or FLAT.
func TestNetworksFitTheirVpc(t *testing.T) {
	b := start(t, Options{Rules: Rules{RoutingProfiles: profiles}})
	b.tenant("acme")
	n := byte(0)
	for i, virtualization := range []forge.VpcVirtualizationType{ethernet, fnn, flat} {
		vpc := uid(byte(0xf0 + i))
		b.vpc(vpc, virtualization)
		for _, kind := range []forge.NetworkSegmentType{0, forge.NetworkSegmentType_ADMIN, forge.NetworkSegmentType_UNDERLAY, forge.NetworkSegmentType_HOST_INBAND} {
			for _, prefix := range []string{"10.%d.0.0/24", "fd00:%d::/64"} {
				n++
				fits := (virtualization == flat) == (kind == forge.NetworkSegmentType_HOST_INBAND)
				fits = fits && (virtualization != ethernet || prefix[0] == '1')
				err := failed(b.CreateNetworkSegment(ctx, &forge.NetworkSegmentCreationRequest{
					Id: segmentID(uid(n)), VpcId: vpcID(vpc), SegmentType: kind, Prefixes: []*forge.NetworkPrefix{{Prefix: fmt.Sprintf(prefix, n)}},
				}))
				if want := map[bool]codes.Code{true: codes.OK, false: codes.InvalidArgument}[fits]; status.Code(err) != want {
					t.Errorf("%s %s in %s: %v", kind, prefix, virtualization, err)
				}
			}
		}
		err := failed(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{VpcId: vpcID(vpc), Prefix: fmt.Sprintf("fd01:%d::/64", i)}))
		if want := map[bool]codes.Code{true: codes.OK, false: codes.InvalidArgument}[virtualization != ethernet]; status.Code(err) != want {
			t.Errorf("an IPv6 prefix of %s: %v", virtualization, err)
		}
	}
}

func TestSegmentsOverlapNowhereOnTheSite(t *testing.T) {
	b := start(t, Options{})
	b.vpc(uid(1), ethernet)
	b.vpc(uid(2), ethernet)
	for i, p := range []string{"10.0.2.0/24", "10.0.0.0/24", "10.0.1.0/24"} {
		if err := b.segment(uid(byte(0x10+i)), uid(1), p, strings.Replace(p, "0/24", "1", 1)); err != nil {
			t.Fatal(err)
		}
	}
	b.refusals([]refusal{
		{"same", b.segment(uid(0x20), uid(2), "10.0.1.0/24", "10.0.1.1"), codes.InvalidArgument, "overlaps"},
		{"inside", b.segment(uid(0x20), uid(2), "10.0.0.128/25", "10.0.0.129"), codes.InvalidArgument, "overlaps"},
		{"around", b.segment(uid(0x20), uid(2), "10.0.0.0/16", "10.0.0.1"), codes.InvalidArgument, "overlaps"},
		{"before", b.segment(uid(0x20), uid(2), "9.255.255.0/24", "9.255.255.1"), codes.OK, ""},
		{"after", b.segment(uid(0x21), uid(2), "10.0.3.0/24", "10.0.3.1"), codes.OK, ""},
	})
}

func TestVlanPool(t *testing.T) {
	b := start(t, Options{Rules: Rules{VLANs: Range{5, 5}}})
	if err := b.segment(uid(1), "", "10.0.0.0/24", "10.0.0.1"); err == nil {
		t.Fatal("an empty id wrapper is the nil UUID, and no VPC has that")
	}
	create := func(id byte, prefix string) error {
		return failed(b.CreateNetworkSegment(ctx, &forge.NetworkSegmentCreationRequest{Id: segmentID(uid(id)), Prefixes: []*forge.NetworkPrefix{{Prefix: prefix}}}))
	}
	b.refusals([]refusal{
		{"last one", create(1, "10.0.0.0/24"), codes.OK, ""},
		{"pool empty", create(2, "10.0.1.0/24"), codes.ResourceExhausted, "vlan-id"},
	})
	ok(b.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: segmentID(uid(1))}))
	b.refuses(create(2, "10.0.1.0/24"), codes.ResourceExhausted, "vlan-id") // until the drain is over
	b.clock.pass(RealTiming.Drain)
	if err := create(2, "10.0.1.0/24"); err != nil {
		t.Error(err)
	}
}

func TestSegmentListHasTheOperatorsToo(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}})
	b.vpc(uid(1), ethernet)
	if err := b.segment(uid(2), uid(1), "10.0.0.0/24", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	find := func(f *forge.NetworkSegmentSearchFilter) []*forge.NetworkSegmentId {
		return ok(b.FindNetworkSegmentIds(ctx, f)).NetworkSegmentsIds
	}
	if got := find(&forge.NetworkSegmentSearchFilter{}); len(got) != 2 {
		t.Errorf("segments %v, want the tenant's and the operator's", got)
	}
	if got := find(&forge.NetworkSegmentSearchFilter{TenantOrgId: text("acme")}); len(got) != 1 || got[0].Value != uid(2) {
		t.Errorf("segments of the tenant: %v", got)
	}
	admin := find(&forge.NetworkSegmentSearchFilter{Name: text("admin")})
	if len(admin) != 1 {
		t.Fatalf("segments by name: %v", admin)
	}
	b.refuses(failed(b.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: admin[0]})), codes.InvalidArgument, "addresses")
}
