package carbidesim

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers/carbide/forge"
)

// subject is a kind as the laws see it. Its functions create and change the n-th of its things, under an id of the caller's;
// things with different n differ in everything that has to be unique. What a kind does not have is nil.
type subject struct {
	create func(b *workbench, id string, n int, m *forge.Metadata) error
	update func(b *workbench, id string, n int, m *forge.Metadata, token *string) error
	remove func(b *workbench, id string) error
	gone   time.Duration // from the delete until nothing is left
	list   func(b *workbench) []string
	find   func(b *workbench, ids ...string) ([]thing, error) // by ids
}

// thing is what the laws check.
type thing struct {
	id    string
	meta  *forge.Metadata
	token string
}

// onStage starts a site on which every kind can be created: a tenant, VPCs to be peered, a prefix and hosts for instances.
func onStage(t *testing.T, o Options) *workbench {
	t.Helper()
	o.Rules.Peering = PeeringMixed
	o.Hosts.Count = 6
	b := start(t, o)
	b.tenant("acme")
	for n := range byte(8) {
		b.vpc(uid(0xe0+n), ethernet)
	}
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(0xf0)), VpcId: vpcID(uid(0xe0)), Prefix: "172.16.0.0/24", Metadata: named("links")}))
	if err := b.instanceType("offer", "offer"); err != nil {
		t.Fatal(err)
	}
	return b
}

// begin creates the first thing of the kind and returns its id.
func (s subject) begin(b *workbench, m *forge.Metadata) string {
	b.Helper()
	id := uid(1)
	if s.create != nil {
		if err := s.create(b, id, 1, m); err != nil {
			b.Fatal(err)
		}
		return id
	}
	id = s.list(b)[0]
	if err := s.update(b, id, 1, m, nil); err != nil {
		b.Fatal(err)
	}
	return id
}

// look returns the one thing with the id.
func (s subject) look(b *workbench, id string) thing {
	b.Helper()
	found, err := s.find(b, id)
	if err != nil || len(found) != 1 {
		b.Fatalf("%d things with id %s: %v", len(found), id, err)
	}
	return found[0]
}

// all converts one kind of list to another.
func all[A, B any](list []A, one func(A) B) []B {
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = one(a)
	}
	return out
}

func hardwareAddressOf(n int) string { return fmt.Sprintf("0A:00:00:00:00:%02X", n) }

