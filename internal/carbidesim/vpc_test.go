package carbidesim

import (
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

const (
	ethernet = forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER
	fnn      = forge.VpcVirtualizationType_FNN
	flat     = forge.VpcVirtualizationType_FLAT
)

var profiles = []RoutingProfile{{Name: "internal", Tier: 1}, {Name: "external", Tier: 2}}

func TestVpcTypes(t *testing.T) {
	b := start(t, Options{})
	create := func(number forge.VpcVirtualizationType) (*forge.Vpc, error) {
		return b.CreateVpc(ctx, &forge.VpcCreationRequest{NetworkVirtualizationType: &number})
	}
	for asked, got := range map[forge.VpcVirtualizationType]forge.VpcVirtualizationType{ethernet: ethernet, 2: ethernet, flat: flat} {
		v := ok(create(asked))
		if v.GetNetworkVirtualizationType() != got {
			t.Errorf("type %d reads back as %s", asked, v.GetNetworkVirtualizationType())
		}
	}
	b.refusals([]refusal{
		{"declared, but refused", failed(create(3)), codes.InvalidArgument, "type"},
		{"declared, but refused", failed(create(4)), codes.InvalidArgument, "type"},
		{"unknown", failed(create(7)), codes.InvalidArgument, "type"},
	})
	if v := ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{})); v.GetNetworkVirtualizationType() != ethernet || v.Metadata.Name != "default_name" {
		t.Errorf("defaults: %v", v)
	}
}

func TestVpcUpdateReplacesEverythingMutable(t *testing.T) {
	b := start(t, Options{})
	b.tenant("acme")
	ok(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{Id: text("web"), TenantOrganizationId: "acme", Metadata: named("web")}))
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{
		Id: vpcID(uid(1)), TenantOrganizationId: "acme", NetworkSecurityGroupId: text("web"), TenantKeysetId: text("ops"),
		DefaultNvlinkLogicalPartitionId: &forge.NVLinkLogicalPartitionId{Value: uid(9)},
		Metadata:                        &forge.Metadata{Name: "prod", Description: "d", Labels: []*forge.Label{label("env", text("prod"))}},
	}))
	v := b.findVpc(uid(1))
	if v.GetNetworkSecurityGroupId() != "web" || v.Metadata.Description != "d" || len(v.Metadata.Labels) != 1 {
		t.Errorf("created: %v", v)
	}
	if v.TenantKeysetId != nil || v.DefaultNvlinkLogicalPartitionId != nil {
		t.Errorf("fields that the service drops read back: %v", v)
	}
	v = ok(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(1))})).Vpc
	if v.NetworkSecurityGroupId != nil || v.Metadata.Name != "default_name" || v.Metadata.Description != "" || len(v.Metadata.Labels) != 0 {
		t.Errorf("an update with nothing left %v", v)
	}
	if v.TenantOrganizationId != "acme" || v.Status.GetVni() == 0 {
		t.Errorf("an update lost what it cannot change: %v", v)
	}
	b.refusals([]refusal{
		{"unknown, without token", failed(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(7))})), codes.Internal, ""},
		{"unknown, with token", failed(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(7)), IfVersionMatch: text("V1-T1")})), codes.FailedPrecondition, "vpc"},
		{"unknown, with a group", failed(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(7)), NetworkSecurityGroupId: text("web")})), codes.NotFound, "Vpc"},
		{"unknown group", failed(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(1)), NetworkSecurityGroupId: text("db")})), codes.FailedPrecondition, "db"},
		{"unknown, new type", failed(b.UpdateVpcVirtualization(ctx, &forge.VpcUpdateVirtualizationRequest{Id: vpcID(uid(7)), NetworkVirtualizationType: flat.Enum()})), codes.Internal, ""},
	})
	before := b.findVpc(uid(1)).Version
	ok(b.UpdateVpcVirtualization(ctx, &forge.VpcUpdateVirtualizationRequest{Id: vpcID(uid(1)), NetworkVirtualizationType: flat.Enum()}))
	if v = b.findVpc(uid(1)); v.GetNetworkVirtualizationType() != flat || v.Version == before {
		t.Errorf("after a change of type: %v", v)
	}
}

