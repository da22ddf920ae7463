package carbidesim

import (
	"context"

	"converge.dev/converge/providers/carbide/forge"
)

// spxPartition is a partition of the Spectrum-X fabric. A deleted one permanently keeps its row, and with it its id.
type spxPartition struct {
	Organization string `json:"organization"`
	Name         string `json:"name,omitempty"`
	Description  string `json:"description,omitempty"`
	VNI          uint32 `json:"vni"`
	Holds        bool   `json:"holds,omitempty"` // the pool gave the VNI to this partition and has not got it back
	Deleted      bool   `json:"deleted,omitempty"`
}

// CreateSpxPartition creates a partition, which is ready at once and never changes. It may have no name.
func (s *site) CreateSpxPartition(_ context.Context, r *forge.SpxPartitionCreationRequest) (*forge.SpxPartition, error) {
	if r.TenantOrganizationId == "" {
		return nil, missing("tenant_organization_id")
	}
	m := metadata{}
	if r.Metadata != nil {
		var err error
		if m, err = lenientMetadata(r.Metadata); err != nil {
			return nil, err
		}
	}
	vni, err := s.spxNumbers.grant("dpa-vni", s.rules.AutoSPXVNIs, s.rules.RequestedSPXVNIs, r.Vni, noVNI)
	if err != nil {
		return nil, err
	}
	id := s.chosen(r.Id.GetValue())
	if s.spxPartitions.get(id) != nil {
		return nil, duplicate("spx_partitions_pkey")
	}
	p := &spxPartition{Organization: r.TenantOrganizationId, Name: m.Name, Description: m.Description, VNI: vni, Holds: true}
	s.spxPartitions.put(id, p)
	return p.wire(id), nil
}

// DeleteSpxPartition marks a partition and returns its VNI to the pool, without checking which partition has it by now. So a
// second delete takes the number away from the partition that got it after the first.
func (s *site) DeleteSpxPartition(_ context.Context, r *forge.SpxPartitionDeletionRequest) (*forge.SpxPartitionDeletionResult, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	have := s.spxPartitions.get(r.Id.GetValue())
	if have == nil {
		return nil, noRows()
	}
	for _, id := range sortedKeys(s.spxPartitions.rows) {
		if holder := *s.spxPartitions.get(id); holder.held() == have.VNI {
			holder.Holds = false
			s.spxPartitions.put(id, &holder)
		}
	}
	p := *s.spxPartitions.get(r.Id.GetValue())
	p.Deleted = true
	s.spxPartitions.put(r.Id.GetValue(), &p)
	return &forge.SpxPartitionDeletionResult{}, nil
}

// FindSpxPartitionIds filters by name and tenant, and leaves out deleted ones.
func (s *site) FindSpxPartitionIds(_ context.Context, r *forge.SpxPartitionSearchFilter) (*forge.SpxPartitionIdList, error) {
	if r.Label != nil {
		return nil, unmodelled("labels of SPX partitions")
	}
	pass := func(p *spxPartition) bool {
		return !p.Deleted && is(r.Name, p.Name) && is(r.TenantOrgId, p.Organization)
	}
	return &forge.SpxPartitionIdList{
		SpxPartitionIds: where(s.spxPartitions, pass, func(id string) *forge.SpxPartitionId { return &forge.SpxPartitionId{Value: id} }),
	}, nil
}

// FindSpxPartitionsByIds returns the partitions that exist, and deleted ones: the real service forgets to leave them out
// here.
func (s *site) FindSpxPartitionsByIds(_ context.Context, r *forge.SpxPartitionsByIdsRequest) (*forge.SpxPartitionList, error) {
	if err := s.page(len(r.SpxPartitionIds)); err != nil {
		return nil, err
	}
	wire := func(id string, p *spxPartition) *forge.SpxPartition { return p.wire(id) }
	return &forge.SpxPartitionList{SpxPartitions: each(s.spxPartitions, texts(r.SpxPartitionIds), wire)}, nil
}

// held returns the number from the pool that a partition has.
func (p *spxPartition) held() uint32 {
	if !p.Holds {
		return 0
	}
	return p.VNI
}

func (p *spxPartition) wire(id string) *forge.SpxPartition {
	return &forge.SpxPartition{
		Metadata:             &forge.Metadata{Name: p.Name, Description: p.Description},
		Id:                   &forge.SpxPartitionId{Value: id},
		Vni:                  p.VNI,
		TenantOrganizationId: p.Organization,
	}
}
