package carbidetest

import (
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var operatingSystems = Kind{
	Noun:  "operating_system",
	Newer: true,
	Cases: []providertest.Case{
		{
			Name: "rescue",
			Want: schema.Object{
				"tenant": "acme", "type": "ipxe", "script": "#!ipxe\nshell", "description": "for repairs", "user_data": "#cloud-config",
				"active": true, "allow_override": true, "phone_home_enabled": false,
			},
			Update: schema.Object{
				"tenant": "acme", "type": "ipxe", "script": "#!ipxe\nexit", "active": false, "allow_override": false, "phone_home_enabled": true,
			},
			Invalid: schema.Object{"tenant": "acme", "type": "ipxe"},
		},
		{
			Name: "ubuntu",
			Want: Template("kernel_params", "quiet", "splash", "on"),
			Update: func() schema.Object {
				o := Template("kernel_params", "debug")
				o["template"] = "5c7cfa88-6003-5ac0-b4c0-201eb5b28153"
				o["artifacts"] = []any{map[string]any{"name": "kernel", "url": "https://images.example/other", "cache": "local_only"}}
				return o
			}(),
			Invalid: Template("console", "ttyS0"),
		},
	},
	Populations: []Population{
		{Once: 1, Page: 1, Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, _ int) (string, error) {
				id := ID("operating_system", name)
				_, err := b.CreateOperatingSystem(b.Context(), &forge.CreateOperatingSystemRequest{
					Id: &forge.OperatingSystemId{Value: id}, Name: name, TenantOrganizationId: "acme", IpxeScript: proto.String("#!ipxe"),
				})
				return id, err
			})
		}},
	},
	Scenes: []Scene{
		{One: `{tenant: "acme", script: "#!ipxe one"}`, Two: `{tenant: "acme", script: "#!ipxe two"}`},
	},
	Database: []Words{
		{"create", `duplicate key value violates unique constraint "operating_systems_pkey"`, providers.Exists},
	},
	Whole: `
operating_system: {
	rescue: {
		tenant: "acme", type: "ipxe", script: "#!ipxe", description: "for repairs", user_data: "#cloud-config"
		active: false, allow_override: false, phone_home_enabled: true
	}
	ubuntu: {
		tenant: "acme", type: "template", template: "c4b1d4f6-69ba-5f55-90cd-ab2acd002475"
		parameters: [{name: "kernel_params", value: "quiet"}]
		artifacts: [
			{name: "kernel", url: "https://images.example/vmlinuz", sha: "sha256:aa", auth_type: "bearer", auth_token: _secret},
			{name: "initrd", url: "https://images.example/initrd", cache: "remote_only"},
		]
	}
}
`,
}

// Template returns an operating system that boots a kernel and its initrd.
func Template(params ...string) schema.Object {
	o := schema.Object{
		"tenant": "acme", "type": "template", "template": "c4b1d4f6-69ba-5f55-90cd-ab2acd002475",
		"active": true, "allow_override": true, "phone_home_enabled": false,
		"artifacts": []any{
			map[string]any{
				"name": "kernel", "url": "https://images.example/vmlinuz", "sha": "sha256:aa", "auth_type": "bearer", "auth_token": "t0ken",
				"cache": "as_needed",
			},
			map[string]any{"name": "initrd", "url": "https://images.example/initrd", "cache": "remote_only"},
		},
	}
	var list []any
	for i := 0; i < len(params); i += 2 {
		list = append(list, map[string]any{"name": params[i], "value": params[i+1]})
	}
	o["parameters"] = list
	return o
}
