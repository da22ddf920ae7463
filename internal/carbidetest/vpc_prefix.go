package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var vpcPrefixes = Kind{
	Noun: "vpc_prefix", Varies: true,
	Cases: []providertest.Case{
		{
			Name: "ten", Needs: []providertest.Made{prod},
			Want:    schema.Object{"vpc": ID("vpc", "prod"), "prefix": "10.0.0.0/16", "description": "links", "labels": labels("use", "links")},
			Update:  schema.Object{"vpc": ID("vpc", "prod"), "prefix": "10.0.0.0/16", "labels": labels("use", "more")},
			Invalid: schema.Object{"vpc": ID("vpc", "prod"), "prefix": "10.0.0.1/16"},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"vpc": ID("vpc", "prod"), "prefix": fmt.Sprintf("10.%d.0.0/16", i+1)}}
			},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			vpc, err := b.vpc("prod", "")
			b.must(err)
			return b.each(n, func(name string, i int) (string, error) {
				id := ID("vpc_prefix", name)
				_, err := b.CreateVpcPrefix(b.Context(), &forge.VpcPrefixCreationRequest{
					Id: &forge.VpcPrefixId{Value: id}, VpcId: &forge.VpcId{Value: vpc}, Metadata: described("vpc_prefix", name),
					Config: &forge.VpcPrefixConfig{Prefix: network(i)},
				})
				return id, err
			})
		}},
	},
	Scenes: []Scene{
		{
			Needs: `vpc: net: tenant: "acme"`,
			One:   `{vpc: "net", prefix: "10.1.0.0/16", labels: n: "1"}`,
			Two:   `{vpc: "net", prefix: "10.1.0.0/16", labels: n: "2"}`,
		},
	},
	Database: []Words{
		{"delete", `update or delete on table "network_vpc_prefixes" violates foreign key constraint "vpc_prefix_fkey"`, providers.Busy},
	},
	Whole: `
vpc_prefix: links: {_meta, vpc: "prod", prefix: "10.1.0.0/16"}
`,
}
