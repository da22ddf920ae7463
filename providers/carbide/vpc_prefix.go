package carbide

import (
	"cmp"
	"context"
	"math"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// From v2.0 of the service on, a prefix becomes ready, and is deleted, with the next rounds of its controller, and a VPC
// cannot be deleted before it. In earlier versions, it is done when the call returns.
var prefixTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Mark: true, EffectWithin: late, ReadyWithin: 5 * time.Minute, GoneWithin: 20 * time.Minute,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "prefix"}},
}

// prefixeRefusals are codes with a special meaning.
var prefixeRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Busy, // the VPC changed meanwhile
	},
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // the VPC changed meanwhile
		codes.Internal:           providers.Busy, // there are segments inside, perhaps link networks of deleted instances
	},
}

// Creating and deleting a prefix moves the version of its VPC, and fails when another call does so at the same time.
// Hence these calls are made one at a time per VPC.
type prefixes struct {
	*service
	uuidKind
}

func (k prefixes) list(ctx context.Context) ([]string, error) {
	r, err := k.SearchVpcPrefixes(ctx, &forge.VpcPrefixSearchQuery{Deleted: forge.DeletedFilter_DELETED_FILTER_INCLUDE})
	return texts(r.GetVpcPrefixIds()), err
}

func (k prefixes) get(ctx context.Context, ids []string) ([]*forge.VpcPrefix, error) {
	r, err := k.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{
		VpcPrefixIds: wrapped(ids, func(id string) *forge.VpcPrefixId { return &forge.VpcPrefixId{Value: id} }),
		Deleted:      forge.DeletedFilter_DELETED_FILTER_INCLUDE,
	})
	return r.GetVpcPrefixes(), err
}

func (prefixes) thing(o *forge.VpcPrefix) providers.Thing {
	s := spec.VPCPrefix{VPC: o.GetVpcId().GetValue(), Prefix: cmp.Or(o.GetConfig().GetPrefix(), o.GetPrefix())}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	total, available := o.GetStatus().GetTotalLinknetSegments(), o.GetStatus().GetAvailableLinknetSegments()
	if total == 0 { // an older server, which counts IPv4 only
		total = uint64(cmp.Or(o.GetStatus().GetTotal_31Segments(), o.GetTotal_31Segments()))
		available = uint64(cmp.Or(o.GetStatus().GetAvailable_31Segments(), o.GetAvailable_31Segments()))
	}
	phase, detail := providers.Ready, ""
	if o.GetStatus().GetLifecycle() != nil { // an older server does all of it at once
		state := o.GetStatus().GetTenantState()
		if phase = phaseOf(state); phase != providers.Ready {
			detail = because(stateWords[state], o.GetStatus().GetLifecycle().GetStateReason())
		}
	}
	all, free := int64(min(total, math.MaxInt64)), int64(min(available, math.MaxInt64))
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: nameOf(o.GetMetadata(), o), Mark: mark, Spec: s.Object(), Phase: phase, Detail: detail,
		Status: (&spec.VPCPrefixStatus{TotalLinknets: &all, AvailableLinknets: &free}).Object(),
	}
}

func (k prefixes) create(ctx context.Context, c *call[spec.VPCPrefix]) error {
	vpc := c.want.VPC
	done, err := k.orders.Lock(ctx, vpc)
	if err != nil {
		return unsentError{ctx.Err()}
	}
	defer done()
	request := &forge.VpcPrefixCreationRequest{
		Id:       &forge.VpcPrefixId{Value: c.ID},
		VpcId:    &forge.VpcId{Value: vpc},
		Config:   &forge.VpcPrefixConfig{Prefix: c.want.Prefix},
		Metadata: newMetadata(c.Call, c.want.Description, c.want.Labels),
	}
	forge.SetLegacyName(request, c.Called())
	made, err := k.CreateVpcPrefix(ctx, request)
	c.Chose(made.GetId().GetValue())
	return err
}

func (k prefixes) update(ctx context.Context, c *call[spec.VPCPrefix], now *forge.VpcPrefix) error {
	request := &forge.VpcPrefixUpdateRequest{Id: now.Id, Metadata: writeMetadata(c.Call, now.Metadata, c.Called(), c.want.Description, c.want.Labels)}
	forge.SetLegacyName(request, c.Called())
	_, err := k.UpdateVpcPrefix(ctx, request)
	return err
}

func (k prefixes) delete(ctx context.Context, c *call[spec.VPCPrefix]) error {
	done, err := k.orders.Lock(ctx, c.have.VPC)
	if err != nil {
		return unsentError{ctx.Err()}
	}
	defer done()
	_, err = k.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: &forge.VpcPrefixId{Value: c.ID}})
	return err
}
