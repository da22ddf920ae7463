package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/schema"
)

var tenants = Kind{
	Noun: "tenant", Varies: true,
	Cases: []providertest.Case{
		{
			Name:    "acme",
			Want:    schema.Object{"display_name": "Acme", "routing_profile": "internal"},
			Update:  schema.Object{"display_name": "Acme Inc.", "routing_profile": "external"},
			Invalid: schema.Object{"display_name": "x"},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) { return name, b.tenant(name) })
		}},
	},
	Scenes: []Scene{
		{One: `{display_name: "First"}`, Two: `{display_name: "Second"}`},
	},
	Whole: `
tenant: acme: {display_name: "Acme", routing_profile: "internal"}
`,
}

// acme is the tenant of everything that has one.
var acme = made("tenant", "acme", schema.Object{"display_name": "Acme"})