func TestVpcReferencesASecurityGroupOfItsTenant(t *testing.T) {
	b := start(t, Options{})
	b.tenant("acme")
	ok(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{Id: text("web"), TenantOrganizationId: "acme", Metadata: named("web")}))
	create := func(org, group string) error {
		return failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{TenantOrganizationId: org, NetworkSecurityGroupId: &group}))
	}
	b.refusals([]refusal{
		{"of another tenant", create("other", "web"), codes.FailedPrecondition, "web"},
		{"unknown", create("acme", "db"), codes.FailedPrecondition, "db"},
		{"empty", create("acme", ""), codes.InvalidArgument, "empty"},
		{"no tenant", create("", "web"), codes.InvalidArgument, "organization"},
		{"its own", create("acme", "web"), codes.OK, ""},
	})
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{TenantOrganizationId: "nobody knows"})) // the tenant need not exist
}

func TestVniPools(t *testing.T) {
	b := start(t, Options{Rules: Rules{AutoVNIs: Range{100, 101}, RequestedVNIs: Range{200, 201}}})
	create := func(id byte, vni *uint32) (*forge.Vpc, error) {
		return b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(id)), Vni: vni})
	}
	number := func(n uint32) *uint32 { return &n }
	v := ok(create(1, nil))
	if v.Status.GetVni() != 100 || v.GetDeprecatedVni() != 100 || v.Vni != nil {
		t.Errorf("given VNI: %v", v)
	}
	v = ok(create(2, number(200)))
	if v.Status.GetVni() != 200 || v.GetVni() != 200 {
		t.Errorf("requested VNI: %v", v)
	}
	b.refusals([]refusal{
		{"taken", failed(create(3, number(200))), codes.FailedPrecondition, "VNI"},
		{"from the other range", failed(create(3, number(101))), codes.FailedPrecondition, "VNI"},
	})
	ok(create(4, nil))
	ok(create(5, number(201)))
	b.refusals([]refusal{
		{"auto range empty", failed(create(6, nil)), codes.ResourceExhausted, "vpc-vni"},
		{"requestable range empty", failed(create(6, number(200))), codes.ResourceExhausted, "vpc-vni"},
	})
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))}))
	if v = ok(create(6, nil)); v.Status.GetVni() != 100 {
		t.Errorf("a deleted VPC's VNI is not given again: %v", v)
	}
}

func TestRoutingProfiles(t *testing.T) {
	b := start(t, Options{Rules: Rules{RoutingProfiles: profiles}})
	b.tenant("acme")
	create := func(org string, t forge.VpcVirtualizationType, profile *string) (*forge.Vpc, error) {
		return b.CreateVpc(ctx, &forge.VpcCreationRequest{TenantOrganizationId: org, NetworkVirtualizationType: &t, RoutingProfileType: profile})
	}
	if v := ok(create("acme", fnn, nil)); v.GetRoutingProfileType() != "internal" {
		t.Errorf("profile is %q, want the tenant's", v.GetRoutingProfileType())
	}
	b.refusals([]refusal{
		{"profile without FNN", failed(create("acme", ethernet, text("internal"))), codes.InvalidArgument, "FNN"},
		{"unknown profile", failed(create("acme", fnn, text("secret"))), codes.NotFound, "RoutingProfile"},
		{"reaches further", failed(create("acme", fnn, text("external"))), codes.FailedPrecondition, "external"},
		{"tenant without a profile", failed(create("other", fnn, nil)), codes.FailedPrecondition, "other"},
	})
	bare := start(t, Options{})
	bare.refuses(failed(bare.CreateVpc(ctx, &forge.VpcCreationRequest{NetworkVirtualizationType: fnn.Enum()})), codes.FailedPrecondition, "FNN")
}

func TestVpcDeletionChecksNothingAndBurnsTheID(t *testing.T) {
	b := start(t, Options{})
	b.vpc(uid(1), ethernet)
	if err := b.segment(uid(2), uid(1), "10.0.0.0/24", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/24"}))
	b.refuses(failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(1))})), codes.Internal, "duplicate key")

	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))}))
	if ids := ok(b.FindVpcIds(ctx, &forge.VpcSearchFilter{})).VpcIds; len(ids) != 0 {
		t.Errorf("a deleted VPC is listed: %v", ids)
	}
	b.refusals([]refusal{
		{"second delete", failed(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))})), codes.NotFound, "vpc"},
		{"same id again", failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(1))})), codes.Internal, "duplicate key"},
		{"its prefix is stuck", failed(b.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: prefixID(uid(3))})), codes.NotFound, "vpc"},
	})
	if b.findSegment(uid(2)) == nil {
		t.Error("the segment is gone with its VPC")
	}
	if got := ok(b.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{VpcPrefixIds: []*forge.VpcPrefixId{prefixID(uid(3))}})); len(got.VpcPrefixes) != 1 {
		t.Error("the prefix is gone with its VPC")
	}
}

