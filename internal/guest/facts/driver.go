package facts

import "golang.org/x/sys/unix"

// binding is what holds with and without an IOMMU.
var binding = []Fact{
	{"attributes", "vendor, device and class are hexadecimal numbers on a line; writing an attribute that cannot be written is EACCES, for root too.", func(t *trial) {
		t.reads(t.at(Disk, "vendor"), "0x1b36")
		t.reads(t.at(Disk, "device"), "0x0010")
		t.reads(t.at(Disk, "class"), "0x010802")
		t.refused(t.at(Disk, "vendor"), "0x8086", unix.EACCES)
	}},
	{"driver-link", "A bound device links to its driver, and the driver's directory links back to the device under its address.", func(t *trial) {
		t.driven(Disk, "nvme")
		if back := t.link(drivers + "nvme/" + t.Address(Disk)); back != t.Address(Disk) {
			t.Errorf("the driver's link leads to %q", back)
		}
	}},
	{"override-unset", "driver_override of a device without an override reads (null).", func(t *trial) {
		t.reads(t.at(Disk, "driver_override"), "(null)")
	}},
	{"override-kept", "driver_override reads back what was written, whether or not such a driver exists; writing an empty line clears it.", func(t *trial) {
		t.borrow(Disk)
		for _, o := range []string{"vfio-pci", "no-such-driver"} {
			t.write(t.at(Disk, "driver_override"), o)
			t.reads(t.at(Disk, "driver_override"), o)
		}
		t.write(t.at(Disk, "driver_override"), "\n")
		t.reads(t.at(Disk, "driver_override"), "(null)")
	}},
	{"override-waits", "Setting driver_override does not rebind a bound device, and neither does probing it.", func(t *trial) {
		t.borrow(Disk)
		t.write(t.at(Disk, "driver_override"), "vfio-pci")
		t.write(probe, t.Address(Disk))
		t.driven(Disk, "nvme")
	}},
	{"unbind", "An unbound device stays without a driver until it is probed; without an override it then binds to the driver for its ids.", func(t *trial) {
		t.borrow(Disk)
		t.write(drivers+"nvme/unbind", t.Address(Disk))
		t.driven(Disk, "")
		t.absent(t.at(Disk, "driver/unbind"))
		t.write(probe, t.Address(Disk))
		t.driven(Disk, "nvme")
	}},
	{"unbind-used", "Unbinding a device succeeds while a program has its disk open.", func(t *trial) {
		t.borrow(Disk)
		_, end := t.Use(Disk)
		defer end()
		t.write(drivers+"nvme/unbind", t.Address(Disk))
		t.driven(Disk, "")
	}},
	{"unbind-foreign", "Unbinding a device from a driver that it is not bound to is ENODEV, and so is an unknown address.", func(t *trial) {
		t.refused(drivers+"vfio-pci/unbind", t.Address(Disk), unix.ENODEV)
		t.refused(drivers+"nvme/unbind", "0000:ff:1f.7", unix.ENODEV)
	}},
	{"bind", "Binding a device by name needs no override if the driver matches its ids. A driver that does not match is ENODEV, an unknown address too, and a device that is bound already EBUSY.", func(t *trial) {
		t.borrow(Disk)
		t.refused(drivers+"nvme/bind", t.Address(Disk), unix.EBUSY)
		t.write(drivers+"nvme/unbind", t.Address(Disk))
		t.refused(drivers+"vfio-pci/bind", t.Address(Disk), unix.ENODEV)
		t.refused(drivers+"nvme/bind", "0000:ff:1f.7", unix.ENODEV)
		t.write(drivers+"nvme/bind", t.Address(Disk))
		t.driven(Disk, "nvme")
	}},
	{"probe-unknown", "Probing an unknown address is ENODEV.", func(t *trial) {
		t.refused(probe, "0000:ff:1f.7", unix.ENODEV)
		t.refused(probe, "nonsense", unix.ENODEV)
	}},
	{"probe-unsatisfiable", "Probing succeeds when no driver matches the override, and leaves the device without a driver.", func(t *trial) {
		t.borrow(Disk)
		t.rebind(Disk, "no-such-driver")
		t.driven(Disk, "")
	}},
	{"remove", "Removing a device deletes its directory; a rescan brings it back, bound to its driver and without its override.", func(t *trial) {
		here := t.at(Disk)
		t.write(t.at(Disk, "driver_override"), "nvme")
		t.write(t.at(Disk, "remove"), "1")
		t.absent(here + "/vendor")
		if t.has(devices, t.Address(Disk)) {
			t.Error("it is still there")
		}
		t.refused(probe, t.Address(Disk), unix.ENODEV)
		t.write("bus/pci/rescan", "1")
		t.reads(t.at(Disk, "driver_override"), "(null)")
		t.driven(Disk, "nvme")
	}},
	{"not-sriov", "A device without SR-IOV has no sriov_numvfs and no sriov_totalvfs.", func(t *trial) {
		t.absent(t.at(Disk, "sriov_numvfs"))
		t.absent(t.at(Disk, "sriov_totalvfs"))
	}},
}
