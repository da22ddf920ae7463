package pci

import (
	"cmp"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci/spec"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// address is what the kernel calls a PCI function.
var address = regexp.MustCompile(`^([0-9a-f]{4}|[1-9a-f][0-9a-f]{4}):[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// listDevices returns the objects of the kind pci.device: all functions. What is not shown of one is left out, so that an odd one hides
// no other.
func listDevices(k sysfs.Kernel) ([]providers.Thing, error) {
	addresses, err := k.List(strings.TrimSuffix(devices, "/"))
	if err != nil {
		return nil, err
	}
	l := look{Kernel: k, owned: map[string]map[string][]string{}, at: map[string]string{}}
	if !slices.ContainsFunc(addresses, address.MatchString) { // a copy without links
		l.place("devices", 5)
		addresses = slices.Sorted(maps.Keys(l.at))
	}
	for _, class := range []string{"net", "nvme", "block"} {
		l.owned[class] = owners(k, class)
	}
	var things []providers.Thing
	for _, a := range addresses {
		if address.MatchString(a) {
			things = append(things, providers.Thing{ID: a, Name: a, Spec: schema.Object{}, Status: l.device(a).Object(), Phase: providers.Ready})
		}
	}
	return things, nil
}

// A look is one look at all functions.
type look struct {
	sysfs.Kernel
	owned  map[string]map[string][]string // by class and address: the objects of the class that belong to the function
	groups map[string]string              // by address: IOMMU groups; nil: they have not been looked up
	at     map[string]string              // by address: folders of functions to which no link leads
}

// place notes the folders of functions at and below a folder. They are connected to folders named pci, which may be a few levels down.
func (l *look) place(dir string, levels int) {
	for _, n := range l.Names(dir) {
		at := dir + "/" + n
		if to, err := l.Link(at); err != nil || to != "" {
			continue // it would lead in circles
		}
		switch {
		case address.MatchString(n):
			l.at[n] = at
			l.place(at, 0)
		case strings.HasPrefix(n, "pci"):
			l.place(at, 0)
		case levels > 1:
			l.place(at, levels-1)
		}
	}
}

// device reads what a function is.
func (l *look) device(a string) *spec.DeviceStatus {
	dev := cmp.Or(l.at[a], devices+a)
	if !l.Exists(dev) { // a copy may have a file in place of the link, or one that is absolute
		if to, err := l.Sys.Readlink(dev); err == nil {
			if within, absolute := strings.CutPrefix(to, "/sys/"); absolute {
				to = within
			} else {
				to = path.Join(path.Dir(dev), to)
			}
			if l.Exists(to) {
				dev = to
			}
		}
	}
	about := uevent(l.Attribute(dev + "/uevent")) // says some of it again, which helps with copies
	s := &spec.DeviceStatus{
		ID:               told(cmp.Or(ids(l.Kernel, dev, "vendor", "device"), strings.ToLower(about["PCI_ID"]))),
		Class:            told(cmp.Or(code(l.Attribute(dev+"/class")), padded(about["PCI_CLASS"]))),
		Driver:           told(cmp.Or(l.link(dev+"/driver"), about["DRIVER"])),
		IOMMUGroup:       told(cmp.Or(l.link(dev+"/iommu_group"), l.group(a))),
		NUMANode:         numaNode(l.Kernel, dev),
		TotalVFs:         l.number(dev + "/sriov_totalvfs"),
		NumVFs:           l.number(dev + "/sriov_numvfs"),
		PhysicalFunction: told(cmp.Or(l.link(dev+"/physfn"), uevent(l.Attribute(dev + "/physfn/uevent"))["PCI_SLOT_NAME"])),
		Interfaces:       l.interfaces(dev, a),
		NVMeNamespaces:   l.namespaces(dev, a),
		LinkSpeed:        told(speed(l.Attribute(dev + "/current_link_speed"))),
		LinkWidth:        lanes(l.number(dev + "/current_link_width")),
		MaxLinkSpeed:     told(speed(l.Attribute(dev + "/max_link_speed"))),
		MaxLinkWidth:     lanes(l.number(dev + "/max_link_width")),
	}
	if board := cmp.Or(ids(l.Kernel, dev, "subsystem_vendor", "subsystem_device"), strings.ToLower(about["PCI_SUBSYS_ID"])); strings.Trim(board, "0:") != "" {
		s.SubsystemID = &board
	}
	return s
}

// uevent reads the variables of an event.
func uevent(text string) map[string]string {
	about := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		about[name] = value
	}
	return about
}

// padded returns a class code with its leading zeros.
func padded(class string) string {
	if class == "" {
		return ""
	}
	return strings.Repeat("0", max(0, 6-len(class))) + strings.ToLower(class)
}

// speed returns the speed of a link, without the name of the bus; empty when it is unknown.
func speed(text string) string {
	if !strings.Contains(text, "GT/s") {
		return ""
	}
	return strings.TrimSuffix(text, " PCIe")
}

// lanes returns the width of a link. A function without a link has 0, and one that does not answer more than there can be.
func lanes(n *int64) *int64 {
	if n == nil || *n < 1 || *n > 32 {
		return nil
	}
	return n
}

// link returns the last element of the target of a link; empty when it cannot be read.
func (l *look) link(path string) string {
	to, err := l.Link(path)
	if err != nil {
		return ""
	}
	return to
}

// number returns the number in a file; nil when there is none.
func (l *look) number(path string) *int64 {
	n, err := l.Number(path)
	if err != nil {
		return nil
	}
	return &n
}

// group returns the IOMMU group that lists a function, in a copy in which the function has no link to it.
func (l *look) group(a string) string {
	if l.groups == nil {
		l.groups = map[string]string{}
		const all = "kernel/iommu_groups"
		for _, g := range l.Names(all) {
			for _, member := range l.Names(all + "/" + g + "/devices") {
				l.groups[member] = g
			}
		}
	}
	return l.groups[a]
}

// owners returns the objects of a class by the address of the function that they belong to.
func owners(k sysfs.Kernel, class string) map[string][]string {
	owned := map[string][]string{}
	for _, n := range k.Names("class/" + class) {
		at := "class/" + class + "/" + n
		to, err := k.Sys.Readlink(at)
		if err != nil {
			to, err = k.Sys.Readlink(at + "/device") // a copy may have a folder in place of the first link
		}
		of := owner(to)
		if of == "" || err != nil {
			of = k.Attribute(at + "/address") // of an NVMe controller
		}
		if address.MatchString(of) {
			owned[of] = append(owned[of], n)
		}
	}
	return owned
}

// owner returns the function that a link leads through last; empty when there is none. What is connected by USB belongs to no function.
func owner(to string) (of string) {
	for e := range strings.SplitSeq(to, "/") {
		switch {
		case address.MatchString(e):
			of = e
		case strings.HasPrefix(e, "usb"):
			return ""
		}
	}
	return of
}

// interfaces returns the network interfaces of a function.
func (l *look) interfaces(dev, a string) []string {
	all := slices.Concat(l.owned["net"][a], l.Names(dev+"/net"))
	for _, n := range l.Names(dev) {
		if strings.HasPrefix(n, "virtio") {
			all = append(all, l.Names(dev+"/"+n+"/net")...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// namespace matches the names of the block devices of NVMe namespaces: nvme0n1 or, when several controllers may have it, a path to it
// such as nvme0c3n1, which is not in /dev. The path through a controller is all that shows that it has the namespace.
var namespace = regexp.MustCompile(`^(nvme\d+)(c\d+)?(n\d+)$`)

// namespaces returns the ids of the NVMe namespaces of a function.
func (l *look) namespaces(dev, a string) []string {
	at := map[string][]string{} // by name: where it is shown
	within := func(controller string) {
		for _, n := range l.Names(controller) {
			at[n] = append(at[n], controller+"/"+n)
		}
	}
	for _, c := range l.Names(dev + "/nvme") {
		within(dev + "/nvme/" + c)
	}
	for _, c := range l.owned["nvme"][a] {
		within("class/nvme/" + c)
	}
	for _, b := range l.owned["block"][a] {
		at[b] = append(at[b], "class/block/"+b)
	}
	var all []string
	for name, places := range at {
		parts := namespace.FindStringSubmatch(name)
		if parts == nil {
			continue
		}
		shared := parts[1] + parts[3] // shows the same ids
		for _, place := range append(places, "class/block/"+shared, "block/"+shared) {
			if id := l.namespaceID(place); id != "" {
				all = append(all, id)
				break
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// namespaceID returns the id of a namespace, as the kernel puts it together in wwid; empty when it is not shown.
func (l *look) namespaceID(place string) string {
	if id := l.Attribute(place + "/wwid"); id != "" {
		return id
	}
	plain := func(file string) string {
		id := strings.NewReplacer(" ", "", "-", "").Replace(strings.ToLower(l.Attribute(place + "/" + file)))
		if strings.Trim(id, "0") == "" {
			return ""
		}
		return id
	}
	uuid, nguid, eui := plain("uuid"), plain("nguid"), plain("eui")
	switch {
	case uuid != "" && uuid != nguid: // without a UUID, its file shows the NGUID
		return "uuid." + strings.ToLower(l.Attribute(place+"/uuid"))
	case nguid != "":
		return "eui." + nguid
	case eui != "":
		return "eui." + eui
	}
	return ""
}
