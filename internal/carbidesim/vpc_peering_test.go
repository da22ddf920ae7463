package carbidesim

import (
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func peeringID(id string) *forge.VpcPeeringId { return &forge.VpcPeeringId{Value: id} }

func (b *workbench) peer(id, vpc, peer string) (*forge.VpcPeering, error) {
	return b.CreateVpcPeering(ctx, &forge.VpcPeeringCreationRequest{Id: peeringID(id), VpcId: vpcID(vpc), PeerVpcId: vpcID(peer)})
}

func (b *workbench) unpeer(id string) error {
	return failed(b.DeleteVpcPeering(ctx, &forge.VpcPeeringDeletionRequest{Id: peeringID(id)}))
}

func (b *workbench) peerings(f *forge.VpcPeeringSearchFilter) int {
	return len(ok(b.FindVpcPeeringIds(ctx, f)).VpcPeeringIds)
}

func TestPeeringPolicies(t *testing.T) {
	type attempt struct {
		a, b byte
		code codes.Code
		text string
	}
	const gone, never = 7, 8
	for policy, attempts := range map[PeeringPolicy][]attempt{
		PeeringNone: {
			{1, 2, codes.Internal, "feature disabled"}, {1, 1, codes.Internal, "feature disabled"}, {1, never, codes.Internal, "feature disabled"},
		},
		PeeringExclusive: {
			{1, 2, codes.OK, ""}, {3, 4, codes.OK, ""}, {1, 3, codes.InvalidArgument, "different network virtualization"},
			{1, 5, codes.OK, ""}, {5, 3, codes.OK, ""}, {5, 6, codes.OK, ""}, {1, 1, codes.InvalidArgument, "same VPC"},
			{1, never, codes.NotFound, "VPC not found"}, {never, 1, codes.NotFound, "VPC not found"}, {1, gone, codes.NotFound, "VPC not found"},
		},
		PeeringMixed: {
			{1, 2, codes.OK, ""}, {1, 3, codes.OK, ""}, {1, 1, codes.InvalidArgument, "same VPC"},
			{1, never, codes.Internal, "violates"}, {never, 1, codes.Internal, "violates"}, {1, gone, codes.OK, ""},
		},
	} {
		b := start(t, Options{Rules: Rules{Peering: policy, RoutingProfiles: profiles}})
		b.tenant("acme")
		for n, v := range []forge.VpcVirtualizationType{ethernet, ethernet, fnn, fnn, flat, flat, ethernet} {
			b.vpc(uid(byte(n+1)), v)
		}
		ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(gone))}))
		for n, a := range attempts {
			_, err := b.peer(uid(byte(0x10+n)), uid(a.a), uid(a.b))
			b.refusals([]refusal{{string(policy) + " " + string('0'+a.a) + string('0'+a.b), err, a.code, a.text}})
		}
	}
}

func TestAPairIsSortedAndPeeredOnce(t *testing.T) {
	b := start(t, Options{Rules: Rules{Peering: PeeringMixed, MaxFindByIDs: 1}})
	for n := range byte(4) {
		b.vpc(uid(n), ethernet)
	}
	p := ok(b.peer(uid(0x10), uid(2), uid(1)))
	if p.VpcId.Value != uid(1) || p.PeerVpcId.Value != uid(2) {
		t.Errorf("the pair reads back as %v", p)
	}
	b.refusals([]refusal{
		{"the pair", failed(b.peer(uid(0x11), uid(2), uid(1))), codes.FailedPrecondition, "already exists"},
		{"the pair, swapped", failed(b.peer(uid(0x11), uid(1), uid(2))), codes.FailedPrecondition, "already exists"},
		{"the id", failed(b.peer(uid(0x10), uid(1), uid(3))), codes.FailedPrecondition, "already exists"},
		{"one VPC", failed(b.CreateVpcPeering(ctx, &forge.VpcPeeringCreationRequest{VpcId: vpcID(uid(1))})), codes.InvalidArgument, "peer_vpc_id"},
		{"the other VPC", failed(b.CreateVpcPeering(ctx, &forge.VpcPeeringCreationRequest{PeerVpcId: vpcID(uid(1))})), codes.InvalidArgument, "vpc_id"},
	})
	ok(b.peer(uid(0x11), uid(0), uid(1)))
	ok(b.peer(uid(0x12), uid(3), uid(0)))
	for vpc, want := range map[byte]int{0: 2, 1: 2, 2: 1, 3: 1} {
		if got := b.peerings(&forge.VpcPeeringSearchFilter{VpcId: vpcID(uid(vpc))}); got != want {
			t.Errorf("VPC %d has %d peerings, want %d", vpc, got, want)
		}
	}
	find := func(ids ...string) int {
		q := &forge.VpcPeeringsByIdsRequest{}
		for _, id := range ids {
			q.VpcPeeringIds = append(q.VpcPeeringIds, peeringID(id))
		}
		return len(ok(b.FindVpcPeeringsByIds(ctx, q)).VpcPeerings)
	}
	if many, none := find(uid(0x10), uid(0x11), uid(0x12), uid(0x13)), find(); many != 3 || none != 0 {
		t.Errorf("four ids gave %d peerings, none gave %d: the limit of the site does not hold here", many, none)
	}

	b.refusals([]refusal{
		{"unknown", b.unpeer(uid(0x13)), codes.Internal, ""},
		{"delete", b.unpeer(uid(0x10)), codes.OK, ""},
		{"delete again", b.unpeer(uid(0x10)), codes.Internal, ""},
		{"without an id", failed(b.DeleteVpcPeering(ctx, &forge.VpcPeeringDeletionRequest{})), codes.InvalidArgument, "id"},
	})
	ok(b.peer(uid(0x10), uid(1), uid(2))) // it was deleted permanently
}

func TestPeeringsGoWithTheirVpc(t *testing.T) {
	b := start(t, Options{Rules: Rules{Peering: PeeringMixed}})
	for n := range byte(3) {
		b.vpc(uid(n), ethernet)
	}
	ok(b.peer(uid(0x10), uid(0), uid(1)))
	ok(b.peer(uid(0x11), uid(1), uid(2)))
	ok(b.peer(uid(0x12), uid(0), uid(2)))
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))}))
	if got := b.peerings(&forge.VpcPeeringSearchFilter{}); got != 1 {
		t.Errorf("%d peerings are left, want that of the other two VPCs", got)
	}
	b.refuses(b.unpeer(uid(0x10)), codes.Internal, "")
}
