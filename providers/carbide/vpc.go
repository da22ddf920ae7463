package carbide

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// From v2.0 of the service on, a VPC cannot be deleted before its prefixes are gone, so its deletion takes as long as theirs.
var vpcTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	Mark: true, IDsNotReusable: true, DeleteUnchecked: true, EffectWithin: late, ReadyWithin: propagates, GoneWithin: 20 * time.Minute,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "vni"}},
}

var virtualizations = enum[forge.VpcVirtualizationType]{
	{"ethernet_virtualizer", forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER},
	{"ethernet_virtualizer", forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER_WITH_NVUE}, // the same today
	{"fnn", forge.VpcVirtualizationType_FNN},
	{"flat", forge.VpcVirtualizationType_FLAT},
}

// vpcRefusals are codes with a special meaning.
var vpcRefusals = refusals{
	opUpdate: {
		codes.FailedPrecondition: providers.Absent, // the security group
		codes.Internal:           providers.Busy,   // instances have addresses, which fixes the virtualization
	},
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // prefixes exist, or are being deleted
	},
}

type vpcs struct {
	*service
	changeableEarly
	uuidKind
}

func (k vpcs) list(ctx context.Context) ([]string, error) {
	r, err := k.FindVpcIds(ctx, &forge.VpcSearchFilter{})
	return texts(r.GetVpcIds()), err
}

// seenVPC is a VPC, and what its security group still lacks.
type seenVPC struct {
	*forge.Vpc
	lacks string
}

func (k vpcs) get(ctx context.Context, ids []string) ([]seenVPC, error) {
	found, err := k.read(ctx, ids)
	seen := make([]seenVPC, len(found))
	for i, o := range found {
		seen[i].Vpc = o
	}
	return seen, err
}

// complete reads where the groups of all VPCs are in force.
func (k vpcs) complete(ctx context.Context, all []seenVPC) error {
	var guarded []string
	for _, o := range all {
		if settings(o.Vpc).GetNetworkSecurityGroupId() != "" {
			guarded = append(guarded, o.GetId().GetValue())
		}
	}
	lacks, err := k.lacking(ctx, guarded, nil)
	if err != nil {
		return err
	}
	details, err := k.unfinished(ctx, lacks)
	for i, o := range all {
		all[i].lacks = details[o.GetId().GetValue()]
	}
	return err
}

func (k vpcs) read(ctx context.Context, ids []string) ([]*forge.Vpc, error) {
	r, err := k.FindVpcsByIds(ctx, &forge.VpcsByIdsRequest{VpcIds: wrapped(ids, func(id string) *forge.VpcId { return &forge.VpcId{Value: id} })})
	return r.GetVpcs(), err
}

// settings returns those of a VPC: from its config, where newer servers keep them, and what that lacks from the flat fields,
// which are all that older ones have.
func settings(o *forge.Vpc) *forge.VpcConfig {
	out := &forge.VpcConfig{
		TenantOrganizationId:            o.GetTenantOrganizationId(),
		TenantKeysetId:                  o.TenantKeysetId,
		NetworkVirtualizationType:       o.NetworkVirtualizationType,
		NetworkSecurityGroupId:          o.NetworkSecurityGroupId,
		DefaultNvlinkLogicalPartitionId: o.DefaultNvlinkLogicalPartitionId,
		Vni:                             o.Vni,
		RoutingProfileType:              o.RoutingProfileType,
	}
	proto.Merge(out, o.GetConfig())
	return out
}

