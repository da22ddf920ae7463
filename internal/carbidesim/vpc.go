package carbidesim

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"converge.dev/converge/providers/carbide/forge"
)

type vpc struct {
	Organization  string                      `json:"organization"`
	Metadata      metadata                    `json:"metadata"`
	Type          forge.VpcVirtualizationType `json:"type"`
	SecurityGroup string                      `json:"securityGroup,omitempty"`
	Profile       string                      `json:"profile,omitempty"`
	VNI           uint32                      `json:"vni"`
	Requested     bool                        `json:"requested,omitempty"` // the client requested that VNI
	Version       token                       `json:"version"`
	Created       time.Time                   `json:"created"`
	Updated       time.Time                   `json:"updated"`
	GroupSince    time.Time                   `json:"groupSince"` // when the security group was attached

	Overrides kept[*forge.VpcRoutingProfileOverrides] `json:"overrides,omitzero"` // of the routing profile
}

// CreateVpc creates a VPC, which is ready at once. It does not check whether the tenant exists.
func (s *site) CreateVpc(_ context.Context, r *forge.VpcCreationRequest) (*forge.Vpc, error) {
	m, err := optionalMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	v := &vpc{
		Organization: r.TenantOrganizationId,
		Metadata:     m,
		Version:      firstToken(s.now),
		Created:      s.now,
		Updated:      s.now,
		GroupSince:   s.now,
	}
	if v.Type, err = s.virtualization(r.GetNetworkVirtualizationType()); err != nil {
		return nil, err
	}
	if v.SecurityGroup, err = s.groupFor(v.Organization, r.NetworkSecurityGroupId); err != nil {
		return nil, err
	}
	if v.Profile, err = s.profileFor(v, r.RoutingProfileType); err != nil {
		return nil, err
	}
	id := s.chosen(r.Id.GetValue())
	if s.vpcs.get(id) != nil || s.isBurned("vpc", id) {
		return nil, duplicate("vpcs_pkey")
	}
	if v.VNI, err = s.vpcNumbers.grant("vpc-vni", s.rules.AutoVNIs, s.rules.RequestedVNIs, r.Vni, noVNI); err != nil {
		return nil, err
	}
	v.Requested = r.Vni != nil
	v.Overrides = keep(r.RoutingProfileOverrides)
	s.vpcs.put(id, v)
	return s.wireVpc(id, v), nil
}

// virtualization accepts the types that a VPC can have.
func (s *site) virtualization(t forge.VpcVirtualizationType) (forge.VpcVirtualizationType, error) {
	switch {
	case t == forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER, t == forge.VpcVirtualizationType_FNN:
		return t, nil
	case t == forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER_WITH_NVUE:
		return forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER, nil // currently the same
	case t == forge.VpcVirtualizationType_FLAT && !s.old:
		return t, nil
	}
	return t, invalid("invalid network virtualization type %d", t)
}

// groupFor checks a reference to a security group of the same organization.
func (s *site) groupFor(organization string, id *string) (string, error) {
	if id == nil {
		return "", nil
	}
	if *id == "" {
		return "", invalid("network_security_group_id must not be empty")
	}
	if organization == "" {
		return "", invalid("a tenant organization is required with a network security group")
	}
	if g := s.securityGroups.get(*id); g == nil || g.Organization != organization {
		return "", precondition("NetworkSecurityGroup %s does not exist or belongs to another tenant", *id)
	}
	return *id, nil
}

// profileFor finds the routing profile of a new VPC: the requested one, or that of its tenant.
func (s *site) profileFor(v *vpc, want *string) (string, error) {
	if v.Type != forge.VpcVirtualizationType_FNN {
		if want != nil {
			return "", invalid("a routing profile needs network virtualization type FNN")
		}
		return "", nil
	}
	if len(s.rules.RoutingProfiles) == 0 {
		return "", precondition("the site has no FNN configuration")
	}
	t := s.tenants.get(v.Organization)
	if t == nil || t.Profile == nil {
		return "", precondition("tenant %q has no routing profile", v.Organization)
	}
	if want == nil {
		return *t.Profile, nil
	}
	if err := s.checkProfile(want); err != nil {
		return "", err
	}
	if s.profile(*want).Tier > s.profile(*t.Profile).Tier {
		return "", precondition("routing profile %s reaches further than the tenant's %s", *want, *t.Profile)
	}
	return *want, nil
}

// noVNI refuses a number that is not available.
func noVNI(number uint32) error { return precondition("VNI %d is not available", number) }

// UpdateVpc replaces only metadata and security group.
func (s *site) UpdateVpc(_ context.Context, r *forge.VpcUpdateRequest) (*forge.VpcUpdateResult, error) {
	m, err := optionalMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	id := r.Id.GetValue()
	if id == "" {
		return nil, missing("id")
	}
	have := s.vpcs.get(id)
	if have == nil && r.NetworkSecurityGroupId != nil {
		return nil, notFound("Vpc", id)
	}
	if have, err = s.vpcToChange(id, r.IfVersionMatch); err != nil {
		return nil, err
	}
	v := *have
	v.Metadata = m
	v.Overrides = keep(r.RoutingProfileOverrides)
	if v.SecurityGroup, err = s.groupFor(v.Organization, r.NetworkSecurityGroupId); err != nil {
		return nil, err
	}
	if v.SecurityGroup != have.SecurityGroup {
		v.GroupSince = s.now
	}
	s.changeVpc(id, &v)
	return &forge.VpcUpdateResult{Vpc: s.wireVpc(id, &v)}, nil
}

