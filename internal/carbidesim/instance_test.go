package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

// config returns a configuration with interfaces that boots a script.
func config(interfaces ...*forge.InstanceInterfaceConfig) *forge.InstanceConfig {
	return &forge.InstanceConfig{
		Tenant:  &forge.TenantConfig{TenantOrganizationId: "acme"},
		Os:      script("#!ipxe"),
		Network: &forge.InstanceNetworkConfig{Interfaces: interfaces},
	}
}

func script(s string) *forge.InstanceOperatingSystemConfig {
	return &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: s}}}
}

func viaSegment(id string) *forge.InstanceInterfaceConfig {
	return &forge.InstanceInterfaceConfig{NetworkDetails: &forge.InstanceInterfaceConfig_SegmentId{SegmentId: segmentID(id)}}
}

func viaPrefix(id string) *forge.InstanceInterfaceConfig {
	return &forge.InstanceInterfaceConfig{NetworkDetails: &forge.InstanceInterfaceConfig_VpcPrefixId{VpcPrefixId: prefixID(id)}}
}

func virtual(i *forge.InstanceInterfaceConfig, number *uint32) *forge.InstanceInterfaceConfig {
	i.FunctionType = forge.InterfaceFunctionType_VIRTUAL
	i.VirtualFunctionId = number
	return i
}

func onPrefix(id string) *forge.InstanceConfig { return config(viaPrefix(id)) }

func (b *workbench) allocate(id, machine string, c *forge.InstanceConfig) *forge.Instance {
	b.Helper()
	return ok(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{
		InstanceId: instanceID(id), MachineId: &forge.MachineId{Id: machine}, Config: c, Metadata: named("node"),
	}))
}

// withNetwork returns a world with a VPC (1) that has a ready segment (2) and a prefix (3), and some hosts.
func withNetwork(t *testing.T, hosts int) (*workbench, []string) {
	t.Helper()
	b := start(t, Options{Hosts: Hosts{Count: hosts}})
	b.vpc(uid(1), ethernet)
	if err := b.segment(uid(2), uid(1), "10.0.0.0/29", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/28"}))
	b.clock.pass(RealTiming.Tick)
	return b, b.hosts(&forge.MachineSearchConfig{})
}

func TestInstanceLife(t *testing.T) {
	b, hosts := withNetwork(t, 1)
	i := b.allocate(uid(9), hosts[0], config(viaSegment(uid(2))))
	expect := func(state forge.TenantState, synced forge.SyncState, host string) {
		t.Helper()
		i := b.findInstance(uid(9))
		if i.Status.Tenant.State != state || i.Status.ConfigsSynced != synced {
			t.Errorf("instance is %s, %s; want %s, %s", i.Status.Tenant.State, i.Status.ConfigsSynced, state, synced)
		}
		if got := b.machine(hosts[0]).State; got != host {
			t.Errorf("host is %s, want %s", got, host)
		}
	}
	at := i.Status.Network.Interfaces[0]
	if at.Addresses[0] != "10.0.0.2" || at.Gateways[0] != "10.0.0.1/29" || at.Prefixes[0] != "10.0.0.0/29" || len(at.GetMacAddress()) != 17 {
		t.Errorf("interface %v", at)
	}
	if got := i.Config.Network.Interfaces[0].NetworkSegmentId.GetValue(); got != uid(2) {
		t.Errorf("network_segment_id is %q", got)
	}
	if i.Config.Infiniband != nil || i.Config.Nvlink != nil || i.Config.DpuExtensionServices != nil {
		t.Errorf("empty sections read back: %v", i.Config)
	}
	expect(forge.TenantState_PROVISIONING, forge.SyncState_PENDING, "Assigned/WaitingForNetworkConfig")
	stateVersion := b.machine(hosts[0]).StateVersion
	b.clock.pass(RealTiming.Provision)
	expect(forge.TenantState_READY, forge.SyncState_SYNCED, "Assigned/Ready")
	if b.machine(hosts[0]).StateVersion == stateVersion {
		t.Error("the state changed and its token did not")
	}

	release := func() error {
		return failed(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))}))
	}
	b.refusals([]refusal{{"release", release(), codes.OK, ""}, {"release again", release(), codes.OK, ""}})
	expect(forge.TenantState_TERMINATING, forge.SyncState_PENDING, "Assigned/SwitchToAdminNetwork")
	b.refuses(failed(b.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: segmentID(uid(2))})), codes.InvalidArgument, "addresses")
	b.clock.pass(RealTiming.Release)
	if b.findInstance(uid(9)) != nil {
		t.Error("the released instance is still there")
	}
	b.refuses(release(), codes.NotFound, "instance")
	if got := b.machine(hosts[0]).State; !strings.HasPrefix(got, "WaitingForCleanup/") {
		t.Errorf("host is %s", got)
	}
	again := &forge.InstanceAllocationRequest{InstanceId: instanceID(uid(9)), MachineId: &forge.MachineId{Id: hosts[0]}, Config: config(viaSegment(uid(2)))}
	b.refuses(failed(b.AllocateInstance(ctx, again)), codes.InvalidArgument, "WaitingForCleanup")
	b.clock.pass(RealTiming.Cleanup - 1)
	if got := b.machine(hosts[0]).State; got == "Ready" {
		t.Error("the host is ready before it is clean")
	}
	b.clock.pass(1)
	if got := b.machine(hosts[0]).State; got != "Ready" {
		t.Errorf("host is %s", got)
	}
	ok(b.AllocateInstance(ctx, again)) // the row was deleted permanently, so the id is free
}