// subjects returns all kinds.
func subjects() map[string]subject {
	return map[string]subject{
		"tenant": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.CreateTenant(ctx, &forge.CreateTenantRequest{OrganizationId: id, Metadata: m}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateTenant(ctx, &forge.UpdateTenantRequest{OrganizationId: id, Metadata: m, IfVersionMatch: token}))
			},
			list: func(b *workbench) []string {
				return ok(b.FindTenantOrganizationIds(ctx, &forge.TenantSearchFilter{})).TenantOrganizationIds
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindTenantsByOrganizationIds(ctx, &forge.TenantByOrganizationIdsRequest{OrganizationIds: ids})
				return all(r.GetTenants(), func(o *forge.Tenant) thing { return thing{o.OrganizationId, o.Metadata, o.Version} }), err
			},
		},
		"tenant_keyset": {
			create: func(b *workbench, id string, _ int, _ *forge.Metadata) error {
				return failed(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{KeysetIdentifier: keysetOf(id), Version: "V1-T1"}))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteTenantKeyset(ctx, &forge.DeleteTenantKeysetRequest{KeysetIdentifier: keysetOf(id)}))
			},
			list: func(b *workbench) []string {
				return all(ok(b.FindTenantKeysetIds(ctx, &forge.TenantKeysetSearchFilter{})).KeysetIds, (*forge.TenantKeysetIdentifier).GetKeysetId)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindTenantKeysetsByIds(ctx, &forge.TenantKeysetsByIdsRequest{KeysetIds: all(ids, keysetOf)})
				return all(r.GetKeyset(), func(o *forge.TenantKeyset) thing { return thing{o.KeysetIdentifier.KeysetId, nil, o.Version} }), err
			},
		},
		"vpc": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(id), TenantOrganizationId: "acme", Metadata: m}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(id), Metadata: m, IfVersionMatch: token}))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(id)}))
			},
			list: func(b *workbench) []string { return texts(ok(b.FindVpcIds(ctx, &forge.VpcSearchFilter{})).VpcIds) },
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindVpcsByIds(ctx, &forge.VpcsByIdsRequest{VpcIds: all(ids, vpcID)})
				return all(r.GetVpcs(), func(o *forge.Vpc) thing { return thing{o.Id.Value, o.Metadata, o.Version} }), err
			},
		},
		"vpc_prefix": {
			create: func(b *workbench, id string, n int, m *forge.Metadata) error {
				return failed(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{
					Id: prefixID(id), VpcId: vpcID(uid(0xe0)), Prefix: fmt.Sprintf("10.1.%d.0/24", n), Metadata: m,
				}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, _ *string) error {
				return failed(b.UpdateVpcPrefix(ctx, &forge.VpcPrefixUpdateRequest{Id: prefixID(id), Metadata: m}))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: prefixID(id)}))
			},
			list: func(b *workbench) []string {
				return texts(ok(b.SearchVpcPrefixes(ctx, &forge.VpcPrefixSearchQuery{})).VpcPrefixIds)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{VpcPrefixIds: all(ids, prefixID)})
				return all(r.GetVpcPrefixes(), func(o *forge.VpcPrefix) thing { return thing{o.Id.Value, o.Metadata, ""} }), err
			},
		},
		"vpc_peering": {
			create: func(b *workbench, id string, n int, _ *forge.Metadata) error {
				return failed(b.peer(id, uid(0xe0), uid(0xe0+byte(n))))
			},
			remove: (*workbench).unpeer,
			list: func(b *workbench) []string {
				return texts(ok(b.FindVpcPeeringIds(ctx, &forge.VpcPeeringSearchFilter{})).VpcPeeringIds)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindVpcPeeringsByIds(ctx, &forge.VpcPeeringsByIdsRequest{VpcPeeringIds: all(ids, peeringID)})
				return all(r.GetVpcPeerings(), func(o *forge.VpcPeering) thing { return thing{o.Id.Value, nil, ""} }), err
			},
		},
		"network_segment": {
			create: func(b *workbench, id string, n int, _ *forge.Metadata) error {
				return b.segment(id, uid(0xe0), fmt.Sprintf("10.2.%d.0/24", n), fmt.Sprintf("10.2.%d.1", n))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: segmentID(id)}))
			},
			gone: RealTiming.Drain,
			list: func(b *workbench) []string {
				return texts(ok(b.FindNetworkSegmentIds(ctx, &forge.NetworkSegmentSearchFilter{})).NetworkSegmentsIds)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindNetworkSegmentsByIds(ctx, &forge.NetworkSegmentsByIdsRequest{NetworkSegmentsIds: all(ids, segmentID)})
				return all(r.GetNetworkSegments(), func(o *forge.NetworkSegment) thing { return thing{o.Id.Value, o.Metadata, ""} }), err
			},
		},
		"network_security_group": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{Id: &id, TenantOrganizationId: "acme", Metadata: m}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{Id: id, TenantOrganizationId: "acme", Metadata: m, IfVersionMatch: token}))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteNetworkSecurityGroup(ctx, &forge.DeleteNetworkSecurityGroupRequest{Id: id, TenantOrganizationId: "acme"}))
			},
			list: func(b *workbench) []string {
				return ok(b.FindNetworkSecurityGroupIds(ctx, &forge.FindNetworkSecurityGroupIdsRequest{})).NetworkSecurityGroupIds
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindNetworkSecurityGroupsByIds(ctx, &forge.FindNetworkSecurityGroupsByIdsRequest{NetworkSecurityGroupIds: ids})
				return all(r.GetNetworkSecurityGroups(), func(o *forge.NetworkSecurityGroup) thing { return thing{o.Id, o.Metadata, o.Version} }), err
			},
		},
		"ib_partition": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.CreateIBPartition(ctx, &forge.IBPartitionCreationRequest{
					Id: ibID(id), Config: &forge.IBPartitionConfig{TenantOrganizationId: "acme"}, Metadata: m,
				}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateIBPartition(ctx, &forge.IBPartitionUpdateRequest{
					Id: ibID(id), Config: &forge.IBPartitionConfig{TenantOrganizationId: "acme"}, Metadata: m, IfVersionMatch: token,
				}))
			},
			remove: (*workbench).endIBPartition,
			gone:   RealTiming.Tick,
			list: func(b *workbench) []string {
				return texts(ok(b.FindIBPartitionIds(ctx, &forge.IBPartitionSearchFilter{})).IbPartitionIds)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindIBPartitionsByIds(ctx, &forge.IBPartitionsByIdsRequest{IbPartitionIds: all(ids, ibID)})
				return all(r.GetIbPartitions(), func(o *forge.IBPartition) thing { return thing{o.Id.Value, o.Metadata, o.ConfigVersion} }), err
			},
		},
		"nvlink_logical_partition": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.nvlinkPartition(id, "acme", m))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionUpdateRequest{
					Id: nvlinkID(id), Config: &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme", Metadata: m}, IfVersionMatch: token,
				}))
			},
			remove: (*workbench).endNVLinkPartition,
			gone:   RealTiming.Purge,
			list: func(b *workbench) []string {
				return texts(ok(b.FindNVLinkLogicalPartitionIds(ctx, &forge.NVLinkLogicalPartitionSearchFilter{})).PartitionIds)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindNVLinkLogicalPartitionsByIds(ctx, &forge.NVLinkLogicalPartitionsByIdsRequest{PartitionIds: all(ids, nvlinkID)})
				return all(r.GetPartitions(), func(o *forge.NVLinkLogicalPartition) thing {
					return thing{o.Id.Value, o.Config.Metadata, o.ConfigVersion}
				}), err
			},
		},
		"spx_partition": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.spxPartition(id, m, nil))
			},
			remove: (*workbench).endSpxPartition,
			list: func(b *workbench) []string {
				return texts(ok(b.FindSpxPartitionIds(ctx, &forge.SpxPartitionSearchFilter{})).SpxPartitionIds)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindSpxPartitionsByIds(ctx, &forge.SpxPartitionsByIdsRequest{SpxPartitionIds: all(ids, spxID)})
				return all(r.GetSpxPartitions(), func(o *forge.SpxPartition) thing { return thing{o.Id.Value, o.Metadata, ""} }), err
			},
		},
		"operating_system": {
			create: func(b *workbench, id string, _ int, _ *forge.Metadata) error {
				return failed(b.CreateOperatingSystem(ctx, scriptEntry(id)))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: osID(id)}))
			},
			list: func(b *workbench) []string {
				return texts(ok(b.FindOperatingSystemIds(ctx, &forge.OperatingSystemSearchFilter{})).Ids)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindOperatingSystemsByIds(ctx, &forge.OperatingSystemsByIdsRequest{Ids: all(ids, osID)})
				return all(r.GetOperatingSystems(), func(o *forge.OperatingSystem) thing { return thing{o.Id.Value, nil, ""} }), err
			},
		},
		"os_image": {
			create: func(b *workbench, id string, _ int, _ *forge.Metadata) error {
				return failed(b.CreateOsImage(ctx, image(id)))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteOsImage(ctx, &forge.DeleteOsImageRequest{Id: imageUUID(id), TenantOrganizationId: "acme"}))
			},
			list: func(b *workbench) []string {
				return all(ok(b.ListOsImage(ctx, &forge.ListOsImageRequest{})).Images, func(i *forge.OsImage) string { return i.Attributes.Id.Value })
			},
		},
		"instance_type": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.CreateInstanceType(ctx, &forge.CreateInstanceTypeRequest{Id: &id, Metadata: m}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateInstanceType(ctx, &forge.UpdateInstanceTypeRequest{Id: id, Metadata: m, IfVersionMatch: token}))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteInstanceType(ctx, &forge.DeleteInstanceTypeRequest{Id: id}))
			},
			list: func(b *workbench) []string {
				return ok(b.FindInstanceTypeIds(ctx, &forge.FindInstanceTypeIdsRequest{})).InstanceTypeIds
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindInstanceTypesByIds(ctx, &forge.FindInstanceTypesByIdsRequest{InstanceTypeIds: ids})
				return all(r.GetInstanceTypes(), func(o *forge.InstanceType) thing { return thing{o.Id, o.Metadata, o.Version} }), err
			},
		},
		"compute_allocation": {
			create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
				return failed(b.CreateComputeAllocation(ctx, &forge.CreateComputeAllocationRequest{
					Id: allocationID(id), TenantOrganizationId: "acme", Metadata: m, Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "offer"},
				}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateComputeAllocation(ctx, &forge.UpdateComputeAllocationRequest{
					Id: allocationID(id), TenantOrganizationId: "acme", Metadata: m, Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "offer"},
					IfVersionMatch: token,
				}))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteComputeAllocation(ctx, &forge.DeleteComputeAllocationRequest{Id: allocationID(id), TenantOrganizationId: "acme"}))
			},
			list: func(b *workbench) []string {
				return texts(ok(b.FindComputeAllocationIds(ctx, &forge.FindComputeAllocationIdsRequest{})).Ids)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindComputeAllocationsByIds(ctx, &forge.FindComputeAllocationsByIdsRequest{Ids: all(ids, allocationID)})
				return all(r.GetAllocations(), func(o *forge.ComputeAllocation) thing { return thing{o.Id.Value, o.Metadata, o.Version} }), err
			},
		},
		"instance": {
			create: func(b *workbench, id string, n int, m *forge.Metadata) error {
				host := b.hosts(&forge.MachineSearchConfig{})[n-1]
				return failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{
					InstanceId: instanceID(id), MachineId: &forge.MachineId{Id: host}, Config: onPrefix(uid(0xf0)), Metadata: m,
				}))
			},
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateInstanceConfig(ctx, &forge.InstanceConfigUpdateRequest{
					InstanceId: instanceID(id), Config: onPrefix(uid(0xf0)), Metadata: m, IfVersionMatch: token,
				}))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(id)}))
			},
			gone: RealTiming.Release,
			list: func(b *workbench) []string {
				return texts(ok(b.FindInstanceIds(ctx, &forge.InstanceSearchFilter{})).InstanceIds)
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindInstancesByIds(ctx, &forge.InstancesByIdsRequest{InstanceIds: all(ids, instanceID)})
				return all(r.GetInstances(), func(o *forge.Instance) thing { return thing{o.Id.Value, o.Metadata, o.ConfigVersion} }), err
			},
		},
		"machine": {
			update: func(b *workbench, id string, _ int, m *forge.Metadata, token *string) error {
				return failed(b.UpdateMachineMetadata(ctx, &forge.MachineMetadataUpdateRequest{MachineId: &forge.MachineId{Id: id}, Metadata: m, IfVersionMatch: token}))
			},
			list: func(b *workbench) []string { return b.hosts(&forge.MachineSearchConfig{}) },
			find: func(b *workbench, ids ...string) ([]thing, error) {
				wrap := func(id string) *forge.MachineId { return &forge.MachineId{Id: id} }
				r, err := b.FindMachinesByIds(ctx, &forge.MachinesByIdsRequest{MachineIds: all(ids, wrap)})
				return all(r.GetMachines(), func(o *forge.Machine) thing { return thing{o.Id.Id, o.Metadata, o.Version} }), err
			},
		},
		"dpu_extension_service": {
			create: func(b *workbench, id string, n int, _ *forge.Metadata) error {
				return failed(b.CreateDpuExtensionService(ctx, podService(id, fmt.Sprint("service-", n))))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: id}))
			},
			list: func(b *workbench) []string {
				return ok(b.FindDpuExtensionServiceIds(ctx, &forge.DpuExtensionServiceSearchFilter{})).ServiceIds
			},
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindDpuExtensionServicesByIds(ctx, &forge.DpuExtensionServicesByIdsRequest{ServiceIds: ids})
				return all(r.GetServices(), func(o *forge.DpuExtensionService) thing { return thing{o.ServiceId, nil, fmt.Sprint(o.VersionCtr)} }), err
			},
		},
		"sku": {
			create: func(b *workbench, id string, n int, _ *forge.Metadata) error {
				return b.addSKU(newSKU(id, fmt.Sprint("model-", n)))
			},
			remove: func(b *workbench, id string) error {
				return failed(b.DeleteSku(ctx, &forge.SkuIdList{Ids: []string{id}}))
			},
			list: func(b *workbench) []string { return ok(b.GetAllSkuIds(ctx, &emptypb.Empty{})).Ids },
			find: func(b *workbench, ids ...string) ([]thing, error) {
				r, err := b.FindSkusByIds(ctx, &forge.SkusByIdsRequest{Ids: ids})
				return all(r.GetSkus(), func(o *forge.Sku) thing { return thing{o.Id, nil, ""} }), err
			},
		},
		"expected_machine":     expectedMachineSubject(),
		"expected_switch":      expectedSwitchSubject(),
		"expected_power_shelf": expectedShelfSubject(),
		"expected_rack":        expectedRackSubject(),
	}
}

