package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

var instanceTypes = Kind{
	Noun: "instance_type", Varies: true,
	Cases: []providertest.Case{
		{
			Name: "big",
			Want: schema.Object{"description": "eight GPUs", "capabilities": []any{
				map[string]any{"type": "gpu", "vendor": "NVIDIA", "count": int64(8)},
				map[string]any{"type": "infiniband", "inactive_devices": []any{int64(1), int64(2)}},
			}},
			Update: schema.Object{"labels": labels("size", "l"), "capabilities": []any{
				map[string]any{"type": "gpu", "vendor": "NVIDIA", "count": int64(8)},
				map[string]any{"type": "cpu", "cores": int64(56), "threads": int64(112), "name": "Xeon"},
				map[string]any{"type": "dpu", "hardware_revision": "B1"},
				map[string]any{"type": "network", "device_type": "dpu"},
				map[string]any{"type": "storage", "capacity": "3.84 TB", "frequency": "none"},
			}},
			Invalid: schema.Object{"capabilities": []any{map[string]any{"name": "nothing"}}},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) { return b.instanceType(name) })
		}},
	},
	Scenes: []Scene{
		{One: `{labels: n: "1"}`, Two: `{labels: n: "2"}`},
	},
	Database: []Words{
		{"create", `value too long for type character varying(64)`, providers.Invalid},
	},
	Whole: `
instance_type: big: {_meta, capabilities: [{type: "gpu", vendor: "NVIDIA", count: 8}]}
`,
}
