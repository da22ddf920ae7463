package facts

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// WithIOMMU are the facts about a machine that has an IOMMU, two NUMA nodes, and every device.
var WithIOMMU = slices.Concat(binding, vfio, sriov, numa, hotplug)

// WithoutIOMMU are the facts about a machine that has only Disk, and no IOMMU.
var WithoutIOMMU = slices.Concat(binding, []Fact{
	{"no-groups", "Without an IOMMU there are no groups, and no device links to one.", func(t *trial) {
		if group := t.link(t.at(Disk, "iommu_group")); group != "" {
			t.Errorf("it is in group %s", group)
		}
		if all := t.list(groups); len(all) > 0 {
			t.Errorf("there are groups: %v", all)
		}
	}},
	{"no-vfio", "Without an IOMMU probing under the override vfio-pci succeeds, and leaves the device without a driver; binding it by name is EINVAL.", func(t *trial) {
		t.borrow(Disk)
		t.rebind(Disk, "vfio-pci")
		t.driven(Disk, "")
		t.refused(drivers+"vfio-pci/bind", t.Address(Disk), unix.EINVAL)
	}},
})

var vfio = []Fact{
	{"vfio-bind", "Probing an unbound device under the override vfio-pci has bound it by the time the write returns, and its group has a VFIO device node.", func(t *trial) {
		t.borrow(Disk)
		group := t.link(t.at(Disk, "iommu_group"))
		t.absent("class/vfio/" + group + "/dev")
		t.rebind(Disk, "vfio-pci")
		t.driven(Disk, "vfio-pci")
		t.read("class/vfio/" + group + "/dev")
	}},
	{"vfio-home", "With its override cleared, a device unbound from vfio-pci and probed is back with the driver for its ids, and the VFIO device node of its group is gone.", func(t *trial) {
		t.borrow(Disk)
		group := t.link(t.at(Disk, "iommu_group"))
		t.rebind(Disk, "vfio-pci")
		t.rebind(Disk, "")
		t.driven(Disk, "nvme")
		t.absent("class/vfio/" + group + "/dev")
	}},
	{"vfio-used", "Unbinding a device from vfio-pci blocks until no program has it open, without a timeout.", func(t *trial) {
		t.borrow(Disk)
		t.rebind(Disk, "vfio-pci")
		wanted, end := t.Use(Disk)
		defer end()
		unbound := make(chan error, 1)
		address := t.Address(Disk)
		go func() { unbound <- t.Write(drivers+"vfio-pci/unbind", address) }()
		wanted()
		select {
		case err := <-unbound:
			t.Errorf("it did not wait: %v", err)
		default:
			end()
			if err := <-unbound; err != nil {
				t.Error(err)
			}
		}
		t.driven(Disk, "")
	}},
	{"group", "A device links to its IOMMU group, which lists its members; behind a PCI Express port of its own a device is alone in its group.", func(t *trial) {
		for _, d := range []string{Disk, Far, SRIOV, NIC} {
			group := t.link(t.at(d, "iommu_group"))
			if members := t.list(path.Join(groups, group, "devices")); !slices.Equal(members, []string{t.Address(d)}) {
				t.Errorf("group %q of %s has %v", group, d, members)
			}
		}
	}},
	{"group-shared", "Devices behind a bridge to conventional PCI share one group with each other and the bridge.", func(t *trial) {
		want := []string{t.Address(Shared + ".bridge"), t.Address(Shared + ".0"), t.Address(Shared + ".1")}
		slices.Sort(want)
		for _, d := range []string{Shared + ".bridge", Shared + ".0", Shared + ".1"} {
			group := t.link(t.at(d, "iommu_group"))
			if members := t.list(path.Join(groups, group, "devices")); !slices.Equal(members, want) {
				t.Errorf("group %q of %s has %v, want %v", group, d, members, want)
			}
		}
	}},
	{"group-viable", "One device of a shared group can be bound to vfio-pci, but the group is not viable until all others are too, or have no driver.", func(t *trial) {
		t.borrow(Shared + ".0")
		t.borrow(Shared + ".1")
		group := t.link(t.at(Shared+".0", "iommu_group"))
		viable := func(want bool) {
			t.Helper()
			if have, err := t.Viable(group); err != nil || have != want {
				t.Errorf("the group is viable: %v, %v; want %v", have, err, want)
			}
		}
		t.rebind(Shared+".0", "vfio-pci")
		t.driven(Shared+".0", "vfio-pci")
		t.driven(Shared+".1", "e1000")
		viable(false)
		t.write(drivers+"e1000/unbind", t.Address(Shared+".1"))
		viable(true)
		t.rebind(Shared+".1", "vfio-pci")
		viable(true)
	}},
	{"group-bridge", "vfio-pci does not bind to a bridge: probing succeeds, and leaves the bridge without a driver.", func(t *trial) {
		bridge := Shared + ".bridge"
		t.Cleanup(func() { t.write(t.at(bridge, "driver_override"), "\n") })
		t.driven(bridge, "")
		t.rebind(bridge, "vfio-pci")
		t.driven(bridge, "")
	}},
}

