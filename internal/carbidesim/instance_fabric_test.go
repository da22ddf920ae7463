package carbidesim

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

const connectX = "MT2910 Family [ConnectX-7]"

func ibPort(partition, device string, instance uint32) *forge.InstanceIBInterfaceConfig {
	return &forge.InstanceIBInterfaceConfig{Device: device, DeviceInstance: instance, IbPartitionId: ibID(partition)}
}

func spxPort(partition string, instance uint32) *forge.InstanceSpxAttachment {
	return &forge.InstanceSpxAttachment{Device: superNIC, DeviceInstance: instance, SpxPartitionId: &forge.SpxPartitionId{Value: partition}}
}

// withFabrics returns a network and partitions of acme: InfiniBand (0x21), NVLink (0x22) and Spectrum-X (0x23); 0x24 and
// 0x25 are another tenant's.
func withFabrics(t *testing.T, hosts int) (*workbench, []string) {
	t.Helper()
	b, ids := withNetwork(t, hosts)
	ok(b.ibPartition(uid(0x21), "acme", ""))
	ok(b.ibPartition(uid(0x24), "other", ""))
	ok(b.nvlinkPartition(uid(0x22), "acme", named("rack")))
	for id, org := range map[string]string{uid(0x23): "acme", uid(0x25): "other"} {
		ok(b.CreateSpxPartition(ctx, &forge.SpxPartitionCreationRequest{Id: &forge.SpxPartitionId{Value: id}, TenantOrganizationId: org, Metadata: named("spx")}))
	}
	var gpus []string
	for _, id := range ids {
		if len(b.machine(id).Capabilities.Gpu) > 0 {
			gpus = append(gpus, id)
		}
	}
	return b, gpus
}

func onFabrics(change func(c *forge.InstanceConfig)) *forge.InstanceConfig {
	c := onPrefix(uid(3))
	change(c)
	return c
}