func keysetOf(id string) *forge.TenantKeysetIdentifier {
	return &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: id}
}

// looked returns the listed things with the given ids: for kinds that are only listed as a whole.
func looked[M any](list []M, see func(M) thing, ids []string) []thing {
	var out []thing
	for _, m := range list {
		for _, id := range ids {
			if see(m).id == id {
				out = append(out, see(m))
			}
		}
	}
	return out
}

func expectedMachineSubject() subject {
	see := func(o *forge.ExpectedMachine) thing { return thing{o.Id.Value, o.Metadata, ""} }
	everything := func(b *workbench) []*forge.ExpectedMachine {
		return ok(b.GetAllExpectedMachines(ctx, &emptypb.Empty{})).ExpectedMachines
	}
	say := func(id string, n int, m *forge.Metadata) *forge.ExpectedMachine {
		return &forge.ExpectedMachine{Id: wrapped(id), BmcMacAddress: hardwareAddressOf(n), ChassisSerialNumber: "SN-1", Metadata: m}
	}
	return subject{
		create: func(b *workbench, id string, n int, m *forge.Metadata) error {
			return failed(b.AddExpectedMachine(ctx, say(id, n, m)))
		},
		update: func(b *workbench, id string, n int, m *forge.Metadata, _ *string) error {
			return failed(b.UpdateExpectedMachine(ctx, say(id, n, m)))
		},
		remove: func(b *workbench, id string) error {
			return failed(b.DeleteExpectedMachine(ctx, &forge.ExpectedMachineRequest{Id: wrapped(id)}))
		},
		list: func(b *workbench) []string {
			return all(everything(b), func(o *forge.ExpectedMachine) string { return o.Id.Value })
		},
		find: func(b *workbench, ids ...string) ([]thing, error) { return looked(everything(b), see, ids), nil },
	}
}

