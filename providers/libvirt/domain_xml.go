package libvirt

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers/libvirt/spec"
)

// mebi is the unit in which QEMU gives memory to a machine: libvirt rounds up to it.
const mebi = 1 << 20

func parseDomain(xml string) (*libvirtxml.Domain, error) {
	var d libvirtxml.Domain
	if err := d.Unmarshal(xml); err != nil {
		return nil, err
	}
	if d.Devices == nil {
		d.Devices = &libvirtxml.DomainDeviceList{}
	}
	if d.OS == nil {
		d.OS = &libvirtxml.DomainOS{}
	}
	return &d, nil
}

// images are the volumes that disks have: the ids of those that definitions give as paths, and the formats of those that are new.
type images struct{ ids, formats map[string]string }

// describedDomain returns what a spec has of a definition.
func describedDomain(d *libvirtxml.Domain, known images) *spec.Domain {
	firmware := "bios"
	if isEFI(d) {
		firmware = "efi"
	}
	s := &spec.Domain{
		Title: optional(d.Title), Description: optional(d.Description), Type: optional(d.Type), Machine: optional(familyOf(d)), Firmware: &firmware,
		CPUs: []int64{}, Memory: bytesOf(d.Memory), NUMANodes: nodesOf(d),
		Disks: []spec.Disk{}, Cdroms: []spec.CDROM{}, Interfaces: []spec.DomainInterface{}, Hostdevs: []spec.Hostdev{},
	}
	if d.VCPU != nil {
		s.Vcpus, s.CPUs = int64(currentCPUs(d)), numbersOf(d.VCPU.CPUSet)
	}
	if d.CPU != nil && slices.Contains([]string{"host-passthrough", "host-model", "maximum"}, d.CPU.Mode) {
		s.CPUMode = &d.CPU.Mode
	}
	s.Hugepages = pagesOf(d, s.NUMANodes)
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		if disk.Target == nil {
			continue
		}
		volume := volumeOf(disk.Source, known)
		bus := optional(disk.Target.Bus)
		switch disk.Device {
		case "cdrom":
			drive := spec.CDROM{Target: disk.Target.Dev, Volume: volume, Bus: bus, BootOrder: orderOf(disk.Boot)}
			if strings.HasSuffix(volume, seedEnding) {
				drive.Volume, drive.Seed = "", volume
			}
			s.Cdroms = append(s.Cdroms, drive)
		case "disk", "":
			s.Disks = append(s.Disks, spec.Disk{Target: disk.Target.Dev, Volume: volume, Bus: bus, BootOrder: orderOf(disk.Boot), ReadOnly: disk.ReadOnly != nil})
		}
	}
	for i := range d.Devices.Interfaces {
		if in := describedInterface(&d.Devices.Interfaces[i]); in.MAC != "" {
			s.Interfaces = append(s.Interfaces, in)
		}
	}
	for i := range d.Devices.Hostdevs {
		if address := functionOf(&d.Devices.Hostdevs[i]); address != "" {
			s.Hostdevs = append(s.Hostdevs, spec.Hostdev{Address: address, BootOrder: orderOf(d.Devices.Hostdevs[i].Boot)})
		}
	}
	return s
}

func orderOf(b *libvirtxml.DomainDeviceBoot) int64 {
	if b == nil {
		return 0
	}
	return int64(b.Order)
}

// isEFI reports whether the firmware of a machine is UEFI, whoever chose the image.
func isEFI(d *libvirtxml.Domain) bool {
	return d.OS.Firmware == "efi" || d.OS.Loader != nil && d.OS.Loader.Type == "pflash"
}

// familyOf returns the machine type without its version, which libvirt pins when the machine is defined.
func familyOf(d *libvirtxml.Domain) string {
	if d.OS.Type == nil {
		return ""
	}
	machine := d.OS.Type.Machine
	for prefix, family := range map[string]string{"pc-q35-": "q35", "pc-i440fx-": "pc", "virt-": "virt"} {
		if strings.HasPrefix(machine, prefix) {
			return family
		}
	}
	return machine
}

// bytesOf returns an amount of memory in bytes; libvirt's own unit is KiB.
func bytesOf(m *libvirtxml.DomainMemory) int64 {
	if m == nil {
		return 0
	}
	units := map[string]int64{
		"b": 1, "bytes": 1, "KB": 1e3, "": 1 << 10, "k": 1 << 10, "KiB": 1 << 10, "MB": 1e6, "M": mebi, "MiB": mebi,
		"GB": 1e9, "G": 1 << 30, "GiB": 1 << 30, "TB": 1e12, "T": 1 << 40, "TiB": 1 << 40,
	}
	return int64(m.Value) * units[m.Unit]
}

