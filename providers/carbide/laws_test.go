package carbide_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// hosts are the ids of the machines in the worlds of these tests: the same seed gives the same machines.
func hosts(t testing.TB) []string {
	t.Helper()
	return hostsOf(newWorld(t, carbidesim.Options{Hosts: lawHosts}))
}

// hostsOf are the ids of the machines in a world, those with GPUs first.
func hostsOf(w *carbidesim.World) []string {
	var ids, plain []string
	for _, o := range w.Objects() {
		switch m, _ := o.Message.(*forge.Machine); {
		case m.GetMachineType() != forge.MachineType_HOST:
		case len(m.GetCapabilities().GetGpu()) > 0:
			ids = append(ids, o.ID)
		default:
			plain = append(plain, o.ID)
		}
	}
	return append(ids, plain...)
}

var lawHosts = carbidesim.Hosts{Count: 12}

// lawTiming is real, apart from what would only make rounds.
var lawTiming = carbidesim.Timing{
	Tick: 30 * time.Second, Drain: 5 * time.Minute, Provision: 10 * time.Minute,
	Configure: time.Minute, Release: time.Minute, Cleanup: time.Minute, Purge: time.Minute,
}

var lawRules = carbidesim.Rules{
	RoutingProfiles: []carbidesim.RoutingProfile{{Name: "internal"}, {Name: "external", Tier: 1}},
	Peering:         carbidesim.PeeringExclusive,
}

func TestLaws(t *testing.T) {
	descriptions, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, providertest.Suite{
		Kinds: descriptions.Kinds(),
		Cases: hosted(cases(hosts(t)), func(t *testing.T) providertest.World { return lawWorld(t, withHosts) }),
		Open:  func(t *testing.T) providertest.World { return lawWorld(t) },

		Parallel: true,
	})
}

// TestLawsOlderServer runs the laws on a server of the older generation, which knows no flat VPCs, not all kinds, and less
// about hardware that is to be found.
func TestLawsOlderServer(t *testing.T) {
	older := slices.DeleteFunc(cases(hosts(t)), func(c providertest.Case) bool {
		return c.Name == "guarded" || strings.HasPrefix(c.Kind, "carbide.expected_")
	})
	for noun, serial := range map[string]string{
		"expected_machine": "chassis_serial_number", "expected_switch": "switch_serial_number", "expected_power_shelf": "shelf_serial_number",
	} {
		plain := expectedOther(serial)(0).Spec
		moved := plain.Clone()
		moved["bmc_ip_address"], moved["rack_id"], moved["bmc_password"] = "2001:db8::9", "rack-01", "other"
		older = append(older, providertest.Case{Kind: "carbide." + noun, Name: "plain", Want: plain, Update: moved, Other: func(i int) providertest.Made {
			return expectedOther(serial)(i + 1)
		}})
	}
	newer := func(kind string) bool { return kind == "carbide.spx_partition" || kind == "carbide.operating_system" }
	descriptions, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	kinds := maps.Clone(descriptions.Kinds())
	maps.DeleteFunc(kinds, func(kind string, _ *schema.Kind) bool { return newer(kind) })
	only := ""
	if race { // elsewhere an older server is called as another is, and one call after the other
		only = "calls for different things run at the same time"
	}
	old := func(o *carbidesim.Options) { o.Old = true }
	world := func(changes ...func(*carbidesim.Options)) func(t *testing.T) providertest.World {
		return func(t *testing.T) providertest.World {
			w := lawWorld(t, changes...)
			w.Provider.Kinds = slices.DeleteFunc(w.Provider.Kinds, func(k providers.Served) bool { return newer(k.Name) })
			return w
		}
	}
	providertest.Run(t, providertest.Suite{
		Kinds:    kinds,
		Cases:    hosted(slices.DeleteFunc(older, func(c providertest.Case) bool { return newer(c.Kind) }), world(old, withHosts)),
		Open:     world(old),
		Only:     only,
		Parallel: true,
	})
}

