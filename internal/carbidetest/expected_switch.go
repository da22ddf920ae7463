package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var expectedSwitches = Kind{
	Noun: "expected_switch",
	Cases: []providertest.Case{
		{
			Name: "leaf-01",
			Want: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "switch_serial_number": "SN-0001", "bmc_retain_credentials": true,
				"bmc_ip_address": "10.0.0.9", "rack_id": "rack-01", "nvos_username": "admin", "nvos_password": "nvos", "nvos_mac_addresses": []any{"0a:00:00:00:01:01"},
				"nvos_ip_address": "10.0.1.9", "description": "spine", "labels": labels("row", "7"),
			},
			Update: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "admin", "bmc_password": "other", "switch_serial_number": "SN-0002", "bmc_retain_credentials": false,
				"nvos_mac_addresses": []any{"0a:00:00:00:01:01", "0a:00:00:00:01:02"}, "labels": labels("row", "8"),
			},
			Invalid: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "switch_serial_number": "SN-0001", "nvos_ip_address": "10.0.1.9",
			},
			Other: otherHardware("switch_serial_number"),
		},
	},
	Older: olderHardware("switch_serial_number"),
	Populations: []Population{
		{Once: 2, Why: "as for expected machines", Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, i int) (string, error) {
				id := ID("expected_switch", name)
				_, err := b.AddExpectedSwitch(b.Context(), &forge.ExpectedSwitch{
					ExpectedSwitchId: &forge.UUID{Value: id}, BmcMacAddress: mac(i), BmcUsername: "root", BmcPassword: "calvin", SwitchSerialNumber: name,
					Metadata: described("expected_switch", name),
				})
				return id, err
			})
		}},
	},
	Internal: "refused", // the MAC address is taken
	Scenes: []Scene{
		{
			One: `{bmc_username: "root", bmc_password: _secret, bmc_mac_address: "0a:00:00:00:00:01", switch_serial_number: "SN-1", labels: n: "1"}`,
			Two: `{bmc_username: "root", bmc_password: _secret, bmc_mac_address: "0a:00:00:00:00:01", switch_serial_number: "SN-1", labels: n: "2"}`,
		},
	},
	Whole: `
expected_switch: "leaf-01": {
	_meta, bmc_username: "root", bmc_password: _secret, bmc_retain_credentials: true, rack_id: "rack-01"
	bmc_mac_address: "0a:00:00:00:00:02", bmc_ip_address: "10.9.0.2", switch_serial_number: "SN-0002", nvos_username: "admin", nvos_password: _secret
	nvos_mac_addresses: ["0a:00:00:00:01:02"], nvos_ip_address: "10.0.1.10"
}
`,
}
