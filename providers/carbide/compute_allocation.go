package carbide

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// An allocation is only a number in the service's database.
var allocationTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	Mark: true, IDsNotReusable: true, EffectWithin: late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "{name}", Within: "tenant"}},
}

// allocationRefusals are codes with a special meaning.
var allocationRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
		codes.Internal:           providers.Absent, // the tenant or the type
	},
	opUpdate: {
		codes.FailedPrecondition: providers.Busy, // more machines have to join the type, or instances have to be deleted
	},
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // the tenant's instances use it
	},
}

type allocations struct {
	*service
	uuidKind
}

func (k allocations) list(ctx context.Context) ([]string, error) {
	r, err := k.FindComputeAllocationIds(ctx, &forge.FindComputeAllocationIdsRequest{})
	return texts(r.GetIds()), err
}

func (k allocations) get(ctx context.Context, ids []string) ([]*forge.ComputeAllocation, error) {
	r, err := k.FindComputeAllocationsByIds(ctx, &forge.FindComputeAllocationsByIdsRequest{Ids: wrapped(ids, func(id string) *forge.ComputeAllocationId { return &forge.ComputeAllocationId{Value: id} })})
	return r.GetAllocations(), err
}

func (allocations) thing(o *forge.ComputeAllocation) providers.Thing {
	s := spec.ComputeAllocation{
		Tenant: o.GetTenantOrganizationId(), InstanceType: o.GetAttributes().GetInstanceTypeId(), Count: int64(o.GetAttributes().GetCount()),
	}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: o.GetMetadata().GetName(), Mark: mark, Version: o.GetVersion(), Spec: s.Object(), Phase: providers.Ready,
	}
}

func (k allocations) create(ctx context.Context, c *call[spec.ComputeAllocation]) error {
	tenant := c.want.Tenant
	made, err := k.CreateComputeAllocation(ctx, &forge.CreateComputeAllocationRequest{
		Id:                   &forge.ComputeAllocationId{Value: c.ID},
		Metadata:             newMetadata(c.Call, c.want.Description, c.want.Labels),
		TenantOrganizationId: tenant,
		Attributes:           writeAllocation(c, &forge.ComputeAllocationAttributes{InstanceTypeId: c.want.InstanceType}),
	})
	c.Chose(made.GetAllocation().GetId().GetValue())
	if status.Code(err) == codes.FailedPrecondition && !k.taken(ctx, tenant, c.Called()) {
		return earlyError{err} // more machines have to join the type, which this very run may bring about
	}
	return err
}

// taken reports whether the tenant has, or may have, an allocation of that name.
func (k allocations) taken(ctx context.Context, tenant, name string) bool {
	r, err := k.FindComputeAllocationIds(ctx, &forge.FindComputeAllocationIdsRequest{TenantOrganizationId: &tenant, Name: &name})
	return err != nil || len(r.GetIds()) > 0
}

func (k allocations) update(ctx context.Context, c *call[spec.ComputeAllocation], now *forge.ComputeAllocation) error {
	_, err := k.UpdateComputeAllocation(ctx, &forge.UpdateComputeAllocationRequest{
		Id:                   now.Id,
		TenantOrganizationId: now.TenantOrganizationId,
		Metadata:             writeMetadata(c.Call, now.Metadata, c.Called(), c.want.Description, c.want.Labels),
		Attributes:           writeAllocation(c, now.Attributes),
		IfVersionMatch:       &now.Version,
		UpdatedBy:            now.UpdatedBy,
	})
	return err
}

// delete looks up the tenant when the caller did not observe it: the service reports another tenant's allocation as deleted.
func (k allocations) delete(ctx context.Context, c *call[spec.ComputeAllocation]) error {
	tenant := c.have.Tenant
	if tenant == "" {
		found, err := k.get(ctx, []string{c.ID})
		if err != nil {
			return unsentError{err}
		}
		if len(found) == 0 {
			return nil
		}
		tenant = found[0].GetTenantOrganizationId()
	}
	_, err := k.DeleteComputeAllocation(ctx, &forge.DeleteComputeAllocationRequest{
		Id: &forge.ComputeAllocationId{Value: c.ID}, TenantOrganizationId: tenant,
	})
	return err
}

// writeAllocation changes how many machines are allocated.
func writeAllocation(c *call[spec.ComputeAllocation], a *forge.ComputeAllocationAttributes) *forge.ComputeAllocationAttributes {
	a.Count = uint32(c.want.Count)
	return a
}