// A timer of an instance that is gone does not affect another one with the same id, nor its host.
func TestAnInstanceIsNotHurriedByItsPredecessor(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}, Timing: Timing{Provision: 100, Configure: 40, Release: 10, Cleanup: 10}})
	b.vpc(uid(1), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/28"}))
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	b.allocate(uid(9), host, onPrefix(uid(3)))
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))}))
	b.clock.pass(10)
	b.clock.pass(10)
	state := func() forge.TenantState { return b.findInstance(uid(9)).Status.Tenant.State }
	b.allocate(uid(9), host, onPrefix(uid(3)))
	b.clock.pass(80) // the first one would be ready now
	if state() != forge.TenantState_PROVISIONING {
		t.Errorf("state %s after 80 of 100", state())
	}
	b.clock.pass(20)
	reboot := func() {
		ok(b.InvokeInstancePower(ctx, &forge.InstancePowerRequest{InstanceId: instanceID(uid(9)), BootWithCustomIpxe: true}))
	}
	reboot()
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))}))
	b.clock.pass(10)
	b.clock.pass(10)
	b.allocate(uid(9), host, onPrefix(uid(3)))
	b.clock.pass(20) // the reboot of the second one would be over now
	if state() != forge.TenantState_PROVISIONING || b.machine(host).State == hostReady {
		t.Errorf("state %s, host %s", state(), b.machine(host).State)
	}
}

