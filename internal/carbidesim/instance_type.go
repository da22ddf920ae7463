package carbidesim

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// instanceType is an offer: what a machine must have to be allocated under its name.
type instanceType struct {
	Metadata   metadata                            `json:"metadata"`
	Attributes kept[*forge.InstanceTypeAttributes] `json:"attributes"`
	Version    token                               `json:"version"`
	Created    time.Time                           `json:"created"`
}

// CreateInstanceType creates a type; its name is unique in the whole site.
func (s *site) CreateInstanceType(_ context.Context, r *forge.CreateInstanceTypeRequest) (*forge.CreateInstanceTypeResponse, error) {
	m, err := requiredMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	attributes, err := readCapabilities(r.InstanceTypeAttributes)
	if err != nil {
		return nil, err
	}
	if r.Id != nil && *r.Id == "" {
		return nil, invalid("id must not be empty")
	}
	id := s.chosen(r.GetId())
	if err := tooLong(id, 64); err != nil {
		return nil, err
	}
	if len(s.typesByName.of(m.Name)) > 0 {
		return nil, alreadyExists("InstanceType", m.Name)
	}
	if s.instanceTypes.get(id) != nil || s.isBurned("instance type", id) {
		return nil, alreadyExists("InstanceType", id)
	}
	t := &instanceType{m, keep(attributes), firstToken(s.now), s.now}
	s.instanceTypes.put(id, t)
	return &forge.CreateInstanceTypeResponse{InstanceType: t.wire(id)}, nil
}

// UpdateInstanceType replaces metadata and capabilities. The capabilities, in their order, are fixed while a machine is
// associated.
func (s *site) UpdateInstanceType(_ context.Context, r *forge.UpdateInstanceTypeRequest) (*forge.UpdateInstanceTypeResponse, error) {
	m, err := requiredMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	attributes, err := readCapabilities(r.InstanceTypeAttributes)
	if err != nil {
		return nil, err
	}
	have := s.instanceTypes.get(r.Id)
	if have == nil {
		return nil, notFound("InstanceType", r.Id)
	}
	if err := expect("InstanceType", have.Version, r.IfVersionMatch, codes.Internal); err != nil {
		return nil, err
	}
	for id := range s.typesByName.of(m.Name) {
		if id != r.Id {
			return nil, alreadyExists("InstanceType", m.Name)
		}
	}
	if !proto.Equal(have.Attributes.message, attributes) && len(s.machinesByType.of(r.Id)) > 0 {
		return nil, precondition("InstanceType %s is associated with machines", r.Id)
	}
	t := &instanceType{m, keep(attributes), have.Version.next(s.now), have.Created}
	s.instanceTypes.put(r.Id, t)
	return &forge.UpdateInstanceTypeResponse{InstanceType: t.wire(r.Id)}, nil
}

// DeleteInstanceType removes the type from its machines and deletes it softly. Deleting one that does not exist succeeds.
func (s *site) DeleteInstanceType(_ context.Context, r *forge.DeleteInstanceTypeRequest) (*forge.DeleteInstanceTypeResponse, error) {
	if s.instanceTypes.get(r.Id) == nil {
		return &forge.DeleteInstanceTypeResponse{}, nil
	}
	machines := sortedKeys(s.machinesByType.of(r.Id))
	for _, id := range machines {
		if s.instanceOn(id) != nil {
			return nil, precondition("InstanceType %s is used by the instance on machine %s", r.Id, id)
		}
	}
	for _, id := range machines {
		s.setMachineType(id, "")
	}
	s.instanceTypes.drop(r.Id)
	s.burn("instance type", r.Id)
	return &forge.DeleteInstanceTypeResponse{}, nil
}

// FindInstanceTypeIds has no filter.
func (s *site) FindInstanceTypeIds(context.Context, *forge.FindInstanceTypeIdsRequest) (*forge.FindInstanceTypeIdsResponse, error) {
	all := func(*instanceType) bool { return true }
	return &forge.FindInstanceTypeIdsResponse{
		InstanceTypeIds: where(s.instanceTypes, all, func(id string) string { return id }),
	}, nil
}