func TestFabricRefusals(t *testing.T) {
	b, hosts := withFabrics(t, 4)
	try := func(change func(c *forge.InstanceConfig)) error {
		before := string(b.world.Dump())
		err := failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[0]}, Config: onFabrics(change)}))
		if err != nil && before != string(b.world.Dump()) {
			t.Errorf("a refused allocation has left something: %v", err)
		}
		return err
	}
	ib := func(ports ...*forge.InstanceIBInterfaceConfig) error {
		return try(func(c *forge.InstanceConfig) { c.Infiniband = &forge.InstanceInfinibandConfig{IbInterfaces: ports} })
	}
	spx := func(ports ...*forge.InstanceSpxAttachment) error {
		return try(func(c *forge.InstanceConfig) { c.Spxconfig = &forge.InstanceSpxConfig{SpxAttachments: ports} })
	}
	but := func(p *forge.InstanceIBInterfaceConfig, change func(*forge.InstanceIBInterfaceConfig)) *forge.InstanceIBInterfaceConfig {
		change(p)
		return p
	}
	butSpx := func(p *forge.InstanceSpxAttachment, change func(*forge.InstanceSpxAttachment)) *forge.InstanceSpxAttachment {
		change(p)
		return p
	}
	b.refusals([]refusal{
		{"no partition", ib(but(ibPort("", connectX, 0), func(p *forge.InstanceIBInterfaceConfig) { p.IbPartitionId = nil })), codes.InvalidArgument, "ib_partition_id"},
		{"unknown partition", ib(ibPort(uid(0x77), connectX, 0)), codes.InvalidArgument, "IB partition"},
		{"another tenant's", ib(ibPort(uid(0x24), connectX, 0)), codes.InvalidArgument, "IB partition"},
		{"a virtual function", ib(but(ibPort(uid(0x21), connectX, 0), func(p *forge.InstanceIBInterfaceConfig) { p.FunctionType = forge.InterfaceFunctionType_VIRTUAL })), codes.InvalidArgument, "VF"},
		{"an odd function", ib(but(ibPort(uid(0x21), connectX, 0), func(p *forge.InstanceIBInterfaceConfig) { p.FunctionType = 7 })), codes.InvalidArgument, "function_type"},
		{"a device twice", ib(ibPort(uid(0x21), connectX, 1), ibPort(uid(0x21), connectX, 1)), codes.InvalidArgument, "more than once"},
		{"another device", ib(ibPort(uid(0x21), "ConnectX-1", 0)), codes.InvalidArgument, "no ib device"},
		{"too few devices", ib(ibPort(uid(0x21), connectX, 4)), codes.InvalidArgument, "not enough"},
		{"a device without a cable", ib(ibPort(uid(0x21), connectX, 3)), codes.InvalidArgument, "inactive"},
		{"no SPX partition", spx(butSpx(spxPort("", 0), func(a *forge.InstanceSpxAttachment) { a.SpxPartitionId = nil })), codes.InvalidArgument, "spx_partition_id"},
		{"unknown SPX partition", spx(spxPort(uid(0x77), 0)), codes.InvalidArgument, "SPX partition"},
		{"another tenant's SPX", spx(spxPort(uid(0x25), 0)), codes.InvalidArgument, "SPX partition"},
		{"a virtual attachment", spx(butSpx(spxPort(uid(0x23), 0), func(a *forge.InstanceSpxAttachment) { a.AttachmentType = forge.SpxAttachmentType_Virtual })), codes.InvalidArgument, "type"},
		{"an SPX device twice", spx(spxPort(uid(0x23), 0), spxPort(uid(0x23), 0)), codes.InvalidArgument, "more than once"},
		{"no such SPX device", spx(spxPort(uid(0x23), 2)), codes.InvalidArgument, "DPA"},
		{"NVLink partitions nobody checks", try(func(c *forge.InstanceConfig) {
			c.Nvlink = &forge.InstanceNVLinkConfig{GpuConfigs: []*forge.InstanceNVLinkGpuConfig{{LogicalPartitionId: nvlinkID(uid(0x77))}}}
		}), codes.OK, ""},
	})
	bare := start(t, Options{Hosts: Hosts{Count: 1, WithoutDPU: 1}})
	bare.tenant("acme")
	made := ok(bare.CreateDpuExtensionService(ctx, podService(uid(0x31), "agent")))
	bare.refuses(failed(bare.AllocateInstance(ctx, &forge.InstanceAllocationRequest{
		MachineId: &forge.MachineId{Id: bare.hosts(&forge.MachineSearchConfig{})[0]},
		Config: &forge.InstanceConfig{
			Tenant: &forge.TenantConfig{TenantOrganizationId: "acme"}, Os: script("#!ipxe"), Network: &forge.InstanceNetworkConfig{Auto: true},
			DpuExtensionServices: &forge.InstanceDpuExtensionServicesConfig{ServiceConfigs: []*forge.InstanceDpuExtensionServiceConfig{{
				ServiceId: uid(0x31), Version: made.ActiveVersions[0],
			}}},
		},
	})), codes.InvalidArgument, "no DPU")
}

