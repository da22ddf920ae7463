package libvirt

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
)

// describeDomain makes a definition as a spec wants it, and leaves the rest of it as it is.
func describeDomain(d *libvirtxml.Domain, s *spec.Domain, known images) error {
	was := describedDomain(d, known)
	d.Title, d.Description, d.Type = or(s.Title, ""), or(s.Description, ""), or(s.Type, "kvm")
	if err := describeMemory(d, was, s); err != nil {
		return err
	}
	if d.VCPU == nil {
		d.VCPU = &libvirtxml.DomainVCPU{}
	}
	switch n := uint(s.Vcpus); {
	case currentCPUs(d) == n:
	case d.VCPU.Current != 0 && n < d.VCPU.Value: // the others stay unplugged
		d.VCPU.Current, d.VCPUs = n, nil
	default:
		d.VCPU.Value, d.VCPU.Current, d.VCPUs = n, 0, nil
	}
	if set := setOf(s.CPUs); set != setOf(was.CPUs) {
		d.VCPU.CPUSet = set
	}
	if mode := or(s.CPUMode, ""); mode != or(was.CPUMode, "") {
		if d.CPU == nil {
			d.CPU = &libvirtxml.DomainCPU{}
		}
		// The rest is what libvirt fills in for the mode.
		d.CPU.Mode, d.CPU.Match, d.CPU.Check, d.CPU.Migratable, d.CPU.Model, d.CPU.Vendor = mode, "", "", "", nil, ""
		if mode == "" && d.CPU.Topology == nil && d.CPU.Numa == nil && len(d.CPU.Features) == 0 && d.CPU.Cache == nil && d.CPU.MaxPhysAddr == nil {
			d.CPU = nil
		}
	}
	if err := describeDisks(d, s, known); err != nil {
		return err
	}
	if err := describeInterfaces(d, s.Interfaces); err != nil {
		return err
	}
	describeHostdevs(d, s.Hostdevs)
	if boots(s) && bootsByItself(d) {
		d.OS.BootDevices = nil
	}
	return nil
}

// bootsByItself reports whether a definition has what libvirt adds where no device has a boot order. It takes only one of the two.
func bootsByItself(d *libvirtxml.Domain) bool {
	return len(d.OS.BootDevices) == 1 && d.OS.BootDevices[0].Dev == "hd"
}

// boots reports whether any device of a spec has a boot order.
func boots(s *spec.Domain) bool {
	return slices.ContainsFunc(s.Disks, func(d spec.Disk) bool { return d.BootOrder > 0 }) ||
		slices.ContainsFunc(s.Cdroms, func(d spec.CDROM) bool { return d.BootOrder > 0 }) ||
		slices.ContainsFunc(s.Interfaces, func(d spec.DomainInterface) bool { return d.BootOrder > 0 }) ||
		slices.ContainsFunc(s.Hostdevs, func(d spec.Hostdev) bool { return d.BootOrder > 0 })
}

func describeMemory(d *libvirtxml.Domain, was, s *spec.Domain) error {
	if s.Memory != was.Memory {
		if s.Memory <= 0 || s.Memory%mebi != 0 {
			return refuse(providers.Invalid, "memory is a multiple of %d bytes, and %d is not", mebi, s.Memory)
		}
		d.Memory = &libvirtxml.DomainMemory{Value: uint(s.Memory >> 10), Unit: "KiB"}
		d.CurrentMemory = nil // all of it
	}
	if set := setOf(s.NUMANodes); set != setOf(was.NUMANodes) {
		if d.NUMATune == nil {
			d.NUMATune = &libvirtxml.DomainNUMATune{}
		}
		d.NUMATune.Memory = nil
		if set != "" {
			d.NUMATune.Memory = &libvirtxml.DomainNUMATuneMemory{Mode: "strict", Nodeset: set}
		} else if d.NUMATune.MemNodes == nil {
			d.NUMATune = nil
		}
	}
	pools := slices.Sorted(slices.Values(s.Hugepages))
	if slices.Equal(pools, slices.Sorted(slices.Values(was.Hugepages))) {
		return nil
	}
	if d.MemoryBacking == nil {
		d.MemoryBacking = &libvirtxml.DomainMemoryBacking{}
	}
	d.MemoryBacking.MemoryHugePages = nil
	if len(pools) == 0 {
		if *d.MemoryBacking == (libvirtxml.DomainMemoryBacking{}) {
			d.MemoryBacking = nil
		}
		return nil
	}
	_, size, _ := strings.Cut(pools[0], "-")
	kibi, err := strconv.ParseUint(strings.TrimSuffix(size, "kB"), 10, 32)
	if err != nil {
		return refuse(providers.Invalid, "%s is no pool of huge pages", pools[0])
	}
	d.MemoryBacking.MemoryHugePages = &libvirtxml.DomainMemoryHugepages{Hugepages: []libvirtxml.DomainMemoryHugepage{{Size: uint(kibi), Unit: "KiB"}}}
	if made := pagesOf(d, nodesOf(d)); !slices.Equal(pools, slices.Sorted(slices.Values(made))) {
		return refuse(providers.Invalid, "hugepages must be one pool of one page size on each node of numa_nodes: with %s that is %s", pools[0], strings.Join(made, ", "))
	}
	return nil
}

