package carbidesim

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// ibPartition is a partition of the InfiniBand fabric. Its token never changes, so it protects nothing.
type ibPartition struct {
	Organization string             `json:"organization"`
	Metadata     metadata           `json:"metadata"`
	Key          uint32             `json:"pkey"`
	Requested    bool               `json:"requested,omitempty"` // the client requested that key
	State        forge.TenantState  `json:"state"`
	Injected     *forge.TenantState `json:"injected,omitempty"` // shown in place of State, but not once it is deleted
	Version      token              `json:"version"`
	Due          time.Time          `json:"due,omitzero"` // when the site acts on it next
}

// CreateIBPartition creates a partition; it is ready one round of the controller later.
func (s *site) CreateIBPartition(_ context.Context, r *forge.IBPartitionCreationRequest) (*forge.IBPartition, error) {
	var want *uint32
	if r.Config != nil && r.Config.Pkey != nil {
		key, err := strconv.ParseUint(strings.TrimPrefix(r.Config.GetPkey(), "0x"), 16, 16)
		if err != nil {
			return nil, invalid("invalid pkey value: %q", r.Config.GetPkey())
		}
		want = proto.Uint32(uint32(key))
	}
	organization, err := configOrganization(r.Config != nil, r.GetConfig().GetTenantOrganizationId())
	if err != nil {
		return nil, err
	}
	p := &ibPartition{
		Organization: organization, State: forge.TenantState_PROVISIONING, Version: firstToken(s.now), Requested: want != nil,
	}
	if s.rules.NoInfiniband {
		return nil, internal("IB fabric is not configured")
	}
	if p.Key, err = s.ibKeys.grant("pkey", s.rules.AutoPKeys, s.rules.RequestedPKeys, want, noPKey); err != nil {
		return nil, err
	}
	given := r.Metadata
	if given == nil {
		given = &forge.Metadata{Name: r.Config.GetName()}
	}
	if p.Metadata, err = readMetadata(given); err != nil {
		return nil, err
	}
	if len(s.ibPartitionsByOrg.of(organization)) >= s.rules.MaxIBPartitions {
		return nil, invalid("Maximum Limit of Infiniband partitions had been reached")
	}
	id := s.chosen(r.Id.GetValue())
	if s.ibPartitions.get(id) != nil {
		return nil, duplicate("ib_partitions_pkey")
	}
	p.Due = s.after(s.timing.Tick, "ib partition ready", id)
	s.ibPartitions.put(id, p)
	return s.wireIBPartition(id, p), nil
}

// configOrganization checks the owner in the configuration of a new partition.
func configOrganization(given bool, organization string) (string, error) {
	switch {
	case !given:
		return "", missing("config")
	case !validOrganization(organization):
		return "", invalid("invalid organization id %q", organization)
	}
	return organization, nil
}

// noPKey refuses a key that is not available. The real service does not translate the error of its pool.
func noPKey(key uint32) error {
	return internal("resource pool pkey: value %d cannot be requested or is already allocated", key)
}

// UpdateIBPartition replaces the metadata. The rest of the request must repeat the current values.
func (s *site) UpdateIBPartition(_ context.Context, r *forge.IBPartitionUpdateRequest) (*forge.IBPartition, error) {
	switch {
	case r.Id == nil:
		return nil, missing("id")
	case r.Config == nil:
		return nil, missing("config")
	}
	m, err := requiredMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	id := r.Id.GetValue()
	have := s.ibPartitions.get(id)
	if have == nil {
		return nil, notFound("ib_partition", id)
	}
	if r.Config.TenantOrganizationId != have.Organization {
		return nil, invalid("the tenant of an IB partition cannot change")
	}
	if r.Config.Pkey != nil && *r.Config.Pkey != pkeyText(have.Key) {
		return nil, invalid("the pkey of an IB partition cannot change")
	}
	if err := expect("IBPartition", have.Version, r.IfVersionMatch, codes.Internal); err != nil {
		return nil, err
	}
	p := *have
	p.Metadata = m
	s.ibPartitions.put(id, &p)
	return s.wireIBPartition(id, &p), nil
}

