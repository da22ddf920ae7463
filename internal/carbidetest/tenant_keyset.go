package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var tenantKeysets = Kind{
	Noun: "tenant_keyset",
	Cases: []providertest.Case{
		{
			Name: "ops", Needs: []providertest.Made{acme},
			Want:   schema.Object{"tenant": "acme", "keys": []any{"ssh-ed25519 AAAAC3Nz me@home", "ssh-rsa AAAAB3Nz"}},
			Update: schema.Object{"tenant": "acme", "keys": []any{"ssh-ed25519 AAAAC3Nz me@home", "ecdsa-sha2-nistp256 AAAAE2Vj you"}},
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) {
				_, err := b.CreateTenantKeyset(b.Context(), &forge.CreateTenantKeysetRequest{
					KeysetIdentifier: &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: name}, Version: "V1-T1",
					KeysetContent: &forge.TenantKeysetContent{PublicKeys: []*forge.TenantPublicKey{{PublicKey: "ssh-ed25519 AAAA " + name}}},
				})
				return "acme/" + name, err
			})
		}},
	},
	Scenes: []Scene{
		{One: `{tenant: "acme", keys: ["ssh-ed25519 AAAA one"]}`, Two: `{tenant: "acme", keys: ["ssh-ed25519 AAAA two"]}`},
	},
	Whole: `
tenant_keyset: ops: {tenant: "acme", keys: ["ssh-ed25519 AAAA me@home"]}
`,
}