func expectedSwitchSubject() subject {
	see := func(o *forge.ExpectedSwitch) thing { return thing{o.ExpectedSwitchId.Value, o.Metadata, ""} }
	everything := func(b *workbench) []*forge.ExpectedSwitch {
		return ok(b.GetAllExpectedSwitches(ctx, &emptypb.Empty{})).ExpectedSwitches
	}
	say := func(id string, n int, m *forge.Metadata) *forge.ExpectedSwitch {
		return &forge.ExpectedSwitch{ExpectedSwitchId: wrapped(id), BmcMacAddress: hardwareAddressOf(n), Metadata: m}
	}
	return subject{
		create: func(b *workbench, id string, n int, m *forge.Metadata) error {
			return failed(b.AddExpectedSwitch(ctx, say(id, n, m)))
		},
		update: func(b *workbench, id string, n int, m *forge.Metadata, _ *string) error {
			return failed(b.UpdateExpectedSwitch(ctx, say(id, n, m)))
		},
		remove: func(b *workbench, id string) error {
			return failed(b.DeleteExpectedSwitch(ctx, &forge.ExpectedSwitchRequest{ExpectedSwitchId: wrapped(id)}))
		},
		list: func(b *workbench) []string {
			return all(everything(b), func(o *forge.ExpectedSwitch) string { return o.ExpectedSwitchId.Value })
		},
		find: func(b *workbench, ids ...string) ([]thing, error) { return looked(everything(b), see, ids), nil },
	}
}