// FindInstanceTypesByIds returns the types that exist, with counts of machines if requested.
func (s *site) FindInstanceTypesByIds(_ context.Context, r *forge.FindInstanceTypesByIdsRequest) (*forge.FindInstanceTypesByIdsResponse, error) {
	if err := s.page(len(r.InstanceTypeIds)); err != nil {
		return nil, err
	}
	if r.TenantOrganizationId != nil {
		return nil, unmodelled("allocations of instance types to tenants")
	}
	wire := func(id string, t *instanceType) *forge.InstanceType {
		out := t.wire(id)
		if r.IncludeAllocationStats {
			out.AllocationStats = s.stats(id)
		}
		return out
	}
	return &forge.FindInstanceTypesByIdsResponse{InstanceTypes: each(s.instanceTypes, r.InstanceTypeIds, wire)}, nil
}

func (s *site) stats(id string) *forge.InstanceTypeAllocationStats {
	out := &forge.InstanceTypeAllocationStats{}
	for machineID := range s.machinesByType.of(id) {
		out.MaxAllocatable++
		if s.instanceOn(machineID) != nil {
			out.Used++
			continue
		}
		out.Unused++
		if m := s.machines.get(machineID); m.State == hostReady && !m.prevents("PreventAllocations") {
			out.UnusedUsable++
		}
	}
	return out
}

// AssociateMachinesWithInstanceType offers machines under a type, all or none. It silently skips unknown machines and
// overwrites earlier associations.
func (s *site) AssociateMachinesWithInstanceType(_ context.Context, r *forge.AssociateMachinesWithInstanceTypeRequest) (*forge.AssociateMachinesWithInstanceTypeResponse, error) {
	if err := s.page(len(r.MachineIds)); err != nil {
		return nil, err
	}
	t := s.instanceTypes.get(r.InstanceTypeId)
	if t == nil {
		return nil, notFound("InstanceType", r.InstanceTypeId)
	}
	for _, id := range r.MachineIds {
		switch machineType(id) {
		case 0:
			return nil, invalid("invalid machine id %q", id)
		case 'd':
			return nil, invalid("machine %s is a DPU", id)
		}
		m := s.machines.get(id)
		if m == nil {
			continue
		}
		if s.instanceOn(id) != nil {
			return nil, precondition("machine %s has an instance", id)
		}
		for _, want := range t.Attributes.message.DesiredCapabilities {
			if !offers(m.Capabilities.message, want) {
				return nil, invalid("machine %s lacks a capability of type %s that the InstanceType wants", id, want.CapabilityType)
			}
		}
		s.setMachineType(id, r.InstanceTypeId)
	}
	return &forge.AssociateMachinesWithInstanceTypeResponse{}, nil
}

// RemoveMachineInstanceTypeAssociation removes the type of a machine, if it has one.
func (s *site) RemoveMachineInstanceTypeAssociation(_ context.Context, r *forge.RemoveMachineInstanceTypeAssociationRequest) (*forge.RemoveMachineInstanceTypeAssociationResponse, error) {
	if machineType(r.MachineId) == 0 {
		return nil, invalid("invalid machine id %q", r.MachineId)
	}
	m := s.machines.get(r.MachineId)
	if m == nil {
		return nil, notFound("machine", r.MachineId)
	}
	if s.instanceOn(r.MachineId) != nil {
		return nil, precondition("machine %s has an instance", r.MachineId)
	}
	if m.Type != "" {
		total, some := s.allocated("", m.Type)
		if len(s.machinesByType.of(m.Type))-1 < int(total) && s.rules.Allocations.holds(some) {
			return nil, precondition("request to remove machine from instance type would reduce associated machine count below current tenant allocations count")
		}
		s.setMachineType(r.MachineId, "")
	}
	return &forge.RemoveMachineInstanceTypeAssociationResponse{}, nil
}

// setMachineType sets the machine's type and changes its token.
func (s *site) setMachineType(id, instanceType string) {
	m := *s.machines.get(id)
	m.Type = instanceType
	m.Version = m.Version.next(s.now)
	s.machines.put(id, &m)
}