func TestInstanceAdmission(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 6, WithoutDPU: 1, Unhealthy: 1, Maintenance: 1}, Rules: Rules{OSImages: []string{uid(0x71)}}})
	b.vpc(uid(1), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/28"}))
	var good, sick, mended, bare string
	for _, id := range b.hosts(&forge.MachineSearchConfig{}) {
		switch m := b.machine(id); {
		case m.MaintenanceReference != nil:
			mended = id
		case len(m.Health.Alerts) > 0:
			sick = id
		case len(m.AssociatedDpuMachineIds) == 0:
			bare = id
		default:
			good = id
		}
	}
	dpu := b.machine(good).AssociatedDpuMachineIds[0].Id
	b.tenant("other")
	for _, err := range []error{b.instanceType("gpu", "gpu"), b.group("theirs", "other", "theirs")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	type request = forge.InstanceAllocationRequest
	try := func(machine string, change func(*request)) error {
		before := b.world.Dump()
		r := &request{MachineId: &forge.MachineId{Id: machine}, Config: onPrefix(uid(3))}
		change(r)
		err := failed(b.AllocateInstance(ctx, r))
		if err != nil && string(before) != string(b.world.Dump()) {
			t.Errorf("a refused allocation has left something: %v", err)
		}
		return err
	}
	asIs := func(*request) {}
	tenant := func(c *forge.TenantConfig) func(*request) { return func(r *request) { r.Config.Tenant = c } }
	os := func(c *forge.InstanceOperatingSystemConfig) func(*request) {
		return func(r *request) { r.Config.Os = c }
	}
	auto := func(r *request) { r.Config.Network = &forge.InstanceNetworkConfig{Auto: true} }
	many := strings.Split("a b c d e f g h i j k", " ")
	b.refusals([]refusal{
		{"no machine", failed(b.AllocateInstance(ctx, &request{Config: onPrefix(uid(3))})), codes.InvalidArgument, "machine_id"},
		{"no config", try(good, func(r *request) { r.Config = nil }), codes.InvalidArgument, "config"},
		{"unknown machine", try(machineID('h', 's', 7, 7), asIs), codes.NotFound, "Machine"},
		{"DPU", try(dpu, asIs), codes.InvalidArgument, "DPU"},
		{"health alert", try(sick, asIs), codes.FailedPrecondition, "health alert"},
		{"maintenance", try(mended, asIs), codes.FailedPrecondition, "health alert"},
		{"other type", try(good, func(r *request) { r.InstanceTypeId = text("gpu") }), codes.FailedPrecondition, "InstanceType"},
		{"no tenant", try(good, tenant(nil)), codes.InvalidArgument, "tenant"},
		{"bad tenant", try(good, tenant(&forge.TenantConfig{TenantOrganizationId: "a b"})), codes.InvalidArgument, "organization"},
		{"eleven key sets", try(good, tenant(&forge.TenantConfig{TenantOrganizationId: "acme", TenantKeysetIds: many})), codes.InvalidArgument, "keyset"},
		{"key set twice", try(good, tenant(&forge.TenantConfig{TenantOrganizationId: "acme", TenantKeysetIds: []string{"a", "a"}})), codes.InvalidArgument, "keyset"},
		{"host name", try(good, tenant(&forge.TenantConfig{TenantOrganizationId: "acme", Hostname: text("Node")})), codes.InvalidArgument, "host name"},
		{"no OS", try(good, os(nil)), codes.InvalidArgument, "os"},
		{"no variant", try(good, os(&forge.InstanceOperatingSystemConfig{})), codes.InvalidArgument, "variant"},
		{"blank script", try(good, os(script(" \n"))), codes.InvalidArgument, "script"},
		{"unknown image", try(good, os(&forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_OsImageId{OsImageId: &forge.UUID{Value: uid(0x72)}}})), codes.FailedPrecondition, "image"},
		{"unknown group", try(good, func(r *request) { r.Config.NetworkSecurityGroupId = text("web") }), codes.FailedPrecondition, "web"},
		{"another tenant's group", try(good, func(r *request) { r.Config.NetworkSecurityGroupId = text("theirs") }), codes.FailedPrecondition, "theirs"},
		{"extension service", try(good, func(r *request) {
			r.Config.DpuExtensionServices = &forge.InstanceDpuExtensionServicesConfig{ServiceConfigs: []*forge.InstanceDpuExtensionServiceConfig{{ServiceId: uid(0x73), Version: "V1-T1"}}}
		}), codes.FailedPrecondition, "ExtensionService"},
		{"auto on a host with a DPU", try(good, auto), codes.InvalidArgument, "auto"},
		{"interfaces on a host without", try(bare, asIs), codes.InvalidArgument, "auto"},
		{"bad metadata", try(good, func(r *request) { r.Metadata = named("x") }), codes.InvalidArgument, "name"},

		{"sick on request", try(sick, func(r *request) { r.AllowUnhealthyMachine = true }), codes.OK, ""},
		{"image", try(good, os(&forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_OsImageId{OsImageId: &forge.UUID{Value: uid(0x71)}}})), codes.OK, ""},
		{"taken", try(good, asIs), codes.InvalidArgument, "Assigned"},
	})
	ok(b.AllocateInstance(ctx, &request{InstanceId: instanceID(uid(0x60)), MachineId: &forge.MachineId{Id: bare}, Config: &forge.InstanceConfig{
		Tenant: &forge.TenantConfig{TenantOrganizationId: "acme"}, Os: script("#!ipxe"), Network: &forge.InstanceNetworkConfig{Auto: true},
	}}))
	i := b.findInstance(uid(0x60))
	if len(i.Config.Network.Interfaces) != 0 || len(i.Status.Network.Interfaces) != 1 || i.Metadata.Name != "default_name" {
		t.Errorf("instance on its host's own network: %v", i)
	}
}

