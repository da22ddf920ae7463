package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
)

// everything is a site with every kind, whose resources say all that the site will take.
func everything(t *testing.T, change func(*carbidesim.Options)) *schema.Document {
	t.Helper()
	known, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	options := worldOptions()
	change(&options)
	managed := options
	managed.Hosts = carbidesim.Hosts{Count: options.Hosts.Count - options.Hosts.WithoutDPU}
	hosts, err := hostsOf(managed)
	all, err2 := hostsOf(options)
	if err = errors.Join(err, err2); err != nil || len(hosts) < 2 {
		t.Fatalf("the site has %d machines: %v", len(hosts), err)
	}
	bare := slices.DeleteFunc(all, func(id string) bool { return slices.Contains(hosts, id) })[0]
	doc, ds := load.Document(context.Background(), known, load.Options{}, load.Source{Name: "all.cue", Data: fmt.Appendf(nil, allKinds, siteID, hosts[0], hosts[1], bare)})
	if doc == nil {
		t.Fatal(ds.Err())
	}
	said := map[string]bool{}
	for _, r := range doc.Resources {
		for field := range r.Spec {
			said[r.Ref.Kind+" "+field] = true
		}
	}
	for name, k := range known.Kinds() {
		for _, f := range k.Fields {
			if strings.HasPrefix(name, "carbide.") && !f.Computed && !f.Planning && !said[name+" "+f.Name] {
				t.Errorf("no %s says its %s", name, f.Name)
			}
		}
	}
	return doc
}