// TestLawsWithoutNVLink runs the laws on a site that never forgets a deleted logical partition.
func TestLawsWithoutNVLink(t *testing.T) {
	other := func(kind string) bool { return kind != "carbide.nvlink_logical_partition" && kind != "carbide.tenant" }
	providertest.Run(t, providertest.Suite{
		Cases: slices.DeleteFunc(cases(hosts(t)), func(c providertest.Case) bool { return other(c.Kind) }),
		Open: func(t *testing.T) providertest.World {
			w := lawWorld(t, func(o *carbidesim.Options) { o.Rules.NoNVLink = true })
			w.Provider.Kinds = slices.DeleteFunc(w.Provider.Kinds, func(k providers.Served) bool { return other(k.Name) })
			return w
		},
		Parallel: true,
	})
}

// hosted returns the cases that need hosts a world that has them. The others do without, for hosts are most of what there
// is to look at.
func hosted(cases []providertest.Case, open func(t *testing.T) providertest.World) []providertest.Case {
	for i := range cases {
		if kind := cases[i].Kind; kind == "carbide.instance" || kind == "carbide.machine" {
			cases[i].Open = open
		}
	}
	return cases
}

func withHosts(o *carbidesim.Options) { o.Hosts = lawHosts }

func lawWorld(t *testing.T, changes ...func(*carbidesim.Options)) providertest.World {
	o := carbidesim.Options{
		Timing: lawTiming,
		Rules:  lawRules,
	}
	for _, change := range changes {
		change(&o)
	}
	w := newWorld(t, o)
	return providertest.World{
		Provider: connectAs(t, w, nil), // no one role may do everything
		Dump:     func() string { return string(w.Dump()) },
		Advance:  func() { w.Advance(2 * time.Minute) },
	}
}

func made(kind, name string, spec schema.Object) providertest.Made {
	return providertest.Made{Kind: "carbide." + kind, Name: name, Spec: spec}
}

func id(kind, name string) string { return providertest.ID("carbide."+kind, name) }

func labels(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// template is an operating system that boots a kernel and its initrd.
func template(params ...string) schema.Object {
	o := schema.Object{
		"tenant": "acme", "type": "template", "template": "c4b1d4f6-69ba-5f55-90cd-ab2acd002475",
		"active": true, "allow_override": true, "phone_home_enabled": false,
		"artifacts": []any{
			map[string]any{
				"name": "kernel", "url": "https://images.example/vmlinuz", "sha": "sha256:aa", "auth_type": "bearer", "auth_token": "t0ken",
				"cache": "as_needed",
			},
			map[string]any{"name": "initrd", "url": "https://images.example/initrd", "cache": "remote_only"},
		},
	}
	var list []any
	for i := 0; i < len(params); i += 2 {
		list = append(list, map[string]any{"name": params[i], "value": params[i+1]})
	}
	o["parameters"] = list
	return o
}

// pod is a manifest with one container.
func pod(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: %s}]}\n", name, name)
}

// powered has an instance be on or off.
func powered(o schema.Object, power string) schema.Object {
	o = o.Clone()
	o["power"] = power
	return o
}

// fabrics adds to an instance a port on InfiniBand, a GPU and a service.
func fabrics(o schema.Object, device int64) schema.Object {
	o["infiniband"] = []any{map[string]any{"ib_partition": id("ib_partition", "ranks"), "device": connectX, "device_instance": device}}
	o["nvlink"] = []any{map[string]any{"gpu": device, "logical_partition": id("nvlink_logical_partition", "rack")}}
	o["dpu_extension_services"] = []any{map[string]any{"service": id("dpu_extension_service", "agent"), "version": int64(1)}}
	return o
}

// expectedOther describes hardware beside that of a case; serial is the field of its number.
func expectedOther(serial string) func(i int) providertest.Made {
	return func(i int) providertest.Made {
		return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{
			"bmc_mac_address": fmt.Sprintf("0a:00:00:00:02:%02x", i), "bmc_username": "root", "bmc_password": "calvin", serial: fmt.Sprintf("SN-1%03d", i),
		}}
	}
}

