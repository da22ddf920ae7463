package carbidetest

import (
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var expectedPowerShelves = Kind{
	Noun: "expected_power_shelf",
	Cases: []providertest.Case{
		{
			Name: "power-01",
			Want: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "shelf_serial_number": "SN-0001", "bmc_retain_credentials": true,
				"bmc_ip_address": "10.0.0.9", "rack_id": "rack-01", "description": "top", "labels": labels("row", "7"),
			},
			Update: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "admin", "bmc_password": "other", "shelf_serial_number": "SN-0002", "bmc_retain_credentials": false,
				"labels": labels("row", "8"),
			},
			Invalid: schema.Object{"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "a user of more than sixteen", "bmc_password": "calvin", "shelf_serial_number": "SN-0001"},
			Other:   otherHardware("shelf_serial_number"),
		},
	},
	Older: olderHardware("shelf_serial_number"),
	Populations: []Population{
		{Once: 2, Why: "as for expected machines", Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, i int) (string, error) {
				id := ID("expected_power_shelf", name)
				_, err := b.AddExpectedPowerShelf(b.Context(), &forge.ExpectedPowerShelf{
					ExpectedPowerShelfId: &forge.UUID{Value: id}, BmcMacAddress: mac(i), BmcUsername: "root", BmcPassword: "calvin", ShelfSerialNumber: name,
					Metadata: described("expected_power_shelf", name),
				})
				return id, err
			})
		}},
	},
	Internal: "refused", // the MAC address is taken
	Scenes: []Scene{
		{
			One: `{bmc_username: "root", bmc_password: _secret, bmc_mac_address: "0a:00:00:00:00:01", shelf_serial_number: "SN-1", labels: n: "1"}`,
			Two: `{bmc_username: "root", bmc_password: _secret, bmc_mac_address: "0a:00:00:00:00:01", shelf_serial_number: "SN-1", labels: n: "2"}`,
		},
	},
	Whole: `
expected_power_shelf: "power-01": {
	_meta, bmc_username: "root", bmc_password: _secret, bmc_retain_credentials: true, rack_id: "rack-01"
	bmc_mac_address: "0a:00:00:00:00:03", bmc_ip_address: "10.9.0.3", shelf_serial_number: "SN-0003"
}
`,
}
