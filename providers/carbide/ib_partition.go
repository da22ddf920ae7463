package carbide

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// A partition becomes ready with the next round of the service's controller, about every 30 s. A deleted one disappears
// when the fabric has released its key. The service has a version for it but never moves that, so an update is blind.
var ibTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Mark: true, EffectWithin: late, ReadyWithin: 5 * time.Minute, GoneWithin: 20 * time.Minute,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "pkey"}},
}

// ibPartitionRefusals are codes with a special meaning.
var ibPartitionRefusals = refusals{
	opCreate: {
		codes.Internal: providers.Invalid, // the key cannot be requested or is taken, or the site has no such fabric
	},
	opUpdate: {
		codes.FailedPrecondition: providers.Conflict, // it was changed since it was read; some versions of the service report that
	},
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // instances use it
	},
}

type ibPartitions struct {
	*service
	uuidKind
}

func (k ibPartitions) list(ctx context.Context) ([]string, error) {
	r, err := k.FindIBPartitionIds(ctx, &forge.IBPartitionSearchFilter{})
	return texts(r.GetIbPartitionIds()), err
}

func (k ibPartitions) get(ctx context.Context, ids []string) ([]*forge.IBPartition, error) {
	r, err := k.FindIBPartitionsByIds(ctx, &forge.IBPartitionsByIdsRequest{IbPartitionIds: wrapped(ids, func(id string) *forge.IBPartitionId { return &forge.IBPartitionId{Value: id} })})
	return r.GetIbPartitions(), err
}

func (ibPartitions) thing(o *forge.IBPartition) providers.Thing {
	s := spec.IBPartition{Tenant: o.GetConfig().GetTenantOrganizationId(), Pkey: unlessZero(partitionKey(o.GetConfig().GetPkey()))}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	state := o.GetStatus().GetState()
	word, phase, detail := stateWords[state], phaseOf(state), ""
	if phase != providers.Ready {
		detail = because(word, o.GetStatus().GetStateReason())
	}
	got := spec.IBPartitionStatus{State: &word, AllocatedPkey: unlessZero(partitionKey(o.GetStatus().GetPkey()))}
	name := o.GetMetadata().GetName()
	if name == "" {
		name = o.GetConfig().GetName()
	}
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: name, Mark: mark, Spec: s.Object(), Status: got.Object(), Phase: phase, Detail: detail,
	}
}

// partitionKey returns a key in its canonical spelling; text that is not a key stays as it is.
func partitionKey(text string) string {
	key, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(text), "0x"), 16, 16)
	if err != nil {
		return text
	}
	return "0x" + strconv.FormatUint(key, 16)
}

func (k ibPartitions) create(ctx context.Context, c *call[spec.IBPartition]) error {
	tenant := c.want.Tenant
	made, err := k.CreateIBPartition(ctx, &forge.IBPartitionCreationRequest{
		Id:       &forge.IBPartitionId{Value: c.ID},
		Metadata: newMetadata(c.Call, c.want.Description, c.want.Labels),
		Config:   &forge.IBPartitionConfig{Name: c.Called(), TenantOrganizationId: tenant, Pkey: c.want.Pkey},
	})
	c.Chose(made.GetId().GetValue())
	if k.early(ctx, tenant, err) {
		return earlyError{err}
	}
	return err
}

// early reports whether a refusal may be about the tenant's quota while partitions that count against it are being
// deleted. The code does not distinguish this from wrong values.
func (k ibPartitions) early(ctx context.Context, tenant string, err error) bool {
	if status.Code(err) != codes.InvalidArgument {
		return false
	}
	r, err := k.FindIBPartitionIds(ctx, &forge.IBPartitionSearchFilter{TenantOrgId: &tenant})
	if err != nil {
		return false
	}
	for ids := range slices.Chunk(texts(r.GetIbPartitionIds()), k.ids) {
		found, err := k.get(ctx, ids)
		if err != nil {
			return false
		}
		if slices.ContainsFunc(found, func(o *forge.IBPartition) bool { return phaseOf(o.GetStatus().GetState()) == providers.Deleting }) {
			return true
		}
	}
	return false
}

// update repeats what cannot change, because the service requires it.
func (k ibPartitions) update(ctx context.Context, c *call[spec.IBPartition], now *forge.IBPartition) error {
	config := now.GetConfig()
	if config == nil {
		config = &forge.IBPartitionConfig{TenantOrganizationId: c.want.Tenant}
	}
	config.Name = c.Called()
	_, err := k.UpdateIBPartition(ctx, &forge.IBPartitionUpdateRequest{
		Id: now.Id, Config: config, IfVersionMatch: &now.ConfigVersion, Metadata: writeMetadata(c.Call, now.Metadata, c.Called(), c.want.Description, c.want.Labels),
	})
	return err
}

func (k ibPartitions) delete(ctx context.Context, c *call[spec.IBPartition]) error {
	_, err := k.DeleteIBPartition(ctx, &forge.IBPartitionDeletionRequest{Id: &forge.IBPartitionId{Value: c.ID}})
	return err
}