func TestInstanceIDsAndHostNames(t *testing.T) {
	b, hosts := withNetwork(t, 4)
	try := func(machine int, id byte, org, host string) error {
		c := onPrefix(uid(3))
		c.Tenant = &forge.TenantConfig{TenantOrganizationId: org, Hostname: &host}
		return failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{InstanceId: instanceID(uid(id)), MachineId: &forge.MachineId{Id: hosts[machine]}, Config: c}))
	}
	long := strings.Repeat("x", 70)
	b.refusals([]refusal{
		{"first", try(0, 0x10, "acme", "web"), codes.OK, ""},
		{"id taken", try(1, 0x10, "acme", "db"), codes.Internal, "duplicate key"},
		{"host name taken", try(1, 0x11, "acme", "web"), codes.Internal, "duplicate key"},
		{"host name of another tenant's", try(1, 0x11, "other", "web"), codes.OK, ""},
		{"long host name", try(2, 0x12, "acme", long), codes.OK, ""},
	})
	if got := b.findInstance(uid(0x12)).Config.Tenant.GetHostname(); got != long[:63] {
		t.Errorf("host name %q", got)
	}
	if got := ok(b.FindInstanceByMachineID(ctx, &forge.MachineId{Id: hosts[0]})).Instances; len(got) != 1 || got[0].Id.Value != uid(0x10) {
		t.Errorf("instance by machine: %v", got)
	}
	if got := ok(b.FindInstanceByMachineID(ctx, &forge.MachineId{Id: hosts[3]})).Instances; len(got) != 0 {
		t.Errorf("instance on an idle machine: %v", got)
	}
}

func TestOperatingSystemReadsBack(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 3}, Rules: Rules{OperatingSystems: []OperatingSystem{
		{ID: uid(0x71), Script: "#!ipxe\nboot", UserData: "#cloud-config"}, {ID: uid(0x72)}, {ID: uid(0x73), Inactive: true},
	}}})
	b.vpc(uid(1), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/28"}))
	hosts := b.hosts(&forge.MachineSearchConfig{})
	entry := func(id string) *forge.InstanceOperatingSystemConfig {
		return &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_OperatingSystemId{OperatingSystemId: &forge.OperatingSystemId{Value: id}}}
	}
	with := func(os *forge.InstanceOperatingSystemConfig) *forge.InstanceConfig {
		c := onPrefix(uid(3))
		c.Os = os
		return c
	}
	i := b.allocate(uid(0x10), hosts[0], with(entry(uid(0x71))))
	if i.Config.Os.GetIpxe().GetIpxeScript() != "#!ipxe\nboot" || i.Config.Os.GetUserData() != "#cloud-config" {
		t.Errorf("an entry with a script reads back as %v", i.Config.Os)
	}
	i = b.allocate(uid(0x11), hosts[1], with(entry(uid(0x72))))
	if i.Config.Os.GetOperatingSystemId().GetValue() != uid(0x72) {
		t.Errorf("an entry from a template reads back as %v", i.Config.Os)
	}
	b.refuses(failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[2]}, Config: with(entry(uid(0x73)))})), codes.FailedPrecondition, "active")

	before := i.ConfigVersion
	i = ok(b.UpdateInstanceOperatingSystem(ctx, &forge.InstanceOperatingSystemUpdateRequest{InstanceId: instanceID(uid(0x11)), Os: script("#!ipxe"), IfVersionMatch: &before}))
	if i.Config.Os.GetIpxe().GetIpxeScript() != "#!ipxe" || i.ConfigVersion == before || i.NetworkConfigVersion != b.findInstance(uid(0x10)).NetworkConfigVersion {
		t.Errorf("after a change of the OS: %v", i)
	}
}

