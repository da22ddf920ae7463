package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

var vpcs = Kind{
	Noun: "vpc", Varies: true,
	Cases: []providertest.Case{
		plainVPC,
		{
			Name: "guarded", Needs: []providertest.Made{acme, web},
			Want:    schema.Object{"tenant": "acme", "virtualization": "fnn", "vni": int64(60001), "routing_profile": "internal"},
			Update:  schema.Object{"tenant": "acme", "virtualization": "flat", "vni": int64(60001), "routing_profile": "internal", "network_security_group": ID("network_security_group", "web")},
			Invalid: schema.Object{"tenant": "acme", "virtualization": "fnn", "vni": int64(7)},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"tenant": "acme", "virtualization": "fnn", "vni": int64(60100 + i)}}
			},
		},
	},
	Older: []providertest.Case{plainVPC}, // which has no flat VPCs
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) { return b.vpc(name, "") })
		}},
		{As: "with security groups", Once: 1, Page: 2, Why: "where a group is in force is told by another call, for a page of them", Plant: func(b *Bed, n int) []string {
			b.must(b.tenant("acme"))
			group, err := b.group("web")
			b.must(err)
			return b.each(n, func(name string, _ int) (string, error) { return b.vpc(name, group) })
		}},
		{As: "with a security group here and there", Once: 1, Page: 1, After: 1, Why: "those of all pages that have a group are asked for together", Plant: func(b *Bed, n int) []string {
			b.must(b.tenant("acme"))
			group, err := b.group("web")
			b.must(err)
			return b.each(n, func(name string, i int) (string, error) {
				if i%150 == 0 {
					return b.vpc(name, group)
				}
				return b.vpc(name, "")
			})
		}},
	},
	Scenes: []Scene{
		{One: `{tenant: "acme", labels: n: "1"}`, Two: `{tenant: "acme", labels: n: "2"}`},
		{As: "fabric", Ways: "update", One: `{tenant: "acme", virtualization: "fnn"}`, Two: `{tenant: "acme", virtualization: "flat"}`},
		{
			As: "whole", Ways: "update",
			One: `{tenant: "acme", virtualization: "fnn", labels: n: "1"}`,
			Two: `{tenant: "acme", virtualization: "flat", labels: n: "2"}`,
			Otherwise: []Otherwise{
				{"one of several calls never succeeds: what the others did is undone as far as that does not need the same call", map[string]string{
					"update/UpdateVpc/busy for good":  "failed",
					"~update/UpdateVpc/busy for good": "half~",
				}},
				{"every one of several calls comes late: the verb gives up before the last has come", map[string]string{
					"~update/UpdateVpcVirtualization/late each time": "half~+",
				}},
			},
		},
	},
	Database: []Words{
		{"create", `duplicate key value violates unique constraint "vpcs_pkey"`, providers.Exists},
		{"create", `pool timed out while waiting for an open connection`, providers.Busy},
	},
	Whole: `
vpc: {
	prod: {_meta, tenant: "acme", virtualization: "fnn", vni: 60001, routing_profile: "internal", network_security_group: "web"}
	test: {tenant: "acme", virtualization: "fnn"}
	level: {tenant: "acme", virtualization: "flat"}
}
`,
}

var prod = made("vpc", "prod", schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer"})

var plainVPC = providertest.Case{
	Name:    "plain",
	Want:    schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "description": "production", "labels": labels("env", "prod", "empty", "")},
	Update:  schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "labels": labels("env", "test")},
	Invalid: schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "routing_profile": "internal"},
}
