package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var spxPartitions = Kind{
	Noun:  "spx_partition",
	Newer: true,
	Cases: []providertest.Case{
		{
			Name: "east", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme", "description": "one room", "vni": int64(70001)},
			Invalid: schema.Object{"tenant": "acme", "vni": int64(7)},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"tenant": "acme"}}
			},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) {
				id := ID("spx_partition", name)
				_, err := b.CreateSpxPartition(b.Context(), &forge.SpxPartitionCreationRequest{
					Id: &forge.SpxPartitionId{Value: id}, TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: name},
				})
				return id, err
			})
		}},
	},
	Scenes: []Scene{
		{One: `{tenant: "acme"}`},
	},
	Database: []Words{
		{"create", `duplicate key value violates unique constraint "spx_partitions_pkey"`, providers.Exists},
	},
	Whole: `
spx_partition: east: {tenant: "acme", description: "one room", vni: 70001}
`,
}