func TestVpcFilters(t *testing.T) {
	b := start(t, Options{})
	for n, v := range []*forge.VpcCreationRequest{
		{TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: "prod", Labels: []*forge.Label{label("env", text("prod")), label("tier", nil)}}},
		{TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: "test", Labels: []*forge.Label{label("env", text("test"))}}},
		{TenantOrganizationId: "other", Metadata: named("prod")},
	} {
		v.Id = vpcID(uid(byte(n)))
		ok(b.CreateVpc(ctx, v))
	}
	for _, c := range []struct {
		name   string
		filter *forge.VpcSearchFilter
		want   int
	}{
		{"all", &forge.VpcSearchFilter{}, 3},
		{"name", &forge.VpcSearchFilter{Name: text("prod")}, 2},
		{"tenant", &forge.VpcSearchFilter{TenantOrgId: text("acme")}, 2},
		{"name and tenant", &forge.VpcSearchFilter{Name: text("prod"), TenantOrgId: text("acme")}, 1},
		{"label key", &forge.VpcSearchFilter{Label: label("env", nil)}, 2},
		{"label value", &forge.VpcSearchFilter{Label: label("", text("test"))}, 1},
		{"label key and value", &forge.VpcSearchFilter{Label: label("env", text("prod"))}, 1},
		{"label key and another's value", &forge.VpcSearchFilter{Label: label("tier", text("prod"))}, 0},
	} {
		if got := ok(b.FindVpcIds(ctx, c.filter)).VpcIds; len(got) != c.want {
			t.Errorf("%s: %d VPCs, want %d", c.name, len(got), c.want)
		}
	}
	b.refuses(failed(b.FindVpcIds(ctx, &forge.VpcSearchFilter{Label: label("", nil)})), codes.InvalidArgument, "label")
}