// DeleteIBPartition starts deleting a partition that no instance uses. It stays listed until the fabric has dropped it.
func (s *site) DeleteIBPartition(_ context.Context, r *forge.IBPartitionDeletionRequest) (*forge.IBPartitionDeletionResult, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	id := r.Id.GetValue()
	have := s.ibPartitions.get(id)
	switch {
	case have == nil:
		return nil, notFound("ib_partition", id)
	case have.State == forge.TenantState_TERMINATING:
		return &forge.IBPartitionDeletionResult{}, nil
	case s.onPartition(id):
		return nil, precondition("IB partition %s is still referenced by instances", id)
	}
	p := *have
	p.State, p.Injected = forge.TenantState_TERMINATING, nil
	p.Due = s.after(s.timing.Tick, "ib partition gone", id)
	s.ibPartitions.put(id, &p)
	return &forge.IBPartitionDeletionResult{}, nil
}

// FindIBPartitionIds filters by tenant and name. The list includes partitions that are being deleted.
func (s *site) FindIBPartitionIds(_ context.Context, r *forge.IBPartitionSearchFilter) (*forge.IBPartitionIdList, error) {
	pass := func(p *ibPartition) bool { return is(r.TenantOrgId, p.Organization) && is(r.Name, p.Metadata.Name) }
	return &forge.IBPartitionIdList{
		IbPartitionIds: where(s.ibPartitions, pass, func(id string) *forge.IBPartitionId { return &forge.IBPartitionId{Value: id} }),
	}, nil
}

// FindIBPartitionsByIds returns the partitions that exist.
func (s *site) FindIBPartitionsByIds(_ context.Context, r *forge.IBPartitionsByIdsRequest) (*forge.IBPartitionList, error) {
	if err := s.page(len(r.IbPartitionIds)); err != nil {
		return nil, err
	}
	return &forge.IBPartitionList{IbPartitions: each(s.ibPartitions, texts(r.IbPartitionIds), s.wireIBPartition)}, nil
}

func (s *site) ibPartitionReady(id string) {
	if have := s.ibPartitions.get(id); have != nil && have.Due.Equal(s.now) {
		p := *have
		p.State = forge.TenantState_READY
		s.ibPartitions.put(id, &p)
	}
}

// ibPartitionGone removes a deleted partition and frees its key. One that is being deleted can still be given to an
// instance by mistake; then it waits for that instance.
func (s *site) ibPartitionGone(id string) {
	have := s.ibPartitions.get(id)
	if have == nil || !have.Due.Equal(s.now) {
		return
	}
	if !s.onPartition(id) {
		s.ibPartitions.drop(id)
		return
	}
	p := *have
	p.Due = s.after(max(s.timing.Tick, 1), "ib partition gone", id)
	s.ibPartitions.put(id, &p)
}

// injectIBPartition shows another state instead of the partition's own; nil shows its own again.
func (s *site) injectIBPartition(id string, state *forge.TenantState) error {
	have := s.ibPartitions.get(id)
	if have == nil {
		return notFound("ib_partition", id)
	}
	p := *have
	p.Injected = state
	s.ibPartitions.put(id, &p)
	return nil
}

func (s *site) wireIBPartition(id string, p *ibPartition) *forge.IBPartition {
	config := &forge.IBPartitionConfig{Name: p.Metadata.Name, TenantOrganizationId: p.Organization}
	if p.Requested {
		config.Pkey = proto.String(pkeyText(p.Key))
	}
	status := &forge.IBPartitionStatus{State: p.State, Pkey: proto.String(pkeyText(p.Key)), EnableSharp: proto.Bool(false)}
	if p.Injected != nil && p.State != forge.TenantState_TERMINATING {
		status.State = *p.Injected
	}
	if s.onPartition(id) { // the fabric reports more once ports are in the partition
		status.Partition = proto.String(p.Metadata.Name)
		status.Mtu, status.RateLimit, status.ServiceLevel = proto.Int32(4), proto.Int32(200), proto.Int32(0)
	}
	return &forge.IBPartition{
		Id: &forge.IBPartitionId{Value: id}, Config: config, ConfigVersion: p.Version.String(), Status: status, Metadata: p.Metadata.wire(),
	}
}

func pkeyText(key uint32) string { return fmt.Sprintf("0x%x", key) }