func readCapabilities(in *forge.InstanceTypeAttributes) (*forge.InstanceTypeAttributes, error) {
	out := &forge.InstanceTypeAttributes{}
	for i, c := range in.GetDesiredCapabilities() {
		if _, ok := forge.MachineCapabilityType_name[int32(c.CapabilityType)]; !ok || c.CapabilityType == forge.MachineCapabilityType_CAP_TYPE_INVALID {
			return nil, invalid("capability %d: invalid type %d", i, c.CapabilityType)
		}
		out.DesiredCapabilities = append(out.DesiredCapabilities, proto.Clone(c).(*forge.InstanceTypeMachineCapabilityFilterAttributes))
	}
	return out, nil
}

// offers reports whether one of the machine's capabilities passes a filter; fields absent from the filter do not matter.
func offers(have *forge.MachineCapabilitiesSet, want *forge.InstanceTypeMachineCapabilityFilterAttributes) bool {
	return slices.ContainsFunc(inventory(have), func(c *forge.InstanceTypeMachineCapabilityFilterAttributes) bool {
		return c.CapabilityType == want.CapabilityType &&
			passes(want.Name, c.Name) && passes(want.Vendor, c.Vendor) && passes(want.Count, c.Count) &&
			passes(want.Frequency, c.Frequency) && passes(want.Capacity, c.Capacity) &&
			passes(want.HardwareRevision, c.HardwareRevision) &&
			passes(want.Cores, c.Cores) && passes(want.Threads, c.Threads) &&
			passes(want.DeviceType, c.DeviceType) &&
			(want.InactiveDevices == nil || proto.Equal(want.InactiveDevices, c.InactiveDevices))
	})
}

func passes[T comparable](want, have *T) bool { return want == nil || same(want, have) }

// inventory lists a machine's capabilities in the terms of the filter.
func inventory(set *forge.MachineCapabilitiesSet) []*forge.InstanceTypeMachineCapabilityFilterAttributes {
	var out []*forge.InstanceTypeMachineCapabilityFilterAttributes
	add := func(t forge.MachineCapabilityType, name string, count uint32) *forge.InstanceTypeMachineCapabilityFilterAttributes {
		c := &forge.InstanceTypeMachineCapabilityFilterAttributes{CapabilityType: t, Name: &name, Count: &count}
		out = append(out, c)
		return c
	}
	for _, x := range set.GetCpu() {
		c := add(forge.MachineCapabilityType_CAP_TYPE_CPU, x.Name, x.Count)
		c.Vendor, c.Cores, c.Threads = x.Vendor, x.Cores, x.Threads
	}
	for _, x := range set.GetGpu() {
		c := add(forge.MachineCapabilityType_CAP_TYPE_GPU, x.Name, x.Count)
		c.Vendor, c.Frequency, c.Capacity, c.Cores, c.Threads, c.DeviceType = x.Vendor, x.Frequency, x.Capacity, x.Cores, x.Threads, x.DeviceType
	}
	for _, x := range set.GetMemory() {
		c := add(forge.MachineCapabilityType_CAP_TYPE_MEMORY, x.Name, x.Count)
		c.Vendor, c.Capacity = x.Vendor, x.Capacity
	}
	for _, x := range set.GetStorage() {
		c := add(forge.MachineCapabilityType_CAP_TYPE_STORAGE, x.Name, x.Count)
		c.Vendor, c.Capacity = x.Vendor, x.Capacity
	}
	for _, x := range set.GetNetwork() {
		c := add(forge.MachineCapabilityType_CAP_TYPE_NETWORK, x.Name, x.Count)
		c.Vendor, c.DeviceType = x.Vendor, x.DeviceType
	}
	for _, x := range set.GetInfiniband() {
		c := add(forge.MachineCapabilityType_CAP_TYPE_INFINIBAND, x.Name, x.Count)
		c.Vendor, c.InactiveDevices = x.Vendor, &forge.Uint32List{Items: x.InactiveDevices}
	}
	for _, x := range set.GetDpu() {
		c := add(forge.MachineCapabilityType_CAP_TYPE_DPU, x.Name, x.Count)
		c.HardwareRevision = x.HardwareRevision
	}
	return out
}

func (t *instanceType) wire(id string) *forge.InstanceType {
	return &forge.InstanceType{
		Id:         id,
		Attributes: t.Attributes.message,
		Version:    t.Version.String(),
		Metadata:   t.Metadata.wire(),
		CreatedAt:  optional(t.Created.UTC().Format("2006-01-02 15:04:05.999999 UTC")),
	}
}
