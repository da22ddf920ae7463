package libvirt

import (
	"maps"
	"path"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers/libvirt/spec"
)

// byLibvirt are places where libvirt fills in values by itself, and where what this program sets besides the spec is.
var byLibvirt = []string{
	"domain/uuid", "domain/vcpu/@placement", "domain/metadata/domain", "domain/metadata",
	"domain/os/type/@arch", "domain/os/type/@machine", "domain/os/loader", "domain/os/nvram", "domain/os/@firmware", "domain/os/firmware",
	"domain/features", "domain/features/acpi", "domain/features/apic", "domain/features/smm", "domain/features/gic",
	"domain/cpu", "domain/cpu/@mode", "domain/cpu/@match", "domain/cpu/@check", "domain/cpu/@migratable", "domain/cpu/model",
	"domain/clock", "domain/clock/@offset", "domain/on_poweroff", "domain/on_reboot", "domain/on_crash", "domain/pm",
	"domain/devices/emulator", "domain/devices/controller", "domain/devices/serial", "domain/devices/console", "domain/devices/input",
	"domain/devices/audio", "domain/devices/memballoon", "domain/devices/watchdog",
	"domain/devices/disk/driver", "domain/devices/disk/driver/@name", "domain/devices/disk/driver/@type", "domain/devices/disk/address", "domain/devices/disk/alias",
	"domain/devices/disk/@type", "domain/devices/interface/target", "domain/devices/interface/address", "domain/devices/interface/alias",
	"domain/devices/interface/virtualport/parameters", "domain/devices/hostdev/driver", "domain/devices/hostdev/address", "domain/devices/hostdev/alias",
	"domain/devices/hostdev/@managed", "domain/seclabel", "domain/resource",
}

// wholes are those of byLibvirt that libvirt fills in with everything below.
var wholes = []string{
	"domain/metadata/domain", "domain/os/loader", "domain/os/nvram", "domain/os/firmware", "domain/cpu/model", "domain/pm", "domain/features/apic", "domain/features/smm", "domain/features/gic",
	"domain/devices/controller", "domain/devices/serial", "domain/devices/console", "domain/devices/input", "domain/devices/audio", "domain/devices/memballoon",
	"domain/devices/watchdog", "domain/devices/disk/address", "domain/devices/disk/alias", "domain/devices/interface/target", "domain/devices/interface/address",
	"domain/devices/interface/alias", "domain/devices/interface/virtualport/parameters", "domain/devices/hostdev/driver", "domain/devices/hostdev/address",
	"domain/devices/hostdev/alias", "domain/seclabel", "domain/resource",
}

// choices are, of those places, the ones where others may have set something else than what libvirt fills in.
var choices = map[string][]string{
	"domain/clock/@offset": {"utc"}, "domain/on_poweroff": {"destroy"}, "domain/on_reboot": {"restart"}, "domain/on_crash": {"destroy"},
	"domain/cpu/model":                {"qemu64", "qemu32", "kvm64", "kvm32", "cortex-a15", "cortex-a57"}, // what QEMU emulates when nothing is requested
	"domain/devices/serial/@type":     {"pty"},
	"domain/devices/console/@type":    {"pty"},
	"domain/devices/hostdev/@managed": {"no"},
	"domain/seclabel/@type":           {"dynamic"},
}

// fillsIn reports whether a value is one that libvirt fills in.
func fillsIn(value string) bool {
	at, is, _ := strings.Cut(value, "=")
	if by, ok := choices[at]; ok && is != "" && !slices.Contains(by, is) {
		return false
	}
	return slices.Contains(byLibvirt, at) || slices.ContainsFunc(wholes, func(w string) bool { return strings.HasPrefix(at, w+"/") })
}

// domainContents returns all values of the definition of a domain, and those of them that are neither in its spec nor filled in by
// libvirt. A volume may be given by its path.
func domainContents(definition string, known images) (all, extras map[string]int, err error) {
	d, err := parseDomain(definition)
	if err != nil {
		return nil, nil, err
	}
	s := describedDomain(d, known)
	bare := libvirtxml.Domain{Name: d.Name, OS: &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Type: "hvm"}}, Devices: &libvirtxml.DomainDeviceList{}}
	// What cannot be described, such as a disk that is no volume, is not in the spec.
	s.Disks = slices.DeleteFunc(s.Disks, func(d spec.Disk) bool { return d.Volume == "" || d.Volume[0] == '/' })
	s.Cdroms = slices.DeleteFunc(s.Cdroms, func(d spec.CDROM) bool { return strings.HasPrefix(d.Volume, "/") })
	s.Interfaces = slices.DeleteFunc(s.Interfaces, func(i spec.DomainInterface) bool { return i.Network+i.Bridge+i.OVSBridge == "" })
	if s.Memory > 0 { // that of a machine of others need not be one that a spec may ask for
		bare.Memory = &libvirtxml.DomainMemory{Value: uint(s.Memory >> 10), Unit: "KiB"}
	}
	if err := describeDomain(&bare, s, images{}); err != nil {
		return nil, nil, err
	}
	if bare.Memory != nil {
		bare.CurrentMemory = &libvirtxml.DomainCurrentMemory{Value: bare.Memory.Value, Unit: bare.Memory.Unit}
	}
	if d.VCPU != nil { // what is plugged in is in the spec, and a change of that changes both
		bare.VCPU.Value, bare.VCPU.Current = d.VCPU.Value, d.VCPU.Current
	}
	if bootsByItself(d) {
		bare.OS.BootDevices = d.OS.BootDevices
	}
	text, err := d.Marshal()
	if err != nil {
		return nil, nil, err
	}
	described, err := bare.Marshal()
	if err != nil {
		return nil, nil, err
	}
	if all, err = values(text); err != nil {
		return nil, nil, err
	}
	kept, err := values(described)
	if err != nil {
		return nil, nil, err
	}
	extras = without(all, kept)
	maps.DeleteFunc(extras, func(at string, _ int) bool {
		file, isFile := strings.CutPrefix(at, "domain/devices/disk/source/@file=")
		id := known.ids[file]
		return fillsIn(at) || isFile && id != "" && id[0] != '/'
	})
	if d.OS.Loader != nil && d.OS.Firmware == "" { // libvirt keeps that it was to choose one
		extras["domain/os/loader="+d.OS.Loader.Path]++
	}
	if e := d.Devices.Emulator; e != "" && !strings.HasPrefix(path.Base(e), "qemu-") {
		extras["domain/devices/emulator="+e]++
	}
	strange, err := strangeOf(definition, new(libvirtxml.Domain))
	for at, n := range strange {
		all[at] += n
		extras[at] += n
	}
	return all, extras, err
}