const allKinds = `
apiVersion: "converge.dev/v1"
site: {name: "grid", id: %[1]q}
policy: max_destroy: "100%%"
_secret: from: "env:SECRET"
_meta: {description: "some", labels: {n: "1", empty: ""}}
_bmc: {_meta, bmc_username: "root", bmc_password: _secret, bmc_retain_credentials: true, rack_id: "rack-01"}
carbide: {
	tenant: acme: {display_name: "Acme", routing_profile: "internal"}
	tenant_keyset: ops: {tenant: "acme", keys: ["ssh-ed25519 AAAA me@home"]}
	network_security_group: web: {
		_meta, tenant: "acme", stateful_egress: true
		rules: [{id: "a", direction: "ingress", ipv6: false, protocol: "tcp", action: "permit", priority: 100, src_prefix: "0.0.0.0/0", dst_prefix: "10.0.0.0/8", src_ports: {start: 1, end: 9}, dst_ports: {start: 443, end: 444}}]
	}
	vpc: {
		prod: {_meta, tenant: "acme", virtualization: "fnn", vni: 60001, routing_profile: "internal", network_security_group: "web"}
		test: {tenant: "acme", virtualization: "fnn"}
		level: {tenant: "acme", virtualization: "flat"}
	}
	vpc_peering: both: vpcs: ["prod", "test"]
	vpc_prefix: links: {_meta, vpc: "prod", prefix: "10.1.0.0/16"}
	network_segment: {
		net: {vpc: "prod", type: "tenant", mtu: 1500, prefixes: [{prefix: "10.2.0.0/24", gateway: "10.2.0.1", reserve_first: 4}]}
		named: {vpc: "prod", subdomain_id: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e", prefixes: [{prefix: "10.3.0.0/24"}]}
	}
	ib_partition: ranks: {_meta, tenant: "acme", pkey: "0x4a00"}
	nvlink_logical_partition: rack: {tenant: "acme", description: "one rack"}
	spx_partition: east: {tenant: "acme", description: "one room", vni: 70001}
	operating_system: {
		rescue: {
			tenant: "acme", type: "ipxe", script: "#!ipxe", description: "for repairs", user_data: "#cloud-config"
			active: false, allow_override: false, phone_home_enabled: true
		}
		ubuntu: {
			tenant: "acme", type: "template", template: "c4b1d4f6-69ba-5f55-90cd-ab2acd002475"
			parameters: [{name: "kernel_params", value: "quiet"}]
			artifacts: [
				{name: "kernel", url: "https://images.example/vmlinuz", sha: "sha256:aa", auth_type: "bearer", auth_token: _secret},
				{name: "initrd", url: "https://images.example/initrd", cache: "remote_only"},
			]
		}
	}
	os_image: golden: {
		tenant: "acme", source_url: "https://images.example/golden", digest: "sha256:aa", description: "the first", auth_type: "bearer", auth_token: _secret
		rootfs_id: "r", rootfs_label: "root fs", boot_disk: "/dev/sda", capacity: 34359738368, bootfs_id: "b", efifs_id: "e"
	}
	dpu_extension_service: agent: {
		tenant: "acme", description: "collects", manifest: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}"
		registry: _secret, registry_username: _secret, registry_password: _secret
		observability: [{name: "metrics", prometheus: {endpoint: "localhost:9090", scrape_interval_seconds: 30}}, {logging: path: "/var/log/a"}]
	}
	sku: dgx: {
		description: "eight GPUs", device_type: "gpu", chassis: {vendor: "NVIDIA", model: "DGX H100", architecture: "x86_64"}
		cpus: [{vendor: "Intel", model: "Xeon", thread_count: 112, count: 2}]
		gpus: [{vendor: "NVIDIA", model: "H100", total_memory: "81559 MiB", count: 8}]
		infiniband_devices: [{vendor: "Mellanox", model: "ConnectX-7", count: 8, inactive_devices: [1, 3]}]
		storage: [{model: "MZQL23T8HCLS-00A07", count: 8}]
		memory: [{memory_type: "DDR5", capacity_mb: 65536, count: 32}]
		tpm: {vendor: "IFX", version: "2.0"}
	}
	instance_type: big: {_meta, capabilities: [{type: "gpu", vendor: "NVIDIA", count: 8}]}
	machine: {
		(%[2]q): {_meta, instance_type: "big"}
		(%[3]q): {sku: "dgx", maintenance: reference: "OPS-1234"}
	}
	compute_allocation: one: {_meta, tenant: "acme", instance_type: "big", count: 1, depends_on: ["site/carbide.machine/%[2]s"]}
	instance: bare: {tenant: "acme", machine: %[4]q, auto_network: true, auto_vpc: "level", os: ipxe: "#!ipxe"}
	instance: train: {
		_meta, tenant: "acme", machine: %[2]q, instance_type: "big", hostname: "train", keysets: ["ops"]
		os: {ipxe: "#!ipxe", user_data: "#cloud-config", run_provisioning_instructions_on_every_boot: true}
		interfaces: [
			{vpc_prefix: "links", ip_address: "10.1.0.1", device: "MT43244 BlueField-3 SuperNIC"},
			{function: "virtual", virtual_function_id: 3, segment: "net", device: "MT43244 BlueField-3 SuperNIC"},
		]
		infiniband: [{ib_partition: "ranks", device: "MT2910 Family [ConnectX-7]", vendor: "Mellanox"}]
		nvlink: [{gpu: 0, logical_partition: "rack"}]
		spx: [{spx_partition: "east", device: "MT43244 BlueField-3 SuperNIC"}]
		dpu_extension_services: [{service: "agent", version: 1}]
		network_security_group: "web", power: "on"
		depends_on: ["site/carbide.machine/%[2]s"]
	}
	expected_machine: "gpu-01": _bmc & {
		bmc_mac_address: "0a:00:00:00:00:01", bmc_ip_address: "10.9.0.1", chassis_serial_number: "SN-0001", dpu_mode: "nic_mode"
		default_pause_ingestion_and_poweron: true, is_dpf_enabled: false, disable_lockdown: true, sku: "dgx"
		fallback_dpu_serial_numbers: ["MT1"]
		host_nics: [{mac_address: "0a:00:00:00:01:01", nic_type: "onboard", primary: true, fixed_ip: "10.0.1.9", fixed_mask: "255.255.255.0", fixed_gateway: "10.0.1.1"}]
	}
	expected_switch: "leaf-01": _bmc & {
		bmc_mac_address: "0a:00:00:00:00:02", bmc_ip_address: "10.9.0.2", switch_serial_number: "SN-0002", nvos_username: "admin", nvos_password: _secret
		nvos_mac_addresses: ["0a:00:00:00:01:02"], nvos_ip_address: "10.0.1.10"
	}
	expected_power_shelf: "power-01": _bmc & {bmc_mac_address: "0a:00:00:00:00:03", bmc_ip_address: "10.9.0.3", shelf_serial_number: "SN-0003"}
}
`

