package carbidesim

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

// securityGroup is a packet filter of a tenant. Its id can be any text.
type securityGroup struct {
	Organization string                                      `json:"organization"`
	Metadata     metadata                                    `json:"metadata"`
	Attributes   kept[*forge.NetworkSecurityGroupAttributes] `json:"attributes"`
	Version      token                                       `json:"version"`
	Created      time.Time                                   `json:"created"`
	Updated      time.Time                                   `json:"updated"`
}

// CreateNetworkSecurityGroup creates a group; its name is unique among the live groups of a tenant.
func (s *site) CreateNetworkSecurityGroup(_ context.Context, r *forge.CreateNetworkSecurityGroupRequest) (*forge.CreateNetworkSecurityGroupResponse, error) {
	m, err := requiredMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	if r.Id != nil && *r.Id == "" {
		return nil, invalid("id must not be empty")
	}
	rules, err := s.readRules(r.NetworkSecurityGroupAttributes)
	if err != nil {
		return nil, err
	}
	id := s.chosen(r.GetId())
	if err := tooLong(id, 64); err != nil {
		return nil, err
	}
	if s.tenants.get(r.TenantOrganizationId) == nil {
		return nil, violation("network_security_groups_tenant_organization_id_fkey")
	}
	if s.groupNamed(m.Name, func(g *securityGroup) bool { return g.Organization == r.TenantOrganizationId }) != "" {
		return nil, alreadyExists("NetworkSecurityGroup", m.Name)
	}
	if s.securityGroups.get(id) != nil {
		return nil, alreadyExists("NetworkSecurityGroup", id)
	}
	if s.isBurned("security group", id) {
		return nil, duplicate("network_security_groups_pkey")
	}
	g := &securityGroup{r.TenantOrganizationId, m, keep(rules), firstToken(s.now), s.now, s.now}
	s.securityGroups.put(id, g)
	return &forge.CreateNetworkSecurityGroupResponse{NetworkSecurityGroup: g.wire(id)}, nil
}

// groupNamed returns the id of a group with that name that passes, or "".
func (s *site) groupNamed(name string, pass func(*securityGroup) bool) string {
	for id := range s.groupsByName.of(name) {
		if pass(s.securityGroups.get(id)) {
			return id
		}
	}
	return ""
}

// UpdateNetworkSecurityGroup replaces metadata and rules completely and always changes the token. Here the name must be
// free among all tenants, not only the group's own.
func (s *site) UpdateNetworkSecurityGroup(_ context.Context, r *forge.UpdateNetworkSecurityGroupRequest) (*forge.UpdateNetworkSecurityGroupResponse, error) {
	m, err := requiredMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	rules, err := s.readRules(r.NetworkSecurityGroupAttributes)
	if err != nil {
		return nil, err
	}
	have := s.securityGroups.get(r.Id)
	if have == nil || have.Organization != r.TenantOrganizationId {
		return nil, notFound("NetworkSecurityGroup", r.Id)
	}
	if err := expect("NetworkSecurityGroup", have.Version, r.IfVersionMatch, codes.Internal); err != nil {
		return nil, err
	}
	if s.groupNamed(m.Name, func(g *securityGroup) bool { return g != have }) != "" {
		return nil, alreadyExists("NetworkSecurityGroup", m.Name)
	}
	g := &securityGroup{have.Organization, m, keep(rules), have.Version.next(s.now), have.Created, s.now}
	s.securityGroups.put(r.Id, g)
	return &forge.UpdateNetworkSecurityGroupResponse{NetworkSecurityGroup: g.wire(r.Id)}, nil
}

// DeleteNetworkSecurityGroup deletes softly, unless a live VPC or an instance has the group.
func (s *site) DeleteNetworkSecurityGroup(_ context.Context, r *forge.DeleteNetworkSecurityGroupRequest) (*forge.DeleteNetworkSecurityGroupResponse, error) {
	have := s.securityGroups.get(r.Id)
	if have == nil {
		return nil, notFound("NetworkSecurityGroup", r.Id)
	}
	if have.Organization != r.TenantOrganizationId {
		return nil, invalid("NetworkSecurityGroup %s belongs to another tenant", r.Id)
	}
	if len(s.vpcsByGroup.of(r.Id)) > 0 || len(s.instancesByGroup.of(r.Id)) > 0 {
		return nil, precondition("NetworkSecurityGroup %s is attached to VPCs or instances", r.Id)
	}
	s.securityGroups.drop(r.Id)
	s.burn("security group", r.Id)
	return &forge.DeleteNetworkSecurityGroupResponse{}, nil
}

// FindNetworkSecurityGroupIds filters by name and tenant.
func (s *site) FindNetworkSecurityGroupIds(_ context.Context, r *forge.FindNetworkSecurityGroupIdsRequest) (*forge.FindNetworkSecurityGroupIdsResponse, error) {
	pass := func(g *securityGroup) bool {
		return is(r.Name, g.Metadata.Name) && is(r.TenantOrganizationId, g.Organization)
	}
	return &forge.FindNetworkSecurityGroupIdsResponse{
		NetworkSecurityGroupIds: where(s.securityGroups, pass, func(id string) string { return id }),
	}, nil
}

