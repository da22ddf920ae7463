package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var nvlinkLogicalPartitions = Kind{
	Noun: "nvlink_logical_partition",
	Cases: []providertest.Case{
		{
			Name: "rack", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme", "description": "one rack"},
			Update:  schema.Object{"tenant": "acme"},
			Invalid: schema.Object{"tenant": "a b"},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) {
				id := ID("nvlink_logical_partition", name)
				_, err := b.CreateNVLinkLogicalPartition(b.Context(), &forge.NVLinkLogicalPartitionCreationRequest{
					Id:     &forge.NVLinkLogicalPartitionId{Value: id},
					Config: &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: name}},
				})
				return id, err
			})
		}},
	},
	Scenes: []Scene{
		{One: `{tenant: "acme", description: "one"}`, Two: `{tenant: "acme", description: "two"}`},
	},
	Database: []Words{
		{"create", `duplicate key value violates unique constraint "nvlink_logical_partitions_pkey"`, providers.Exists},
	},
	Whole: `
nvlink_logical_partition: rack: {tenant: "acme", description: "one rack"}
`,
}
