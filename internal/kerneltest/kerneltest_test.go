package kerneltest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"converge.dev/converge/internal/guest/facts"
)

// The fake is held to what the real kernel does, fact by fact. What is left out is nothing that a provider relies on: files that the
// fake does not have, removal and hot plug, and what happens to a function while a program uses it.
func TestFacts(t *testing.T) {
	left := []string{"attributes", "driver-link", "remove", "unbind-used", "vfio-used", "nodes", "near", "unplug", "unplug-vfio", "functions-autoprobe"}
	addresses := map[string]string{
		facts.Disk: "0000:01:00.0", facts.Far: "0000:81:00.0", facts.SRIOV: "0000:02:00.0", facts.NIC: "0000:05:00.0",
		facts.Shared + ".bridge": "0000:03:00.0", facts.Shared + ".0": "0000:04:01.0", facts.Shared + ".1": "0000:04:02.0",
	}
	all := Machine{
		Drivers: []string{"vfio-pci"},
		Functions: []Function{
			{Address: addresses[facts.Disk], Class: "0x010802", Native: "nvme", Group: "1", Node: "0"},
			{Address: addresses[facts.Far], Class: "0x010802", Native: "nvme", Group: "2", Node: "1"},
			{Address: addresses[facts.SRIOV], Class: "0x010802", Native: "nvme", Group: "3", VFs: facts.Functions},
			{Address: addresses[facts.NIC], Native: "e1000e", Group: "4"},
			{Address: addresses[facts.Shared+".bridge"], Class: "0x060400", Group: "5"},
			{Address: addresses[facts.Shared+".0"], Native: "e1000", Group: "5"},
			{Address: addresses[facts.Shared+".1"], Native: "e1000", Group: "5"},
		},
		Pools: map[string]int{"node0-2048kB": 60, "node1-2048kB": 60},
	}
	plain := Machine{Drivers: []string{"vfio-pci"}, Functions: []Function{{Address: addresses[facts.Disk], Class: "0x010802", Native: "nvme"}}}
	for _, m := range []struct {
		name    string
		machine Machine
		table   []facts.Fact
	}{{"with IOMMU", all, facts.WithIOMMU}, {"without IOMMU", plain, facts.WithoutIOMMU}} {
		table := slices.DeleteFunc(slices.Clone(m.table), func(f facts.Fact) bool { return slices.Contains(left, f.Name) })
		if len(table) < 10 {
			t.Fatalf("%s, only %d facts are tried", m.name, len(table))
		}
		t.Run(m.name, func(t *testing.T) {
			facts.Try(t, func(t testing.TB) facts.Host {
				k := New(t, m.machine)
				return facts.Host{
					Kernel:  lines{k},
					Address: func(device string) string { return addresses[device] },
					Viable:  k.viable,
				}
			}, table)
		})
	}
}

// lines is a kernel whose files are read with the ends of their lines.
type lines struct{ *Kernel }

func (l lines) Read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(l.sys, path))
	return string(b), err
}

// viable reports whether VFIO would hand out a group.
func (k *Kernel) viable(group string) (bool, error) {
	members, err := k.ReadDir("kernel/iommu_groups/" + group + "/devices")
	for _, m := range members {
		if driver, bound := k.bound(m); bound && driver != "vfio-pci" {
			return false, err
		}
	}
	return true, err
}