func (vpcs) thing(o seenVPC) providers.Thing {
	config := settings(o.Vpc)
	s := spec.VPC{
		Tenant: config.GetTenantOrganizationId(), VNI: widen(config.Vni), RoutingProfile: unlessZero(config.GetRoutingProfileType()),
		NetworkSecurityGroup: unlessZero(config.GetNetworkSecurityGroupId()),
	}
	var unfilled []string
	untold := func(field string, yes bool) {
		if yes {
			unfilled = append(unfilled, field)
		}
	}
	rest := s.Tenant == "" // in neither place, and so is all the rest
	untold("vni", rest && s.VNI == nil)
	untold("routing_profile", rest && s.RoutingProfile == nil)
	untold("network_security_group", rest && s.NetworkSecurityGroup == nil)
	if untold("virtualization", config.NetworkVirtualizationType == nil); config.NetworkVirtualizationType != nil {
		word := virtualizations.word(config.GetNetworkVirtualizationType())
		s.Virtualization = &word
	}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	status := spec.VPCStatus{AllocatedVNI: unlessZero(int64(cmp.Or(o.GetStatus().GetVni(), o.GetDeprecatedVni())))}
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: nameOf(o.GetMetadata(), o.Vpc), Mark: mark, Version: o.GetVersion(),
		Spec: s.Object(), Unfilled: unfilled, Status: status.Object(), Phase: spreading(o.lacks), Detail: o.lacks,
	}
}

func (k vpcs) create(ctx context.Context, c *call[spec.VPC]) error {
	request := &forge.VpcCreationRequest{
		Id:                        &forge.VpcId{Value: c.ID},
		TenantOrganizationId:      c.want.Tenant,
		Metadata:                  newMetadata(c.Call, c.want.Description, c.want.Labels),
		NetworkVirtualizationType: virtualizations.value(value(c.want.Virtualization)).Enum(),
		Vni:                       narrow[uint32](c.want.VNI),
		RoutingProfileType:        c.want.RoutingProfile,
		NetworkSecurityGroupId:    c.want.NetworkSecurityGroup,
	}
	forge.SetLegacyName(request, c.Called())
	made, err := k.CreateVpc(ctx, request)
	c.Chose(made.GetId().GetValue())
	return err
}

// update needs one call for the virtualization and another for the rest. The first is more likely to be refused, so it
// goes first; it does not return the new version.
func (k vpcs) update(ctx context.Context, c *call[spec.VPC], now seenVPC) error {
	done, err := k.orders.Lock(ctx, c.ID)
	if err != nil {
		return unsentError{ctx.Err()}
	}
	defer done()
	before := settings(now.Vpc)
	request := &forge.VpcUpdateRequest{
		Id:                              now.Id,
		IfVersionMatch:                  &now.Version,
		Metadata:                        writeMetadata(c.Call, proto.CloneOf(now.Metadata), c.Called(), c.want.Description, c.want.Labels),
		NetworkSecurityGroupId:          c.want.NetworkSecurityGroup,
		DefaultNvlinkLogicalPartitionId: before.DefaultNvlinkLogicalPartitionId,
		RoutingProfileOverrides:         before.RoutingProfileOverrides,
	}
	forge.SetLegacyName(request, c.Called())
	rest := !sameMetadata(now.Metadata, request.Metadata) || before.GetNetworkSecurityGroupId() != request.GetNetworkSecurityGroupId()
	want := c.want.Virtualization
	if want == nil || before.NetworkVirtualizationType != nil && *want == virtualizations.word(before.GetNetworkVirtualizationType()) {
		if !rest {
			return nil
		}
		_, err = k.UpdateVpc(ctx, request)
		return err
	}
	_, err = k.UpdateVpcVirtualization(ctx, &forge.VpcUpdateVirtualizationRequest{
		Id:                        now.Id,
		IfVersionMatch:            &now.Version,
		NetworkVirtualizationType: virtualizations.value(*want).Enum(),
	})
	switch {
	case err != nil && rest:
		return firstError{err}
	case err != nil || !rest:
		return err
	}
	found, err := k.read(ctx, []string{c.ID})
	switch {
	case err != nil:
		return halfwayError{err}
	case len(found) == 0:
		return halfwayError{errAbsent}
	case !sameMetadata(now.Metadata, found[0].Metadata) || before.GetNetworkSecurityGroupId() != settings(found[0]).GetNetworkSecurityGroupId():
		return halfwayError{errMoved(found[0].GetVersion())} // another client was quicker
	}
	request.IfVersionMatch = &found[0].Version
	if _, err = k.UpdateVpc(ctx, request); err != nil {
		return halfwayError{err}
	}
	return nil
}

func (k vpcs) delete(ctx context.Context, c *call[spec.VPC]) error {
	_, err := k.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: &forge.VpcId{Value: c.ID}})
	return err
}
