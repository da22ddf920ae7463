package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

func TestInterfaces(t *testing.T) {
	b, hosts := withNetwork(t, 1)
	b.vpc(uid(0x80), ethernet)
	b.vpc(uid(0x81), flat)
	for _, s := range []struct{ id, vpc, prefix string }{{uid(0x82), uid(0x80), "10.3.0.0/24"}, {uid(0x83), uid(1), "10.4.0.0/24"}} {
		if err := b.segment(s.id, s.vpc, s.prefix, strings.Replace(s.prefix, "0/24", "1", 1)); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.pass(RealTiming.Tick)
	ok(b.CreateNetworkSegment(ctx, &forge.NetworkSegmentCreationRequest{Id: segmentID(uid(0x84)), Prefixes: []*forge.NetworkPrefix{{Prefix: "10.5.0.0/24"}}}))
	if err := b.segment(uid(0x85), uid(1), "10.6.0.0/24", "10.6.0.1"); err != nil { // not ready yet
		t.Fatal(err)
	}
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(0x86)), VpcId: vpcID(uid(0x81)), Prefix: "10.7.0.0/24"}))

	number := func(n uint32) *uint32 { return &n }
	at := func(i *forge.InstanceInterfaceConfig, ip string) *forge.InstanceInterfaceConfig {
		i.IpAddress = &ip
		return i
	}
	on := func(i *forge.InstanceInterfaceConfig, device string, n uint32) *forge.InstanceInterfaceConfig {
		i.Device, i.DeviceInstance = &device, n
		return i
	}
	oldStyle := &forge.InstanceInterfaceConfig{NetworkSegmentId: segmentID(uid(2))}
	n := byte(0x10)
	try := func(interfaces ...*forge.InstanceInterfaceConfig) error {
		n++
		err := failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{InstanceId: instanceID(uid(n)), MachineId: &forge.MachineId{Id: hosts[0]}, Config: config(interfaces...)}))
		if err == nil { // make room for the next case
			ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(n))}))
			b.world.Advance(RealTiming.Release)
			b.world.Advance(RealTiming.Cleanup)
		}
		return err
	}
	const segment, prefix = "00000000-0000-4000-8000-000000000002", "00000000-0000-4000-8000-000000000003"
	b.refusals([]refusal{
		{"no interface", try(), codes.InvalidArgument, "interfaces"},
		{"no target", try(&forge.InstanceInterfaceConfig{}), codes.InvalidArgument, "segment or a VPC prefix"},
		{"the older field", try(oldStyle), codes.OK, ""},
		{"unknown segment", try(viaSegment(uid(0x99))), codes.InvalidArgument, "not ready"},
		{"unknown prefix", try(viaPrefix(uid(0x99))), codes.Internal, "does not exist"},
		{"segment without VPC", try(viaSegment(uid(0x84))), codes.InvalidArgument, ""},
		{"FLAT VPC", try(viaPrefix(uid(0x86))), codes.FailedPrecondition, "FLAT"},
		{"unknown function", try(&forge.InstanceInterfaceConfig{FunctionType: 7, NetworkSegmentId: segmentID(segment)}), codes.InvalidArgument, "function_type"},
		{"no physical function", try(virtual(viaSegment(segment), nil)), codes.InvalidArgument, "exactly one physical"},
		{"two physical functions", try(viaSegment(segment), viaPrefix(prefix)), codes.InvalidArgument, "exactly one physical"},
		{"two devices", try(on(viaSegment(segment), "bf3", 0), on(viaPrefix(prefix), "bf3", 1)), codes.OK, ""},
		{"segment twice", try(viaSegment(segment), virtual(viaSegment(segment), nil)), codes.InvalidArgument, "twice"},
		{"numbers for some", try(viaSegment(segment), virtual(viaPrefix(prefix), number(1)), virtual(viaPrefix(prefix), nil)), codes.InvalidArgument, "for all"},
		{"number twice", try(viaSegment(segment), virtual(viaPrefix(prefix), number(1)), virtual(viaPrefix(prefix), number(1))), codes.InvalidArgument, "twice"},
		{"number too high", try(viaSegment(segment), virtual(viaPrefix(prefix), number(16))), codes.InvalidArgument, "range"},
		{"physical with number", try(&forge.InstanceInterfaceConfig{NetworkSegmentId: segmentID(segment), VirtualFunctionId: number(1)}), codes.InvalidArgument, "physical"},
		{"highest number", try(viaSegment(segment), virtual(viaPrefix(prefix), number(15))), codes.OK, ""},
		{"address with a segment", try(at(viaSegment(segment), "10.0.0.3")), codes.InvalidArgument, "VPC prefix"},
		{"even address", try(at(viaPrefix(prefix), "10.1.0.2")), codes.InvalidArgument, "host's end"},
		{"address outside", try(at(viaPrefix(prefix), "10.2.0.3")), codes.InvalidArgument, "host's end"},
		{"address is text", try(at(viaPrefix(prefix), "first")), codes.InvalidArgument, "invalid address"},
		{"odd address", try(at(viaPrefix(prefix), "10.1.0.9")), codes.OK, ""},
		{"its link network drains", try(at(viaPrefix(prefix), "10.1.0.9")), codes.OK, ""}, // the clock was advanced past the drain
		{"two VPCs without FNN", try(viaSegment(segment), virtual(viaSegment(uid(0x82)), nil)), codes.InvalidArgument, "FNN"},
		{"two segments of one VPC", try(viaSegment(segment), virtual(viaSegment(uid(0x83)), nil)), codes.OK, ""},
	})
}

