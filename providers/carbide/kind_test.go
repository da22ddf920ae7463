package carbide_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// TestObserveAllOrNothing: one failed call of many fails the observation.
func TestObserveAllOrNothing(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{MaxFindByIDs: 7}})
	carbidetest.Plant(t, s.World, "vpc", 50)
	if err := s.Inject(carbidesim.Fault{Method: "FindVpcsByIds", Nth: 5, Effect: carbidesim.Before}); err != nil {
		t.Fatal(err)
	}
	things, err := providers.Collect(s.kind("vpc").List(t.Context()))
	s.class("observe", err, transient)
	if things != nil {
		t.Errorf("%d things were reported all the same", len(things))
	}
}

// TestForeignIds: ids that cannot belong to a kind are left out; the service would fail on them.
func TestForeignIds(t *testing.T) {
	s := newSite(t, carbidesim.Options{Hosts: lawHosts})
	for _, k := range s.Kinds {
		things, err := k.Kind.Get(t.Context(), []string{"", "x", "fm100ds" + strings.Repeat("0", 52), "54AA7875-03F7-525E-8275-7A478C42AE28"})
		if err != nil || len(things) != 0 {
			t.Errorf("%s: %d things, %v", k.Name, len(things), err)
		}
	}
}

// unknownField returns a field of a newer service, as it looks to a client that does not know it.
func unknownField(text string) protoreflect.RawFields {
	return protowire.AppendString(protowire.AppendTag(nil, 4000, protowire.BytesType), text)
}

