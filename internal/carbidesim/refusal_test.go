package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers/carbide/forge"
)

// What a method first misses in an empty request.
func TestEmptyRequests(t *testing.T) {
	b := start(t, Options{})
	conn := dial(t, b.world)
	for missed, methods := range map[string]string{
		"id is required": `UpdateVpc UpdateVpcVirtualization DeleteVpc UpdateVpcPrefix DeleteVpcPrefix DeleteVpcPeering DeleteNetworkSegment
			UpdateIBPartition DeleteIBPartition UpdateNVLinkLogicalPartition DeleteNVLinkLogicalPartition DeleteSpxPartition
			UpdateOperatingSystem DeleteOperatingSystem GetIpxeTemplate GetOperatingSystemCachableIpxeTemplateArtifacts
			UpdateOperatingSystemCachableIpxeTemplateArtifacts UpdateComputeAllocation DeleteComputeAllocation ReleaseInstance`,
		"machine_id is required":             "AllocateInstance AssignSkuToMachine RemoveSkuAssociation UpdatePowerOption AdminPowerControl",
		"host_id is required":                "SetMaintenance",
		"instance_id is required":            "InvokeInstancePower UpdateInstanceOperatingSystem",
		"rack_id is required":                "AddExpectedRack UpdateExpectedRack",
		"Invalid rack ID":                    "GetExpectedRack DeleteExpectedRack",
		"at least one instance request":      "AllocateInstances",
		"metadata is required":               "CreateTenant UpdateTenant CreateNetworkSecurityGroup UpdateNetworkSecurityGroup CreateInstanceType UpdateInstanceType UpdateInstanceConfig UpdateMachineMetadata",
		"vpc_id is required":                 "CreateVpcPrefix CreateVpcPeering",
		"at least one prefix":                "CreateNetworkSegment",
		"config is required":                 "CreateIBPartition CreateNVLinkLogicalPartition",
		"tenant_organization_id is required": "CreateSpxPartition",
		"attributes is required":             "CreateComputeAllocation",
		"keyset_identifier is required":      "CreateTenantKeyset UpdateTenantKeyset DeleteTenantKeyset",
		"OS variant":                         "CreateOperatingSystem",
		"os image id missing":                "CreateOsImage UpdateOsImage DeleteOsImage",
		"invalid organization id":            "CreateDpuExtensionService",
		"invalid UUID": "GetOsImage UpdateDpuExtensionService DeleteDpuExtensionService GetDpuExtensionServiceVersionsInfo " +
			"FindInstancesByDpuExtensionService",
		"either id or bmc_mac_address": "GetExpectedMachine DeleteExpectedMachine UpdateExpectedSwitch GetExpectedSwitch DeleteExpectedSwitch " +
			"UpdateExpectedPowerShelf GetExpectedPowerShelf DeleteExpectedPowerShelf",
	} {
		for method := range strings.FieldsSeq(methods) {
			request, reply, err := messagesOf(method)
			if err != nil {
				t.Fatal(err)
			}
			err = conn.Invoke(ctx, "/forge.Forge/"+method, request, reply)
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), missed) {
				t.Errorf("%s: got %v, want it to miss %q", method, err, missed)
			}
		}
	}
}