func TestPhoneHomeHoldsAnInstance(t *testing.T) {
	b, hosts := withNetwork(t, 2)
	waiting := func() *forge.InstanceConfig {
		c := onPrefix(uid(3))
		c.Os.PhoneHomeEnabled = true
		return c
	}
	b.allocate(uid(0x10), hosts[0], waiting())
	b.allocate(uid(0x11), hosts[1], waiting())
	state := func(id byte) forge.TenantState { return b.findInstance(uid(id)).Status.Tenant.State }
	if err := b.world.PhoneHome(uid(0x11)); err != nil { // before the host is up
		t.Fatal(err)
	}
	if state(0x11) != forge.TenantState_PROVISIONING {
		t.Error("an instance is ready before its host")
	}
	b.clock.pass(2 * RealTiming.Provision)
	if state(0x10) != forge.TenantState_PROVISIONING || state(0x11) != forge.TenantState_READY {
		t.Errorf("states %s and %s", state(0x10), state(0x11))
	}
	if err := b.world.PhoneHome(uid(0x10)); err != nil {
		t.Fatal(err)
	}
	if state(0x10) != forge.TenantState_READY || b.machine(hosts[0]).State != "Assigned/Ready" {
		t.Errorf("state %s after the call", state(0x10))
	}
}

func TestInjectedStatesAndAlerts(t *testing.T) {
	b, hosts := withNetwork(t, 1)
	b.allocate(uid(9), hosts[0], onPrefix(uid(3)))
	b.clock.pass(RealTiming.Provision)
	for _, s := range []forge.TenantState{forge.TenantState_FAILED, forge.TenantState_UPDATING, forge.TenantState_REPAIRING} {
		if err := b.world.SetInstanceState(uid(9), &s); err != nil {
			t.Fatal(err)
		}
		if got := b.findInstance(uid(9)).Status.Tenant.State; got != s {
			t.Errorf("state %s, want %s", got, s)
		}
	}
	if err := b.world.SetInstanceState(uid(9), nil); err != nil {
		t.Fatal(err)
	}
	if got := b.findInstance(uid(9)).Status.Tenant.State; got != forge.TenantState_READY {
		t.Errorf("state %s", got)
	}
	release := func(issue *forge.Issue) error {
		return failed(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9)), Issue: issue}))
	}
	if err := b.world.SetAlerts(hosts[0], map[string][]string{"Evacuation": {"PreventInstanceDeletion"}}); err != nil {
		t.Fatal(err)
	}
	b.refuses(release(nil), codes.InvalidArgument, "deletion")
	if err := b.world.SetAlerts(hosts[0], nil); err != nil {
		t.Fatal(err)
	}
	if err := release(&forge.Issue{Summary: "GPU 3 has fallen off the bus"}); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(RealTiming.Release)
	b.clock.pass(RealTiming.Cleanup)
	b.refuses(failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[0]}, Config: onPrefix(uid(3))})), codes.FailedPrecondition, "health alert")
}

