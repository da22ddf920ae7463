package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var osImages = Kind{
	Noun: "os_image",
	Cases: []providertest.Case{
		{
			Name: "golden",
			Want: schema.Object{
				"tenant": "acme", "source_url": "https://images.example/golden.qcow2", "digest": "sha256:aa", "description": "the first",
				"auth_type": "bearer", "auth_token": "t0ken", "rootfs_id": "r", "rootfs_label": "root fs", "boot_disk": "/dev/sda",
				"capacity": int64(1 << 35), "bootfs_id": "b", "efifs_id": "e",
			},
			Update: schema.Object{
				"tenant": "acme", "source_url": "https://images.example/golden.qcow2", "digest": "sha256:aa",
				"auth_type": "basic", "auth_token": "another", "rootfs_id": "r", "rootfs_label": "root fs", "capacity": int64(1 << 35),
			},
			Invalid: schema.Object{"tenant": "acme", "source_url": "https://images.example/golden.qcow2", "digest": ""},
		},
	},
	Populations: []Population{
		{Once: 1, Why: "the service tells all at once, and has no ids to ask for", Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) {
				id := ID("os_image", name)
				_, err := b.CreateOsImage(b.Context(), &forge.OsImageAttributes{
					Id: &forge.UUID{Value: id}, Name: &name, TenantOrganizationId: "acme", SourceUrl: "https://images.example/" + name, Digest: "sha256:aa",
				})
				return id, err
			})
		}},
	},
	Scenes: []Scene{
		{
			One: `{tenant: "acme", source_url: "https://images.example/a", digest: "sha256:aa", description: "one"}`,
			Two: `{tenant: "acme", source_url: "https://images.example/a", digest: "sha256:aa", description: "two"}`,
		},
	},
	Database: []Words{
		{"create", `duplicate key value violates unique constraint "os_images_pkey"`, providers.Exists},
		{"update", `value too long for type character varying(64)`, providers.Invalid},
	},
	Whole: `
os_image: golden: {
	tenant: "acme", source_url: "https://images.example/golden", digest: "sha256:aa", description: "the first", auth_type: "bearer", auth_token: _secret
	rootfs_id: "r", rootfs_label: "root fs", boot_disk: "/dev/sda", capacity: 34359738368, bootfs_id: "b", efifs_id: "e"
}
`,
}
