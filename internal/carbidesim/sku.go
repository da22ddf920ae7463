package carbidesim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"converge.dev/converge/providers/carbide/forge"
)

// sku lists the parts of a machine.
type sku struct {
	Description string                     `json:"description"`
	DeviceType  *string                    `json:"deviceType,omitempty"`
	Components  kept[*forge.SkuComponents] `json:"components"`
	Created     time.Time                  `json:"created"`
}

// skuVersion is the only accepted version of the format.
const skuVersion = 4

// CreateSku creates SKUs, all or none. A SKU with the same content as another is refused before its id is checked.
func (s *site) CreateSku(_ context.Context, r *forge.SkuList) (*forge.SkuIdList, error) {
	out := &forge.SkuIdList{}
	for _, one := range r.Skus {
		t, err := s.readSKU(one, "")
		if err != nil {
			return nil, err
		}
		if s.skus.get(one.Id) != nil {
			return nil, duplicate("machine_skus_pkey")
		}
		t.Created = s.now
		s.skus.put(one.Id, t)
		out.Ids = append(out.Ids, one.Id)
	}
	return out, nil
}

// UpdateSkuMetadata changes description and device type, and can remove neither.
func (s *site) UpdateSkuMetadata(_ context.Context, r *forge.SkuUpdateMetadataRequest) (*emptypb.Empty, error) {
	have := s.skus.get(r.SkuId)
	switch {
	case r.Description == nil && r.DeviceType == nil:
		return nil, internal("Database Error: description and/or device_type required")
	case have == nil:
		return nil, internal("Database Error: no rows returned by a query that expected to return at least one row")
	}
	t := *have
	if r.Description != nil {
		t.Description = *r.Description
	}
	if r.DeviceType != nil {
		t.DeviceType = r.DeviceType
	}
	s.skus.put(r.SkuId, &t)
	return &emptypb.Empty{}, nil
}

// ReplaceSku replaces everything. The real service would check the machines again; this site does not.
func (s *site) ReplaceSku(_ context.Context, r *forge.Sku) (*forge.Sku, error) {
	t, err := s.readSKU(r, r.Id)
	if err != nil {
		return nil, err
	}
	have := s.skus.get(r.Id)
	if have == nil {
		return nil, internal("Database Error: no rows returned by a query that expected to return at least one row")
	}
	t.Created = have.Created
	s.skus.put(r.Id, t)
	out := s.wireSKU(r.Id, t)
	out.AssociatedMachineIds = nil // only a search returns them
	return out, nil
}

// DeleteSku deletes the one SKU that exists among the ids.
func (s *site) DeleteSku(_ context.Context, r *forge.SkuIdList) (*emptypb.Empty, error) {
	ids := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.Ids))), func(id string) bool { return s.skus.get(id) == nil })
	switch {
	case len(ids) == 0:
		return nil, invalid("The SKU %s does not exist", append(r.Ids, "")[0])
	case len(ids) > 1:
		return nil, internal("The function is not implemented")
	}
	if n := len(s.machinesBySKU.of(ids[0])); n > 0 {
		return nil, invalid("The SKU is in use by %d machines", n)
	}
	s.skus.drop(ids[0])
	return &emptypb.Empty{}, nil
}

// GetAllSkuIds has no filter.
func (s *site) GetAllSkuIds(context.Context, *emptypb.Empty) (*forge.SkuIdList, error) {
	all := func(*sku) bool { return true }
	return &forge.SkuIdList{Ids: where(s.skus, all, func(id string) string { return id })}, nil
}

// FindSkusByIds returns the SKUs that exist, with their machines.
func (s *site) FindSkusByIds(_ context.Context, r *forge.SkusByIdsRequest) (*forge.SkuList, error) {
	if err := s.page(len(r.Ids)); err != nil {
		return nil, err
	}
	return &forge.SkuList{Skus: each(s.skus, r.Ids, s.wireSKU)}, nil
}

