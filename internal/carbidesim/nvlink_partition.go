package carbidesim

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"converge.dev/converge/providers/carbide/forge"
)

// nvlinkPartition is a logical partition of NVLink. Labels are checked and dropped; the token never changes.
type nvlinkPartition struct {
	Organization string    `json:"organization"`
	Name         string    `json:"name"`
	Description  string    `json:"description,omitempty"`
	Deleted      bool      `json:"deleted,omitempty"`
	Version      token     `json:"version"`
	Created      time.Time `json:"created"`
	Due          time.Time `json:"due,omitzero"` // when the site acts on it next
}

// CreateNVLinkLogicalPartition creates a partition, which is ready at once.
func (s *site) CreateNVLinkLogicalPartition(_ context.Context, r *forge.NVLinkLogicalPartitionCreationRequest) (*forge.NVLinkLogicalPartition, error) {
	organization, err := configOrganization(r.Config != nil, r.GetConfig().GetTenantOrganizationId())
	if err != nil {
		return nil, err
	}
	m, err := requiredMetadata(r.Config.Metadata)
	if err != nil {
		return nil, err
	}
	id := s.chosen(r.Id.GetValue())
	if s.nvlinkPartitions.get(id) != nil {
		return nil, duplicate("nvlink_logical_partitions_pkey")
	}
	p := &nvlinkPartition{
		Organization: organization, Name: m.Name, Description: m.Description, Version: firstToken(s.now), Created: s.now,
	}
	s.nvlinkPartitions.put(id, p)
	return p.wire(id), nil
}

// UpdateNVLinkLogicalPartition replaces name and description.
func (s *site) UpdateNVLinkLogicalPartition(_ context.Context, r *forge.NVLinkLogicalPartitionUpdateRequest) (*forge.NVLinkLogicalPartitionUpdateResult, error) {
	switch {
	case r.Id == nil:
		return nil, missing("id")
	case r.Config == nil:
		return nil, missing("config")
	}
	m, err := requiredMetadata(r.Config.Metadata)
	if err != nil {
		return nil, err
	}
	id := r.Id.GetValue()
	have := s.nvlinkPartitions.get(id)
	if have == nil {
		return nil, notFound("logical_partition", id)
	}
	if r.Config.TenantOrganizationId != have.Organization {
		return nil, invalid("the tenant of a logical partition cannot change")
	}
	if err := expect("LogicalPartition", have.Version, r.IfVersionMatch, codes.Internal); err != nil {
		return nil, err
	}
	p := *have
	p.Name, p.Description = m.Name, m.Description
	s.nvlinkPartitions.put(id, &p)
	return &forge.NVLinkLogicalPartitionUpdateResult{}, nil
}

// DeleteNVLinkLogicalPartition marks a partition that no instance uses. The site's NVLink monitor removes it, which a site
// without NVLink does not have.
func (s *site) DeleteNVLinkLogicalPartition(_ context.Context, r *forge.NVLinkLogicalPartitionDeletionRequest) (*forge.NVLinkLogicalPartitionDeletionResult, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	id := r.Id.GetValue()
	have := s.nvlinkPartitions.get(id)
	switch {
	case have == nil:
		return nil, notFound("logical_partition", id)
	case s.onPartition(id):
		return nil, invalid("logical partition is still referenced by instance(s)")
	case have.Deleted:
		return &forge.NVLinkLogicalPartitionDeletionResult{}, nil
	}
	p := *have
	p.Deleted = true
	if !s.rules.NoNVLink {
		p.Due = s.after(s.timing.Purge, "nvlink partition gone", id)
	}
	s.nvlinkPartitions.put(id, &p)
	return &forge.NVLinkLogicalPartitionDeletionResult{}, nil
}

// FindNVLinkLogicalPartitionIds filters by name. The list includes partitions that are being deleted.
func (s *site) FindNVLinkLogicalPartitionIds(_ context.Context, r *forge.NVLinkLogicalPartitionSearchFilter) (*forge.NVLinkLogicalPartitionIdList, error) {
	pass := func(p *nvlinkPartition) bool { return is(r.Name, p.Name) }
	wire := func(id string) *forge.NVLinkLogicalPartitionId { return &forge.NVLinkLogicalPartitionId{Value: id} }
	return &forge.NVLinkLogicalPartitionIdList{PartitionIds: where(s.nvlinkPartitions, pass, wire)}, nil
}

// FindNVLinkLogicalPartitionsByIds returns the partitions that exist.
func (s *site) FindNVLinkLogicalPartitionsByIds(_ context.Context, r *forge.NVLinkLogicalPartitionsByIdsRequest) (*forge.NVLinkLogicalPartitionList, error) {
	if err := s.page(len(r.PartitionIds)); err != nil {
		return nil, err
	}
	wire := func(id string, p *nvlinkPartition) *forge.NVLinkLogicalPartition { return p.wire(id) }
	return &forge.NVLinkLogicalPartitionList{Partitions: each(s.nvlinkPartitions, texts(r.PartitionIds), wire)}, nil
}

func (s *site) nvlinkPartitionGone(id string) {
	if have := s.nvlinkPartitions.get(id); have != nil && have.Due.Equal(s.now) {
		s.nvlinkPartitions.drop(id)
	}
}

func (p *nvlinkPartition) wire(id string) *forge.NVLinkLogicalPartition {
	state := forge.TenantState_READY
	if p.Deleted {
		state = forge.TenantState_TERMINATING
	}
	return &forge.NVLinkLogicalPartition{
		Id: &forge.NVLinkLogicalPartitionId{Value: id},
		Config: &forge.NVLinkLogicalPartitionConfig{
			Metadata: &forge.Metadata{Name: p.Name, Description: p.Description}, TenantOrganizationId: p.Organization,
		},
		ConfigVersion: p.Version.String(),
		Status:        &forge.NVLinkLogicalPartitionStatus{State: state},
		Created:       timestamppb.New(p.Created),
	}
}