func TestLinkNetworks(t *testing.T) {
	b, hosts := withNetwork(t, 3)
	prefix := func() *forge.VpcPrefix {
		return ok(b.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{VpcPrefixIds: []*forge.VpcPrefixId{prefixID(uid(3))}})).VpcPrefixes[0]
	}
	i := b.allocate(uid(0x10), hosts[0], config(viaPrefix(uid(3)), virtual(viaPrefix(uid(3)), nil)))
	ports := i.Status.Network.Interfaces
	if ports[0].Addresses[0] != "10.1.0.1" || ports[0].Gateways[0] != "10.1.0.0/31" || ports[1].Addresses[0] != "10.1.0.3" || ports[1].GetVirtualFunctionId() != 0 {
		t.Errorf("interfaces %v", ports)
	}
	if ports[0].GetMacAddress() == ports[1].GetMacAddress() {
		t.Error("two interfaces have the same MAC address")
	}
	second := i.Config.Network.Interfaces[1]
	if second.GetVpcPrefixId().GetValue() != uid(3) || second.VirtualFunctionId == nil {
		t.Errorf("interface reads back as %v", second)
	}
	n := b.findSegment(second.NetworkSegmentId.GetValue())
	if n == nil || n.Metadata.Name != "vpc_prefix_10.1.0.2" || len(n.Status.Flags) != 0 || n.Status.TenantState != forge.TenantState_READY {
		t.Fatalf("link network %v", n)
	}
	if got := prefix().Status; got.Total_31Segments != 8 || got.Available_31Segments != 6 {
		t.Errorf("counts %v", got)
	}
	taken := config(viaPrefix(uid(3)))
	taken.Network.Interfaces[0].IpAddress = text("10.1.0.3")
	b.refuses(failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[1]}, Config: taken})), codes.AlreadyExists, "prefix already exists")

	// The link networks outlive the instance and prevent deleting the prefix.
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(0x10))}))
	b.clock.pass(RealTiming.Release)
	remove := func() error {
		return failed(b.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: prefixID(uid(3))}))
	}
	if n := b.findSegment(n.Id.Value); n == nil || n.Status.TenantState != forge.TenantState_TERMINATING {
		t.Fatalf("link network of a released instance: %v", n)
	}
	b.refuses(remove(), codes.Internal, "violates")
	b.clock.pass(RealTiming.Drain)
	if err := remove(); err != nil {
		t.Error(err)
	}
}

