package carbide

import (
	"cmp"
	"context"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// A second delete of a partition succeeds, and takes its number away from the partition that got it after the first
// delete. So none is made without observing first. A delete of unknown outcome may arrive after that observation;
// Eventual makes the engine wait for it before another delete.
var spxTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Never, Delete: providers.Blind,
	IDsNotReusable: true, Eventual: true, EffectWithin: late,
	UndoCreate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "vni"}},
}

type spxPartitions struct {
	*service
	uuidKind
}

func (k spxPartitions) list(ctx context.Context) ([]string, error) {
	r, err := k.FindSpxPartitionIds(ctx, &forge.SpxPartitionSearchFilter{})
	return texts(r.GetSpxPartitionIds()), err
}

// get also finds what was deleted, which only the list reveals.
func (k spxPartitions) get(ctx context.Context, ids []string) ([]*forge.SpxPartition, error) {
	r, err := k.FindSpxPartitionsByIds(ctx, &forge.SpxPartitionsByIdsRequest{SpxPartitionIds: wrapped(ids, func(id string) *forge.SpxPartitionId { return &forge.SpxPartitionId{Value: id} })})
	return r.GetSpxPartitions(), err
}

// thing reports the number as if it had been requested: the service does not report whether it was.
func (spxPartitions) thing(o *forge.SpxPartition) providers.Thing {
	s := spec.SPXPartition{
		Tenant: o.GetTenantOrganizationId(), Description: unlessZero(o.GetMetadata().GetDescription()), VNI: unlessZero(int64(o.GetVni())),
	}
	id := o.GetId().GetValue()
	return providers.Thing{ID: id, Name: cmp.Or(o.GetMetadata().GetName(), id), Spec: s.Object(), Phase: providers.Ready}
}

func (k spxPartitions) create(ctx context.Context, c *call[spec.SPXPartition]) error {
	made, err := k.CreateSpxPartition(ctx, &forge.SpxPartitionCreationRequest{
		Id:                   &forge.SpxPartitionId{Value: c.ID},
		TenantOrganizationId: c.want.Tenant,
		Metadata:             unlabelled(c.Call, nil, c.want.Description),
		Vni:                  narrow[uint32](c.want.VNI),
	})
	c.Chose(made.GetId().GetValue())
	return err
}

func (spxPartitions) update(context.Context, *call[spec.SPXPartition], *forge.SpxPartition) error {
	return errNone
}

func (k spxPartitions) delete(ctx context.Context, c *call[spec.SPXPartition]) error {
	live, err := k.list(ctx)
	if err != nil {
		return unsentError{err}
	}
	if !slices.Contains(live, c.ID) {
		return nil
	}
	_, err = k.DeleteSpxPartition(ctx, &forge.SpxPartitionDeletionRequest{Id: &forge.SpxPartitionId{Value: c.ID}})
	return err
}
