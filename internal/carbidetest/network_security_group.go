package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/schema"
)

var networkSecurityGroups = Kind{
	Noun: "network_security_group", Varies: true,
	Cases: []providertest.Case{
		{
			Name: "ssh", Needs: []providertest.Made{acme},
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
	},
	Populations: []Population{
		{Once: 1, Page: 2, Why: "who has a group is told by another call", Plant: func(b *Bed, n int) []string {
			b.must(b.tenant("acme"))
			return b.each(n, func(name string, _ int) (string, error) { return b.group(name) })
		}},
		{As: "in use", Once: 1, Page: 3, Why: "who has a group is told by another call, and where it is in force by a third", Plant: func(b *Bed, n int) []string {
			b.must(b.tenant("acme"))
			return b.each(n, func(name string, _ int) (string, error) {
				id, err := b.group(name)
				b.must(err)
				_, err = b.vpc(name, id)
				return id, err
			})
		}},
	},
	Scenes: []Scene{
		{
			One: `{tenant: "acme", rules: [{id: "a", direction: "ingress", protocol: "tcp", action: "permit", priority: 100, src_prefix: "0.0.0.0/0", dst_prefix: "0.0.0.0/0", dst_ports: {start: 443, end: 443}}]}`,
			Two: `{tenant: "acme", description: "other", rules: [{id: "a", direction: "ingress", protocol: "tcp", action: "permit", priority: 100, src_prefix: "0.0.0.0/0", dst_prefix: "0.0.0.0/0", dst_ports: {start: 443, end: 443}}]}`,
		},
		{
			As: "rules", Ways: "update",
			One: `{tenant: "acme", rules: [{id: "a", direction: "ingress", protocol: "tcp", action: "permit", priority: 100, src_prefix: "0.0.0.0/0", dst_prefix: "0.0.0.0/0", dst_ports: {start: 443, end: 443}}]}`,
			Two: `{tenant: "acme", rules: [{id: "b", direction: "ingress", protocol: "tcp", action: "permit", priority: 100, src_prefix: "0.0.0.0/0", dst_prefix: "0.0.0.0/0", dst_ports: {start: 80, end: 80}}]}`,
			Otherwise: []Otherwise{
				{"one of several calls never succeeds: what the others did is undone as far as that does not need the same call", map[string]string{
					"update/UpdateNetworkSecurityGroup 2/busy for good":  "half",
					"~update/UpdateNetworkSecurityGroup 2/busy for good": "half~",
				}},
				{"every one of several calls comes late: the verb gives up before the last has come", map[string]string{
					"update/UpdateNetworkSecurityGroup 2/late each time": "half+",
					"~update/UpdateNetworkSecurityGroup/late each time":  "half~+",
				}},
			},
		},
	},
	Whole: `
network_security_group: web: {
	_meta, tenant: "acme", stateful_egress: true
	rules: [{id: "a", direction: "ingress", ipv6: false, protocol: "tcp", action: "permit", priority: 100, src_prefix: "0.0.0.0/0", dst_prefix: "10.0.0.0/8", src_ports: {start: 1, end: 9}, dst_ports: {start: 443, end: 444}}]
}
`,
}

func rule(name string, priority, port int64) map[string]any {
	return map[string]any{
		"id": name, "direction": "ingress", "ipv6": false, "protocol": "tcp", "action": "permit", "priority": priority,
		"src_prefix": "0.0.0.0/0", "dst_prefix": "10.0.0.0/8", "dst_ports": map[string]any{"start": port, "end": port},
	}
}

var web = made("network_security_group", "web", schema.Object{"tenant": "acme", "stateful_egress": false})
