package carbide

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// The simulator does not show what follows.

func TestInstanceNotInSync(t *testing.T) {
	o := &forge.Instance{Status: &forge.InstanceStatus{
		Tenant: &forge.InstanceTenantStatus{State: forge.TenantState_READY}, ConfigsSynced: forge.SyncState_PENDING,
	}}
	if th := (instances{}).thing(seenInstance{Instance: o}); th.Phase != providers.Pending || th.Detail == "" {
		t.Errorf("an instance whose configuration is on its way is %s (%s)", th.Phase, th.Detail)
	}
	o.Status.ConfigsSynced = forge.SyncState_SYNCED
	if th := (instances{}).thing(seenInstance{Instance: o}); th.Phase != providers.Ready {
		t.Errorf("an instance whose configuration has arrived is %s (%s)", th.Phase, th.Detail)
	}
}

// TestWhyNotReady: what is waited for has a reason, wherever the service reports one.
func TestWhyNotReady(t *testing.T) {
	said := "no VLAN is free"
	reason := &forge.ControllerStateReason{OutcomeMsg: &said}
	//lint:ignore SA1019 the flat fields are all that the older generations have
	flat := &forge.NetworkSegment{State: forge.TenantState_PROVISIONING, StateReason: reason}
	nested := &forge.NetworkSegment{Status: &forge.NetworkSegmentStatus{TenantState: forge.TenantState_PROVISIONING, Lifecycle: &forge.LifecycleStatus{StateReason: reason}}}
	prefix := &forge.VpcPrefix{Status: &forge.VpcPrefixStatus{TenantState: forge.TenantState_PROVISIONING, Lifecycle: &forge.LifecycleStatus{StateReason: reason}}}
	for _, th := range []providers.Thing{segments{}.thing(flat), segments{}.thing(nested), prefixes{}.thing(prefix)} {
		if th.Detail != "provisioning: no VLAN is free" {
			t.Errorf("it waits because of %q", th.Detail)
		}
	}
}

func TestLinknet(t *testing.T) {
	stretches := []forge.NetworkSegmentFlag{forge.NetworkSegmentFlag_CAN_STRETCH}
	for _, c := range []struct {
		name  string
		flags []forge.NetworkSegmentFlag
		want  bool
	}{
		{"vpc_prefix_10.0.0.0", nil, true},
		{"vpc_prefix_10.0.0.0", stretches, false}, // another client gave its own segment such a name
		{"prod", nil, false},
		{"prod", stretches, false},
	} {
		o := &forge.NetworkSegment{Metadata: &forge.Metadata{Name: c.name}, Status: &forge.NetworkSegmentStatus{Flags: c.flags}}
		if got := (segments{}).thing(o).Status["linknet"]; got != c.want {
			t.Errorf("segment %s with flags %v: linknet is %v", c.name, c.flags, got)
		}
	}
}

// TestPairSorted: the service may return a pair in reverse order.
func TestPairSorted(t *testing.T) {
	one := &forge.VpcPeering{VpcId: &forge.VpcId{Value: "a"}, PeerVpcId: &forge.VpcId{Value: "b"}}
	other := &forge.VpcPeering{VpcId: &forge.VpcId{Value: "b"}, PeerVpcId: &forge.VpcId{Value: "a"}}
	x, y := (peerings{}).thing(one), (peerings{}).thing(other)
	if x.Spec.Digest() != y.Spec.Digest() || x.Name != y.Name {
		t.Errorf("a pair is %v %s and, swapped, %v %s", x.Spec, x.Name, y.Spec, y.Name)
	}
}

func TestPartitionKeySpelling(t *testing.T) {
	for text, want := range map[string]string{
		"0x100": "0x100", "0X1AB": "0x1ab", "0x0F": "0xf", "10": "0x10", "": "", "none": "none", "0x10000": "0x10000",
	} {
		if got := partitionKey(text); got != want {
			t.Errorf("key %q is written %q, want %q", text, got, want)
		}
	}
}

// TestInterfacesKept: an interface that does not change is sent back as it came, and one that changes keeps what the
// schema does not have.
func TestInterfacesKept(t *testing.T) {
	device := func(name string) *forge.InstanceInterfaceConfig {
		i := &forge.InstanceInterfaceConfig{Device: &name, NetworkSegmentId: &forge.NetworkSegmentId{Value: "linknet"},
			NetworkDetails: &forge.InstanceInterfaceConfig_VpcPrefixId{VpcPrefixId: &forge.VpcPrefixId{Value: "block"}}}
		i.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 4000, protowire.BytesType), name))
		return i
	}
	same, moved := device("a"), device("b")
	network := &forge.InstanceNetworkConfig{Interfaces: []*forge.InstanceInterfaceConfig{same, moved}}
	want := []spec.Interface{readInterface(moved), readInterface(same)}
	segment := "net"
	want[0].VPCPrefix, want[0].Segment = nil, &segment
	writeInterfaces(want, network)
	if got := network.Interfaces[1]; !proto.Equal(got, same) || got.GetVpcPrefixId().GetValue() != "block" || got.GetNetworkSegmentId().GetValue() != "linknet" {
		t.Errorf("the interface that stays became %v", got)
	}
	if got := network.Interfaces[0]; len(got.ProtoReflect().GetUnknown()) == 0 || got.GetDevice() != "b" || got.GetSegmentId().GetValue() != "net" || got.GetNetworkSegmentId() != nil {
		t.Errorf("the interface that moves became %v", got)
	}
}

// TestCapabilitiesKept: the service permits no difference in the capabilities of a type that has machines.
func TestCapabilitiesKept(t *testing.T) {
	gpu := &forge.InstanceTypeMachineCapabilityFilterAttributes{}
	writeCapability(&spec.Capability{Type: "gpu"}, gpu)
	gpu.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4000, protowire.VarintType), 1))
	now := &forge.InstanceTypeAttributes{DesiredCapabilities: []*forge.InstanceTypeMachineCapabilityFilterAttributes{gpu}}
	want := spec.InstanceType{Capabilities: []spec.Capability{{Type: "gpu"}, {Type: "cpu"}}}
	after := writeCapabilities(&call[spec.InstanceType]{want: want}, now).DesiredCapabilities
	if len(after) != 2 || !proto.Equal(after[0], gpu) || after[1].GetCapabilityType() != forge.MachineCapabilityType_CAP_TYPE_CPU {
		t.Errorf("the capabilities became %v", after)
	}
}

// TestUntoldIsAbsent: what the service omits is in no spec, whatever the struct contains: it is unknown, not empty.
func TestUntoldIsAbsent(t *testing.T) {
	for name, th := range map[string]providers.Thing{
		"a VPC":     (&kind[seenVPC, spec.VPC]{wire: vpcs{}}).thing(seenVPC{Vpc: &forge.Vpc{}}),
		"a segment": (&kind[*forge.NetworkSegment, spec.NetworkSegment]{wire: segments{}}).thing(&forge.NetworkSegment{}),
		"a peering": (&kind[*forge.VpcPeering, spec.VPCPeering]{wire: peerings{}}).thing(&forge.VpcPeering{}),
	} {
		if len(th.Unfilled) == 0 {
			t.Errorf("%s is told, and nothing was", name)
		}
		for _, field := range th.Unfilled {
			if v, there := th.Spec[field]; there {
				t.Errorf("%s has the %s %v, which nobody told", name, field, v)
			}
		}
	}
}
