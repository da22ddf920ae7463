package carbidetest

import (
	"strings"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/schema"
)

var machines = Kind{
	Noun: "machine", Varies: true,
	CasesOn: func(hosts []string) []providertest.Case {
		return []providertest.Case{
			{
				Name: hosts[0], Needs: []providertest.Made{made("instance_type", "any", schema.Object{}), made("sku", "dgx", schema.Object{"chassis": chassis})},
				Want:   schema.Object{},
				Update: schema.Object{"description": "top of rack", "labels": labels("rack", "r1"), "maintenance": map[string]any{"reference": "TICKET-1"}, "instance_type": ID("instance_type", "any"), "sku": "dgx"},
				Other: func(i int) providertest.Made {
					if i+1 < len(hosts) {
						return providertest.Made{Name: hosts[i+1]}
					}
					return providertest.Made{Name: "fm100ht" + strings.Repeat("0", 52)} // does not exist
				},
			},
		}
	},
	Populations: []Population{
		{Once: 1, Page: 1, Site: func(n int) carbidesim.Options { return carbidesim.Options{Hosts: carbidesim.Hosts{Count: n}} }, Plant: func(b *Bed, n int) []string {
			return Hosts(b.World) // which exist from the start, as do their DPUs
		}},
	},
	Scenes: []Scene{
		{OnHost: true, Ways: "update", One: `{labels: n: "1"}`, Two: `{labels: n: "2"}`},
		{As: "maintenance", OnHost: true, Ways: "update", One: `{}`, Two: `{maintenance: reference: "OPS-1234"}`},
		{As: "type", OnHost: true, Ways: "update", Needs: `instance_type: any: {}`, One: `{}`, Two: `{instance_type: "any"}`},
		{
			As: "sku", OnHost: true, Ways: "update", Needs: `sku: any: chassis: {model: "m", architecture: "x86_64"}`,
			One: `{}`,
			Two: `{sku: "any"}`,
		},
		{
			As: "whole", OnHost: true, Ways: "update", Needs: `instance_type: any: {}, sku: {any: chassis: {model: "m", architecture: "x86_64"}, other: chassis: {model: "n", architecture: "x86_64"}}`,
			One: `{sku: "other"}`,
			Two: `{sku: "any", labels: n: "1", maintenance: reference: "OPS-1234", instance_type: "any"}`,
			Otherwise: []Otherwise{
				{"one of several calls never succeeds: what the others did is undone as far as that does not need the same call", map[string]string{
					"update/AssignSkuToMachine/busy for good":                    "half",
					"update/AssociateMachinesWithInstanceType/busy for good":     "failed",
					"update/SetMaintenance/busy for good":                        "failed",
					"update/UpdateMachineMetadata/busy for good":                 "failed",
					"~update/AssignSkuToMachine/busy for good":                   "half~",
					"~update/RemoveMachineInstanceTypeAssociation/busy for good": "half~",
					"~update/SetMaintenance/busy for good":                       "half~",
					"~update/UpdateMachineMetadata/busy for good":                "half~",
				}},
			},
		},
	},
	Whole: `
machine: {
	(_host): {_meta, instance_type: "big"}
	(_other): {sku: "dgx", maintenance: reference: "OPS-1234"}
}
`,
}
