package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var skus = Kind{
	Noun: "sku", Varies: true,
	Cases: []providertest.Case{
		{
			Name: "dgx-h100",
			Want: schema.Object{
				"description": "eight GPUs", "chassis": map[string]any{"vendor": "NVIDIA", "model": "DGX H100", "architecture": "x86_64"},
				"cpus":               []any{map[string]any{"vendor": "Intel", "model": "Xeon Platinum 8480C", "thread_count": int64(112), "count": int64(2)}},
				"gpus":               []any{map[string]any{"vendor": "NVIDIA", "model": "H100", "total_memory": "81559 MiB", "count": int64(8)}},
				"infiniband_devices": []any{map[string]any{"model": "ConnectX-7", "count": int64(8), "inactive_devices": []any{int64(1), int64(3)}}},
				"storage":            []any{map[string]any{"model": "MZQL23T8HCLS-00A07", "count": int64(8)}},
				"memory":             []any{map[string]any{"memory_type": "DDR5", "capacity_mb": int64(65536), "count": int64(32)}},
				"tpm":                map[string]any{"vendor": "IFX", "version": "2.0"},
			},
			Update:  schema.Object{"device_type": "gpu", "chassis": chassis, "gpus": []any{map[string]any{"model": "H100", "count": int64(4)}}},
			Invalid: schema.Object{"chassis": map[string]any{"model": "twin", "architecture": "x86_64"}},
			Needs:   []providertest.Made{made("sku", "twin", schema.Object{"chassis": map[string]any{"model": "twin", "architecture": "x86_64"}})},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{"chassis": map[string]any{"model": fmt.Sprintf("model-%d", i), "architecture": "aarch64"}}}
			},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) {
				_, err := b.CreateSku(b.Context(), &forge.SkuList{Skus: []*forge.Sku{{
					Id: name, SchemaVersion: 4, Components: &forge.SkuComponents{Chassis: &forge.SkuComponentChassis{Model: name, Architecture: "x86_64"}},
				}}})
				return name, err
			})
		}},
	},
	Scenes: []Scene{
		{
			One: `{description: "one", chassis: {model: "m", architecture: "x86_64"}}`,
			Two: `{description: "two", chassis: {model: "m", architecture: "x86_64"}}`,
		},
		{
			As: "parts", Ways: "update",
			One: `{chassis: {model: "m", architecture: "x86_64"}}`,
			Two: `{chassis: {model: "n", architecture: "x86_64"}}`,
		},
	},
	Whole: `
sku: dgx: {
	description: "eight GPUs", device_type: "gpu", chassis: {vendor: "NVIDIA", model: "DGX H100", architecture: "x86_64"}
	cpus: [{vendor: "Intel", model: "Xeon", thread_count: 112, count: 2}]
	gpus: [{vendor: "NVIDIA", model: "H100", total_memory: "81559 MiB", count: 8}]
	infiniband_devices: [{vendor: "Mellanox", model: "ConnectX-7", count: 8, inactive_devices: [1, 3]}]
	storage: [{model: "MZQL23T8HCLS-00A07", count: 8}]
	memory: [{memory_type: "DDR5", capacity_mb: 65536, count: 32}]
	tpm: {vendor: "IFX", version: "2.0"}
}
`,
}

var chassis = map[string]any{"model": "DGX H100", "architecture": "x86_64"}
