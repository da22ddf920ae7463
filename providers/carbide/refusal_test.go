package carbide_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// meaning is what a code means for a change of a VPC that had no effect, and for one that had it.
type meaning struct {
	before, after providers.Class // empty: the verb succeeds
}

const (
	success     providers.Class = ""
	transient                   = providers.Transient
	busy                        = providers.Busy
	conflict                    = providers.Conflict
	exists                      = providers.Exists
	absent                      = providers.Absent
	denied                      = providers.Denied
	invalid                     = providers.Invalid
	unsupported                 = providers.Unsupported
	unknown                     = providers.Unknown
)

// grid is every code, for observe, create, update and delete.
var grid = []struct {
	code                   codes.Code
	observe                providers.Class
	create, update, delete meaning
}{
	{codes.Canceled, transient, meaning{unknown, unknown}, meaning{unknown, unknown}, meaning{unknown, unknown}},
	{codes.Unknown, transient, meaning{unknown, unknown}, meaning{unknown, unknown}, meaning{unknown, unknown}},
	{codes.InvalidArgument, invalid, meaning{invalid, exists}, meaning{invalid, conflict}, meaning{invalid, success}},
	{codes.DeadlineExceeded, transient, meaning{unknown, unknown}, meaning{unknown, unknown}, meaning{unknown, unknown}},
	{codes.NotFound, absent, meaning{absent, exists}, meaning{absent, conflict}, meaning{absent, success}},
	{codes.AlreadyExists, exists, meaning{exists, exists}, meaning{exists, conflict}, meaning{exists, success}},
	{codes.PermissionDenied, denied, meaning{denied, exists}, meaning{denied, conflict}, meaning{denied, success}},
	{codes.ResourceExhausted, busy, meaning{busy, exists}, meaning{busy, conflict}, meaning{busy, success}},
	{codes.FailedPrecondition, invalid, meaning{invalid, exists}, meaning{absent, conflict}, meaning{busy, success}},
	{codes.Aborted, transient, meaning{unknown, unknown}, meaning{unknown, unknown}, meaning{unknown, unknown}},
	{codes.OutOfRange, invalid, meaning{invalid, exists}, meaning{invalid, conflict}, meaning{invalid, success}},
	{codes.Unimplemented, unsupported, meaning{unsupported, exists}, meaning{unsupported, conflict}, meaning{unsupported, success}},
	{codes.Internal, transient, meaning{busy, exists}, meaning{busy, conflict}, meaning{busy, success}},
	{codes.Unavailable, transient, meaning{unknown, unknown}, meaning{unknown, unknown}, meaning{unknown, unknown}},
	{codes.DataLoss, transient, meaning{unknown, unknown}, meaning{unknown, unknown}, meaning{unknown, unknown}},
	{codes.Unauthenticated, denied, meaning{denied, exists}, meaning{denied, conflict}, meaning{denied, success}},
}

func TestCodes(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	check := func(code codes.Code, method string, effect carbidesim.Effect, want providers.Class, do func() error) {
		t.Helper()
		s.ClearFaults()
		if err := s.Inject(carbidesim.Fault{Method: method, Effect: effect, Code: code}); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("%s with %s %s its effect", method, code, effect)
		err := do()
		if len(s.Faults()) != 0 {
			t.Errorf("%s: the fault did not strike", what)
		}
		if want != success {
			s.class(what, err, want)
		} else if err != nil {
			t.Errorf("%s failed: %v", what, err)
		}
	}
	spec := schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer"}
	for _, g := range grid {
		for _, effect := range []carbidesim.Effect{carbidesim.Before, carbidesim.After} {
			pick := func(m meaning) providers.Class {
				if effect == carbidesim.Before {
					return m.before
				}
				return m.after
			}
			name := fmt.Sprintf("%s-%s", g.code, effect)
			c := call("vpc", name)
			c.Want = spec
			check(g.code, "CreateVpc", effect, pick(g.create), func() error {
				err := s.kind("vpc").Create(t.Context(), c)
				// That a look shows the thing after another refusal does not say that it was there before.
				if taken := g.code == codes.AlreadyExists; providers.Taken(err) != taken {
					t.Errorf("CreateVpc with %s: whether the call has made nothing because the id is taken: %t, want %t", g.code, !taken, taken)
				}
				return err
			})
			s.ClearFaults()
			if effect == carbidesim.Before {
				s.make("vpc", name, spec)
			}
			u := s.change("vpc", name, c.ID, schema.Object{"description": "changed"})
			check(g.code, "UpdateVpc", effect, pick(g.update), func() error { return s.kind("vpc").Update(t.Context(), u) })
			check(g.code, "DeleteVpc", effect, pick(g.delete), func() error { return s.kind("vpc").Delete(t.Context(), c) })
		}
	}
	s.ClearFaults()
	s.make("vpc", "seen", spec)
	for _, g := range grid {
		for _, method := range []string{"FindVpcIds", "FindVpcsByIds"} {
			check(g.code, method, carbidesim.Before, g.observe, func() error {
				_, err := providers.Collect(s.kind("vpc").List(t.Context()))
				return err
			})
		}
	}
}