// inPlace returns the devices that a definition gets, in the order that it has: those of have that no spec describes, which have no
// key, the wanted ones in the places that they have, and then the new ones.
func inPlace[D any](have, want []D, key func(*D) string) []D {
	var all []D
	placed := map[string]bool{}
	for i := range have {
		k := key(&have[i])
		if k == "" {
			all = append(all, have[i])
		} else if at := slices.IndexFunc(want, func(d D) bool { return key(&d) == k }); at >= 0 && !placed[k] {
			all, placed[k] = append(all, want[at]), true
		}
	}
	for i := range want {
		if !placed[key(&want[i])] {
			all = append(all, want[i])
		}
	}
	return all
}

// describedDisk returns the target of a disk or a CD-ROM drive; empty for a device of another sort.
func describedDisk(d *libvirtxml.DomainDisk) string {
	if d.Target == nil || !slices.Contains([]string{"disk", "cdrom", ""}, d.Device) {
		return ""
	}
	return d.Target.Dev
}

// describeDisks keeps the devices that are neither disks nor CD-ROM drives.
func describeDisks(d *libvirtxml.Domain, s *spec.Domain, known images) error {
	have := map[string]libvirtxml.DomainDisk{} // by target
	for _, disk := range d.Devices.Disks {
		if target := describedDisk(&disk); target != "" {
			have[target] = disk
		}
	}
	var disks []libvirtxml.DomainDisk
	add := func(target, device, volume string, bus *string, order int64, readOnly bool) error {
		disk, ok := have[target]
		if ok && cmp.Or(disk.Device, "disk") != device {
			disk, ok = libvirtxml.DomainDisk{}, false
		}
		if !ok {
			disk = libvirtxml.DomainDisk{Device: device, Target: &libvirtxml.DomainDiskTarget{Dev: target}}
		}
		if !ok || volumeOf(disk.Source, known) != volume {
			if err := insert(&disk, volume, known); err != nil {
				return err
			}
		}
		if bus != nil && *bus != disk.Target.Bus { // the address is one on the previous bus
			t := *disk.Target
			t.Bus = *bus
			disk.Target, disk.Address = &t, nil
		}
		disk.Boot = ordered(disk.Boot, order)
		if readOnly != (disk.ReadOnly != nil) {
			disk.ReadOnly = nil
			if readOnly {
				disk.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
			}
		}
		disks = append(disks, disk)
		return nil
	}
	for _, w := range s.Disks {
		if w.Volume == "" && volumeOf(have[w.Target].Source, known) != "" {
			return refuse(providers.Invalid, "disk %s needs a volume", w.Target)
		}
		if err := add(w.Target, "disk", w.Volume, w.Bus, w.BootOrder, w.ReadOnly); err != nil {
			return err
		}
	}
	for _, w := range s.Cdroms {
		if err := add(w.Target, "cdrom", mediumOf(&w), w.Bus, w.BootOrder, true); err != nil {
			return err
		}
	}
	d.Devices.Disks = inPlace(d.Devices.Disks, disks, describedDisk)
	return nil
}

// insert gives a disk a volume; an empty one takes it away.
func insert(disk *libvirtxml.DomainDisk, volume string, known images) error {
	disk.Source, disk.BackingStore = nil, nil
	if volume == "" {
		return nil
	}
	pool, name, ok := strings.Cut(volume, "/")
	if !ok || pool == "" {
		return refuse(providers.Invalid, "disk %s: %s is no volume", disk.Target.Dev, volume)
	}
	driver := libvirtxml.DomainDiskDriver{Name: "qemu"}
	if disk.Driver != nil {
		driver = *disk.Driver
	}
	driver.Type = known.formats[volume]
	disk.Driver = &driver
	disk.Source = &libvirtxml.DomainDiskSource{Volume: &libvirtxml.DomainDiskSourceVolume{Pool: pool, Volume: name}}
	return nil
}

func ordered(have *libvirtxml.DomainDeviceBoot, order int64) *libvirtxml.DomainDeviceBoot {
	switch {
	case order == 0:
		return nil
	case have != nil && have.Order == uint(order):
		return have
	}
	return &libvirtxml.DomainDeviceBoot{Order: uint(order)}
}