// Each section has its own token, a change needs a ready host, and attachments on Spectrum-X always count as a change.
func TestFabricsChange(t *testing.T) {
	b, hosts := withFabrics(t, 4)
	wanted := ibPort(uid(0x21), connectX, 0)
	wanted.VirtualFunctionId = proto.Uint32(7)
	b.allocate(uid(9), hosts[0], onFabrics(func(c *forge.InstanceConfig) {
		c.Infiniband = &forge.InstanceInfinibandConfig{IbInterfaces: []*forge.InstanceIBInterfaceConfig{wanted}}
	}))
	b.clock.pass(RealTiming.Provision)
	i := b.findInstance(uid(9))
	if port := i.Config.Infiniband.IbInterfaces[0]; port.VirtualFunctionId != nil {
		t.Errorf("a port reads back as %v", port)
	}
	if got := i.Status.Infiniband.IbInterfaces; len(got) != 1 || got[0].GetGuid() == "" || got[0].Lid == 0 {
		t.Errorf("the port got %v", got)
	}
	if i.Config.Nvlink != nil || i.Config.Spxconfig != nil || i.Config.DpuExtensionServices != nil {
		t.Errorf("empty sections read back: %v", i.Config)
	}
	update := func(change func(c *forge.InstanceConfig)) (*forge.Instance, error) {
		c := proto.CloneOf(b.findInstance(uid(9)).Config)
		change(c)
		return b.UpdateInstanceConfig(ctx, &forge.InstanceConfigUpdateRequest{InstanceId: instanceID(uid(9)), Config: c, Metadata: named("node")})
	}
	check := func(when string, before *forge.Instance, state forge.TenantState, moved ...string) *forge.Instance {
		t.Helper()
		now := b.findInstance(uid(9))
		if now.Status.Tenant.State != state {
			t.Errorf("%s the instance is %s, want %s", when, now.Status.Tenant.State, state)
		}
		tokens := map[string][2]string{
			"ib": {before.IbConfigVersion, now.IbConfigVersion}, "nvlink": {before.NvlinkConfigVersion, now.NvlinkConfigVersion},
			"services": {before.DpuExtensionServiceVersion, now.DpuExtensionServiceVersion}, "network": {before.NetworkConfigVersion, now.NetworkConfigVersion},
		}
		for what, v := range tokens {
			if got, want := v[0] != v[1], len(moved) > 0 && moved[0] == what; got != want {
				t.Errorf("%s the token of %s moved: %v", when, what, got)
			}
		}
		b.clock.pass(RealTiming.Configure)
		return now
	}
	same := func(*forge.InstanceConfig) {}
	ok(update(same))
	i = check("as it was", i, forge.TenantState_READY)
	ok(update(func(c *forge.InstanceConfig) { c.Infiniband.IbInterfaces[0].DeviceInstance = 1 }))
	i = check("another device", i, forge.TenantState_CONFIGURING, "ib")
	gpu := &forge.InstanceNVLinkConfig{GpuConfigs: []*forge.InstanceNVLinkGpuConfig{{DeviceInstance: 2, LogicalPartitionId: nvlinkID(uid(0x22))}}}
	ok(update(func(c *forge.InstanceConfig) { c.Nvlink = gpu }))
	b.refuses(failed(update(func(c *forge.InstanceConfig) { c.Nvlink = nil })), codes.InvalidArgument, "not Ready")
	ok(update(same)) // what does not change does not need a ready host
	i = check("a GPU", i, forge.TenantState_CONFIGURING, "nvlink")
	if got := b.findInstance(uid(9)).Status.Nvlink.GpuStatuses; len(got) != 1 || got[0].LogicalPartitionId.GetValue() != uid(0x22) {
		t.Errorf("the GPU is in %v", got)
	}
	ok(update(func(c *forge.InstanceConfig) {
		c.Spxconfig = &forge.InstanceSpxConfig{SpxAttachments: []*forge.InstanceSpxAttachment{spxPort(uid(0x23), 0), spxPort(uid(0x23), 1)}}
	}))
	i = check("Spectrum-X", i, forge.TenantState_CONFIGURING)
	if got := i.Config.Spxconfig.SpxAttachments; got[0].DeviceInstance != 1 || got[1].DeviceInstance != 0 {
		t.Errorf("attachments read back in the order %v", got)
	}
	ok(update(same))
	i = check("the same attachments", i, forge.TenantState_CONFIGURING)
	b.tenant("acme")
	made := ok(b.CreateDpuExtensionService(ctx, podService(uid(0x31), "agent")))
	ok(update(func(c *forge.InstanceConfig) {
		c.Spxconfig, c.Infiniband, c.Nvlink = nil, nil, nil
		c.DpuExtensionServices = &forge.InstanceDpuExtensionServicesConfig{ServiceConfigs: []*forge.InstanceDpuExtensionServiceConfig{{ServiceId: uid(0x31), Version: made.ActiveVersions[0]}}}
	}))
	now := b.findInstance(uid(9))
	if now.DpuExtensionServiceVersion == i.DpuExtensionServiceVersion || now.Config.Infiniband != nil || now.Config.Nvlink != nil || now.Config.Spxconfig != nil {
		t.Errorf("after all sections but one went: %v", now.Config)
	}
	b.clock.pass(RealTiming.Configure)
	if got := b.findInstance(uid(9)).Status.DpuExtensionServices.DpuExtensionServices; len(got) != 1 || got[0].DeploymentStatus != forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_RUNNING {
		t.Errorf("the service is %v", got)
	}
}
