package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var vpcPeerings = Kind{
	Noun: "vpc_peering",
	Cases: []providertest.Case{
		{
			Name: "prod-peer", Needs: prodAndPeers(),
			Want:    peers(8),
			Invalid: schema.Object{"vpcs": []any{ID("vpc", "prod"), ID("vpc", "prod")}},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: peers(i % 8)}
			},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Site: func(int) carbidesim.Options {
			return carbidesim.Options{Rules: carbidesim.Rules{Peering: carbidesim.PeeringMixed}}
		}, Plant: func(b *Bed, n int) []string {
			var vpcs []string
			for len(vpcs)*(len(vpcs)-1)/2 < n {
				vpc, err := b.vpc(fmt.Sprintf("vpc-%03d", len(vpcs)), "")
				b.must(err)
				vpcs = append(vpcs, vpc)
			}
			one, two := 0, 0
			return b.each(n, func(name string, _ int) (string, error) {
				if two++; two == len(vpcs) {
					one++
					two = one + 1
				}
				id := ID("vpc_peering", name)
				_, err := b.CreateVpcPeering(b.Context(), &forge.VpcPeeringCreationRequest{
					Id: &forge.VpcPeeringId{Value: id}, VpcId: &forge.VpcId{Value: vpcs[one]}, PeerVpcId: &forge.VpcId{Value: vpcs[two]},
				})
				return id, err
			})
		}},
	},
	Internal: "refused", // one of the VPCs does not exist
	Scenes: []Scene{
		{Needs: `vpc: {aa: tenant: "acme", bb: tenant: "acme"}`, One: `{vpcs: ["aa", "bb"]}`},
	},
	Database: []Words{
		{"create", `VPC Peering feature disabled.`, providers.Denied},
		{"create", `insert or update on table "vpc_peerings" violates foreign key constraint "vpc_peerings_vpc1_id_fkey"`, providers.Absent},
	},
	Whole: `
vpc_peering: both: vpcs: ["prod", "test"]
`,
}

// peers returns prod and another VPC.
func peers(i int) schema.Object {
	return schema.Object{"vpcs": []any{ID("vpc", fmt.Sprintf("peer-%d", i)), ID("vpc", "prod")}}
}

func prodAndPeers() []providertest.Made {
	all := []providertest.Made{prod}
	for i := range 9 {
		all = append(all, made("vpc", fmt.Sprintf("peer-%d", i), prod.Spec))
	}
	return all
}