// TestUnreadable: when reading after INTERNAL fails too, nothing is known.
func TestUnreadable(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	for _, f := range []carbidesim.Fault{
		{Method: "CreateVpc", Effect: carbidesim.After, Code: codes.Internal},
		{Method: "FindVpcsByIds", Effect: carbidesim.Before},
	} {
		if err := s.Inject(f); err != nil {
			t.Fatal(err)
		}
	}
	c := call("vpc", "prod")
	c.Want = schema.Object{"tenant": "acme"}
	s.class("create", s.kind("vpc").Create(t.Context(), c), unknown)
}

// TestConnection: a request that never left had no effect; one that left may have had it.
func TestConnection(t *testing.T) {
	w := newWorld(t, carbidesim.Options{})
	server, client := mutual(t)
	p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client, Timeout: time.Second / 2, Parallel: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &site{t, w, p}
	c := call("vpc", "prod")
	c.Want = schema.Object{"tenant": "acme"}

	if err := w.Inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Hang}); err != nil {
		t.Fatal(err)
	}
	s.class("a create that is never answered", s.kind("vpc").Create(t.Context(), c), unknown)
	if err := w.Inject(carbidesim.Fault{Method: "FindVpcIds", Effect: carbidesim.Hang}); err != nil {
		t.Fatal(err)
	}
	_, err = providers.Collect(s.kind("vpc").List(t.Context()))
	s.class("an observation that is never answered", err, transient)
	if err := w.Inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Cut}); err != nil {
		t.Fatal(err)
	}
	s.class("a create whose connection breaks", s.kind("vpc").Create(t.Context(), c), unknown)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	s.class("a create without a connection", s.kind("vpc").Create(t.Context(), c), transient)
	s.class("a delete without a connection", s.kind("vpc").Delete(t.Context(), c), transient)
}