func describeInterfaces(d *libvirtxml.Domain, want []spec.DomainInterface) error {
	have := map[string]libvirtxml.DomainInterface{} // by MAC address
	for _, i := range d.Devices.Interfaces {
		have[macOf(&i)] = i
	}
	var all []libvirtxml.DomainInterface
	for _, w := range want {
		i, ok := have[w.MAC]
		if !ok {
			i = libvirtxml.DomainInterface{MAC: &libvirtxml.DomainInterfaceMAC{Address: w.MAC}}
		}
		was := describedInterface(&i)
		if !ok || !attachedAlike(was, w) {
			if err := attach(&i, w); err != nil {
				return err
			}
		}
		if model := or(w.Model, or(was.Model, "virtio")); model != or(was.Model, "") {
			i.Model = &libvirtxml.DomainInterfaceModel{Type: model}
		}
		if target := or(w.Target, ""); target != or(was.Target, "") {
			i.Target = nil
			if chosen.MatchString(target) {
				return refuse(providers.Invalid, "interface %s cannot have the name %s: libvirt does not store names that begin with vnet", w.MAC, target)
			}
			if target != "" {
				i.Target = &libvirtxml.DomainInterfaceTarget{Dev: target}
			}
		}
		i.Boot = ordered(i.Boot, w.BootOrder)
		all = append(all, i)
	}
	d.Devices.Interfaces = inPlace(d.Devices.Interfaces, all, macOf)
	return nil
}

// macOf returns the MAC address of an interface, by which a spec describes it.
func macOf(i *libvirtxml.DomainInterface) string { return describedInterface(i).MAC }

// attachedAlike reports whether two interfaces are attached to the same in the same way.
func attachedAlike(a, b spec.DomainInterface) bool {
	return a.Network == b.Network && a.PortGroup == b.PortGroup && a.Bridge == b.Bridge && a.OVSBridge == b.OVSBridge && a.VLAN == b.VLAN
}

// attach attaches an interface as a spec wants it. Where it stays at the same kind of bridge, it keeps its id there.
func attach(i *libvirtxml.DomainInterface, w spec.DomainInterface) error {
	named := 0
	for _, name := range []string{w.Network, w.Bridge, w.OVSBridge} {
		if name != "" {
			named++
		}
	}
	was := describedInterface(i)
	switch {
	case named != 1:
		return refuse(providers.Invalid, "interface %s needs one of network, bridge and ovs_bridge", w.MAC)
	case w.PortGroup != "" && w.Network == "":
		return refuse(providers.Invalid, "interface %s: a port_group is one of a network", w.MAC)
	case w.VLAN != 0 && w.Bridge != "":
		return refuse(providers.Invalid, "interface %s: a bridge of the kernel does not give an interface a vlan", w.MAC)
	}
	source := libvirtxml.DomainInterfaceSource{}
	if w.Network != "" {
		source.Network = &libvirtxml.DomainInterfaceSourceNetwork{Network: w.Network, PortGroup: w.PortGroup}
	} else {
		source.Bridge = &libvirtxml.DomainInterfaceSourceBridge{Bridge: cmp.Or(w.Bridge, w.OVSBridge)}
	}
	i.Source = &source
	if sort := func(s spec.DomainInterface) [2]bool { return [2]bool{s.Network != "", s.OVSBridge != ""} }; sort(was) != sort(w) {
		i.VirtualPort = nil
		if w.OVSBridge != "" {
			i.VirtualPort = &libvirtxml.DomainInterfaceVirtualPort{Params: &libvirtxml.DomainInterfaceVirtualPortParams{
				OpenVSwitch: &libvirtxml.DomainInterfaceVirtualPortParamsOpenVSwitch{},
			}}
		}
	}
	if was.VLAN != w.VLAN {
		i.VLan = nil
		if w.VLAN != 0 {
			i.VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(w.VLAN)}}}
		}
	}
	return nil
}

func describeHostdevs(d *libvirtxml.Domain, want []spec.Hostdev) {
	have := map[string]libvirtxml.DomainHostdev{} // by address
	for _, h := range d.Devices.Hostdevs {
		have[functionOf(&h)] = h
	}
	var all []libvirtxml.DomainHostdev
	for _, w := range want {
		h, ok := have[w.Address]
		if !ok {
			h = libvirtxml.DomainHostdev{Managed: "no", SubsysPCI: &libvirtxml.DomainHostdevSubsysPCI{
				Source: &libvirtxml.DomainHostdevSubsysPCISource{Address: addressOfFunction(w.Address)},
			}}
		}
		h.Boot = ordered(h.Boot, w.BootOrder)
		all = append(all, h)
	}
	d.Devices.Hostdevs = inPlace(d.Devices.Hostdevs, all, functionOf)
}

// addressOfFunction reads an address such as 0000:3b:00.0.
func addressOfFunction(address string) *libvirtxml.DomainAddressPCI {
	var domain, bus, slot, function uint
	_, _ = fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function) // the schema has checked it
	return &libvirtxml.DomainAddressPCI{Domain: &domain, Bus: &bus, Slot: &slot, Function: &function}
}
