package carbide

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// The service still lists a deleted partition, about a minute on a site with NVLink and for good on one without. Nothing can
// be done with it and nothing has to wait for it, so it is not reported and counts as gone; only its id stays taken, so that
// every incarnation needs another one. Labels are dropped, so there is no place for a mark; the
// version never moves, so an update is blind.
var nvlinkTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	IDsNotReusable: true, EffectWithin: late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
}

// nvlinkPartitionRefusals are codes with a special meaning.
var nvlinkPartitionRefusals = refusals{
	opUpdate: {
		codes.FailedPrecondition: providers.Conflict, // as above
	},
	opDelete: {
		codes.InvalidArgument: providers.Busy, // instances use it
	},
}

type nvlinkPartitions struct {
	*service
	uuidKind
}

func (k nvlinkPartitions) list(ctx context.Context) ([]string, error) {
	r, err := k.FindNVLinkLogicalPartitionIds(ctx, &forge.NVLinkLogicalPartitionSearchFilter{})
	return texts(r.GetPartitionIds()), err
}

func (k nvlinkPartitions) get(ctx context.Context, ids []string) ([]*forge.NVLinkLogicalPartition, error) {
	r, err := k.FindNVLinkLogicalPartitionsByIds(ctx, &forge.NVLinkLogicalPartitionsByIdsRequest{PartitionIds: wrapped(ids, func(id string) *forge.NVLinkLogicalPartitionId { return &forge.NVLinkLogicalPartitionId{Value: id} })})
	return slices.DeleteFunc(r.GetPartitions(), func(o *forge.NVLinkLogicalPartition) bool {
		return phaseOf(o.GetStatus().GetState()) == providers.Deleting
	}), err
}

func (nvlinkPartitions) thing(o *forge.NVLinkLogicalPartition) providers.Thing {
	config, state := o.GetConfig(), o.GetStatus().GetState()
	s := spec.NVLinkLogicalPartition{Tenant: config.GetTenantOrganizationId(), Description: unlessZero(config.GetMetadata().GetDescription())}
	word, phase, detail := stateWords[state], phaseOf(state), ""
	if phase != providers.Ready {
		detail = word
	}
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: config.GetMetadata().GetName(), Spec: s.Object(), Status: (&spec.NVLinkLogicalPartitionStatus{State: &word}).Object(),
		Phase: phase, Detail: detail,
	}
}

func (k nvlinkPartitions) create(ctx context.Context, c *call[spec.NVLinkLogicalPartition]) error {
	made, err := k.CreateNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionCreationRequest{
		Id: &forge.NVLinkLogicalPartitionId{Value: c.ID},
		Config: &forge.NVLinkLogicalPartitionConfig{
			TenantOrganizationId: c.want.Tenant, Metadata: unlabelled(c.Call, nil, c.want.Description),
		},
	})
	c.Chose(made.GetId().GetValue())
	return err
}

// update repeats the tenant, because the service requires it.
func (k nvlinkPartitions) update(ctx context.Context, c *call[spec.NVLinkLogicalPartition], now *forge.NVLinkLogicalPartition) error {
	config := now.GetConfig()
	if config == nil {
		config = &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: c.want.Tenant}
	}
	config.Metadata = unlabelled(c.Call, config.Metadata, c.want.Description)
	_, err := k.UpdateNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionUpdateRequest{
		Id: now.Id, Config: config, IfVersionMatch: &now.ConfigVersion,
	})
	return err
}

func (k nvlinkPartitions) delete(ctx context.Context, c *call[spec.NVLinkLogicalPartition]) error {
	_, err := k.DeleteNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionDeletionRequest{Id: &forge.NVLinkLogicalPartitionId{Value: c.ID}})
	return err
}