func TestAddressesRunOut(t *testing.T) {
	b, hosts := withNetwork(t, 7) // the segment has five addresses for instances, the prefix has eight link networks
	for n := range 5 {
		i := b.allocate(uid(byte(0x10+n)), hosts[n], config(viaSegment(uid(2))))
		if want := "10.0.0." + string(rune('2'+n)); i.Status.Network.Interfaces[0].Addresses[0] != want {
			t.Errorf("address %s, want %s", i.Status.Network.Interfaces[0].Addresses[0], want)
		}
	}
	if got := b.findSegment(uid(2)).Config.Prefixes[0].FreeIpCount; got != 0 {
		t.Errorf("%d addresses are free", got)
	}
	full := &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[5]}, Config: config(viaSegment(uid(2)))}
	b.refuses(failed(b.AllocateInstance(ctx, full)), codes.ResourceExhausted, "no free address")
	nine := config(viaPrefix(uid(3)))
	for range 8 {
		nine.Network.Interfaces = append(nine.Network.Interfaces, virtual(viaPrefix(uid(3)), nil))
	}
	b.refuses(failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[6]}, Config: nine})), codes.Internal, "no free link network")
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(0x11))}))
	b.clock.pass(RealTiming.Release)
	if i := ok(b.AllocateInstance(ctx, full)); i.Status.Network.Interfaces[0].Addresses[0] != "10.0.0.3" {
		t.Errorf("the free address is not taken: %v", i.Status.Network)
	}
}

func TestInstanceUpdateReplacesTheWholeConfiguration(t *testing.T) {
	b, hosts := withNetwork(t, 2)
	b.tenant("acme")
	if err := b.group("web", "acme", "web"); err != nil {
		t.Fatal(err)
	}
	c := config(viaSegment(uid(2)))
	c.Tenant.TenantKeysetIds = []string{"ops"}
	c.Tenant.Hostname = text("node")
	c.NetworkSecurityGroupId = text("web")
	first := b.allocate(uid(9), hosts[0], c)
	type request = forge.InstanceConfigUpdateRequest
	update := func(change func(*request)) (*forge.Instance, error) {
		r := &request{InstanceId: instanceID(uid(9)), Metadata: named("node"), Config: config(viaSegment(uid(2)))}
		change(r)
		return b.UpdateInstanceConfig(ctx, r)
	}
	rewire := func(r *request) { r.Config = onPrefix(uid(3)) }
	b.refusals([]refusal{
		{"network while the host is prepared", failed(update(rewire)), codes.InvalidArgument, "not Ready yet"},
		{"no instance", failed(update(func(r *request) { r.InstanceId = nil })), codes.InvalidArgument, "instance_id"},
		{"unknown", failed(update(func(r *request) { r.InstanceId = instanceID(uid(8)) })), codes.NotFound, "instance"},
		{"no config", failed(update(func(r *request) { r.Config = nil })), codes.InvalidArgument, "config"},
		{"no metadata", failed(update(func(r *request) { r.Metadata = nil })), codes.InvalidArgument, "metadata"},
		{"no network", failed(update(func(r *request) { r.Config.Network = nil })), codes.InvalidArgument, "network"},
		{"auto", failed(update(func(r *request) { r.Config.Network = &forge.InstanceNetworkConfig{Auto: true} })), codes.InvalidArgument, "auto"},
		{"other tenant", failed(update(func(r *request) { r.Config.Tenant.TenantOrganizationId = "other" })), codes.InvalidArgument, "tenant"},
		{"malformed token", failed(update(func(r *request) { r.IfVersionMatch = text("1") })), codes.Internal, "version"},
		{"stale token", failed(update(func(r *request) { r.IfVersionMatch = text("V7-T7") })), codes.FailedPrecondition, "type instance "},
	})
	i := ok(update(func(r *request) {
		r.IfVersionMatch = &first.ConfigVersion
		r.Config.Tenant.Hostname = text("another")
		r.Metadata = &forge.Metadata{Name: "renamed", Labels: []*forge.Label{label("env", text("prod"))}}
	}))
	if i.Config.NetworkSecurityGroupId != nil || len(i.Config.Tenant.TenantKeysetIds) != 0 || i.Metadata.Name != "renamed" {
		t.Errorf("what was left out is still there: %v", i)
	}
	if i.Config.Tenant.GetHostname() != "node" {
		t.Errorf("host name is %q; changes are ignored", i.Config.Tenant.GetHostname())
	}
	if i.ConfigVersion == first.ConfigVersion || i.NetworkConfigVersion != first.NetworkConfigVersion {
		t.Errorf("tokens %s and %s", i.ConfigVersion, i.NetworkConfigVersion)
	}
	again := ok(update(func(*request) {}))
	if again.ConfigVersion == i.ConfigVersion || again.NvlinkConfigVersion != i.NvlinkConfigVersion {
		t.Errorf("tokens after an update without a change: %v", again)
	}
	gpus := func(r *request) {
		r.Config.Nvlink = &forge.InstanceNVLinkConfig{GpuConfigs: []*forge.InstanceNVLinkGpuConfig{{DeviceInstance: 1}}}
	}
	b.refuses(failed(update(gpus)), codes.InvalidArgument, "not Ready yet")
	b.clock.pass(RealTiming.Provision)
	if i = ok(update(gpus)); i.NvlinkConfigVersion == again.NvlinkConfigVersion || len(i.Config.Nvlink.GetGpuConfigs()) != 1 {
		t.Errorf("after a change of NVLink: %v", i)
	}
}

