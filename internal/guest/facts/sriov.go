package facts

import (
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

var sriov = []Fact{
	{"functions", "Writing sriov_numvfs creates that many devices, linked with the physical function both ways; writing 0 removes them.", func(t *trial) {
		t.without()
		t.reads(t.at(SRIOV, "sriov_totalvfs"), strconv.Itoa(Functions))
		t.reads(t.at(SRIOV, "sriov_numvfs"), "0")
		t.write(t.at(SRIOV, "sriov_numvfs"), "2")
		t.reads(t.at(SRIOV, "sriov_numvfs"), "2")
		var made []string
		for i := range 2 {
			f := t.link(t.at(SRIOV, fmt.Sprintf("virtfn%d", i)))
			if pf := t.link(devices + f + "/physfn"); f == "" || pf != t.Address(SRIOV) {
				t.Errorf("virtual function %d is %q, of %q", i, f, pf)
			}
			made = append(made, f)
		}
		t.absent(t.at(SRIOV, "virtfn2/vendor"))
		t.write(t.at(SRIOV, "sriov_numvfs"), "0")
		for _, f := range made {
			t.absent(devices + f + "/vendor")
		}
	}},
	{"functions-other", "Writing the current sriov_numvfs succeeds; changing it from one number to another, neither of them 0, is EBUSY.", func(t *trial) {
		t.without()
		t.write(t.at(SRIOV, "sriov_numvfs"), "0")
		t.write(t.at(SRIOV, "sriov_numvfs"), "2")
		t.write(t.at(SRIOV, "sriov_numvfs"), "2")
		t.refused(t.at(SRIOV, "sriov_numvfs"), "3", unix.EBUSY)
		t.refused(t.at(SRIOV, "sriov_numvfs"), "1", unix.EBUSY)
		t.reads(t.at(SRIOV, "sriov_numvfs"), "2")
	}},
	{"functions-above", "More virtual functions than sriov_totalvfs is ERANGE; what is not a 16-bit number is EINVAL.", func(t *trial) {
		t.without()
		t.refused(t.at(SRIOV, "sriov_numvfs"), strconv.Itoa(Functions+1), unix.ERANGE)
		t.refused(t.at(SRIOV, "sriov_numvfs"), "65536", unix.EINVAL)
		t.refused(t.at(SRIOV, "sriov_numvfs"), "-1", unix.EINVAL)
		t.refused(t.at(SRIOV, "sriov_numvfs"), "two", unix.EINVAL)
		t.reads(t.at(SRIOV, "sriov_numvfs"), "0")
	}},
	{"functions-autoprobe", "New virtual functions are probed unless sriov_drivers_autoprobe is 0. A driver that fails to initialize one may be bound to it for a while first.", func(t *trial) {
		t.without()
		t.reads(t.at(SRIOV, "sriov_drivers_autoprobe"), "1")
		t.write(t.at(SRIOV, "sriov_numvfs"), "1")
		// QEMU's virtual functions answer nothing before their controller gives them queues.
		t.eventually("nvme lets go", func() bool { return t.link(t.at(SRIOV, "virtfn0/driver")) == "" })
	}},
	{"functions-vfio", "A virtual function that was not probed can be bound to vfio-pci. It has a group of its own, and can be removed while it is bound.", func(t *trial) {
		t.without()
		t.write(t.at(SRIOV, "sriov_drivers_autoprobe"), "0")
		t.reads(t.at(SRIOV, "sriov_drivers_autoprobe"), "0")
		t.write(t.at(SRIOV, "sriov_numvfs"), "1")
		t.reads(t.at(SRIOV, "virtfn0/driver_override"), "(null)")
		f := t.link(t.at(SRIOV, "virtfn0"))
		t.write(devices+f+"/driver_override", "vfio-pci")
		if d := t.link(devices + f + "/driver"); d != "" {
			t.Errorf("its driver is %s", d)
		}
		t.write(probe, f)
		if d := t.link(devices + f + "/driver"); d != "vfio-pci" {
			t.Errorf("its driver is %q", d)
		}
		group := t.link(devices + f + "/iommu_group")
		if members := t.list(groups + "/" + group + "/devices"); group == "" || !slices.Equal(members, []string{f}) {
			t.Errorf("group %q has %v", group, members)
		}
		t.write(t.at(SRIOV, "sriov_numvfs"), "0")
		t.absent(devices + f + "/vendor")
	}},
	{"functions-driverless", "Writing sriov_numvfs of a device without a driver is ENOENT.", func(t *trial) {
		t.without()
		t.borrow(SRIOV)
		t.write(drivers+"nvme/unbind", t.Address(SRIOV))
		t.refused(t.at(SRIOV, "sriov_numvfs"), "1", unix.ENOENT)
	}},
	{"functions-orphaned", "Virtual functions outlive the driver of their physical function, and cannot be removed until that has a driver again.", func(t *trial) {
		t.without()
		t.borrow(SRIOV)
		t.write(t.at(SRIOV, "sriov_drivers_autoprobe"), "0")
		t.write(t.at(SRIOV, "sriov_numvfs"), "1")
		t.write(drivers+"nvme/unbind", t.Address(SRIOV))
		t.reads(t.at(SRIOV, "sriov_numvfs"), "1")
		t.refused(t.at(SRIOV, "sriov_numvfs"), "0", unix.ENOENT)
	}},
}

// without leaves no virtual functions when the fact has been tried.
func (t *trial) without() {
	t.Cleanup(func() {
		t.write(t.at(SRIOV, "sriov_numvfs"), "0")
		t.write(t.at(SRIOV, "sriov_drivers_autoprobe"), "1")
	})
}