func expectedShelfSubject() subject {
	see := func(o *forge.ExpectedPowerShelf) thing { return thing{o.ExpectedPowerShelfId.Value, o.Metadata, ""} }
	everything := func(b *workbench) []*forge.ExpectedPowerShelf {
		return ok(b.GetAllExpectedPowerShelves(ctx, &emptypb.Empty{})).ExpectedPowerShelves
	}
	say := func(id string, n int, m *forge.Metadata) *forge.ExpectedPowerShelf {
		return &forge.ExpectedPowerShelf{ExpectedPowerShelfId: wrapped(id), BmcMacAddress: hardwareAddressOf(n), Metadata: m}
	}
	return subject{
		create: func(b *workbench, id string, n int, m *forge.Metadata) error {
			return failed(b.AddExpectedPowerShelf(ctx, say(id, n, m)))
		},
		update: func(b *workbench, id string, n int, m *forge.Metadata, _ *string) error {
			return failed(b.UpdateExpectedPowerShelf(ctx, say(id, n, m)))
		},
		remove: func(b *workbench, id string) error {
			return failed(b.DeleteExpectedPowerShelf(ctx, &forge.ExpectedPowerShelfRequest{ExpectedPowerShelfId: wrapped(id)}))
		},
		list: func(b *workbench) []string {
			return all(everything(b), func(o *forge.ExpectedPowerShelf) string { return o.ExpectedPowerShelfId.Value })
		},
		find: func(b *workbench, ids ...string) ([]thing, error) { return looked(everything(b), see, ids), nil },
	}
}