// UpdateVpcVirtualization changes the type, as long as no instance has an address in the VPC.
func (s *site) UpdateVpcVirtualization(_ context.Context, r *forge.VpcUpdateVirtualizationRequest) (*forge.VpcUpdateVirtualizationResult, error) {
	id := r.Id.GetValue()
	if id == "" {
		return nil, missing("id")
	}
	if r.NetworkVirtualizationType == nil {
		return nil, missing("network_virtualization_type")
	}
	have, err := s.vpcToChange(id, r.IfVersionMatch)
	if err != nil {
		return nil, err
	}
	v := *have
	if v.Type, err = s.virtualization(*r.NetworkVirtualizationType); err != nil {
		return nil, err
	}
	if len(s.instancesIn(id)) > 0 {
		return nil, internal("VPC %s has instances", id)
	}
	s.changeVpc(id, &v)
	return &forge.VpcUpdateVirtualizationResult{}, nil
}

// vpcToChange finds a VPC by id and token. The real service updates by both at once, and cannot distinguish a VPC that does
// not exist from a token that does not match; without a token the database's error comes through.
func (s *site) vpcToChange(id string, want *string) (*vpc, error) {
	have := s.vpcs.get(id)
	if have == nil {
		if err := expect("vpc", token{}, want, codes.InvalidArgument); err != nil {
			return nil, err
		}
		return nil, noRows()
	}
	return have, expect("vpc", have.Version, want, codes.InvalidArgument)
}

func (s *site) changeVpc(id string, v *vpc) {
	v.Version = v.Version.next(s.now)
	v.Updated = s.now
	s.vpcs.put(id, v)
}

// DeleteVpc deletes softly and, before v2.0, checks nothing: segments, prefixes and instances stay behind. From then on
// prefixes, including those that drain, prevent it. Peerings are deleted with it.
func (s *site) DeleteVpc(_ context.Context, r *forge.VpcDeletionRequest) (*forge.VpcDeletionResult, error) {
	id := r.Id.GetValue()
	if id == "" {
		return nil, missing("id")
	}
	if s.vpcs.get(id) == nil {
		return nil, notFound("vpc", id)
	}
	if n := len(s.prefixesByVpc.of(id)); n > 0 && s.later {
		return nil, precondition("VPC %s cannot be deleted while %d VPC prefixes still exist or are pending deletion", id, n)
	}
	s.endPeerings(id)
	s.vpcs.drop(id)
	s.burn("vpc", id)
	return &forge.VpcDeletionResult{}, nil
}

// FindVpcIds filters by name, tenant and label.
func (s *site) FindVpcIds(_ context.Context, r *forge.VpcSearchFilter) (*forge.VpcIdList, error) {
	if err := checkFilter(r.Label); err != nil {
		return nil, err
	}
	pass := func(v *vpc) bool {
		return is(r.Name, v.Metadata.Name) && is(r.TenantOrgId, v.Organization) && v.Metadata.matches(r.Label)
	}
	return &forge.VpcIdList{
		VpcIds: where(s.vpcs, pass, func(id string) *forge.VpcId { return &forge.VpcId{Value: id} }),
	}, nil
}

// FindVpcsByIds returns the VPCs that exist.
func (s *site) FindVpcsByIds(_ context.Context, r *forge.VpcsByIdsRequest) (*forge.VpcList, error) {
	if err := s.page(len(r.VpcIds)); err != nil {
		return nil, err
	}
	return &forge.VpcList{
		Vpcs: each(s.vpcs, texts(r.VpcIds), s.wireVpc),
	}, nil
}

func (s *site) wireVpc(id string, v *vpc) *forge.Vpc {
	out := &forge.Vpc{
		Id:                        &forge.VpcId{Value: id},
		TenantOrganizationId:      v.Organization,
		Version:                   v.Version.String(),
		Created:                   timestamppb.New(v.Created),
		Updated:                   timestamppb.New(v.Updated),
		NetworkVirtualizationType: v.Type.Enum(),
		Metadata:                  v.Metadata.wire(),
		DeprecatedVni:             proto.Uint32(v.VNI),
		Status:                    &forge.VpcStatus{Vni: proto.Uint32(v.VNI)},
		NetworkSecurityGroupId:    optional(v.SecurityGroup),
		RoutingProfileType:        optional(v.Profile),
	}
	if v.Requested {
		out.Vni = proto.Uint32(v.VNI)
	}
	if s.later {
		out.Config = &forge.VpcConfig{
			TenantOrganizationId:      v.Organization,
			NetworkVirtualizationType: v.Type.Enum(),
			NetworkSecurityGroupId:    out.NetworkSecurityGroupId,
			Vni:                       out.Vni,
			RoutingProfileType:        out.RoutingProfileType,
			RoutingProfileOverrides:   v.Overrides.message,
		}
	}
	return out
}

// liveVpc finds the VPC that another object belongs to.
func (s *site) liveVpc(id string) (*vpc, error) {
	if v := s.vpcs.get(id); v != nil {
		return v, nil
	}
	return nil, status.Errorf(codes.NotFound, "vpc not found: %s", id)
}

// optional is absent on the wire when it is empty here.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