func TestVpcPrefixes(t *testing.T) {
	b := start(t, Options{Rules: Rules{FabricPrefixes: prefixList("10.0.0.0/8", "fd00::/8"), RoutingProfiles: profiles}})
	b.tenant("acme")
	b.vpc(uid(1), ethernet)
	b.vpc(uid(2), fnn)
	create := func(id byte, vpc string, prefix string) error {
		return failed(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{
			Id: prefixID(uid(id)), VpcId: vpcID(vpc), Config: &forge.VpcPrefixConfig{Prefix: prefix}, Metadata: named("links"),
		}))
	}
	if err := create(0x10, uid(1), "10.0.0.0/24"); err != nil {
		t.Fatal(err)
	}
	if err := b.segment(uid(0x20), uid(1), "10.0.8.0/24", "10.0.8.1"); err != nil {
		t.Fatal(err)
	}
	if err := b.segment(uid(0x21), uid(2), "10.0.9.0/24", "10.0.9.1"); err != nil {
		t.Fatal(err)
	}
	b.refusals([]refusal{
		{"unknown VPC", create(0x11, uid(9), "10.1.0.0/24"), codes.NotFound, "vpc"},
		{"host bits", create(0x11, uid(1), "10.1.0.1/24"), codes.InvalidArgument, "host bits"},
		{"no CIDR", create(0x11, uid(1), "10.1.0.0"), codes.InvalidArgument, "prefix"},
		{"outside the fabric", create(0x11, uid(1), "192.168.0.0/24"), codes.InvalidArgument, "fabric"},
		{"IPv6 on Ethernet", create(0x11, uid(1), "fd00::/64"), codes.InvalidArgument, "IPv6"},
		{"IPv6 on FNN", create(0x12, uid(2), "fd00::/64"), codes.OK, ""},
		{"overlaps another VPC's", create(0x11, uid(2), "10.0.0.128/25"), codes.InvalidArgument, "overlaps VPC prefix"},
		{"overlaps a foreign segment", create(0x11, uid(1), "10.0.9.0/25"), codes.InvalidArgument, "overlaps network segment"},
		{"too small for its own segment", create(0x11, uid(1), "10.0.8.0/25"), codes.InvalidArgument, "too small"},
		{"its own segment and a foreign one", create(0x13, uid(1), "10.0.8.0/23"), codes.InvalidArgument, "overlaps network segment"},
		{"adopts its own segment", create(0x13, uid(1), "10.0.8.0/24"), codes.OK, ""},
		{"duplicate id", create(0x10, uid(1), "10.1.0.0/24"), codes.Internal, "duplicate key"},
	})

	resize := &forge.VpcPrefixUpdateRequest{Id: prefixID(uid(0x10)), Config: &forge.VpcPrefixConfig{Prefix: "10.0.0.0/24"}}
	b.refusals([]refusal{
		{"resize", failed(b.UpdateVpcPrefix(ctx, resize)), codes.InvalidArgument, "resizing"},
		{"unknown", failed(b.UpdateVpcPrefix(ctx, &forge.VpcPrefixUpdateRequest{Id: prefixID(uid(9))})), codes.Internal, ""},
		{"unknown delete", failed(b.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: prefixID(uid(9))})), codes.NotFound, "vpc_prefix"},
		{"a segment is tied to it", failed(b.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: prefixID(uid(0x13))})), codes.Internal, "violates"},
	})
	p := ok(b.UpdateVpcPrefix(ctx, &forge.VpcPrefixUpdateRequest{Id: prefixID(uid(0x10))}))
	if p.Metadata.Name != "default_name" || p.Prefix != "10.0.0.0/24" || p.Config.Prefix != p.Prefix || p.Status.Total_31Segments != 128 || p.Status.AvailableLinknetSegments != 128 {
		t.Errorf("after an update: %v", p)
	}
	got := ok(b.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{VpcPrefixIds: []*forge.VpcPrefixId{prefixID(uid(0x12)), prefixID(uid(0x13))}})).VpcPrefixes
	for _, p := range got {
		switch p.Id.Value {
		case uid(0x12):
			if p.Status.Total_31Segments != 0 || p.Status.TotalLinknetSegments != 1<<63 {
				t.Errorf("IPv6 counts: %v", p.Status)
			}
		case uid(0x13):
			if p.Status.TotalLinknetSegments != 128 || p.Status.AvailableLinknetSegments != 0 {
				t.Errorf("counts of a prefix that a segment fills: %v", p.Status)
			}
		}
	}

	search := func(q *forge.VpcPrefixSearchQuery) int { return len(ok(b.SearchVpcPrefixes(ctx, q)).VpcPrefixIds) }
	match := func(prefix string, how forge.PrefixMatchType) *forge.VpcPrefixSearchQuery {
		return &forge.VpcPrefixSearchQuery{PrefixMatch: &prefix, PrefixMatchType: &how}
	}
	for _, c := range []struct {
		name  string
		query *forge.VpcPrefixSearchQuery
		want  int
	}{
		{"all", &forge.VpcPrefixSearchQuery{}, 3},
		{"VPC", &forge.VpcPrefixSearchQuery{VpcId: vpcID(uid(1))}, 2},
		{"name", &forge.VpcPrefixSearchQuery{Name: text("links")}, 2},
		{"exact", match("10.0.0.0/24", forge.PrefixMatchType_PREFIX_EXACT), 1},
		{"contains", match("10.0.0.0/30", forge.PrefixMatchType_PREFIX_CONTAINS), 1},
		{"contained by", match("10.0.0.0/16", forge.PrefixMatchType_PREFIX_CONTAINED_BY), 2},
	} {
		if got := search(c.query); got != c.want {
			t.Errorf("search by %s: %d, want %d", c.name, got, c.want)
		}
	}
	b.refusals([]refusal{
		{"match without type", failed(b.SearchVpcPrefixes(ctx, &forge.VpcPrefixSearchQuery{PrefixMatch: text("10.0.0.0/8")})), codes.InvalidArgument, "prefix_match_type"},
		{"by tenant prefix", failed(b.SearchVpcPrefixes(ctx, &forge.VpcPrefixSearchQuery{TenantPrefixId: prefixID(uid(1))})), codes.InvalidArgument, "tenant_prefix_id"},
	})
}

func TestVpcPrefixMovesTheTokenOfItsVpc(t *testing.T) {
	b := start(t, Options{})
	before := b.vpc(uid(1), ethernet).Version
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(2)), VpcId: vpcID(uid(1)), Prefix: "10.0.0.0/24"}))
	created := b.findVpc(uid(1)).Version
	ok(b.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: prefixID(uid(2))}))
	deleted := b.findVpc(uid(1)).Version
	if before == created || created == deleted {
		t.Errorf("tokens %s, %s, %s", before, created, deleted)
	}
	b.refuses(failed(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(1)), IfVersionMatch: &created})), codes.FailedPrecondition, "vpc")
	// A prefix is deleted permanently, so its id can be used again.
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(2)), VpcId: vpcID(uid(1)), Prefix: "10.0.0.0/24"}))
}