func expectedRackSubject() subject {
	see := func(o *forge.ExpectedRack) thing { return thing{o.RackId.Id, o.Metadata, ""} }
	everything := func(b *workbench) []*forge.ExpectedRack {
		return ok(b.GetAllExpectedRacks(ctx, &emptypb.Empty{})).ExpectedRacks
	}
	say := func(id string, m *forge.Metadata) *forge.ExpectedRack {
		return &forge.ExpectedRack{RackId: &forge.RackId{Id: id}, RackProfileId: &forge.RackProfileId{Id: "NVL72"}, Metadata: m}
	}
	return subject{
		create: func(b *workbench, id string, _ int, m *forge.Metadata) error {
			return failed(b.AddExpectedRack(ctx, say(id, m)))
		},
		update: func(b *workbench, id string, _ int, m *forge.Metadata, _ *string) error {
			return failed(b.UpdateExpectedRack(ctx, say(id, m)))
		},
		remove: func(b *workbench, id string) error {
			return failed(b.DeleteExpectedRack(ctx, &forge.ExpectedRackRequest{RackId: id}))
		},
		list: func(b *workbench) []string {
			return all(everything(b), func(o *forge.ExpectedRack) string { return o.RackId.Id })
		},
		find: func(b *workbench, ids ...string) ([]thing, error) { return looked(everything(b), see, ids), nil },
	}
}