// FindNetworkSecurityGroupsByIds returns the groups that exist, of one tenant if it is named.
func (s *site) FindNetworkSecurityGroupsByIds(_ context.Context, r *forge.FindNetworkSecurityGroupsByIdsRequest) (*forge.FindNetworkSecurityGroupsByIdsResponse, error) {
	if err := s.page(len(r.NetworkSecurityGroupIds)); err != nil {
		return nil, err
	}
	out := each(s.securityGroups, r.NetworkSecurityGroupIds, func(id string, g *securityGroup) *forge.NetworkSecurityGroup { return g.wire(id) })
	if r.TenantOrganizationId != nil {
		out = slices.DeleteFunc(out, func(g *forge.NetworkSecurityGroup) bool { return g.TenantOrganizationId != *r.TenantOrganizationId })
	}
	return &forge.FindNetworkSecurityGroupsByIdsResponse{NetworkSecurityGroups: out}, nil
}

// GetNetworkSecurityGroupAttachments returns which objects have the groups.
func (s *site) GetNetworkSecurityGroupAttachments(_ context.Context, r *forge.GetNetworkSecurityGroupAttachmentsRequest) (*forge.GetNetworkSecurityGroupAttachmentsResponse, error) {
	if err := s.page(len(r.NetworkSecurityGroupIds)); err != nil {
		return nil, err
	}
	wire := func(id string, _ *securityGroup) *forge.NetworkSecurityGroupAttachments {
		return &forge.NetworkSecurityGroupAttachments{
			NetworkSecurityGroupId: id,
			VpcIds:                 sortedKeys(s.vpcsByGroup.of(id)),
			InstanceIds:            sortedKeys(s.instancesByGroup.of(id)),
		}
	}
	return &forge.GetNetworkSecurityGroupAttachmentsResponse{Attachments: each(s.securityGroups, r.NetworkSecurityGroupIds, wire)}, nil
}

// GetNetworkSecurityGroupPropagationStatus returns how far the groups of VPCs and instances have reached the hosts. A VPC
// counts the instances that have no group of their own; objects without a group are left out.
func (s *site) GetNetworkSecurityGroupPropagationStatus(_ context.Context, r *forge.GetNetworkSecurityGroupPropagationStatusRequest) (*forge.GetNetworkSecurityGroupPropagationStatusResponse, error) {
	if err := s.atMost(len(r.VpcIds) + len(r.InstanceIds)); err != nil {
		return nil, err
	}
	asked := func(group string) bool {
		return group != "" && (r.NetworkSecurityGroupIds == nil || slices.Contains(r.NetworkSecurityGroupIds.Ids, group))
	}
	out := &forge.GetNetworkSecurityGroupPropagationStatusResponse{}
	for _, text := range r.VpcIds {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, invalid("invalid VPC id %q", text)
		}
		v := s.vpcs.get(id.String())
		if v == nil || !asked(v.SecurityGroup) {
			continue
		}
		var users []string
		for _, i := range s.instancesIn(id.String()) {
			if s.instances.get(i).config().GetNetworkSecurityGroupId() == "" {
				users = append(users, i)
			}
		}
		out.Vpcs = append(out.Vpcs, s.reached(id.String(), v.SecurityGroup, users, v.GroupSince))
	}
	for _, text := range r.InstanceIds {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, invalid("invalid instance id %q", text)
		}
		if i := s.instances.get(id.String()); i != nil && asked(i.config().GetNetworkSecurityGroupId()) {
			group := i.config().GetNetworkSecurityGroupId()
			out.Instances = append(out.Instances, s.reached(id.String(), group, []string{id.String()}, time.Time{}))
		}
	}
	return out, nil
}

// reached returns the status of one object. A host follows its group one round after the group, the attachment or the
// instance changed, and only while the instance is up; one that is left behind does not follow.
func (s *site) reached(id, group string, instances []string, attached time.Time) *forge.NetworkSecurityGroupPropagationObjectStatus {
	out := &forge.NetworkSecurityGroupPropagationObjectStatus{
		Id: id, Status: forge.NetworkSecurityGroupPropagationStatus_NSG_PROP_STATUS_FULL, RelatedInstanceIds: instances,
	}
	g := s.securityGroups.get(group)
	for _, instanceID := range instances {
		i := s.instances.get(instanceID)
		waiting := func(since time.Time) bool {
			return s.now.Before(since.Add(s.timing.Tick)) || !i.Behind.IsZero() && !since.Before(i.Behind)
		}
		if i.State != forge.TenantState_READY || waiting(g.Updated) || waiting(attached) || waiting(i.GroupSince) {
			out.UnpropagatedInstanceIds = append(out.UnpropagatedInstanceIds, instanceID)
		}
	}
	switch len(out.UnpropagatedInstanceIds) {
	case 0:
	case len(instances):
		out.Status = forge.NetworkSecurityGroupPropagationStatus_NSG_PROP_STATUS_NONE
	default:
		out.Status = forge.NetworkSecurityGroupPropagationStatus_NSG_PROP_STATUS_PARTIAL
	}
	return out
}

func (g *securityGroup) wire(id string) *forge.NetworkSecurityGroup {
	return &forge.NetworkSecurityGroup{
		Id:                   id,
		TenantOrganizationId: g.Organization,
		Metadata:             g.Metadata.wire(),
		Version:              g.Version.String(),
		Attributes:           g.Attributes.message,
		CreatedAt:            optional(utc(g.Created)),
	}
}
