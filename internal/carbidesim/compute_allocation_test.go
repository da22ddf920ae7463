package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func allocationID(id string) *forge.ComputeAllocationId { return &forge.ComputeAllocationId{Value: id} }

// promise allocates machines of type gpu.
func (b *workbench) promise(id, organization, name string, count uint32) error {
	return failed(b.CreateComputeAllocation(ctx, &forge.CreateComputeAllocationRequest{
		Id: allocationID(id), TenantOrganizationId: organization, Metadata: named(name),
		Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "gpu", Count: count},
	}))
}

// grow changes an allocation of type gpu.
func (b *workbench) grow(id, organization, name string, count uint32) error {
	return failed(b.UpdateComputeAllocation(ctx, &forge.UpdateComputeAllocationRequest{
		Id: allocationID(id), TenantOrganizationId: organization, Metadata: named(name),
		Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "gpu", Count: count},
	}))
}

// offering starts a site with two tenants and all of its hosts offered under type gpu.
func offering(t *testing.T, hosts int, e Enforcement) (*workbench, []string) {
	b := start(t, Options{Hosts: Hosts{Count: hosts}, Rules: Rules{Allocations: e}})
	b.tenant("acme")
	b.tenant("other")
	b.vpc(uid(100), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(101)), VpcId: vpcID(uid(100)), Prefix: "10.0.0.0/24"}))
	if err := b.instanceType("gpu", "gpu"); err != nil {
		t.Fatal(err)
	}
	ids := b.hosts(&forge.MachineSearchConfig{})
	if err := b.associate("gpu", ids...); err != nil {
		t.Fatal(err)
	}
	return b, ids
}

// take creates an instance of type gpu for acme.
func (b *workbench) take(id, host string) error {
	c := onPrefix(uid(101))
	c.Tenant.TenantOrganizationId = "acme"
	return failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{
		InstanceId: instanceID(id), MachineId: &forge.MachineId{Id: host}, InstanceTypeId: text("gpu"), Config: c,
	}))
}

func TestComputeAllocations(t *testing.T) {
	b, _ := offering(t, 4, WarnOnly)
	remove := func(id, organization string) error {
		return failed(b.DeleteComputeAllocation(ctx, &forge.DeleteComputeAllocationRequest{Id: allocationID(id), TenantOrganizationId: organization}))
	}
	create := func(r *forge.CreateComputeAllocationRequest) error {
		return failed(b.CreateComputeAllocation(ctx, r))
	}
	attributes := &forge.ComputeAllocationAttributes{InstanceTypeId: "gpu"}
	b.refusals([]refusal{
		{"no attributes", create(&forge.CreateComputeAllocationRequest{TenantOrganizationId: "acme", Metadata: named("xx")}), codes.InvalidArgument, "attributes"},
		{"no metadata", create(&forge.CreateComputeAllocationRequest{TenantOrganizationId: "acme", Attributes: attributes}), codes.InvalidArgument, "metadata"},
		{"no organization", create(&forge.CreateComputeAllocationRequest{Metadata: named("xx"), Attributes: attributes}), codes.InvalidArgument, "organization"},
		{"long description", create(&forge.CreateComputeAllocationRequest{
			TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: "xx", Description: strings.Repeat("x", 257)}, Attributes: attributes,
		}), codes.Internal, "too long"},
		{"unknown tenant", b.promise(uid(1), "nobody", "first", 0), codes.Internal, "constraint"},
		{"too many at once", b.promise(uid(1), "acme", "first", 100_001), codes.InvalidArgument, "100000"},
		{"more than there are", b.promise(uid(1), "acme", "first", 5), codes.FailedPrecondition, "above associated machines count (4)"},
		{"first", b.promise(uid(1), "acme", "first", 3), codes.OK, ""},
		{"sum over tenants", b.promise(uid(2), "other", "first", 2), codes.FailedPrecondition, "(5) above"},
		{"the same name of another tenant", b.promise(uid(2), "other", "first", 1), codes.OK, ""},
		{"name taken", b.promise(uid(3), "acme", "first", 0), codes.FailedPrecondition, "already exists"},
		{"id taken", b.promise(uid(1), "acme", "third", 0), codes.FailedPrecondition, "already exists"},
		{"second", b.promise(uid(3), "acme", "second", 0), codes.OK, ""},

		{"update unknown", b.grow(uid(9), "acme", "first", 1), codes.NotFound, "ComputeAllocation"},
		{"update another tenant's", b.grow(uid(2), "acme", "first", 1), codes.NotFound, "ComputeAllocation"},
		{"update to a taken name", b.grow(uid(3), "acme", "first", 0), codes.FailedPrecondition, "already exists"},
		{"another type", failed(b.UpdateComputeAllocation(ctx, &forge.UpdateComputeAllocationRequest{
			Id: allocationID(uid(1)), TenantOrganizationId: "acme", Metadata: named("first"),
			Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "cpu", Count: 3},
		})), codes.InvalidArgument, "InstanceTypeId"},
		{"grow beyond", b.grow(uid(1), "acme", "first", 4), codes.FailedPrecondition, "(5) above"},
		{"shrink", b.grow(uid(1), "acme", "first", 2), codes.OK, ""},
		{"stale token", failed(b.UpdateComputeAllocation(ctx, &forge.UpdateComputeAllocationRequest{
			Id: allocationID(uid(1)), TenantOrganizationId: "acme", Metadata: named("first"), IfVersionMatch: text("V1-T1"),
			Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "gpu", Count: 2},
		})), codes.FailedPrecondition, "ComputeAllocation"},

		{"delete another tenant's", remove(uid(2), "acme"), codes.OK, ""},
		{"delete", remove(uid(3), "acme"), codes.OK, ""},
		{"delete again", remove(uid(3), "acme"), codes.OK, ""},
		{"delete unknown", remove(uid(9), "acme"), codes.OK, ""},
		{"id again", b.promise(uid(3), "acme", "third", 0), codes.Internal, "duplicate key"},
		{"name again", b.promise(uid(4), "acme", "second", 0), codes.OK, ""},
	})
	ids := func(q *forge.FindComputeAllocationIdsRequest) int {
		return len(ok(b.FindComputeAllocationIds(ctx, q)).Ids)
	}
	if all, mine, called, typed := ids(&forge.FindComputeAllocationIdsRequest{}), ids(&forge.FindComputeAllocationIdsRequest{TenantOrganizationId: text("acme")}),
		ids(&forge.FindComputeAllocationIdsRequest{Name: text("first")}), ids(&forge.FindComputeAllocationIdsRequest{InstanceTypeId: text("cpu")}); all != 3 || mine != 2 || called != 2 || typed != 0 {
		t.Errorf("%d allocations, %d of acme, %d called first, %d of another type", all, mine, called, typed)
	}
	found := ok(b.FindComputeAllocationsByIds(ctx, &forge.FindComputeAllocationsByIdsRequest{Ids: []*forge.ComputeAllocationId{allocationID(uid(1))}})).Allocations
	if len(found) != 1 || found[0].Attributes.Count != 2 || !strings.HasPrefix(found[0].Version, "V2-") {
		t.Errorf("read back %v", found)
	}
}