func TestInstanceFilters(t *testing.T) {
	b, hosts := withNetwork(t, 3)
	b.vpc(uid(0x80), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(0x81)), VpcId: vpcID(uid(0x80)), Prefix: "10.2.0.0/28"}))
	if err := b.instanceType("gpu", "gpu"); err != nil {
		t.Fatal(err)
	}
	if err := b.associate("gpu", hosts[0]); err != nil {
		t.Fatal(err)
	}
	ok(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{
		InstanceId: instanceID(uid(0x10)), InstanceTypeId: text("gpu"), MachineId: &forge.MachineId{Id: hosts[0]}, Config: onPrefix(uid(3)),
		Metadata: &forge.Metadata{Name: "node", Labels: []*forge.Label{label("env", text("prod"))}},
	}))
	other := onPrefix(uid(0x81))
	other.Tenant = &forge.TenantConfig{TenantOrganizationId: "other"}
	b.allocate(uid(0x11), hosts[1], other)
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(0x11))})) // terminating ones are listed
	for _, c := range []struct {
		name   string
		filter *forge.InstanceSearchFilter
		want   string
	}{
		{"tenant", &forge.InstanceSearchFilter{TenantOrgId: text("other")}, uid(0x11)},
		{"label", &forge.InstanceSearchFilter{Label: label("env", text("prod"))}, uid(0x10)},
		{"VPC", &forge.InstanceSearchFilter{VpcId: text(uid(0x80))}, uid(0x11)},
		{"type", &forge.InstanceSearchFilter{InstanceTypeId: text("gpu")}, uid(0x10)},
	} {
		if got := ok(b.FindInstanceIds(ctx, c.filter)).InstanceIds; len(got) != 1 || got[0].Value != c.want {
			t.Errorf("by %s: %v", c.name, got)
		}
	}
	if got := ok(b.FindInstanceIds(ctx, &forge.InstanceSearchFilter{})).InstanceIds; len(got) != 2 {
		t.Errorf("all: %v", got)
	}
	b.refusals([]refusal{
		{"VPC id", failed(b.FindInstanceIds(ctx, &forge.InstanceSearchFilter{VpcId: text("prod")})), codes.InvalidArgument, "VPC id"},
		{"empty label", failed(b.FindInstanceIds(ctx, &forge.InstanceSearchFilter{Label: &forge.Label{}})), codes.InvalidArgument, "label"},
	})
}

func TestPower(t *testing.T) {
	b, hosts := withNetwork(t, 1)
	b.allocate(uid(9), hosts[0], onPrefix(uid(3)))
	reset := func(r *forge.InstancePowerRequest) error { return failed(b.InvokeInstancePower(ctx, r)) }
	b.refuses(reset(&forge.InstancePowerRequest{InstanceId: instanceID(uid(9))}), codes.InvalidArgument, "READY")
	b.clock.pass(RealTiming.Provision)
	b.refusals([]refusal{
		{"unknown", reset(&forge.InstancePowerRequest{InstanceId: instanceID(uid(8))}), codes.NotFound, "instance"},
		{"unknown operation", reset(&forge.InstancePowerRequest{InstanceId: instanceID(uid(9)), Operation: 5}), codes.InvalidArgument, "operation"},
		{"by machine", reset(&forge.InstancePowerRequest{MachineId: &forge.MachineId{Id: hosts[0]}}), codes.OK, ""},
	})
	if b.machine(hosts[0]).LastRebootRequestedTime.AsTime() != b.clock.Now() {
		t.Error("the machine does not know about the reboot")
	}
	ok(b.InvokeInstancePower(ctx, &forge.InstancePowerRequest{InstanceId: instanceID(uid(9)), BootWithCustomIpxe: true}))
	if got := b.findInstance(uid(9)).Status.Tenant.State; got != forge.TenantState_CONFIGURING {
		t.Errorf("state %s", got)
	}
	b.clock.pass(RealTiming.Configure)
	if got := b.findInstance(uid(9)).Status.Tenant.State; got != forge.TenantState_READY {
		t.Errorf("state %s", got)
	}
}
