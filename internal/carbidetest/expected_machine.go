package carbidetest

import (
	"fmt"
	"strings"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var expectedMachines = Kind{
	Noun: "expected_machine", Varies: true,
	Cases: []providertest.Case{
		{
			Name: "gpu-01",
			Want: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", "chassis_serial_number": "SN-0001",
				"bmc_retain_credentials": true, "dpu_mode": "nic_mode", "default_pause_ingestion_and_poweron": true, "is_dpf_enabled": false,
				"disable_lockdown": true, "bmc_ip_address": "10.0.0.9", "sku": "dgx", "rack_id": "rack-01",
				"fallback_dpu_serial_numbers": []any{"MT1", "MT2"}, "description": "top of rack", "labels": labels("row", "7"),
				"host_nics": []any{
					map[string]any{"mac_address": "0a:00:00:00:01:01", "nic_type": "onboard", "primary": true, "fixed_ip": "10.0.1.9", "fixed_mask": "255.255.255.0", "fixed_gateway": "10.0.1.1"},
					map[string]any{"mac_address": "0a:00:00:00:01:02", "primary": false},
				},
			},
			Update: schema.Object{
				"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "admin", "bmc_password": "other", "chassis_serial_number": "SN-0002",
				"bmc_retain_credentials": false, "dpu_mode": "dpu_mode", "default_pause_ingestion_and_poweron": false, "is_dpf_enabled": true,
				"disable_lockdown": false, "labels": labels("row", "8"),
				"host_nics": []any{map[string]any{"mac_address": "0a:00:00:00:01:02", "primary": true}},
			},
			Invalid: schema.Object{"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": strings.Repeat("x", 21), "chassis_serial_number": "SN-0001"},
			Other:   otherHardware("chassis_serial_number"),
		},
	},
	Older: olderHardware("chassis_serial_number"),
	Populations: []Population{
		{Once: 2, Why: "the service tells all at once: what was said in one call, what was found of it in another", Plant: func(b *Bed, n int) []string {
			return b.each(n, func(name string, i int) (string, error) {
				id := ID("expected_machine", name)
				_, err := b.AddExpectedMachine(b.Context(), &forge.ExpectedMachine{
					Id: &forge.UUID{Value: id}, BmcMacAddress: mac(i), BmcUsername: "root", BmcPassword: "calvin", ChassisSerialNumber: name,
					Metadata: described("expected_machine", name),
				})
				return id, err
			})
		}},
	},
	Internal: "refused", // the MAC address is unreadable
	Scenes: []Scene{
		{
			One: `{bmc_username: "root", bmc_password: _secret, bmc_mac_address: "0a:00:00:00:00:01", chassis_serial_number: "SN-1", labels: n: "1"}`,
			Two: `{bmc_username: "root", bmc_password: _secret, bmc_mac_address: "0a:00:00:00:00:01", chassis_serial_number: "SN-1", labels: n: "2"}`,
		},
	},
	Whole: `
expected_machine: "gpu-01": {
	_meta, bmc_username: "root", bmc_password: _secret, bmc_retain_credentials: true, rack_id: "rack-01"
	bmc_mac_address: "0a:00:00:00:00:01", bmc_ip_address: "10.9.0.1", chassis_serial_number: "SN-0001", dpu_mode: "nic_mode"
	default_pause_ingestion_and_poweron: true, is_dpf_enabled: false, disable_lockdown: true, sku: "dgx"
	fallback_dpu_serial_numbers: ["MT1"]
	host_nics: [{mac_address: "0a:00:00:00:01:01", nic_type: "onboard", primary: true, fixed_ip: "10.0.1.9", fixed_mask: "255.255.255.0", fixed_gateway: "10.0.1.1"}]
}
`,
}

// otherHardware describes hardware beside that of a case; serial is the field of its number.
func otherHardware(serial string) func(i int) providertest.Made {
	return func(i int) providertest.Made {
		return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: schema.Object{
			"bmc_mac_address": fmt.Sprintf("0a:00:00:00:02:%02x", i), "bmc_username": "root", "bmc_password": "calvin", serial: fmt.Sprintf("SN-1%03d", i),
		}}
	}
}

// olderHardware returns what a server of the older generation knows of hardware: nothing of what it will find there.
func olderHardware(serial string) []providertest.Case {
	other := otherHardware(serial)
	plain := other(0).Spec
	moved := plain.Clone()
	moved["bmc_ip_address"], moved["rack_id"], moved["bmc_password"] = "2001:db8::9", "rack-01", "other"
	return []providertest.Case{{
		Name: "plain", Want: plain, Update: moved,
		Other: func(i int) providertest.Made { return other(i + 1) },
	}}
}