// AssignSkuToMachine assigns a SKU to a machine. Only force replaces another SKU, or applies while the machine is busy.
func (s *site) AssignSkuToMachine(_ context.Context, r *forge.SkuMachinePair) (*emptypb.Empty, error) {
	m, err := s.forSKU(r.MachineId)
	switch {
	case err != nil:
		return nil, err
	case m.SKU != "" && !r.Force:
		return nil, precondition("The specified machine already has a SKU assigned (%s)", m.SKU)
	case m.State != hostReady && !r.Force:
		return nil, precondition("Specified machine is not in a valid state for assigning a SKU")
	case s.skus.get(r.SkuId) == nil:
		return nil, notFound("SKU ID", r.SkuId)
	}
	m.SKU = r.SkuId
	s.machines.put(r.MachineId.Id, m)
	return &emptypb.Empty{}, nil
}

// RemoveSkuAssociation removes the SKU of a machine, if it has one. Its token does not change, neither here nor above.
func (s *site) RemoveSkuAssociation(_ context.Context, r *forge.RemoveSkuRequest) (*emptypb.Empty, error) {
	m, err := s.forSKU(r.MachineId)
	switch {
	case err != nil:
		return nil, err
	case m.State != hostReady && !r.Force:
		return nil, precondition("Specified machine is not in a valid state for removing SKU association")
	}
	m.SKU = ""
	s.machines.put(r.MachineId.Id, m)
	return &emptypb.Empty{}, nil
}

// forSKU returns a copy of the machine.
func (s *site) forSKU(id *forge.MachineId) (*machine, error) {
	if id == nil {
		return nil, missing("machine_id")
	}
	have := s.machines.get(id.Id)
	if have == nil {
		return nil, notFound("machine", id.Id)
	}
	m := *have
	return &m, nil
}

// readSKU keeps what the real service keeps: it has no fields for Ethernet devices, nor for vendor and size of disks.
func (s *site) readSKU(in *forge.Sku, itself string) (*sku, error) {
	if in.SchemaVersion != skuVersion {
		return nil, invalid("SKU version is no longer supported")
	}
	c := proto.CloneOf(in.Components)
	if c == nil {
		c = &forge.SkuComponents{}
	}
	if c.Chassis == nil {
		c.Chassis = &forge.SkuComponentChassis{}
	}
	c.EthernetDevices = nil
	for _, d := range c.Storage {
		d.Vendor, d.CapacityMb = "", 0
	}
	for _, id := range sortedKeys(s.skusByParts.of(sameness(c))) {
		if id != itself {
			return nil, invalid("Specified SKU matches SKU with ID: %s", id)
		}
	}
	if err := tooLong(in.Id, 256); err != nil {
		return nil, err
	}
	return &sku{Description: in.GetDescription(), DeviceType: in.DeviceType, Components: keep(c)}, nil
}

// sameness returns what is compared between SKUs, and between SKUs and machines: two are the same when all of it is equal.
func sameness(c *forge.SkuComponents) string {
	out := map[string]string{}
	put := func(value any, key ...any) { out[fmt.Sprintf("%q", key)] = fmt.Sprint(value) }
	put(c.Chassis.Model, "chassis model")
	put(c.Chassis.Architecture, "chassis architecture")
	var sockets, threads, memory uint32
	for _, p := range c.Cpus {
		sockets, threads = sockets+p.Count, threads+p.ThreadCount
	}
	put(sockets, "sockets")
	put(threads, "threads")
	for _, p := range c.Gpus {
		put(p.Count, "gpu", p.Model)
	}
	for _, p := range c.InfinibandDevices {
		put(fmt.Sprint(p.Count, p.InactiveDevices), "infiniband", p.Vendor, p.Model)
	}
	for _, p := range c.Memory {
		memory += p.CapacityMb * p.Count
	}
	put(memory, "memory")
	for _, p := range c.Storage {
		put(p.Count, "storage", p.Model)
	}
	if c.Tpm != nil {
		put(c.Tpm.Version, "tpm")
	}
	return fmt.Sprintf("%q", out) // in the order of the keys
}

func (s *site) wireSKU(id string, t *sku) *forge.Sku {
	out := &forge.Sku{
		Id:            id,
		Description:   &t.Description,
		Created:       timestamppb.New(t.Created),
		Components:    t.Components.message,
		SchemaVersion: skuVersion,
		DeviceType:    t.DeviceType,
	}
	for _, m := range sortedKeys(s.machinesBySKU.of(id)) {
		out.AssociatedMachineIds = append(out.AssociatedMachineIds, &forge.MachineId{Id: m})
	}
	return out
}