func TestNetworkChange(t *testing.T) {
	b, hosts := withNetwork(t, 1)
	first := b.allocate(uid(9), hosts[0], config(viaSegment(uid(2)), virtual(viaPrefix(uid(3)), nil)))
	link := first.Config.Network.Interfaces[1].NetworkSegmentId.Value
	b.clock.pass(RealTiming.Provision)
	update := func(c *forge.InstanceConfig) (*forge.Instance, error) {
		return b.UpdateInstanceConfig(ctx, &forge.InstanceConfigUpdateRequest{InstanceId: instanceID(uid(9)), Metadata: named("node"), Config: c})
	}
	// What was read can be sent back, and is not a change.
	same := proto.Clone(b.findInstance(uid(9)).Config).(*forge.InstanceConfig)
	if i := ok(update(same)); i.Status.Tenant.State != forge.TenantState_READY || i.NetworkConfigVersion != first.NetworkConfigVersion {
		t.Fatalf("sending back what was read changed something: %v", i.Status)
	}
	number := func(n uint32) *uint32 { return &n }
	i := ok(update(config(viaSegment(uid(2)), virtual(viaPrefix(uid(3)), number(4)))))
	if i.Status.Tenant.State != forge.TenantState_CONFIGURING || i.Status.ConfigsSynced != forge.SyncState_PENDING || i.NetworkConfigVersion == first.NetworkConfigVersion {
		t.Errorf("during the change: %v", i)
	}
	if got := b.machine(hosts[0]).State; got != "Assigned/NetworkConfigUpdate" {
		t.Errorf("host is %s", got)
	}
	if !proto.Equal(i.Status.Network.Interfaces[0], first.Status.Network.Interfaces[0]) {
		t.Errorf("the interface that stays has changed: %v", i.Status.Network)
	}
	if got := i.Config.Network.Interfaces[1].NetworkSegmentId.Value; got == link {
		t.Error("the other function has the old link network")
	}
	b.refuses(failed(update(config(viaSegment(uid(2)), virtual(viaPrefix(uid(3)), number(4))))), codes.InvalidArgument, "under way") // even without a change
	b.clock.pass(RealTiming.Configure)
	if got := b.findInstance(uid(9)).Status; got.Tenant.State != forge.TenantState_READY || got.ConfigsSynced != forge.SyncState_SYNCED {
		t.Errorf("after the change: %v", got)
	}
	ok(update(config(viaSegment(uid(2)), virtual(viaPrefix(uid(3)), number(4)))))
	b.clock.pass(RealTiming.Drain)
	if b.findSegment(link) != nil {
		t.Error("the link network that nobody has is still there")
	}
}

func TestSeveralVpcsOnFnn(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}, Rules: Rules{RoutingProfiles: profiles}})
	b.tenant("acme")
	for n := range byte(2) {
		b.vpc(uid(n), fnn)
		ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(0x10 + n)), VpcId: vpcID(uid(n)), Prefix: []string{"10.1.0.0/28", "fd00::/64"}[n]}))
	}
	i := b.allocate(uid(9), b.hosts(&forge.MachineSearchConfig{})[0], config(viaPrefix(uid(0x10)), virtual(viaPrefix(uid(0x11)), nil)))
	if got := i.Status.Network.Interfaces[1]; got.Addresses[0] != "fd00::1" || got.Prefixes[0] != "fd00::/127" {
		t.Errorf("IPv6 link network: %v", got)
	}
	b.refuses(failed(b.UpdateVpcVirtualization(ctx, &forge.VpcUpdateVirtualizationRequest{Id: vpcID(uid(1)), NetworkVirtualizationType: ethernet.Enum()})), codes.Internal, "instances")
}
