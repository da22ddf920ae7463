package rules

import (
	"slices"
	"strconv"
	"strings"
)

// The kinds of libvirt that rules refer to.
const (
	libvirtDHCPHost = "libvirt.dhcp_host"
	libvirtDomain   = "libvirt.domain"
	libvirtVolume   = "libvirt.volume"
)

// libvirtRules report what libvirt would refuse, or would accept and machines would then suffer from.
var libvirtRules = []Rule{
	{"CV1169", "libvirt-device", "Devices of a domain contradict each other", "The devices of a domain must have their own names and boot orders, and each interface one place to be attached to", checks{each{named(libvirtDomain), checkDevices}}},
	{"CV1170", "libvirt-shared", "Device is in two domains", "A PCI function must be in only one domain, and so must a volume that a domain can write to", checks{sharedFunctions, sharedVolumes}},
	{"CV1178", "libvirt-reservation", "Reservation may come too late", "A domain for which an address is reserved must be made after the reservation", checks{lateReservations}},
	{"CV1179", "libvirt-contents", "Volume cannot be made", "A volume gets its contents from one place, and its format must have room for what is stated", checks{each{named(libvirtVolume), checkContents}}},
}

// checkDevices compares the devices of one domain. Two in the same list with the same key are reported by the rule duplicate-key.
func checkDevices(_ *Site, r *Resource, p *reporter) {
	targets, orders := map[string]bool{}, map[int64]bool{}
	for _, list := range []string{"disks", "cdroms", "interfaces", "hostdevs"} {
		for i, e := range listOf(r.Spec, list) {
			device, at := objectOf(e), []string{list, strconv.Itoa(i)}
			if order := intOf(device, "boot_order"); order != 0 {
				if orders[order] {
					p.report(r, append(at, "boot_order"), "Another device of the domain also has position %d. Give each its own.", order)
				}
				orders[order] = true
			}
			switch target := textOf(device, "target"); list {
			case "disks":
				targets[target] = true
			case "cdroms":
				if targets[target] {
					p.report(r, append(at, "target"), "A disk of the domain is also called %s. Choose another name.", target)
				}
				if textOf(device, "volume") != "" && textOf(device, "seed") != "" {
					p.report(r, append(at, "seed"), "The drive has two media. Remove volume or seed.")
				}
			case "interfaces":
				checkAttachment(r, device, at, p)
			}
		}
	}
}

func checkAttachment(r *Resource, device map[string]any, at []string, p *reporter) {
	named := slices.DeleteFunc([]string{"network", "bridge", "ovs_bridge"}, func(name string) bool { return textOf(device, name) == "" })
	switch {
	case len(named) == 0:
		p.report(r, at, "The interface is not attached to anything. Set network, bridge or ovs_bridge.")
	case len(named) > 1:
		p.report(r, append(at, named[1]), "The interface is attached to two places. Remove %s or %s.", named[0], named[1])
	case textOf(device, "port_group") != "" && named[0] != "network":
		p.report(r, append(at, "port_group"), "Only a network has groups of interfaces. Remove port_group, or set network.")
	case intOf(device, "vlan") != 0 && named[0] == "bridge":
		p.report(r, append(at, "vlan"), "A bridge of the kernel does not give an interface a VLAN. Remove vlan, or use a network or a bridge of Open vSwitch.")
	}
}

// checkContents checks what one volume is made of.
func checkContents(_ *Site, r *Resource, p *reporter) {
	origins := slices.DeleteFunc([]string{"backing", "clone", "image"}, func(name string) bool { return textOf(r.Spec, name) == "" })
	if len(origins) > 1 {
		p.report(r, origins[1:2], "The volume would get its contents from two places. Remove %s or %s.", origins[0], origins[1])
	}
	if textOf(r.Spec, "image_sha256") != "" && textOf(r.Spec, "image") == "" {
		p.report(r, []string{"image_sha256"}, "There is no image to compare with. Set image, or remove image_sha256.")
	}
	for _, ending := range []string{".converge-incomplete", ".converge-begun"} { // as the provider has them
		if strings.HasSuffix(r.Ref.Name, ending) {
			p.report(r, nil, "A volume whose name ends in %q marks another one as incomplete. Choose another name.", ending)
		}
	}
	if ignores(r, "complete") {
		p.report(r, []string{"lifecycle", "ignore"}, "An incomplete volume would be used as it is. Remove \"complete\" from the list.")
	}
	const granule = 1024 // in which libvirt gives the size of a qcow2 image
	switch capacity := intOf(r.Spec, "capacity"); {
	case textOf(r.Spec, "format") == "raw" && textOf(r.Spec, "backing") != "":
		p.report(r, []string{"backing"}, "A raw image cannot have a backing volume. Remove format, for a qcow2 image, or use clone for a copy.")
	case textOf(r.Spec, "format") == "qcow2" && capacity%granule != 0:
		p.report(r, []string{"capacity"}, "The size of a qcow2 image is a multiple of %d bytes. Use %d.", granule, (capacity/granule+1)*granule)
	}
}

var sharedFunctions = &sharing{
	of: named(libvirtDomain),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		for i, e := range listOf(r.Spec, "hostdevs") {
			if address := textOf(objectOf(e), "address"); address != "" {
				has(key{address, r.Ref.Scope}, "hostdevs", strconv.Itoa(i), "address")
			}
		}
	},
	check: taken("The PCI function %s is already in %s, and only one of the two could run. Remove it from one."),
}

// sharedVolumes: what several domains only read, they may share.
var sharedVolumes = &sharing{
	of: named(libvirtDomain),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		for i, e := range listOf(r.Spec, "disks") {
			if disk := objectOf(e); textOf(disk, "volume") != "" && !boolOf(disk, "read_only") {
				has(key{textOf(disk, "volume"), r.Ref.Scope}, "disks", strconv.Itoa(i), "volume")
			}
		}
	},
	check: taken("The volume %s is already a disk of %s, and they would overwrite each other's data. Use another volume, or set read_only in both."),
}

// lateReservations warns of a domain that may ask for its address before that is reserved: it would get another one, and keep it for as
// long as the lease lasts.
var lateReservations = &sharing{
	of: named(libvirtDHCPHost, libvirtDomain),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		if r.Ref.Kind == libvirtDHCPHost {
			has(key{r.Ref.Scope + "/" + textOf(r.Spec, "network"), textOf(r.Spec, "mac")})
		}
		for i, e := range listOf(r.Spec, "interfaces") {
			if network := textOf(objectOf(e), "network"); network != "" && runs(r) {
				has(key{r.Ref.Scope + "/" + network, textOf(objectOf(e), "mac")}, "interfaces", strconv.Itoa(i), "mac")
			}
		}
	},
	check: func(_ *Site, r *Resource, path []string, _ key, shared []*Resource, _ int, p *reporter) {
		host := shared[0] // in the order of refs, reservations come first
		if host.Ref.Kind == libvirtDHCPHost && r.Ref.Kind == libvirtDomain && !slices.Contains(r.After, host.Ref) {
			p.warn(r, path, "%s reserves an address for this interface, and may be made after the domain has asked for one. Add it to depends_on.", host.Ref)
		}
	},
}
