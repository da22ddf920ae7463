package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var ibPartitions = Kind{
	Noun: "ib_partition",
	Cases: []providertest.Case{
		{
			Name: "train", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme", "pkey": "0x4a00", "description": "training", "labels": labels("env", "prod", "empty", "")},
			Update:  schema.Object{"tenant": "acme", "pkey": "0x4a00", "labels": labels("env", "test")},
			Invalid: schema.Object{"tenant": "acme", "pkey": "0xfffff"},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"tenant": "acme"}}
			},
		},
		{
			Name: "plain", Needs: []providertest.Made{acme},
			Want:    schema.Object{"tenant": "acme"},
			Update:  schema.Object{"tenant": "acme", "description": "any key"},
			Invalid: schema.Object{"tenant": "acme", "pkey": "0x100"}, // cannot be requested
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, i int) (string, error) {
				id := ID("ib_partition", name)
				_, err := b.CreateIBPartition(b.Context(), &forge.IBPartitionCreationRequest{
					Id: &forge.IBPartitionId{Value: id}, Metadata: described("ib_partition", name),
					Config: &forge.IBPartitionConfig{TenantOrganizationId: fmt.Sprintf("tenant-%d", i/31)}, // no tenant may have more
				})
				return id, err
			})
		}},
	},
	Internal: "refused", // the key is taken
	Scenes: []Scene{
		{One: `{tenant: "acme", labels: n: "1"}`, Two: `{tenant: "acme", labels: n: "2"}`},
	},
	Database: []Words{
		{"create", `duplicate key value violates unique constraint "ib_partitions_pkey"`, providers.Exists},
		{"create", `resource pool pkey: value 5 cannot be requested or is already allocated`, providers.Invalid},
	},
	Whole: `
ib_partition: ranks: {_meta, tenant: "acme", pkey: "0x4a00"}
`,
}