var numa = []Fact{
	{"nodes", "Online nodes are a list of ranges, and each node lists its CPUs.", func(t *trial) {
		t.reads("devices/system/node/online", "0-1")
		t.reads("devices/system/node/node0/cpulist", "0")
		t.reads("devices/system/node/node1/cpulist", "1")
		t.absent("devices/system/node/node2/cpulist")
	}},
	{"near", "A device has the node and the CPUs that it is local to; without a node it has node -1 and all CPUs.", func(t *trial) {
		for _, d := range []struct{ device, node, processors string }{{Disk, "0", "0"}, {Far, "1", "1"}, {NIC, "-1", "0-1"}} {
			t.reads(t.at(d.device, "numa_node"), d.node)
			t.reads(t.at(d.device, "local_cpulist"), d.processors)
		}
	}},
	{"hugepages", "Writing nr_hugepages succeeds even if there is not enough memory; what was allocated reads back, per node and in total.", func(t *trial) {
		const pages = "hugepages/hugepages-2048kB/nr_hugepages"
		all, nodes := "kernel/mm/"+pages, []string{"devices/system/node/node0/" + pages, "devices/system/node/node1/" + pages}
		t.Cleanup(func() {
			t.write(all, "0")
			t.reads(all, "0")
		})
		t.reads(all, "0")
		t.write(nodes[1], "4")
		t.reads(nodes[0], "0")
		t.reads(nodes[1], "4")
		t.reads(all, "4")
		t.write(all, "100000")
		if have := t.read(all); have == "100000" || have == "0" || have == "4" {
			t.Errorf("of 100000 hugepages there are %s", have)
		}
		t.refused(all, "many", unix.EINVAL)
	}},
}

var hotplug = []Fact{
	{"unplug", "A device that is hot-unplugged is gone with its directory, after a uevent remove; plugged in again it is added and bound.", func(t *trial) {
		here := t.at(NIC)
		address := t.Address(NIC)
		next := t.Uevents()
		t.Unplug(NIC)
		t.absent(here + "/vendor")
		t.refused(probe, address, unix.ENODEV)
		await(t, next, "remove", address)
		t.Plug(NIC)
		await(t, next, "add", address)
		await(t, next, "bind", address)
		t.driven(NIC, "e1000e")
	}},
	{"unplug-vfio", "A device bound to vfio-pci that no program has open can be hot-unplugged; plugged in again it has lost its override.", func(t *trial) {
		next := t.Uevents()
		t.Plug(Later)
		address := t.Address(Later)
		await(t, next, "bind", address)
		t.rebind(Later, "vfio-pci")
		t.driven(Later, "vfio-pci")
		t.Unplug(Later)
		await(t, next, "remove", address)
		t.Plug(Later)
		await(t, next, "bind", address)
		t.reads(t.at(Later, "driver_override"), "(null)")
		t.driven(Later, "nvme")
		t.Unplug(Later)
	}},
}

// await waits for a uevent of the device itself, not of what its driver makes of it.
func await(t *trial, next func() string, action, address string) {
	t.Helper()
	for {
		if event := next(); path.Base(event) == address && len(event) > len(action) && event[:len(action)+1] == action+"@" {
			return
		}
	}
}
