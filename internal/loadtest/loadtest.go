// Package loadtest makes sites of any size for tests and benchmarks: valid documents of the embedded kinds, with the mix
// of resources and the references that a GPU cloud has. Equal calls return equal sites, and a smaller site is a prefix of a
// larger one.
package loadtest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// SiteID is the identity of every site of this package.
const SiteID = "7d9f1c62-3a54-4b0e-9c86-2f1d8e5b7a30"

// A builder collects resources by scope, kind and name.
type builder struct {
	left int
	doc  map[string]any
}

// Site returns the JSON document of a site with exactly n resources, about 350 bytes each.
func Site(n int) []byte {
	b := &builder{left: n, doc: map[string]any{
		"apiVersion": "converge.dev/v1",
		"site":       map[string]any{"name": "loadtest", "id": SiteID, "serial": 1},
	}}
	for block := 0; b.left > 0; block++ {
		b.block(block)
	}
	text, err := json.Marshal(b.doc)
	if err != nil { // plain maps can always be written as JSON
		panic(err)
	}
	return text
}

func (b *builder) site(kind, name string, spec map[string]any) { b.put(b.doc, kind, name, spec) }

func (b *builder) node(node, kind, name string, spec map[string]any) {
	b.put(below(below(b.doc, "nodes"), node), kind, name, spec)
}

func (b *builder) put(at map[string]any, kind, name string, spec map[string]any) {
	if b.left == 0 {
		return
	}
	b.left--
	provider, noun, _ := strings.Cut(kind, ".")
	below(below(at, provider), noun)[name] = spec
}

func below(m map[string]any, name string) map[string]any {
	if m[name] == nil {
		m[name] = map[string]any{}
	}
	return m[name].(map[string]any)
}

// instances is how many machines and instances a block has.
const instances = 6

