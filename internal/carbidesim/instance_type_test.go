package carbidesim

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

func capability(t forge.MachineCapabilityType, name string, count uint32) *forge.InstanceTypeMachineCapabilityFilterAttributes {
	return &forge.InstanceTypeMachineCapabilityFilterAttributes{CapabilityType: t, Name: &name, Count: &count}
}

func (b *workbench) instanceType(id, name string, wants ...*forge.InstanceTypeMachineCapabilityFilterAttributes) error {
	return failed(b.CreateInstanceType(ctx, &forge.CreateInstanceTypeRequest{
		Id: &id, Metadata: named(name), InstanceTypeAttributes: &forge.InstanceTypeAttributes{DesiredCapabilities: wants},
	}))
}

func (b *workbench) associate(instanceType string, machines ...string) error {
	return failed(b.AssociateMachinesWithInstanceType(ctx, &forge.AssociateMachinesWithInstanceTypeRequest{InstanceTypeId: instanceType, MachineIds: machines}))
}

func TestInstanceTypeNamesAndIDs(t *testing.T) {
	b := start(t, Options{})
	remove := func(id string) error {
		return failed(b.DeleteInstanceType(ctx, &forge.DeleteInstanceTypeRequest{Id: id}))
	}
	update := func(id, name string) error {
		return failed(b.UpdateInstanceType(ctx, &forge.UpdateInstanceTypeRequest{Id: id, Metadata: named(name)}))
	}
	b.refusals([]refusal{
		{"first", b.instanceType("gpu", "gpu"), codes.OK, ""},
		{"no metadata", failed(b.CreateInstanceType(ctx, &forge.CreateInstanceTypeRequest{Id: text("x")})), codes.InvalidArgument, "metadata"},
		{"capability without type", b.instanceType("x", "xx", capability(0, "x", 1)), codes.InvalidArgument, "type"},
		{"name taken", b.instanceType("gpu2", "gpu"), codes.FailedPrecondition, "already exists"},
		{"id taken", b.instanceType("gpu", "gpu2"), codes.FailedPrecondition, "already exists"},
		{"another", b.instanceType("cpu", "cpu"), codes.OK, ""},
		{"update to a taken name", update("cpu", "gpu"), codes.FailedPrecondition, "already exists"},
		{"update unknown", update("x", "xx"), codes.NotFound, "InstanceType"},
		{"update", update("cpu", "small"), codes.OK, ""},
		{"delete", remove("gpu"), codes.OK, ""},
		{"delete again", remove("gpu"), codes.OK, ""},
		{"delete unknown", remove("x"), codes.OK, ""},
		{"id again", b.instanceType("gpu", "new"), codes.FailedPrecondition, "already exists"},
		{"name again", b.instanceType("gpu3", "gpu"), codes.OK, ""},
	})
	if ids := ok(b.FindInstanceTypeIds(ctx, &forge.FindInstanceTypeIdsRequest{})).InstanceTypeIds; len(ids) != 2 {
		t.Errorf("types %v", ids)
	}
}

