package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var computeAllocations = Kind{
	Noun: "compute_allocation",
	Cases: []providertest.Case{
		{
			Name: "acme-big", Needs: []providertest.Made{acme, made("instance_type", "any", schema.Object{})},
			Want:    schema.Object{"tenant": "acme", "instance_type": ID("instance_type", "any"), "count": int64(0), "description": "for training", "labels": labels("cost", "42")},
			Update:  schema.Object{"tenant": "acme", "instance_type": ID("instance_type", "any"), "count": int64(0), "labels": labels("cost", "43")},
			Invalid: schema.Object{"tenant": "acme", "instance_type": ID("instance_type", "any"), "count": int64(100_001)},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			b.must(b.tenant("acme"))
			types := b.each((n+99)/100, func(name string, _ int) (string, error) { return b.instanceType(name) })
			return b.each(n, func(name string, i int) (string, error) {
				id := ID("compute_allocation", name)
				_, err := b.CreateComputeAllocation(b.Context(), &forge.CreateComputeAllocationRequest{
					Id: &forge.ComputeAllocationId{Value: id}, Metadata: described("compute_allocation", name), TenantOrganizationId: "acme",
					Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: types[i/100]},
				})
				return id, err
			})
		}},
	},
	Internal: "refused", // the tenant or the type does not exist
	Scenes: []Scene{
		{
			Needs: `instance_type: any: {}`,
			One:   `{tenant: "acme", instance_type: "any", count: 0, labels: n: "1"}`,
			Two:   `{tenant: "acme", instance_type: "any", count: 0, labels: n: "2"}`,
		},
	},
	Whole: `
compute_allocation: one: {_meta, tenant: "acme", instance_type: "big", count: 1, depends_on: ["site/carbide.machine/\(_host)"]}
`,
}