// TestRefusals checks what the site itself refuses, kind by kind.
func TestRefusals(t *testing.T) {
	hosts := hosts(t)
	s := newSite(t, carbidesim.Options{
		Hosts: lawHosts, Timing: lawTiming,
		Rules: carbidesim.Rules{
			RoutingProfiles: []carbidesim.RoutingProfile{{Name: "internal"}, {Name: "external", Tier: 1}},
			Peering:         carbidesim.PeeringMixed, MaxIBPartitions: 2, RequestedSPXVNIs: carbidesim.Range{First: 7, Last: 7},
		},
	})
	ctx := t.Context()
	settle := func() {
		for range 10 {
			s.Advance(2 * time.Minute)
		}
	}
	os := map[string]any{"ipxe": "#!ipxe"}
	on := func(field, id string) []any {
		return []any{map[string]any{"function": "physical", "device_instance": int64(0), field: id}}
	}
	net, links := id("network_segment", "net"), id("vpc_prefix", "links")
	block := func(prefix string) []any { return []any{map[string]any{"prefix": prefix}} }
	create := func(noun, name string, want schema.Object) error {
		c := call(noun, name)
		c.Want = want
		return s.kind(noun).Create(ctx, c)
	}
	remove := func(noun, name string) error {
		c := call(noun, name)
		c.Have = s.see(noun, c.ID).Spec
		return s.kind(noun).Delete(ctx, c)
	}
	update := func(noun, name, id string, changes schema.Object) error {
		return s.kind(noun).Update(ctx, s.change(noun, name, id, changes))
	}

	s.make("tenant", "acme", schema.Object{})
	s.make("network_security_group", "web", schema.Object{"tenant": "acme"})
	s.make("instance_type", "big", schema.Object{})
	s.make("vpc", "prod", schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "network_security_group": id("network_security_group", "web")})
	s.make("vpc_prefix", "links", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/16"})
	s.make("network_segment", "net", schema.Object{"vpc": id("vpc", "prod"), "prefixes": block("10.2.0.0/24")})
	settle()
	if err := update("machine", hosts[0], hosts[0], schema.Object{"instance_type": id("instance_type", "big")}); err != nil {
		t.Fatal(err)
	}
	s.make("instance", "web", schema.Object{"tenant": "acme", "machine": hosts[0], "instance_type": id("instance_type", "big"), "os": os, "interfaces": on("segment", net)})

	s.class("an instance on a taken host", create("instance", "second", schema.Object{"tenant": "acme", "machine": hosts[0], "os": os, "interfaces": on("segment", net)}), busy)
	s.class("an instance without a script", create("instance", "second", schema.Object{"tenant": "acme", "machine": hosts[1], "os": map[string]any{}, "interfaces": on("segment", net)}), invalid)
	s.class("an instance with a foreign group", create("instance", "second", schema.Object{"tenant": "other", "machine": hosts[1], "os": os, "interfaces": on("segment", net), "network_security_group": id("network_security_group", "web")}), invalid)
	s.class("an instance on an unknown prefix", create("instance", "second", schema.Object{"tenant": "acme", "machine": hosts[1], "os": os, "interfaces": on("vpc_prefix", id("vpc_prefix", "none"))}), absent)
	s.class("a change of the network of an instance that is not ready", update("instance", "web", id("instance", "web"), schema.Object{"interfaces": on("vpc_prefix", links)}), busy)
	settle()
	if err := update("instance", "web", id("instance", "web"), schema.Object{"interfaces": on("vpc_prefix", links)}); err != nil {
		t.Fatal(err)
	}
	s.class("a change of an instance whose network changes", update("instance", "web", id("instance", "web"), schema.Object{"description": "x"}), busy)
	settle()
	s.class("an unknown group for an instance", update("instance", "web", id("instance", "web"), schema.Object{"network_security_group": id("network_security_group", "none")}), absent)

	s.class("another profile for a tenant with VPCs", update("tenant", "acme", "acme", schema.Object{"routing_profile": "external"}), busy)
	s.class("another virtualization under an instance", update("vpc", "prod", id("vpc", "prod"), schema.Object{"virtualization": "fnn"}), busy)
	s.class("an unknown group for a VPC", update("vpc", "prod", id("vpc", "prod"), schema.Object{"network_security_group": id("network_security_group", "none")}), absent)
	s.class("a VNI that cannot be asked for", create("vpc", "second", schema.Object{"tenant": "acme", "vni": int64(7)}), invalid)
	s.class("a prefix without its VPC", create("vpc_prefix", "second", schema.Object{"vpc": id("vpc", "none"), "prefix": "10.3.0.0/16"}), absent)
	s.class("a prefix over another", create("vpc_prefix", "second", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/17"}), invalid)
	s.class("a prefix with a link network inside", remove("vpc_prefix", "links"), busy)
	s.class("a segment without its VPC", create("network_segment", "second", schema.Object{"vpc": id("vpc", "none"), "prefixes": block("10.3.0.0/24")}), absent)
	s.class("a group without its tenant", create("network_security_group", "again", schema.Object{"tenant": "nobody"}), absent)
	c := call("network_security_group", "web")
	c.ID, c.Want = id("network_security_group", "again"), schema.Object{"tenant": "acme"}
	s.class("a group whose name is taken", s.kind("network_security_group").Create(ctx, c), exists)
	s.class("a group that is used", remove("network_security_group", "web"), busy)
	s.class("capabilities of a type with machines", update("instance_type", "big", id("instance_type", "big"), schema.Object{"capabilities": []any{map[string]any{"type": "gpu"}}}), busy)
	s.class("a type whose machines have instances", remove("instance_type", "big"), busy)
	s.class("the type of a machine with an instance", update("machine", hosts[0], hosts[0], schema.Object{"instance_type": nil}), busy)
	s.class("an unknown type for a machine", update("machine", hosts[1], hosts[1], schema.Object{"instance_type": id("instance_type", "none")}), absent)
	s.class("a short reference", update("machine", hosts[1], hosts[1], schema.Object{"maintenance": map[string]any{"reference": "x"}}), invalid)
	s.class("two changes of a machine of which the second is refused", update("machine", hosts[0], hosts[0], schema.Object{"description": "x", "instance_type": nil}), unknown)

	big := func(n int64) schema.Object {
		return schema.Object{"tenant": "acme", "instance_type": id("instance_type", "big"), "count": n}
	}
	s.class("an allocation of more machines than there are", create("compute_allocation", "acme-big", big(2)), busy)
	s.make("compute_allocation", "acme-big", big(1))
	c = call("compute_allocation", "acme-big")
	c.ID, c.Want = id("compute_allocation", "again"), big(0)
	s.class("an allocation whose name is taken", s.kind("compute_allocation").Create(ctx, c), exists)
	c.Want["tenant"] = "nobody"
	s.class("an allocation without its tenant", s.kind("compute_allocation").Create(ctx, c), absent)
	s.class("an allocation that grows too far", update("compute_allocation", "acme-big", id("compute_allocation", "acme-big"), schema.Object{"count": int64(2)}), busy)
	s.class("an allocation that shrinks too far", update("compute_allocation", "acme-big", id("compute_allocation", "acme-big"), schema.Object{"count": int64(0)}), busy)
	s.class("an allocation that is used", remove("compute_allocation", "acme-big"), busy)
	s.class("an allocation that is used, for one who never saw it", s.kind("compute_allocation").Delete(ctx, call("compute_allocation", "acme-big")), busy)

	if err := update("instance", "web", id("instance", "web"), schema.Object{"interfaces": on("segment", net)}); err != nil {
		t.Fatal(err)
	}
	settle()
	s.class("a segment with an instance", remove("network_segment", "net"), busy)
	if err := s.SetAlerts(hosts[0], map[string][]string{"Hold": {"PreventInstanceDeletion"}}); err != nil {
		t.Fatal(err)
	}
	s.class("an instance on a host with an alert", remove("instance", "web"), busy)

	s.make("vpc", "peer", schema.Object{"tenant": "acme", "virtualization": "fnn", "routing_profile": "internal"})
	pair := schema.Object{"vpcs": []any{id("vpc", "prod"), id("vpc", "peer")}}
	s.make("vpc_peering", "both", pair)
	s.class("a pair that is peered", create("vpc_peering", "again", pair), exists)
	s.class("a peering of an unknown VPC", create("vpc_peering", "again", schema.Object{"vpcs": []any{id("vpc", "prod"), id("vpc", "none")}}), absent)
	s.class("a peering of one VPC", create("vpc_peering", "again", schema.Object{"vpcs": []any{id("vpc", "prod"), id("vpc", "prod")}}), invalid)

	s.make("ib_partition", "train", schema.Object{"tenant": "acme", "pkey": "0x4000"})
	s.class("a key that is taken", create("ib_partition", "serve", schema.Object{"tenant": "acme", "pkey": "0x4000"}), invalid)
	s.class("a key that cannot be asked for", create("ib_partition", "serve", schema.Object{"tenant": "acme", "pkey": "0x100"}), invalid)
	s.make("ib_partition", "serve", schema.Object{"tenant": "acme"})
	s.class("one InfiniBand partition too many", create("ib_partition", "more", schema.Object{"tenant": "acme"}), invalid)
	if err := remove("ib_partition", "serve"); err != nil {
		t.Fatal(err)
	}
	s.class("one too many while another is on its way out", create("ib_partition", "more", schema.Object{"tenant": "acme"}), busy)
	s.class("a foreign tenant's wrong key", create("ib_partition", "more", schema.Object{"tenant": "other", "pkey": "key"}), invalid)

	s.make("nvlink_logical_partition", "rack", schema.Object{"tenant": "acme"})
	gpus := &forge.InstanceNVLinkConfig{GpuConfigs: []*forge.InstanceNVLinkGpuConfig{{
		LogicalPartitionId: &forge.NVLinkLogicalPartitionId{Value: id("nvlink_logical_partition", "rack")},
	}}}
	if _, err := s.Stranger().AllocateInstance(ctx, &forge.InstanceAllocationRequest{
		MachineId: &forge.MachineId{Id: hosts[2]},
		Config: &forge.InstanceConfig{
			Tenant: &forge.TenantConfig{TenantOrganizationId: "acme"}, Nvlink: gpus,
			Os: &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: "#!ipxe"}}},
			Network: &forge.InstanceNetworkConfig{Interfaces: []*forge.InstanceInterfaceConfig{{
				NetworkDetails: &forge.InstanceInterfaceConfig_SegmentId{SegmentId: &forge.NetworkSegmentId{Value: net}},
			}}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	s.class("an NVLink partition that is used", remove("nvlink_logical_partition", "rack"), busy)
	s.class("an NVLink partition of a tenant that cannot be", create("nvlink_logical_partition", "other", schema.Object{"tenant": "a b"}), invalid)

	s.make("spx_partition", "east", schema.Object{"tenant": "acme", "vni": int64(7)})
	s.class("no Spectrum-X number left to ask for", create("spx_partition", "west", schema.Object{"tenant": "acme", "vni": int64(7)}), busy)
	if err := remove("spx_partition", "east"); err != nil {
		t.Fatal(err)
	}
	s.class("a Spectrum-X number that cannot be asked for", create("spx_partition", "west", schema.Object{"tenant": "acme", "vni": int64(8)}), invalid)
	s.class("the id of a Spectrum-X partition that is gone", create("spx_partition", "east", schema.Object{"tenant": "acme"}), exists)
	image := schema.Object{"tenant": "acme", "source_url": "https://a", "digest": "a"}
	s.make("os_image", "golden", image)
	if err := s.SetImageStatus(id("os_image", "golden"), forge.OsImageStatus_ImageInProgress, ""); err != nil {
		t.Fatal(err)
	}
	s.class("an image that is being copied", remove("os_image", "golden"), busy)
	s.class("an image without a digest", create("os_image", "second", schema.Object{"tenant": "acme", "source_url": "https://a"}), invalid)
	s.class("an operating system from a template that is not there", create("operating_system", "x", schema.Object{"tenant": "acme", "template": id("vpc", "none")}), invalid)
	service := schema.Object{"tenant": "acme", "manifest": carbidetest.Pod("a")}
	s.make("dpu_extension_service", "collector", service)
	s.make("dpu_extension_service", "second", service)
	s.class("a service without its tenant", create("dpu_extension_service", "third", schema.Object{"tenant": "nobody", "manifest": carbidetest.Pod("a")}), absent)
	s.class("a service whose name is taken", create("dpu_extension_service", "Collector", service), exists)
	u := s.change("dpu_extension_service", "second", id("dpu_extension_service", "second"), schema.Object{})
	u.Ref.Name = "COLLECTOR"
	s.class("a service renamed to a name that is taken", s.kind("dpu_extension_service").Update(ctx, u), exists)
	use := s.see("dpu_extension_service", id("dpu_extension_service", "collector")).Status["version"].(string)
	_, err := s.Stranger().AllocateInstance(ctx, &forge.InstanceAllocationRequest{
		MachineId: &forge.MachineId{Id: hosts[3]},
		Config: &forge.InstanceConfig{
			Tenant: &forge.TenantConfig{TenantOrganizationId: "acme"},
			Os:     &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: "#!ipxe"}}},
			Network: &forge.InstanceNetworkConfig{Interfaces: []*forge.InstanceInterfaceConfig{{
				NetworkDetails: &forge.InstanceInterfaceConfig_SegmentId{SegmentId: &forge.NetworkSegmentId{Value: net}},
			}}},
			DpuExtensionServices: &forge.InstanceDpuExtensionServicesConfig{ServiceConfigs: []*forge.InstanceDpuExtensionServiceConfig{{
				ServiceId: id("dpu_extension_service", "collector"), Version: use,
			}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.class("a service that an instance has", remove("dpu_extension_service", "collector"), busy)

	if _, err := s.Stranger().DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: &forge.VpcId{Value: id("vpc", "prod")}}); err != nil {
		t.Fatal(err)
	}
	s.class("a prefix of a VPC that is gone", remove("vpc_prefix", "links"), absent)
	s.class("the id of a VPC that is gone", create("vpc", "prod", schema.Object{"tenant": "acme"}), exists)
}

// TestInternalCreate: INTERNAL may mean that what a thing refers to does not exist, that something is used up, that the database
// hiccups, or nothing at all because the thing was created. Reading distinguishes these.
func TestInternalCreate(t *testing.T) {
	hosts := hosts(t)
	s := newSite(t, carbidesim.Options{Hosts: lawHosts, Timing: lawTiming})
	s.make("tenant", "acme", schema.Object{})
	s.make("vpc", "prod", schema.Object{"tenant": "acme"})
	s.make("vpc_prefix", "links", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/31"})
	instance := func(host int, prefix string) schema.Object {
		return schema.Object{"tenant": "acme", "machine": hosts[host], "os": map[string]any{"ipxe": "#!ipxe"}, "interfaces": []any{
			map[string]any{"function": "physical", "device_instance": int64(0), "vpc_prefix": id("vpc_prefix", prefix)},
		}}
	}
	segment := func(vpc string) schema.Object {
		return schema.Object{"vpc": id("vpc", vpc), "prefixes": []any{map[string]any{"prefix": "10.2.0.0/24"}}}
	}
	for _, c := range []struct {
		what, method, noun string
		want               schema.Object
		effect             carbidesim.Effect // of a fault; empty: the service itself refuses
		class              providers.Class
	}{
		{"a segment while the database hiccups", "CreateNetworkSegment", "network_segment", segment("prod"), carbidesim.Before, busy},
		{"a segment in an unknown VPC", "CreateNetworkSegment", "network_segment", segment("none"), "", absent},
		{"a segment that was made all the same", "CreateNetworkSegment", "network_segment", segment("prod"), carbidesim.After, exists},
		{"a group while the database hiccups", "CreateNetworkSecurityGroup", "network_security_group", schema.Object{"tenant": "acme"}, carbidesim.Before, busy},
		{"a group of an unknown tenant", "CreateNetworkSecurityGroup", "network_security_group", schema.Object{"tenant": "nobody"}, "", absent},
		{"a group that was made all the same", "CreateNetworkSecurityGroup", "network_security_group", schema.Object{"tenant": "acme"}, carbidesim.After, exists},
		{"an instance while the database hiccups", "AllocateInstance", "instance", instance(0, "links"), carbidesim.Before, busy},
		{"an instance on an unknown prefix", "AllocateInstance", "instance", instance(0, "none"), "", absent},
		{"an instance that was made all the same", "AllocateInstance", "instance", instance(0, "links"), carbidesim.After, exists},
		{"an instance on a prefix without a free address", "AllocateInstance", "instance", instance(1, "links"), "", busy},
	} {
		if c.effect != "" {
			if err := s.Inject(carbidesim.Fault{Method: c.method, Effect: c.effect, Code: codes.Internal}); err != nil {
				t.Fatal(err)
			}
		}
		n := call(c.noun, c.what)
		n.Ref.Name, n.Want = "thing", c.want
		s.class(c.what, s.kind(c.noun).Create(t.Context(), n), c.class)
		if len(s.Faults()) != 0 {
			t.Errorf("%s: the fault did not strike", c.what)
		}
	}
}

// TestUnsupported: an older server does not have all calls.
func TestUnsupported(t *testing.T) {
	s := newSite(t, carbidesim.Options{Unimplemented: []string{"FindInstanceTypeIds", "CreateInstanceType"}})
	_, err := providers.Collect(s.kind("instance_type").List(t.Context()))
	s.class("observe", err, unsupported)
	c := call("instance_type", "big")
	s.class("create", s.kind("instance_type").Create(t.Context(), c), unsupported)
}

// TestUnsupportedKind: a server of the older generation knows nothing of a newer kind.
func TestUnsupportedKind(t *testing.T) {
	s := newSite(t, carbidesim.Options{Old: true})
	spx := s.kind("spx_partition")
	c := call("spx_partition", "east")
	c.Want = schema.Object{"tenant": "acme"}
	_, err := providers.Collect(spx.List(t.Context()))
	s.class("a list", err, unsupported)
	_, err = spx.Get(t.Context(), []string{c.ID})
	s.class("a look", err, unsupported)
	s.class("a create", spx.Create(t.Context(), c), unsupported)
	s.class("a delete", spx.Delete(t.Context(), c), unsupported)
}

// TestPolicies: what the site does not have is not retried.
func TestPolicies(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{NoInfiniband: true}})
	c := call("vpc_peering", "both")
	c.Want = schema.Object{"vpcs": []any{id("vpc", "prod"), id("vpc", "peer")}}
	s.class("a peering where there are none", s.kind("vpc_peering").Create(t.Context(), c), denied)
	c = call("ib_partition", "train")
	c.Want = schema.Object{"tenant": "acme"}
	s.class("a partition of a fabric that is not there", s.kind("ib_partition").Create(t.Context(), c), invalid)
}