// What a tenant's instances use cannot be taken away from it.
func TestAllocationsInUse(t *testing.T) {
	b, hosts := offering(t, 4, WarnOnly)
	b.refusals([]refusal{
		{"promise", b.promise(uid(1), "acme", "first", 2), codes.OK, ""},
		{"first instance", b.take(uid(11), hosts[0]), codes.OK, ""},
		{"second instance", b.take(uid(12), hosts[1]), codes.OK, ""},
		{"shrink below", b.grow(uid(1), "acme", "first", 1), codes.FailedPrecondition, "below existing instances count (2)"},
		{"delete", failed(b.DeleteComputeAllocation(ctx, &forge.DeleteComputeAllocationRequest{Id: allocationID(uid(1)), TenantOrganizationId: "acme"})), codes.FailedPrecondition, "below"},
		{"one more than promised", b.take(uid(13), hosts[2]), codes.OK, ""},
	})
}

// The site decides whether instances are held to allocations.
func TestEnforcement(t *testing.T) {
	const refused = codes.FailedPrecondition
	for _, c := range []struct {
		e                              Enforcement
		without, within, beyond, leave codes.Code
	}{
		{WarnOnly, codes.OK, codes.OK, codes.OK, codes.OK},
		{EnforceIfPresent, codes.OK, codes.OK, refused, refused},
		{EnforceAlways, refused, codes.OK, refused, refused},
	} {
		b, hosts := offering(t, 2, c.e)
		b.refusals([]refusal{{string(c.e) + " without an allocation", b.take(uid(11), hosts[0]), c.without, ""}})
		b, hosts = offering(t, 2, c.e)
		b.refusals([]refusal{
			{"promise one", b.promise(uid(1), "acme", "first", 1), codes.OK, ""},
			{string(c.e) + " within", b.take(uid(11), hosts[0]), c.within, ""},
			{string(c.e) + " beyond", b.take(uid(12), hosts[1]), c.beyond, ""},
		})
		b, hosts = offering(t, 2, c.e)
		b.refusals([]refusal{
			{"promise both", b.promise(uid(1), "acme", "first", 2), codes.OK, ""},
			{string(c.e) + " a machine leaves", failed(b.RemoveMachineInstanceTypeAssociation(ctx, &forge.RemoveMachineInstanceTypeAssociationRequest{MachineId: hosts[0]})), c.leave, ""},
		})
	}
}