func cases(hosts []string) []providertest.Case {
	acme := made("tenant", "acme", schema.Object{"display_name": "Acme"})
	vpc := made("vpc", "prod", schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer"})
	vpcs := []providertest.Made{vpc}
	for i := range 9 {
		vpcs = append(vpcs, made("vpc", fmt.Sprintf("peer-%d", i), vpc.Spec))
	}
	peers := func(i int) schema.Object {
		return schema.Object{"vpcs": []any{id("vpc", fmt.Sprintf("peer-%d", i)), id("vpc", "prod")}}
	}
	segment := made("network_segment", "net", schema.Object{
		"vpc": id("vpc", "prod"), "type": "tenant",
		"prefixes": []any{map[string]any{"prefix": "10.1.0.0/24", "gateway": "10.1.0.1", "reserve_first": int64(4)}},
	})
	second := made("network_segment", "net-2", schema.Object{
		"vpc": id("vpc", "prod"), "type": "tenant",
		"prefixes": []any{map[string]any{"prefix": "10.2.0.0/24", "reserve_first": int64(0)}},
	})
	group := made("network_security_group", "web", schema.Object{"tenant": "acme", "stateful_egress": false})
	keys := made("tenant_keyset", "ops", schema.Object{"tenant": "acme", "keys": []any{"ssh-ed25519 AAAA"}})
	numbered := func(n int64) schema.Object {
		return schema.Object{"vpc": id("vpc", "prod"), "type": "tenant", "prefixes": []any{
			map[string]any{"prefix": fmt.Sprintf("10.9.%d.0/24", n), "reserve_first": int64(0)},
		}}
	}
	instance := func(n int) schema.Object {
		return schema.Object{
			"tenant": "acme", "machine": hosts[n%len(hosts)], "auto_network": false,
			"os":         map[string]any{"ipxe": "#!ipxe\nboot", "phone_home_enabled": false, "run_provisioning_instructions_on_every_boot": false},
			"interfaces": []any{map[string]any{"function": "physical", "device_instance": int64(0), "segment": id("network_segment", "net")}},
		}
	}
	web := instance(0)
	web["description"], web["labels"] = "front end", labels("app", "web", "empty", "")
	web["hostname"], web["keysets"] = "web", []any{"acme/ops"}
	web["network_security_group"] = id("network_security_group", "web")
	changed := instance(0)
	changed["hostname"], changed["labels"] = "web", labels("app", "shop")
	changed["os"] = map[string]any{
		"ipxe": "#!ipxe\nchain", "user_data": "#cloud-config", "phone_home_enabled": false, "run_provisioning_instructions_on_every_boot": true,
	}
	changed["interfaces"] = []any{
		map[string]any{"function": "physical", "device_instance": int64(0), "segment": id("network_segment", "net")},
		map[string]any{"function": "virtual", "device_instance": int64(0), "virtual_function_id": int64(3), "segment": id("network_segment", "net-2")},
	}

	rule := func(name string, priority int64, port int64) map[string]any {
		return map[string]any{
			"id": name, "direction": "ingress", "ipv6": false, "protocol": "tcp", "action": "permit", "priority": priority,
			"src_prefix": "0.0.0.0/0", "dst_prefix": "10.0.0.0/8", "dst_ports": map[string]any{"start": port, "end": port},
		}
	}

	chassis := map[string]any{"model": "DGX H100", "architecture": "x86_64"}

	return []providertest.Case{
		{
			Kind: "carbide.tenant", Name: "acme",
			Want:    schema.Object{"display_name": "Acme", "routing_profile": "internal"},
			Update:  schema.Object{"display_name": "Acme Inc.", "routing_profile": "external"},
			Invalid: schema.Object{"display_name": "x"},
		},
		{
			Kind: "carbide.tenant_keyset", Name: "ops", Needs: []providertest.Made{acme},
			Want:   schema.Object{"tenant": "acme", "keys": []any{"ssh-ed25519 AAAAC3Nz me@home", "ssh-rsa AAAAB3Nz"}},
			Update: schema.Object{"tenant": "acme", "keys": []any{"ssh-ed25519 AAAAC3Nz me@home", "ecdsa-sha2-nistp256 AAAAE2Vj you"}},
		},
		{
			Kind: "carbide.vpc", Name: "plain",
			Want:    schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "description": "production", "labels": labels("env", "prod", "empty", "")},
			Update:  schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "labels": labels("env", "test")},
			Invalid: schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "routing_profile": "internal"},
		},
		{
			Kind: "carbide.vpc", Name: "guarded", Needs: []providertest.Made{acme, group},
			Want:    schema.Object{"tenant": "acme", "virtualization": "fnn", "vni": int64(60001), "routing_profile": "internal"},
			Update:  schema.Object{"tenant": "acme", "virtualization": "flat", "vni": int64(60001), "routing_profile": "internal", "network_security_group": id("network_security_group", "web")},
			Invalid: schema.Object{"tenant": "acme", "virtualization": "fnn", "vni": int64(7)},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"tenant": "acme", "virtualization": "fnn", "vni": int64(60100 + i)}}
			},
		},
		{
			Kind: "carbide.vpc_prefix", Name: "ten", Needs: []providertest.Made{vpc},
			Want:    schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.0.0.0/16", "description": "links", "labels": labels("use", "links")},
			Update:  schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.0.0.0/16", "labels": labels("use", "more")},
			Invalid: schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.0.0.1/16"},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"vpc": id("vpc", "prod"), "prefix": fmt.Sprintf("10.%d.0.0/16", i+1)}}
			},
		},
		{
			Kind: "carbide.network_segment", Name: "prod-a", Needs: []providertest.Made{vpc},
			Want: schema.Object{"vpc": id("vpc", "prod"), "type": "tenant", "mtu": int64(1500), "prefixes": []any{
				map[string]any{"prefix": "10.20.0.0/24", "gateway": "10.20.0.1", "reserve_first": int64(2)},
			}},
			Invalid: schema.Object{"vpc": id("vpc", "prod"), "type": "tenant", "prefixes": []any{map[string]any{"prefix": "10.20.0.0/31"}}},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: numbered(int64(i))}
			},
		},
		{
			Kind: "carbide.network_security_group", Name: "ssh", Needs: []providertest.Made{acme},
			Want: schema.Object{"tenant": "acme", "stateful_egress": true, "description": "shells", "rules": []any{
				rule("b-ssh", 100, 22), rule("a-web", 200, 443),
			}},
			Update: schema.Object{"tenant": "acme", "stateful_egress": false, "labels": labels("a", "b"), "rules": []any{
				rule("a-web", 50, 8443), rule("b-ssh", 100, 22),
				map[string]any{
					"id": "c-deny", "direction": "egress", "ipv6": true, "protocol": "any", "action": "deny", "priority": int64(60000),
					"src_prefix": "fd00::/8", "dst_prefix": "::/0",
				},
			}},
			Invalid: schema.Object{"tenant": "acme", "stateful_egress": false, "rules": []any{map[string]any{
				"id": "x", "direction": "ingress", "protocol": "icmp6", "action": "deny", "priority": int64(1), "src_prefix": "0.0.0.0/0", "dst_prefix": "0.0.0.0/0",
			}}},
		},
		{
			Kind: "carbide.instance_type", Name: "big",
			Want: schema.Object{"description": "eight GPUs", "capabilities": []any{
				map[string]any{"type": "gpu", "vendor": "NVIDIA", "count": int64(8)},
				map[string]any{"type": "infiniband", "inactive_devices": []any{int64(1), int64(2)}},
			}},
			Update: schema.Object{"labels": labels("size", "l"), "capabilities": []any{
				map[string]any{"type": "gpu", "vendor": "NVIDIA", "count": int64(8)},
				map[string]any{"type": "cpu", "cores": int64(56), "threads": int64(112), "name": "Xeon"},
				map[string]any{"type": "dpu", "hardware_revision": "B1"},
				map[string]any{"type": "network", "device_type": "dpu"},
				map[string]any{"type": "storage", "capacity": "3.84 TB", "frequency": "none"},
			}},
			Invalid: schema.Object{"capabilities": []any{map[string]any{"name": "nothing"}}},
		},
		{
			Kind: "carbide.compute_allocation", Name: "acme-big", Needs: []providertest.Made{acme, made("instance_type", "any", schema.Object{})},
			Want:    schema.Object{"tenant": "acme", "instance_type": id("instance_type", "any"), "count": int64(0), "description": "for training", "labels": labels("cost", "42")},
			Update:  schema.Object{"tenant": "acme", "instance_type": id("instance_type", "any"), "count": int64(0), "labels": labels("cost", "43")},
			Invalid: schema.Object{"tenant": "acme", "instance_type": id("instance_type", "any"), "count": int64(100_001)},
		},
		{
			Kind: "carbide.instance", Name: "web", Needs: []providertest.Made{acme, keys, group, vpc, segment, second},
			Want: web, Update: changed,
			Invalid: func() schema.Object {
				o := instance(0)
				o["os"] = map[string]any{}
				return o
			}(),
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: instance(i + 1)}
			},
		},
		{
			Kind: "carbide.vpc_peering", Name: "prod-peer", Needs: vpcs,
			Want:    peers(8),
			Invalid: schema.Object{"vpcs": []any{id("vpc", "prod"), id("vpc", "prod")}},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: peers(i % 8)}
			},
		},
		{
			Kind: "carbide.ib_partition", Name: "train", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme", "pkey": "0x4a00", "description": "training", "labels": labels("env", "prod", "empty", "")},
			Update:  schema.Object{"tenant": "acme", "pkey": "0x4a00", "labels": labels("env", "test")},
			Invalid: schema.Object{"tenant": "acme", "pkey": "0xfffff"},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"tenant": "acme"}}
			},
		},
		{
			Kind: "carbide.ib_partition", Name: "plain", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme"},
			Update:  schema.Object{"tenant": "acme", "description": "any key"},
			Invalid: schema.Object{"tenant": "acme", "pkey": "0x100"}, // not one that can be asked for
		},
		{
			Kind: "carbide.nvlink_logical_partition", Name: "rack", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme", "description": "one rack"},
			Update:  schema.Object{"tenant": "acme"},
			Invalid: schema.Object{"tenant": "a b"},
		},
		{
			Kind: "carbide.spx_partition", Name: "east", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme", "description": "one room", "vni": int64(70001)},
			Invalid: schema.Object{"tenant": "acme", "vni": int64(7)},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"tenant": "acme"}}
			},
		},
		{
			Kind: "carbide.instance", Name: "asleep", Needs: []providertest.Made{acme, vpc, segment},
			Want: powered(instance(0), "on"), Update: powered(instance(0), "off"),
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: powered(instance(i+1), "off")}
			},
		},
		{
			Kind: "carbide.instance", Name: "train", Needs: []providertest.Made{acme, vpc, segment,
				made("ib_partition", "ranks", schema.Object{"tenant": "acme"}), made("nvlink_logical_partition", "rack", schema.Object{"tenant": "acme"}),
				made("dpu_extension_service", "agent", schema.Object{"tenant": "acme", "manifest": manifest("one")}),
			},
			Want: fabrics(instance(0), 0), Update: fabrics(instance(0), 1),
			Invalid: fabrics(instance(0), 7),
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: instance(i + 1)}
			},
		},
		{
			Kind: "carbide.expected_machine", Name: "gpu-01",
			Want: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "chassis_serial_number": "SN-0001",
				"bmc_retain_credentials": true, "dpu_mode": "nic_mode", "default_pause_ingestion_and_poweron": true, "is_dpf_enabled": false,
				"disable_lockdown": true, "bmc_ip_address": "10.0.0.9", "sku": "dgx", "rack_id": "rack-01",
				"fallback_dpu_serial_numbers": []any{"MT1", "MT2"}, "description": "top of rack", "labels": labels("row", "7"),
				"host_nics": []any{
					map[string]any{"mac_address": "0a:00:00:00:01:01", "nic_type": "onboard", "primary": true, "fixed_ip": "10.0.1.9", "fixed_mask": "255.255.255.0", "fixed_gateway": "10.0.1.1"},
					map[string]any{"mac_address": "0a:00:00:00:01:02", "primary": false},
				},
			},
			Update: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "admin", "bmc_password": "other", "chassis_serial_number": "SN-0002",
				"bmc_retain_credentials": false, "dpu_mode": "dpu_mode", "default_pause_ingestion_and_poweron": false, "is_dpf_enabled": true,
				"disable_lockdown": false, "labels": labels("row", "8"),
				"host_nics": []any{map[string]any{"mac_address": "0a:00:00:00:01:02", "primary": true}},
			},
			Invalid: schema.Object{"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": strings.Repeat("x", 21), "chassis_serial_number": "SN-0001"},
			Other:   expectedOther("chassis_serial_number"),
		},
		{
			Kind: "carbide.expected_switch", Name: "leaf-01",
			Want: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "switch_serial_number": "SN-0001", "bmc_retain_credentials": true,
				"bmc_ip_address": "10.0.0.9", "rack_id": "rack-01", "nvos_username": "admin", "nvos_password": "nvos", "nvos_mac_addresses": []any{"0a:00:00:00:01:01"},
				"nvos_ip_address": "10.0.1.9", "description": "spine", "labels": labels("row", "7"),
			},
			Update: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "admin", "bmc_password": "other", "switch_serial_number": "SN-0002", "bmc_retain_credentials": false,
				"nvos_mac_addresses": []any{"0a:00:00:00:01:01", "0a:00:00:00:01:02"}, "labels": labels("row", "8"),
			},
			Invalid: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "switch_serial_number": "SN-0001", "nvos_ip_address": "10.0.1.9",
			},
			Other: expectedOther("switch_serial_number"),
		},
		{
			Kind: "carbide.expected_power_shelf", Name: "power-01",
			Want: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "shelf_serial_number": "SN-0001", "bmc_retain_credentials": true,
				"bmc_ip_address": "10.0.0.9", "rack_id": "rack-01", "description": "top", "labels": labels("row", "7"),
			},
			Update: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "admin", "bmc_password": "other", "shelf_serial_number": "SN-0002", "bmc_retain_credentials": false,
				"labels": labels("row", "8"),
			},
			Invalid: schema.Object{"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "a user of more than sixteen", "bmc_password": "calvin", "shelf_serial_number": "SN-0001"},
			Other:   expectedOther("shelf_serial_number"),
		},
		{
			Kind: "carbide.sku", Name: "dgx-h100",
			Want: schema.Object{
				"description": "eight GPUs", "chassis": map[string]any{"vendor": "NVIDIA", "model": "DGX H100", "architecture": "x86_64"},
				"cpus":               []any{map[string]any{"vendor": "Intel", "model": "Xeon Platinum 8480C", "thread_count": int64(112), "count": int64(2)}},
				"gpus":               []any{map[string]any{"vendor": "NVIDIA", "model": "H100", "total_memory": "81559 MiB", "count": int64(8)}},
				"infiniband_devices": []any{map[string]any{"model": "ConnectX-7", "count": int64(8), "inactive_devices": []any{int64(1), int64(3)}}},
				"storage":            []any{map[string]any{"model": "MZQL23T8HCLS-00A07", "count": int64(8)}},
				"memory":             []any{map[string]any{"memory_type": "DDR5", "capacity_mb": int64(65536), "count": int64(32)}},
				"tpm":                map[string]any{"vendor": "IFX", "version": "2.0"},
			},
			Update:  schema.Object{"device_type": "gpu", "chassis": chassis, "gpus": []any{map[string]any{"model": "H100", "count": int64(4)}}},
			Invalid: schema.Object{"chassis": map[string]any{"model": "twin", "architecture": "x86_64"}},
			Needs:   []providertest.Made{made("sku", "twin", schema.Object{"chassis": map[string]any{"model": "twin", "architecture": "x86_64"}})},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"chassis": map[string]any{"model": fmt.Sprintf("model-%d", i), "architecture": "aarch64"}}}
			},
		},
		{
			Kind: "carbide.machine", Name: hosts[0], Needs: []providertest.Made{made("instance_type", "any", schema.Object{}), made("sku", "dgx", schema.Object{"chassis": chassis})},
			Want:   schema.Object{},
			Update: schema.Object{"description": "top of rack", "labels": labels("rack", "r1"), "maintenance": map[string]any{"reference": "TICKET-1"}, "instance_type": id("instance_type", "any"), "sku": "dgx"},
			Other: func(i int) providertest.Made {
				if i+1 < len(hosts) {
					return providertest.Made{Name: hosts[i+1]}
				}
				return providertest.Made{Name: "fm100ht" + strings.Repeat("0", 52)} // nowhere
			},
		},
		{
			Kind: "carbide.operating_system", Name: "rescue",
			Want: schema.Object{
				"tenant": "acme", "type": "ipxe", "script": "#!ipxe\nshell", "description": "for repairs", "user_data": "#cloud-config",
				"active": true, "allow_override": true, "phone_home_enabled": false,
			},
			Update: schema.Object{
				"tenant": "acme", "type": "ipxe", "script": "#!ipxe\nexit", "active": false, "allow_override": false, "phone_home_enabled": true,
			},
			Invalid: schema.Object{"tenant": "acme", "type": "ipxe"},
		},
		{
			Kind: "carbide.operating_system", Name: "ubuntu",
			Want: template("kernel_params", "quiet", "splash", "on"),
			Update: func() schema.Object {
				o := template("kernel_params", "debug")
				o["template"] = "5c7cfa88-6003-5ac0-b4c0-201eb5b28153"
				o["artifacts"] = []any{map[string]any{"name": "kernel", "url": "https://images.example/other", "cache": "local_only"}}
				return o
			}(),
			Invalid: template("console", "ttyS0"),
		},
		{
			Kind: "carbide.os_image", Name: "golden",
			Want: schema.Object{
				"tenant": "acme", "source_url": "https://images.example/golden.qcow2", "digest": "sha256:aa", "description": "the first",
				"auth_type": "bearer", "auth_token": "t0ken", "rootfs_id": "r", "rootfs_label": "root fs", "boot_disk": "/dev/sda",
				"capacity": int64(1 << 35), "bootfs_id": "b", "efifs_id": "e",
			},
			Update: schema.Object{
				"tenant": "acme", "source_url": "https://images.example/golden.qcow2", "digest": "sha256:aa",
				"auth_type": "basic", "auth_token": "another", "rootfs_id": "r", "rootfs_label": "root fs", "capacity": int64(1 << 35),
			},
			Invalid: schema.Object{"tenant": "acme", "source_url": "https://images.example/golden.qcow2", "digest": ""},
		},
		{
			Kind: "carbide.dpu_extension_service", Name: "collector", Needs: []providertest.Made{acme},
			Want: schema.Object{"tenant": "acme", "manifest": pod("a"), "description": "collects", "observability": []any{
				map[string]any{"name": "metrics", "prometheus": map[string]any{"endpoint": "localhost:9090", "scrape_interval_seconds": int64(30)}},
				map[string]any{"logging": map[string]any{"path": "/var/log/a"}},
			}},
			Update:  schema.Object{"tenant": "acme", "manifest": pod("b")},
			Invalid: schema.Object{"tenant": "acme", "manifest": "kind: Job"},
		},
	}
}
