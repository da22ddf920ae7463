package carbide

import (
	"cmp"
	"context"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// Deleting a type removes its machines from it; a new one starts without machines.
var instanceTypeTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	Mark: true, IDsNotReusable: true, EffectWithin: late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "{name}"}},
}

var (
	capabilityTypes = enum[forge.MachineCapabilityType]{
		{"", forge.MachineCapabilityType_CAP_TYPE_INVALID},
		{"cpu", forge.MachineCapabilityType_CAP_TYPE_CPU},
		{"gpu", forge.MachineCapabilityType_CAP_TYPE_GPU},
		{"memory", forge.MachineCapabilityType_CAP_TYPE_MEMORY},
		{"storage", forge.MachineCapabilityType_CAP_TYPE_STORAGE},
		{"network", forge.MachineCapabilityType_CAP_TYPE_NETWORK},
		{"infiniband", forge.MachineCapabilityType_CAP_TYPE_INFINIBAND},
		{"dpu", forge.MachineCapabilityType_CAP_TYPE_DPU},
	}
	deviceTypes = enum[forge.MachineCapabilityDeviceType]{
		{"", forge.MachineCapabilityDeviceType_MACHINE_CAPABILITY_DEVICE_TYPE_UNKNOWN},
		{"dpu", forge.MachineCapabilityDeviceType_MACHINE_CAPABILITY_DEVICE_TYPE_DPU},
		{"nvlink", forge.MachineCapabilityDeviceType_MACHINE_CAPABILITY_DEVICE_TYPE_NVLINK},
	}
)

// instanceTypeRefusals are codes with a special meaning.
var instanceTypeRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Exists, // the name or the id is taken
	},
	opUpdate: {
		codes.FailedPrecondition: providers.Busy, // machines belong to it, which fixes the capabilities
	},
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // instances run on its machines
	},
}

type instanceTypes struct{ *service }

func (instanceTypes) known(id string) bool { return id != "" }

func (k instanceTypes) list(ctx context.Context) ([]string, error) {
	r, err := k.FindInstanceTypeIds(ctx, &forge.FindInstanceTypeIdsRequest{})
	return r.GetInstanceTypeIds(), err
}

func (k instanceTypes) get(ctx context.Context, ids []string) ([]*forge.InstanceType, error) {
	r, err := k.FindInstanceTypesByIds(ctx, &forge.FindInstanceTypesByIdsRequest{InstanceTypeIds: ids})
	return r.GetInstanceTypes(), err
}

func (instanceTypes) thing(o *forge.InstanceType) providers.Thing {
	s := spec.InstanceType{Capabilities: each(o.GetAttributes().GetDesiredCapabilities(), readCapability)}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	return providers.Thing{
		ID: o.GetId(), Name: o.GetMetadata().GetName(), Mark: mark, Version: o.GetVersion(), Spec: s.Object(), Phase: providers.Ready,
	}
}

func (k instanceTypes) create(ctx context.Context, c *call[spec.InstanceType]) error {
	made, err := k.CreateInstanceType(ctx, &forge.CreateInstanceTypeRequest{
		Id:                     &c.ID,
		Metadata:               newMetadata(c.Call, c.want.Description, c.want.Labels),
		InstanceTypeAttributes: writeCapabilities(c, nil),
	})
	c.Chose(made.GetInstanceType().GetId())
	return err
}

func (k instanceTypes) update(ctx context.Context, c *call[spec.InstanceType], now *forge.InstanceType) error {
	_, err := k.UpdateInstanceType(ctx, &forge.UpdateInstanceTypeRequest{
		Id:                     now.Id,
		Metadata:               writeMetadata(c.Call, now.Metadata, c.Called(), c.want.Description, c.want.Labels),
		InstanceTypeAttributes: writeCapabilities(c, now.Attributes),
		IfVersionMatch:         &now.Version,
	})
	return err
}

func (k instanceTypes) delete(ctx context.Context, c *call[spec.InstanceType]) error {
	_, err := k.DeleteInstanceType(ctx, &forge.DeleteInstanceTypeRequest{Id: c.ID})
	return err
}

func readCapability(c *forge.InstanceTypeMachineCapabilityFilterAttributes) spec.Capability {
	return spec.Capability{
		Type: capabilityTypes.word(c.GetCapabilityType()), Name: unlessZero(c.GetName()), Frequency: unlessZero(c.GetFrequency()),
		Capacity: unlessZero(c.GetCapacity()), Vendor: unlessZero(c.GetVendor()), Count: widen(c.Count),
		HardwareRevision: unlessZero(c.GetHardwareRevision()), Cores: widen(c.Cores), Threads: widen(c.Threads),
		InactiveDevices: each(c.GetInactiveDevices().GetItems(), func(n uint32) int64 { return int64(n) }),
		DeviceType:      unlessZero(deviceTypes.word(c.GetDeviceType())),
	}
}

// writeCapabilities replaces the capabilities of a type. The service compares them in order and field by field, and
// allows no difference once machines belong to the type: equal ones are left as they are.
func writeCapabilities(c *call[spec.InstanceType], now *forge.InstanceTypeAttributes) *forge.InstanceTypeAttributes {
	if now == nil {
		now = &forge.InstanceTypeAttributes{}
	}
	now.DesiredCapabilities = renew(now.DesiredCapabilities, c.want.Capabilities, readCapability, writeCapability, func(w *spec.Capability) [2]string {
		return [2]string{w.Type, value(w.Name)}
	})
	return now
}

func writeCapability(want *spec.Capability, w *forge.InstanceTypeMachineCapabilityFilterAttributes) {
	w.CapabilityType = capabilityTypes.value(want.Type)
	w.Name, w.Frequency, w.Capacity, w.Vendor = want.Name, want.Frequency, want.Capacity, want.Vendor
	w.Count, w.HardwareRevision = narrow[uint32](want.Count), want.HardwareRevision
	w.Cores, w.Threads = narrow[uint32](want.Cores), narrow[uint32](want.Threads)
	if len(want.InactiveDevices) > 0 {
		w.InactiveDevices = cmp.Or(w.InactiveDevices, &forge.Uint32List{})
		w.InactiveDevices.Items = each(want.InactiveDevices, func(n int64) uint32 { return uint32(n) })
	} else {
		w.InactiveDevices = nil
	}
	w.DeviceType = nil
	if t := deviceTypes.value(value(want.DeviceType)); t != 0 {
		w.DeviceType = &t
	}
}
