package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var networkSegments = Kind{
	Noun: "network_segment", Varies: true,
	Cases: []providertest.Case{
		{
			Name: "prod-a", Needs: []providertest.Made{prod},
			Want: schema.Object{"vpc": ID("vpc", "prod"), "type": "tenant", "mtu": int64(1500), "prefixes": []any{
				map[string]any{"prefix": "10.20.0.0/24", "gateway": "10.20.0.1", "reserve_first": int64(2)},
			}},
			Invalid: schema.Object{"vpc": ID("vpc", "prod"), "type": "tenant", "prefixes": []any{map[string]any{"prefix": "10.20.0.0/31"}}},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: segment("", map[string]any{"prefix": fmt.Sprintf("10.9.%d.0/24", i), "reserve_first": int64(0)}).Spec}
			},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			vpc, err := b.vpc("prod", "")
			b.must(err)
			return b.each(n, func(name string, i int) (string, error) {
				id := ID("network_segment", name)
				_, err := b.CreateNetworkSegment(b.Context(), &forge.NetworkSegmentCreationRequest{
					Id: &forge.NetworkSegmentId{Value: id}, Name: name, VpcId: &forge.VpcId{Value: vpc},
					Prefixes: []*forge.NetworkPrefix{{Prefix: network(i)}},
				})
				return id, err
			})
		}},
	},
	Scenes: []Scene{
		{Needs: `vpc: net: tenant: "acme"`, One: `{vpc: "net", prefixes: [{prefix: "10.2.0.0/24"}]}`},
	},
	Database: []Words{
		{"create", `duplicate key value violates unique constraint "network_segments_pkey"`, providers.Exists},
		{"create", `insert or update on table "network_segments" violates foreign key constraint "vpc_fkey"`, providers.Absent},
		{"create", `new row for relation "network_prefixes" violates check constraint "gateway_within_network"`, providers.Invalid},
	},
	Whole: `
network_segment: {
	net: {vpc: "prod", type: "tenant", mtu: 1500, prefixes: [{prefix: "10.2.0.0/24", gateway: "10.2.0.1", reserve_first: 4}]}
	named: {vpc: "prod", subdomain_id: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e", prefixes: [{prefix: "10.3.0.0/24"}]}
}
`,
}

func segment(name string, prefix map[string]any) providertest.Made {
	return made("network_segment", name, schema.Object{"vpc": ID("vpc", "prod"), "type": "tenant", "prefixes": []any{prefix}})
}