// paths lists the fields of a message that are there, as paths through lists.
func paths(m protoreflect.Message, at string, into map[string]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		p := strings.TrimPrefix(at+"."+string(f.Name()), ".")
		into[p] = true
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				paths(v.List().Get(i).Message(), p, into)
			}
		default:
			paths(v.Message(), p, into)
		}
		return true
	})
}

// without takes the field at a path out of a message, wherever it is.
func without(m protoreflect.Message, path []string) {
	f := m.Descriptor().Fields().ByName(protoreflect.Name(path[0]))
	switch {
	case len(path) == 1:
		m.Clear(f)
	case !m.Has(f):
	case f.IsList():
		for i := range m.Get(f).List().Len() {
			without(m.Get(f).List().Get(i).Message(), path[1:])
		}
	default:
		without(m.Get(f).Message(), path[1:])
	}
}

// E: whatever one field a server leaves out, in the things of whatever kind, nothing is made, replaced or deleted for it.
func TestTortureCarbideUntold(t *testing.T) {
	_, reads := called(t)
	var tried, changed atomic.Int64
	t.Cleanup(func() {
		torture.Report(t, "E", "Carbide: %d plans, each on a server that leaves out one field, make, replace and delete nothing; %d of them change something", tried.Load(), changed.Load())
	})
	for _, g := range carbidesim.Generations {
		t.Run(string(g), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				options := func(o *carbidesim.Options) { o.Generation, o.Hosts = g, carbidesim.Hosts{Count: 3, WithoutDPU: 1} }
				doc := everything(t, options)
				var mu sync.Mutex
				told, silent := map[string]map[string]bool{}, ""
				c := &cell{T: t, scene: &scene{first: doc, ref: doc.Resources[0].Ref}, options: options}
				c.answer = func(method string, reply proto.Message) proto.Message {
					mu.Lock()
					defer mu.Unlock()
					if at, ok := strings.CutPrefix(silent, method+" "); ok {
						reply = proto.Clone(reply)
						without(reply.ProtoReflect(), strings.Split(at, "."))
					} else if silent == "" && slices.Contains(reads, method) {
						if told[method] == nil {
							told[method] = map[string]bool{}
						}
						paths(reply.ProtoReflect(), "", told[method])
					}
					return reply
				}
				defer c.end()
				c.begin()
				e := c.process()
				defer e.Close()
				look := func() *plan.Plan {
					p, err := e.Plan(context.Background(), doc, plan.Options{})
					if err != nil {
						t.Fatal(err)
					}
					return p
				}
				clear(told)
				if p := look(); !p.Empty() {
					t.Fatalf("steps %+v, unknown %+v, refused %+v", p.Steps, p.Unknown, p.Refusals)
				}
				var all []string
				for method, fields := range told {
					for at := range fields {
						if strings.Contains(at, ".") { // otherwise it is the whole answer, and everything of the kind is gone
							all = append(all, method+" "+at)
						}
					}
				}
				slices.Sort(all)
				for i := 0; i < len(all); i += torture.Scale(20, 1, 1) {
					mu.Lock()
					silent = all[i]
					mu.Unlock()
					tried.Add(1)
					for _, s := range look().Steps {
						if s.Action == plan.Update {
							changed.Add(1)
						} else {
							t.Errorf("without %s: %s %s: %s", all[i], s.Action, s.Ref, s.Reason)
						}
					}
				}
			})
		})
	}
}