// numbersOf returns the numbers of a set such as "0-3,^2,8", sorted; never nil.
func numbersOf(set string) []int64 {
	in := map[int64]bool{}
	for part := range strings.SplitSeq(set, ",") {
		part, out := strings.CutPrefix(strings.TrimSpace(part), "^")
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseInt(first, 10, 32)
		to := from
		if isRange && err == nil {
			to, err = strconv.ParseInt(last, 10, 32)
		}
		for n := from; err == nil && n <= to && n < 1<<16; n++ {
			in[n] = !out
		}
	}
	maps.DeleteFunc(in, func(_ int64, is bool) bool { return !is })
	return slices.AppendSeq([]int64{}, slices.Values(slices.Sorted(maps.Keys(in))))
}

// setOf returns numbers as libvirt writes a set of them: "0-3,8".
func setOf(numbers []int64) string {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	var parts []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		part := strconv.FormatInt(numbers[i], 10)
		if end > i {
			part += "-" + strconv.FormatInt(numbers[end], 10)
		}
		parts, i = append(parts, part), end+1
	}
	return strings.Join(parts, ",")
}

// nodesOf returns the NUMA nodes that all memory is bound to; never nil.
func nodesOf(d *libvirtxml.Domain) []int64 {
	if d.NUMATune == nil || d.NUMATune.Memory == nil || cmp.Or(d.NUMATune.Memory.Mode, "strict") != "strict" {
		return []int64{}
	}
	return numbersOf(d.NUMATune.Memory.Nodeset)
}

// pagesOf returns the pools of huge pages that memory comes from. Of a machine of others, which may not be bound to nodes, it returns
// what is no name of a pool.
func pagesOf(d *libvirtxml.Domain, nodes []int64) []string {
	pools := []string{}
	if d.MemoryBacking == nil || d.MemoryBacking.MemoryHugePages == nil {
		return pools
	}
	sizes := []string{"default"}
	for i, page := range d.MemoryBacking.MemoryHugePages.Hugepages {
		sizes = append(sizes[:i], fmt.Sprintf("%dkB", bytesOf(&libvirtxml.DomainMemory{Value: page.Size, Unit: page.Unit})>>10))
	}
	for _, size := range sizes {
		for _, node := range nodes {
			pools = append(pools, fmt.Sprintf("node%d-%s", node, size))
		}
		if len(nodes) == 0 {
			pools = append(pools, size)
		}
	}
	return pools
}

// mediumOf returns the id of the volume that is in a drive; empty when there is none.
func mediumOf(d *spec.CDROM) string { return cmp.Or(d.Seed, d.Volume) }

// volumeOf returns the id of the volume that a disk has; of what is none, the path, and empty where there is no path.
func volumeOf(s *libvirtxml.DomainDiskSource, known images) string {
	switch {
	case s == nil:
		return ""
	case s.Volume != nil && s.Volume.Volume != "":
		return s.Volume.Pool + "/" + s.Volume.Volume
	case s.File != nil:
		return cmp.Or(known.ids[s.File.File], s.File.File)
	case s.Block != nil:
		return s.Block.Dev
	}
	return ""
}

// chosen are the names that libvirt gives interfaces which have none; it does not store a name that begins so.
var chosen = regexp.MustCompile(`^vnet`)

func describedInterface(i *libvirtxml.DomainInterface) spec.DomainInterface {
	var s spec.DomainInterface
	if i.MAC != nil {
		s.MAC = strings.ToLower(i.MAC.Address)
	}
	switch {
	case i.Source == nil:
	case i.Source.Network != nil:
		s.Network, s.PortGroup = i.Source.Network.Network, i.Source.Network.PortGroup
	case i.Source.Bridge != nil && i.VirtualPort != nil && i.VirtualPort.Params != nil && i.VirtualPort.Params.OpenVSwitch != nil:
		s.OVSBridge = i.Source.Bridge.Bridge
	case i.Source.Bridge != nil:
		s.Bridge = i.Source.Bridge.Bridge
	}
	if i.VLan != nil && len(i.VLan.Tags) == 1 && i.VLan.Trunk != "yes" {
		s.VLAN = int64(i.VLan.Tags[0].ID)
	}
	if i.Model != nil {
		s.Model = optional(i.Model.Type)
	}
	if i.Target != nil && !chosen.MatchString(i.Target.Dev) {
		s.Target = optional(i.Target.Dev)
	}
	s.BootOrder = orderOf(i.Boot)
	return s
}

// functionOf returns the address of the PCI function that a device is; empty for a device of another sort.
func functionOf(h *libvirtxml.DomainHostdev) string {
	if h.SubsysPCI == nil || h.SubsysPCI.Source == nil || h.SubsysPCI.Source.Address == nil {
		return ""
	}
	a := h.SubsysPCI.Source.Address
	return fmt.Sprintf("%04x:%02x:%02x.%x", or(a.Domain, 0), or(a.Bus, 0), or(a.Slot, 0), or(a.Function, 0))
}

// currentCPUs returns how many virtual CPUs a domain starts with: others may have been left unplugged (virsh setvcpus).
func currentCPUs(d *libvirtxml.Domain) uint {
	if d.VCPU.Current != 0 {
		return d.VCPU.Current
	}
	return d.VCPU.Value
}