func TestMachinesUnderAnInstanceType(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 8}})
	const gpu = forge.MachineCapabilityType_CAP_TYPE_GPU
	eight := capability(gpu, "NVIDIA H100 80GB HBM3", 8)
	for _, err := range []error{
		b.instanceType("gpu", "gpu", eight, &forge.InstanceTypeMachineCapabilityFilterAttributes{CapabilityType: forge.MachineCapabilityType_CAP_TYPE_CPU}),
		b.instanceType("four", "four", capability(gpu, "NVIDIA H100 80GB HBM3", 4)),
		b.instanceType("any", "any"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var gpus, cpus []string
	for _, id := range b.hosts(&forge.MachineSearchConfig{}) {
		if len(b.machine(id).Capabilities.Gpu) > 0 {
			gpus = append(gpus, id)
		} else {
			cpus = append(cpus, id)
		}
	}
	dpu := b.hosts(&forge.MachineSearchConfig{IncludeDpus: true, ExcludeHosts: true})[0]
	before := b.machine(gpus[0]).Version
	b.refusals([]refusal{
		{"unknown type", b.associate("x", gpus[0]), codes.NotFound, "InstanceType"},
		{"no machines", b.associate("gpu"), codes.InvalidArgument, "at least one"},
		{"no machine id", b.associate("gpu", "host-1"), codes.InvalidArgument, "machine id"},
		{"DPU", b.associate("any", dpu), codes.InvalidArgument, "DPU"},
		{"lacks a capability", b.associate("gpu", gpus[0], cpus[0]), codes.InvalidArgument, "lacks"},
		{"wrong count", b.associate("four", gpus[0]), codes.InvalidArgument, "lacks"},
		{"unknown machines are skipped", b.associate("gpu", gpus[0], gpus[1], machineID('h', 's', 7, 7)), codes.OK, ""},
	})
	if m := b.machine(gpus[0]); m.GetInstanceTypeId() != "gpu" || m.Version == before {
		t.Errorf("machine after association: type %q, token %s, was %s", m.GetInstanceTypeId(), m.Version, before)
	}
	if got := b.hosts(&forge.MachineSearchConfig{InstanceTypeId: text("gpu")}); len(got) != 2 {
		t.Errorf("machines by type: %v", got)
	}
	found := ok(b.FindInstanceTypesByIds(ctx, &forge.FindInstanceTypesByIdsRequest{InstanceTypeIds: []string{"gpu"}, IncludeAllocationStats: true})).InstanceTypes[0]
	if s := found.AllocationStats; s.MaxAllocatable != 2 || s.UnusedUsable != 2 {
		t.Errorf("counts %v", s)
	}

	update := func(wants ...*forge.InstanceTypeMachineCapabilityFilterAttributes) error {
		return failed(b.UpdateInstanceType(ctx, &forge.UpdateInstanceTypeRequest{
			Id: "gpu", Metadata: named("new name"), InstanceTypeAttributes: &forge.InstanceTypeAttributes{DesiredCapabilities: wants},
		}))
	}
	have := found.Attributes.DesiredCapabilities
	b.refusals([]refusal{
		{"other capabilities", update(have[0]), codes.FailedPrecondition, "associated"},
		{"other order", update(have[1], have[0]), codes.FailedPrecondition, "associated"},
		{"metadata only", update(have[0], have[1]), codes.OK, ""},
		{"overwrites", b.associate("any", gpus[1]), codes.OK, ""},
	})

	remove := func(id string) error {
		return failed(b.RemoveMachineInstanceTypeAssociation(ctx, &forge.RemoveMachineInstanceTypeAssociationRequest{MachineId: id}))
	}
	b.vpc(uid(1), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(2)), VpcId: vpcID(uid(1)), Prefix: "10.0.0.0/24"}))
	b.allocate(uid(3), gpus[0], onPrefix(uid(2)))
	b.refusals([]refusal{
		{"remove unknown", remove(machineID('h', 's', 7, 7)), codes.NotFound, "machine"},
		{"remove under an instance", remove(gpus[0]), codes.FailedPrecondition, "instance"},
		{"associate under an instance", b.associate("any", gpus[0]), codes.FailedPrecondition, "instance"},
		{"delete the type", failed(b.DeleteInstanceType(ctx, &forge.DeleteInstanceTypeRequest{Id: "gpu"})), codes.FailedPrecondition, "instance"},
		{"remove nothing", remove(cpus[0]), codes.OK, ""},
		{"delete a type of idle machines", failed(b.DeleteInstanceType(ctx, &forge.DeleteInstanceTypeRequest{Id: "any"})), codes.OK, ""},
	})
	if err := b.associate("four", cpus[0]); err == nil {
		t.Error("a machine without GPUs has become one of four")
	}
	if err := b.associate("gpu", gpus[2]); err != nil {
		t.Fatal(err)
	}
	if err := remove(gpus[2]); err != nil || b.machine(gpus[2]).InstanceTypeId != nil {
		t.Errorf("the association is still there: %v", err)
	}
	if m := b.machine(gpus[1]); m.InstanceTypeId != nil {
		t.Errorf("machine still has the deleted type %q", *m.InstanceTypeId)
	}
}

// Every capability of a seeded machine can be requested.
func TestCapabilitiesMatch(t *testing.T) {
	set := hardware(true, true)
	set.Infiniband = []*forge.MachineCapabilityAttributesInfiniband{{Name: "MT28908", Count: 4, InactiveDevices: []uint32{1, 3}}}
	for _, c := range inventory(set) {
		if !offers(set, c) {
			t.Errorf("a machine does not offer what it has: %v", c)
		}
		other := proto.Clone(c).(*forge.InstanceTypeMachineCapabilityFilterAttributes)
		other.Count = proto.Uint32(c.GetCount() + 1)
		if offers(set, other) {
			t.Errorf("a machine offers more than it has: %v", other)
		}
	}
}