// Refusals that have no better place.
func TestOtherRefusals(t *testing.T) {
	b, hosts := withNetwork(t, 2)
	b.tenant("acme")
	if err := b.instanceType("gpu", "gpu"); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 257)
	promise := func(instanceType string) error {
		return failed(b.CreateComputeAllocation(ctx, &forge.CreateComputeAllocationRequest{
			Id: allocationID(uid(1)), TenantOrganizationId: "acme", Metadata: named("first"), Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: instanceType},
		}))
	}
	b.allocate(uid(9), hosts[0], onPrefix(uid(3)))
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))}))
	second := onPrefix(uid(3))
	second.Network.Interfaces[0].Ipv6InterfaceConfig = &forge.InstanceInterfaceIpv6Config{}
	spread := func(vpcs, instances []string) error {
		return failed(b.GetNetworkSecurityGroupPropagationStatus(ctx, &forge.GetNetworkSecurityGroupPropagationStatusRequest{VpcIds: vpcs, InstanceIds: instances}))
	}
	from := permit("a", tcp)
	from.SourceNet = &forge.NetworkSecurityGroupRuleAttributes_SrcPrefix{SrcPrefix: "everywhere"}
	dpu := b.machine(hosts[1]).AssociatedDpuMachineIds[0]
	state := forge.TenantState_FAILED
	b.refusals([]refusal{
		{"allocation of no type", promise(""), codes.InvalidArgument, "instance type id"},
		{"allocation of an unknown type", promise("none"), codes.Internal, "foreign key"},
		{"allocation", promise("gpu"), codes.OK, ""},
		{"allocation, long description", failed(b.UpdateComputeAllocation(ctx, &forge.UpdateComputeAllocationRequest{
			Id: allocationID(uid(1)), TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: "first", Description: long},
			Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "gpu"},
		})), codes.Internal, "too long"},
		{"allocation of nobody", failed(b.DeleteComputeAllocation(ctx, &forge.DeleteComputeAllocationRequest{Id: allocationID(uid(1))})), codes.InvalidArgument, "organization"},
		{"type with an empty id", b.instanceType("", "empty"), codes.InvalidArgument, "empty"},
		{"type with a long id", b.instanceType(long[:65], "long"), codes.Internal, "too long"},
		{"types of a tenant", failed(b.FindInstanceTypesByIds(ctx, &forge.FindInstanceTypesByIdsRequest{InstanceTypeIds: []string{"gpu"}, TenantOrganizationId: text("acme")})), codes.Unimplemented, ""},
		{"key set of nobody", failed(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{KeysetIdentifier: &forge.TenantKeysetIdentifier{KeysetId: "a"}})), codes.InvalidArgument, "organization"},
		{"services of a bad tenant", failed(b.FindDpuExtensionServiceIds(ctx, &forge.DpuExtensionServiceSearchFilter{TenantOrganizationId: text("a b")})), codes.InvalidArgument, "organization"},
		{"users of a bad version", failed(b.FindInstancesByDpuExtensionService(ctx, &forge.FindInstancesByDpuExtensionServiceRequest{ServiceId: uid(1), Version: text("1")})), codes.InvalidArgument, "version"},
		{"instance on its way out", failed(b.UpdateInstanceConfig(ctx, &forge.InstanceConfigUpdateRequest{InstanceId: instanceID(uid(9)), Config: onPrefix(uid(3)), Metadata: named("node")})), codes.InvalidArgument, "being released"},
		{"second family", failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[1]}, Config: second})), codes.Unimplemented, "family"},
		{"instance on a DPU", failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: dpu, Config: onPrefix(uid(3))})), codes.InvalidArgument, "is a DPU"},
		{"propagation to a bad VPC", spread([]string{"prod"}, nil), codes.InvalidArgument, "VPC id"},
		{"propagation to a bad instance", spread(nil, []string{"web"}), codes.InvalidArgument, "instance id"},
		{"rule from everywhere", failed(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
			TenantOrganizationId: "acme", Metadata: named("web"), NetworkSecurityGroupAttributes: ruleSet(from),
		})), codes.InvalidArgument, `invalid prefix "everywhere"`},
		{"prefix that is none", failed(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{VpcId: vpcID(uid(1)), Prefix: "10.1.0.0"})), codes.InvalidArgument, `invalid prefix "10.1.0.0"`},
		{"quarantine", failed(b.FindMachineIds(ctx, &forge.MachineSearchConfig{OnlyQuarantine: true})), codes.Unimplemented, "quarantine"},
		{"by power", failed(b.FindMachineIds(ctx, &forge.MachineSearchConfig{OnlyWithPowerState: text("on")})), codes.Unimplemented, "power"},
		{"no power manager", failed(b.UpdatePowerOption(ctx, &forge.PowerOptionUpdateRequest{MachineId: &forge.MachineId{Id: hosts[1]}, PowerState: forge.PowerState_PowerManagerDisabled})), codes.Unimplemented, "power"},
		{"power of a DPU", failed(b.AdminPowerControl(ctx, &forge.AdminPowerControlRequest{MachineId: &dpu.Id, Action: forge.AdminPowerControlRequest_On})), codes.Unimplemented, "DPU"},
		{"expected, bad id", failed(b.GetExpectedMachine(ctx, &forge.ExpectedMachineRequest{Id: wrapped("one")})), codes.InvalidArgument, "invalid id"},
		{"expected, bad address", failed(b.GetExpectedMachine(ctx, &forge.ExpectedMachineRequest{BmcMacAddress: "one"})), codes.InvalidArgument, "MAC"},
		{"expected, changed by a bad address", failed(b.UpdateExpectedMachine(ctx, &forge.ExpectedMachine{BmcMacAddress: "one"})), codes.Internal, "MAC"},
		{"unknown switch", failed(b.GetExpectedSwitch(ctx, &forge.ExpectedSwitchRequest{ExpectedSwitchId: wrapped(uid(1))})), codes.NotFound, "expected_switch"},
		{"unknown power shelf", failed(b.GetExpectedPowerShelf(ctx, &forge.ExpectedPowerShelfRequest{ExpectedPowerShelfId: wrapped(uid(1))})), codes.NotFound, "expected_power_shelf"},
		{"state of an unknown instance", b.world.SetInstanceState(uid(8), &state), codes.NotFound, "instance"},
		{"an unknown instance left behind", b.world.LeaveBehind(uid(8), true), codes.NotFound, "instance"},
		{"alerts of an unknown machine", b.world.SetAlerts(machineID('h', 's', 7, 7), nil), codes.NotFound, "machine"},
		{"an unexpected device found", b.world.Discover("0a:00:00:00:00:01"), codes.NotFound, "expected device"},
		{"an unknown machine deafened", b.world.Deafen(machineID('h', 's', 7, 7), true), codes.NotFound, "machine"},
	})
}
