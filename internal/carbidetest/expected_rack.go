package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var expectedRacks = Kind{
	Noun: "expected_rack", Newer: true,
	Cases: []providertest.Case{
		{
			Name:    "rack-01",
			Want:    schema.Object{"profile": "NVL72", "description": "by the door", "labels": labels("row", "7", "empty", "")},
			Update:  schema.Object{"profile": "NVL36", "labels": labels("row", "8")},
			Invalid: schema.Object{"profile": "unheard of"},
		},
	},
	Populations: []Population{
		{Once: 1, Why: "the service tells all at once, and has no ids to ask for", Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) {
				_, err := b.AddExpectedRack(b.Context(), &forge.ExpectedRack{
					RackId: &forge.RackId{Id: name}, RackProfileId: &forge.RackProfileId{Id: "NVL72"}, Metadata: described("expected_rack", name),
				})
				return name, err
			})
		}},
	},
	Scenes: []Scene{
		{One: `{profile: "NVL72", labels: n: "1"}`, Two: `{profile: "NVL72", labels: n: "2"}`},
	},
	Database: []Words{
		{"create", `value too long for type character varying(128)`, providers.Invalid},
	},
	Whole: `
expected_rack: "rack-01": {_meta, profile: "NVL72"}
`,
}
