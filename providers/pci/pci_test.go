package pci_test

import (
	"testing"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// machine has what the laws need: functions with drivers of their own, one of them with virtual functions, and one without IOMMU.
var machine = kerneltest.Machine{
	Drivers: []string{"vfio-pci", "pci-stub"},
	Functions: []kerneltest.Function{
		{Address: "0000:01:00.0", Class: "0x010802", Native: "nvme", Group: "1", Node: "0"},
		{Address: "0000:02:00.0", Class: "0x010802", Native: "nvme", Group: "2", VFs: 4},
		{Address: "0000:03:00.0", Native: "e1000e", Group: "3", VFs: 4},
		{Address: "0000:04:00.0", Native: "e1000e", Group: "4"},
		{Address: "0000:05:00.0", Native: "e1000e", Group: "5"},
		{Address: "0000:06:00.0", Native: "e1000e", Group: "6"},
		{Address: "0000:07:00.0", Native: "e1000e", Group: "7"},
		{Address: "0000:08:00.0", Native: "e1000e", Group: "8"},
		{Address: "0000:09:00.0", Native: "e1000e", Group: "9"},
		{Address: "0000:0a:00.0", Native: "e1000e", Group: "10"},
		{Address: "0000:0b:00.0", Native: "e1000e", Group: "11"},
		{Address: "0000:0c:00.0", Native: "e1000e", Group: "12"},
		{Address: "0000:0d:00.0", Native: "e1000e", Group: "13"},
		{Address: "0000:0e:00.0", Native: "e1000e", Group: "14"},
	},
}

// others are functions of the machine that no case is about.
var others = []string{
	"0000:04:00.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0", "0000:09:00.0", "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0", "0000:0d:00.0", "0000:0e:00.0",
}

var cases = []providertest.Case{
	{Kind: "pci.device", Name: "0000:01:00.0", Want: schema.Object{}},
	{
		Kind: "pci.function", Name: "0000:01:00.0",
		Want:    schema.Object{"driver": "vfio-pci"},
		Update:  schema.Object{"driver": "nvme"},
		Invalid: schema.Object{"driver": "no-such-driver"},
		Other: func(i int) providertest.Made {
			if i >= len(others) {
				return providertest.Made{Kind: "pci.function", Name: "0000:99:00.0"}
			}
			return providertest.Made{Kind: "pci.function", Name: others[i], Spec: schema.Object{"driver": "vfio-pci"}}
		},
	},
	{
		Kind: "pci.function", Name: "0000:02:00.2",
		Needs:  []providertest.Made{{Kind: "pci.sriov", Name: "0000:02:00.0", Spec: schema.Object{"num_vfs": int64(3), "drivers_autoprobe": false}}},
		Want:   schema.Object{"driver": "vfio-pci", "physical_function": "0000:02:00.0"},
		Update: schema.Object{"driver": "pci-stub", "physical_function": "0000:02:00.0"},
		Single: true,
	},
	{
		Kind: "pci.sriov", Name: "0000:02:00.0",
		Want:    schema.Object{"num_vfs": int64(2), "drivers_autoprobe": false},
		Update:  schema.Object{"num_vfs": int64(2), "drivers_autoprobe": true},
		Invalid: schema.Object{"num_vfs": int64(5)},
		Single:  true,
	},
	{
		Kind: "pci.sriov", Name: nic, Open: func(t *testing.T) providertest.World { return world(t, cards(nil)) },
		Want: schema.Object{"num_vfs": int64(2), "drivers_autoprobe": false, "vfs": map[string]any{
			"0": map[string]any{"mac": "02:00:00:00:00:01", "vlan": int64(100), "qos": int64(3), "vlan_protocol": "802.1Q", "spoof_check": false, "trust": true, "link_state": "auto", "max_tx_rate": int64(500)},
			"1": map[string]any{"mac": "02:00:00:00:00:02"},
		}},
		Update: schema.Object{"num_vfs": int64(2), "drivers_autoprobe": true, "vfs": map[string]any{
			"0": map[string]any{"mac": "02:00:00:00:00:03", "spoof_check": true, "max_tx_rate": int64(900)},
			"1": map[string]any{"mac": "02:00:00:00:00:02", "vlan": int64(7), "trust": true},
		}},
		Invalid: schema.Object{"num_vfs": int64(2), "vfs": map[string]any{"1": map[string]any{"vlan": int64(100), "link_state": "disable"}}},
		Single:  true,
	},
}

func TestLaws(t *testing.T) {
	schemas, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, providertest.Suite{
		Kinds: schemas.Kinds(),
		Cases: cases,
		Open:  func(t *testing.T) providertest.World { return world(t, machine) },
	})
}

func world(t *testing.T, m kerneltest.Machine) providertest.World {
	k := kerneltest.New(t, m)
	return providertest.World{Provider: pci.New("gpu-01", k.Kernel(), nil), Dump: k.Dump}
}
