package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var dpuExtensionServices = Kind{
	Noun: "dpu_extension_service",
	Cases: []providertest.Case{
		{
			Name: "collector", Needs: []providertest.Made{acme},
			Want: schema.Object{"tenant": "acme", "manifest": Pod("a"), "description": "collects", "observability": []any{
				map[string]any{"name": "metrics", "prometheus": map[string]any{"endpoint": "localhost:9090", "scrape_interval_seconds": int64(30)}},
				map[string]any{"logging": map[string]any{"path": "/var/log/a"}},
			}},
			Update:  schema.Object{"tenant": "acme", "manifest": Pod("b")},
			Invalid: schema.Object{"tenant": "acme", "manifest": "kind: Job"},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			b.must(b.tenant("acme"))
			return b.each(n, func(name string, _ int) (string, error) {
				id := ID("dpu_extension_service", name)
				_, err := b.CreateDpuExtensionService(b.Context(), &forge.CreateDpuExtensionServiceRequest{
					ServiceId: &id, ServiceName: name, TenantOrganizationId: "acme", Data: Pod("a"),
				})
				return id, err
			})
		}},
	},
	Internal: "refused", // the tenant does not exist
	Scenes: []Scene{
		{
			One: `{tenant: "acme", manifest: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}"}`,
			Two: `{tenant: "acme", manifest: "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: b}]}"}`,
		},
	},
	Database: []Words{
		{"create", `insert or update on table "extension_services" violates foreign key constraint "tenant_fkey"`, providers.Absent},
		{"update", `value too long for type character varying(256)`, providers.Invalid},
	},
	Whole: `
dpu_extension_service: agent: {
	tenant: "acme", description: "collects", manifest: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}"
	registry: _secret, registry_username: _secret, registry_password: _secret
	observability: [{name: "metrics", prometheus: {endpoint: "localhost:9090", scrape_interval_seconds: 30}}, {logging: path: "/var/log/a"}]
}
`,
}

// Pod returns a manifest with one container.
func Pod(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: %s}]}\n", name, name)
}