// block adds one VPC with its addresses, rules, machines and instances, and one node with its switch. Referenced resources
// come first, so that a site may end anywhere.
func (b *builder) block(n int) {
	tenant, kind := fmt.Sprintf("tenant-%d", n/10), fmt.Sprintf("gpu-%d", n/10)
	if n%10 == 0 {
		b.site("carbide.tenant", tenant, map[string]any{"display_name": fmt.Sprintf("Tenant number %d", n/10)})
		b.site("carbide.instance_type", kind, map[string]any{
			"description": "Eight GPUs, two sockets",
			"capabilities": []any{
				map[string]any{"type": "gpu", "vendor": "NVIDIA", "name": "H100 SXM5 80GB", "count": 8},
				map[string]any{"type": "cpu", "vendor": "Intel", "count": 2, "cores": 56},
				map[string]any{"type": "network", "name": "BlueField-3", "count": 2, "device_type": "dpu"},
			},
		})
	}
	labels := func(role string) map[string]any {
		return map[string]any{"env": "prod", "team": fmt.Sprintf("team-%d", n%7), "role": role, "cost-centre": fmt.Sprint(4000 + n%50), "contact": fmt.Sprintf("oncall-%d@example.com", n%7), "ticket": fmt.Sprintf("NET-%06d", n)}
	}
	vpc, prefix, group, keys := fmt.Sprintf("vpc-%d", n), fmt.Sprintf("links-%d", n), fmt.Sprintf("guard-%d", n), fmt.Sprintf("keys-%d", n)
	b.site("carbide.network_security_group", group, map[string]any{
		"tenant": tenant, "labels": labels("guard"), "stateful_egress": true,
		"rules": []any{
			rule("ssh", "ingress", "tcp", "permit", 100, 22),
			rule("https", "ingress", "tcp", "permit", 110, 443),
			rule("out", "egress", "any", "permit", 200, 0),
		},
	})
	b.site("carbide.vpc", vpc, map[string]any{
		"tenant": tenant, "virtualization": "fnn", "network_security_group": group, "labels": labels("vpc"),
		"description": fmt.Sprintf("Training cluster %d of %s", n, tenant), "vni": 10_000 + n,
	})
	b.site("carbide.vpc_prefix", prefix, map[string]any{
		"vpc": vpc, "prefix": fmt.Sprintf("10.%d.%d.0/24", n>>8&255, n&255), "labels": labels("links"), "description": "Link networks of the instances",
	})
	block := n * 16 // of a /12, sixteen addresses per segment
	base := fmt.Sprintf("172.%d.%d.", 16+block>>16&15, block>>8&255)
	b.site("carbide.network_segment", fmt.Sprintf("storage-%d", n), map[string]any{
		"vpc": vpc, "mtu": 9000, "prefixes": []any{map[string]any{
			"prefix": fmt.Sprintf("%s%d/28", base, block&255), "gateway": fmt.Sprintf("%s%d", base, block&255+1), "reserve_first": 2,
		}},
	})
	b.site("carbide.tenant_keyset", keys, map[string]any{"tenant": tenant, "keys": []any{
		fmt.Sprintf("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI%034d admin-%d", n, n),
		fmt.Sprintf("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAJ%034d backup-%d", n, n),
	}})
	for i := range instances {
		b.site("carbide.machine", machine(n, i), map[string]any{
			"instance_type": kind, "labels": map[string]any{"rack": fmt.Sprintf("r%d", n/2), "slot": fmt.Sprint(i)}, "description": fmt.Sprintf("Leaf pair %d, power feed A, liquid loop 2; delivered with lot 2026-07 and burnt in for 72 hours without a finding", n%64),
		})
	}
	for i := range instances {
		b.site("carbide.instance", fmt.Sprintf("worker-%d-%d", n, i), map[string]any{
			"tenant": tenant, "machine": machine(n, i), "instance_type": kind, "hostname": fmt.Sprintf("worker-%d-%d", n, i),
			"keysets": []any{keys}, "labels": labels("worker"),
			"os":                     map[string]any{"ipxe": "#!ipxe\nchain http://boot.example/ubuntu-24.04.ipxe", "user_data": "#cloud-config\npackage_update: false\nruncmd:\n  - [systemctl, enable, --now, slice-ready.service]\n  - [nvidia-smi, -pm, \"1\"]\n"},
			"interfaces":             []any{map[string]any{"function": "physical", "vpc_prefix": prefix, "ip_address": fmt.Sprintf("10.%d.%d.%d", n>>8&255, n&255, 2*i+1)}},
			"network_security_group": group,
		})
	}
	node := fmt.Sprintf("gpu-%d", n)
	b.node(node, "ovs.bridge", "br-slice", map[string]any{"fail_mode": "secure", "datapath_type": "system", "protocols": []any{"OpenFlow13", "OpenFlow15"},
		"external_ids": map[string]any{"owner": tenant}})
	for i := range 2 {
		b.node(node, "ovs.port", fmt.Sprintf("vf%d", i), map[string]any{"bridge": "br-slice", "tag": 100 + i, "vlan_mode": "access",
			"external_ids": map[string]any{"slice": fmt.Sprintf("slice-%d-%d", n, i), "owner": tenant, "iface-id": fmt.Sprintf("%08x-0000-4000-8000-%012x", n, i)},
			"interface":    map[string]any{"type": "internal", "mtu_request": 9000, "mac": fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", n>>16&255, n>>8&255, n&255, i)}})
	}
}

func rule(id, direction, protocol, action string, priority, port int) map[string]any {
	r := map[string]any{"id": id, "direction": direction, "protocol": protocol, "action": action, "priority": priority,
		"src_prefix": "0.0.0.0/0", "dst_prefix": "0.0.0.0/0"}
	if port > 0 {
		r["dst_ports"] = map[string]any{"start": port, "end": port}
	}
	return r
}

func machine(block, i int) string { return fmt.Sprintf("fm100ht%052d", block*instances+i) }

// SiteCUE returns the CUE source of a site in which comprehensions make about n resources: one VPC in four, and a prefix, a
// segment and a security group for each.
func SiteCUE(n int) []byte {
	return fmt.Appendf(nil, siteCUE, SiteID, max(n/4, 1))
}

const siteCUE = `package site

import "list"

apiVersion: "converge.dev/v1"
site: {name: "loadtest", id: %q}

carbide: tenant: acme: display_name: "Acme"

for n in list.Range(0, %d, 1) {
	let hi = div(n, 256)
	let lo = mod(n, 256)
	carbide: {
		network_security_group: "guard-\(n)": {
			tenant: "acme"
			labels: {env: "prod", role: "guard"}
			rules: [{
				id: "ssh", direction: "ingress", protocol: "tcp", action: "permit", priority: 100
				src_prefix: "0.0.0.0/0", dst_prefix: "0.0.0.0/0", dst_ports: {start: 22, end: 22}
			}]
		}
		vpc: "vpc-\(n)": {
			tenant:                 "acme"
			virtualization:         "fnn"
			vni:                    10000 + n
			network_security_group: "guard-\(n)"
			labels: {env: "prod", role: "vpc"}
		}
		vpc_prefix: "links-\(n)": {
			vpc:    "vpc-\(n)"
			prefix: "10.\(hi).\(lo).0/24"
			labels: {env: "prod", role: "links"}
		}
		network_segment: "storage-\(n)": {
			vpc: "vpc-\(n)"
			mtu: 9000
			prefixes: [{prefix: "11.\(hi).\(lo).0/24", gateway: "11.\(hi).\(lo).1"}]
		}
	}
}
`