// TestUpdateKeeps: an update leaves alone what the schema does not have.
func TestUpdateKeeps(t *testing.T) {
	hosts := hosts(t)
	s := newSite(t, carbidesim.Options{Later: true, Hosts: lawHosts, Timing: lawTiming})
	s.make("vpc", "prod", schema.Object{"tenant": "acme"})
	s.make("vpc_prefix", "links", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/16"})
	os := &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: "#!ipxe"}}}
	os.ProtoReflect().SetUnknown(unknownField("os"))
	port := &forge.InstanceInterfaceConfig{NetworkDetails: &forge.InstanceInterfaceConfig_VpcPrefixId{VpcPrefixId: &forge.VpcPrefixId{Value: id("vpc_prefix", "links")}}}
	port.ProtoReflect().SetUnknown(unknownField("port"))
	const partition = "0d9ec1a0-0000-4000-8000-000000000001"
	stranger := s.Stranger()
	_, err := stranger.AllocateInstance(t.Context(), &forge.InstanceAllocationRequest{
		InstanceId: &forge.InstanceId{Value: id("instance", "web")},
		MachineId:  &forge.MachineId{Id: hosts[0]},
		Metadata:   &forge.Metadata{Name: "web"},
		Config: &forge.InstanceConfig{
			Tenant:  &forge.TenantConfig{TenantOrganizationId: "acme"},
			Os:      os,
			Network: &forge.InstanceNetworkConfig{Interfaces: []*forge.InstanceInterfaceConfig{port}},
			Nvlink: &forge.InstanceNVLinkConfig{GpuConfigs: []*forge.InstanceNVLinkGpuConfig{{
				LogicalPartitionId: &forge.NVLinkLogicalPartitionId{Value: partition},
			}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Advance(time.Hour)
	read := func() *forge.Instance {
		r, err := stranger.FindInstancesByIds(t.Context(), &forge.InstancesByIdsRequest{InstanceIds: []*forge.InstanceId{{Value: id("instance", "web")}}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Instances[0]
	}
	before := read()
	c := s.change("instance", "web", id("instance", "web"), schema.Object{"description": "changed"})
	if err := s.kind("instance").Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	after := read()
	if after.Metadata.Description != "changed" {
		t.Errorf("the description is %q", after.Metadata.Description)
	}
	if !proto.Equal(before.Config, after.Config) {
		t.Errorf("the configuration was %v and is %v", before.Config, after.Config)
	}
	if len(after.Config.Os.ProtoReflect().GetUnknown()) == 0 || len(after.Config.Network.Interfaces[0].ProtoReflect().GetUnknown()) == 0 {
		t.Error("the test's own fields are not there: it proves nothing")
	}
}

// TestMark: an update writes the mark that it brings, and removes ours when it brings none.
func TestMark(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	c := s.make("vpc", "prod", schema.Object{"tenant": "acme"})
	for i, mark := range []providers.Mark{{Site: c.Mark.Site, Ref: c.Ref, Incarnation: 2}, {}, c.Mark} {
		u := s.change("vpc", "prod", c.ID, schema.Object{"description": fmt.Sprint(i), "labels": map[string]any{"n": fmt.Sprint(i)}})
		u.Mark = mark
		if err := s.kind("vpc").Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if th := s.see("vpc", c.ID); th.Mark != mark || th.Spec.Digest() != u.Want.Digest() {
			t.Errorf("the VPC is %v with mark %q, want mark %q", th.Spec, th.Mark, mark)
		}
	}
}

// TestBoot: an instance changes from booting one thing to another, even when the desired spec was merged over the observed
// one and has both.
func TestBoot(t *testing.T) {
	hosts := hosts(t)
	const image, template, entry = "0d9ec1a0-0000-4000-8000-000000000001", "0d9ec1a0-0000-4000-8000-000000000002", "0d9ec1a0-0000-4000-8000-000000000003"
	s := newSite(t, carbidesim.Options{Hosts: carbidesim.Hosts{Count: 12, WithoutDPU: 12}, Timing: lawTiming, Rules: carbidesim.Rules{
		OSImages: []string{image}, OperatingSystems: []carbidesim.OperatingSystem{{ID: template}, {ID: entry, Script: "#!ipxe entry", UserData: "data"}},
	}})
	c := s.make("instance", "web", schema.Object{
		"tenant": "acme", "machine": hosts[0], "auto_network": true, "os": map[string]any{"ipxe": "#!ipxe"},
	})
	s.Advance(time.Hour)
	for _, step := range []struct{ field, value, reads, as string }{
		{"os_image", image, "os_image", image},
		{"operating_system", template, "operating_system", template},
		{"ipxe", "#!ipxe again", "ipxe", "#!ipxe again"},
		{"operating_system", entry, "ipxe", "#!ipxe entry"},
	} {
		os := schema.Clone(s.see("instance", c.ID).Spec["os"]).(map[string]any)
		os[step.field] = step.value
		if err := s.kind("instance").Update(t.Context(), s.change("instance", "web", c.ID, schema.Object{"os": os})); err != nil {
			t.Fatal(err)
		}
		s.Advance(time.Hour)
		got := s.see("instance", c.ID).Spec["os"].(map[string]any)
		variants := 0
		for _, v := range []string{"ipxe", "os_image", "operating_system"} {
			if got[v] != nil {
				variants++
			}
		}
		if variants != 1 || got[step.reads] != step.as {
			t.Errorf("after %s %s the instance boots %v", step.field, step.value, got)
		}
	}
}

// TestMachine: what operators write on machines stays, and all three calls of an update are made when needed.
func TestMachine(t *testing.T) {
	hosts := hosts(t)
	s := newSite(t, carbidesim.Options{Hosts: lawHosts})
	s.make("instance_type", "big", schema.Object{})
	before := s.see("machine", hosts[0])
	labels := schema.Clone(before.Spec["labels"]).(map[string]any)
	if len(labels) == 0 {
		t.Fatal("the simulated machines have no labels: the test proves nothing")
	}
	labels["zone"] = "a"
	c := s.change("machine", hosts[0], hosts[0], schema.Object{
		"labels": labels, "maintenance": map[string]any{"reference": "TICKET-1"}, "instance_type": id("instance_type", "big"),
	})
	s.ResetCalls()
	if err := s.kind("machine").Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	after := s.see("machine", hosts[0])
	if after.Spec.Digest() != c.Want.Digest() || !after.Mark.IsZero() {
		t.Errorf("the machine is %v with mark %q, want %v", after.Spec, after.Mark, c.Want)
	}
	c = s.change("machine", hosts[0], hosts[0], schema.Object{"maintenance": nil, "instance_type": nil})
	s.ResetCalls()
	if err := s.kind("machine").Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	after = s.see("machine", hosts[0])
	if after.Spec["maintenance"] != nil || after.Spec["instance_type"] != nil {
		t.Errorf("the machine is %v", after.Spec)
	}
	if n := s.Calls()["UpdateMachineMetadata"]; n != 0 {
		t.Errorf("the metadata did not change and was written %d times", n)
	}
}

// TestInstanceStates checks phases, what is reported about interfaces, and the link network that the site creates.
func TestInstanceStates(t *testing.T) {
	hosts := hosts(t)
	s := newSite(t, carbidesim.Options{Hosts: lawHosts, Timing: lawTiming})
	s.make("vpc", "prod", schema.Object{"tenant": "acme"})
	s.make("vpc_prefix", "links", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/16"})
	c := s.make("instance", "web", schema.Object{
		"tenant": "acme", "machine": hosts[0], "os": map[string]any{"ipxe": "#!ipxe"},
		"interfaces": []any{map[string]any{"function": "physical", "device_instance": int64(0), "vpc_prefix": id("vpc_prefix", "links"), "ip_address": "10.1.0.5"}},
	})
	check := func(phase providers.Phase, state string) providers.Thing {
		t.Helper()
		th := s.see("instance", c.ID)
		if th.Phase != phase || th.Status["state"] != state {
			t.Errorf("phase %s, state %v, want %s and %s", th.Phase, th.Status["state"], phase, state)
		}
		if (th.Detail == "") != (phase == providers.Ready) {
			t.Errorf("in phase %s the detail is %q", phase, th.Detail)
		}
		return th
	}
	check(providers.Pending, "provisioning")
	s.Advance(time.Hour)
	th := check(providers.Ready, "ready")
	ports := th.Status["interface_status"].([]any)
	if got := ports[0].(map[string]any)["addresses"].([]any)[0]; got != "10.1.0.5" {
		t.Errorf("the address is %v", got)
	}
	if port := th.Spec["interfaces"].([]any)[0].(map[string]any); port["segment"] != nil {
		t.Errorf("the link network shows in the spec: %v", port)
	}
	for state, phase := range map[forge.TenantState]providers.Phase{
		forge.TenantState_FAILED: providers.Failed, forge.TenantState_INVALID: providers.Failed,
		forge.TenantState_UPDATING: providers.Pending, forge.TenantState_REPAIRING: providers.Ready,
	} {
		if err := s.SetInstanceState(c.ID, &state); err != nil {
			t.Fatal(err)
		}
		check(phase, strings.ToLower(state.String()))
	}
	if err := s.SetInstanceState(c.ID, nil); err != nil {
		t.Fatal(err)
	}

	segments, err := providers.Collect(s.kind("network_segment").List(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, seg := range segments {
		if seg.Status["linknet"] == true {
			names = append(names, seg.Name)
			if !seg.Mark.IsZero() || seg.Spec["vpc"] != id("vpc", "prod") {
				t.Errorf("the link network is %+v", seg)
			}
		}
	}
	if len(names) != 1 || names[0] != "vpc_prefix_10.1.0.4" {
		t.Errorf("the link networks are %v", names)
	}
	if err := s.kind("instance").Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	check(providers.Deleting, "terminating")
}

// TestVirtualizationAndRest: an update that needs two calls makes both.
func TestVirtualizationAndRest(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	c := s.make("vpc", "prod", schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer"})
	u := s.change("vpc", "prod", c.ID, schema.Object{"virtualization": "flat", "description": "both"})
	if err := s.kind("vpc").Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	th := s.see("vpc", c.ID)
	if th.Spec.Digest() != u.Want.Digest() || th.Mark != c.Mark {
		t.Errorf("the VPC is %v with mark %q, want %v and %q", th.Spec, th.Mark, u.Want, c.Mark)
	}
	u = s.change("vpc", "prod", c.ID, schema.Object{"virtualization": "ethernet_virtualizer", "description": "again"})
	if err := s.Inject(carbidesim.Fault{Method: "UpdateVpc", Effect: carbidesim.Before, Code: codes.InvalidArgument}); err != nil {
		t.Fatal(err)
	}
	s.class("an update whose second call is refused", s.kind("vpc").Update(t.Context(), u), unknown)
	if th := s.see("vpc", c.ID); th.Spec["virtualization"] != "ethernet_virtualizer" || th.Spec["description"] != "both" {
		t.Errorf("the VPC is %v", th.Spec)
	}
}

// afterCall is a log handler that acts on calls.
type afterCall func(method string)

func (afterCall) Enabled(context.Context, slog.Level) bool { return true }
func (f afterCall) WithAttrs([]slog.Attr) slog.Handler     { return f }
func (f afterCall) WithGroup(string) slog.Handler          { return f }
func (f afterCall) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "method" {
			f(a.Value.String())
		}
		return true
	})
	return nil
}

// TestVirtualizationAndStranger: another client's change between the two calls of an update is not overwritten.
func TestVirtualizationAndStranger(t *testing.T) {
	w := newWorld(t, carbidesim.Options{})
	server, client := mutual(t)
	vpc := &forge.VpcId{Value: id("vpc", "prod")}
	between := func(method string) {
		if method != forge.Forge_UpdateVpcVirtualization_FullMethodName {
			return
		}
		if _, err := w.Stranger().UpdateVpc(t.Context(), &forge.VpcUpdateRequest{Id: vpc, Metadata: &forge.Metadata{Name: "theirs"}}); err != nil {
			t.Error(err)
		}
	}
	p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client, Logger: slog.New(afterCall(between))})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &site{t, w, p}
	c := s.make("vpc", "prod", schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer"})
	u := s.change("vpc", "prod", c.ID, schema.Object{"virtualization": "flat", "description": "ours"})
	s.class("an update into which somebody came", s.kind("vpc").Update(t.Context(), u), unknown)
	if th := s.see("vpc", c.ID); th.Name != "theirs" || th.Spec["description"] != nil {
		t.Errorf("the VPC is %s %v", th.Name, th.Spec)
	}
}

// TestRules: the service gets rules in the order of their effect, and a group can be deleted by a caller that never saw it.
func TestRules(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	s.make("tenant", "acme", schema.Object{})
	rule := func(id string, priority int64) map[string]any {
		return map[string]any{
			"id": id, "direction": "egress", "protocol": "any", "action": "deny", "priority": priority, "src_prefix": "0.0.0.0/0", "dst_prefix": "0.0.0.0/0",
		}
	}
	c := s.make("network_security_group", "web", schema.Object{"tenant": "acme", "rules": []any{rule("a", 30), rule("c", 10), rule("b", 10)}})
	r, err := s.Stranger().FindNetworkSecurityGroupsByIds(t.Context(), &forge.FindNetworkSecurityGroupsByIdsRequest{NetworkSecurityGroupIds: []string{c.ID}})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, rule := range r.NetworkSecurityGroups[0].Attributes.Rules {
		ids = append(ids, rule.GetId())
	}
	if got := strings.Join(ids, " "); got != "b c a" {
		t.Errorf("the rules are in the order %s", got)
	}
	if err := s.kind("network_security_group").Delete(t.Context(), call("network_security_group", "web")); err != nil {
		t.Error(err)
	}
	if things, err := providers.Collect(s.kind("network_security_group").List(t.Context())); err != nil || len(things) != 0 {
		t.Errorf("%d groups are left, %v", len(things), err)
	}
}
