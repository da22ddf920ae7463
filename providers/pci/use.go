package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/sysfs"
)

// unused fails when something on the node uses a function that is bound to a driver, so that taking it away would break that. What
// cannot be found out is not unused.
func unused(k sysfs.Kernel, address, driver string) error {
	uses := []func(sysfs.Kernel, string) (string, error){asDisk, asNetwork, asFiles}
	if driver == "" {
		uses = uses[2:] // its IOMMU group may be in use all the same
	}
	for _, use := range uses {
		why, err := use(k, address)
		if err != nil {
			return sysfs.Refuse(providers.Denied, "it is unknown whether %s is in use: %w", address, err)
		}
		if why != "" {
			return sysfs.Refuse(providers.Denied, "%s is in use: %s", address, why)
		}
	}
	return nil
}

// below returns the objects of a class that belong to a function: their links lead through it.
func below(k sysfs.Kernel, class, address string) (names []string, err error) {
	all, err := k.List("class/" + class)
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		to, err := k.Sys.Readlink("class/" + class + "/" + n)
		switch {
		case sysfs.Gone(err), errors.Is(err, syscall.EINVAL): // EINVAL: a file of the class itself, such as bonding_masters
		case err != nil:
			return nil, err
		case slices.Contains(strings.Split(to, "/"), address):
			names = append(names, n)
		}
	}
	return names, nil
}

// asDisk returns how a disk of a function is used.
func asDisk(k sysfs.Kernel, address string) (string, error) {
	blocks, err := blocksOf(k, address)
	if err != nil || len(blocks) == 0 {
		return "", err
	}
	proc, err := k.Proc()
	if err != nil {
		return "", err
	}
	mounts, err := proc.Read("1/mountinfo")
	if err != nil {
		return "", err
	}
	mounted := map[string]string{} // by the number of the device, and by its name
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		if f := strings.Fields(before); len(f) > 4 {
			mounted[f[2]] = f[4]
			if source := strings.Fields(after); len(source) > 1 {
				mounted[source[1]] = f[4]
			}
		}
	}
	swaps, err := proc.Read("swaps")
	if err != nil {
		return "", err
	}
	parts, err := partsOf(k)
	if err != nil {
		return "", err
	}
	for _, b := range blocks {
		for _, as := range []string{k.Attribute("class/block/" + b + "/dev"), "/dev/" + b} {
			if at, ok := mounted[as]; ok && as != "" {
				return fmt.Sprintf("%s is mounted at %s", b, at), nil
			}
		}
		if slices.ContainsFunc(strings.Split(swaps, "\n"), func(l string) bool { return strings.HasPrefix(l, "/dev/"+b+" ") }) {
			return b + " is swap", nil
		}
		holders, err := k.List("class/block/" + b + "/holders")
		if err != nil {
			return "", err
		}
		if len(holders) > 0 {
			return fmt.Sprintf("%s is a part of %s", b, strings.Join(holders, ", ")), nil
		}
		if of, ok := parts[b]; ok {
			return fmt.Sprintf("%s is a part of %s", b, of), nil
		}
		claimed, err := k.Claimed(b)
		if err != nil {
			return "", err
		}
		if claimed {
			return b + " is claimed, for example by a file system, a volume manager or another kernel module", nil
		}
	}
	return "", nil
}

// partsOf returns what block devices are parts of that have no link to it: file systems of several devices, and loop devices.
func partsOf(k sysfs.Kernel) (map[string]string, error) {
	parts := map[string]string{}
	systems, err := k.List("fs/btrfs")
	if err != nil {
		return nil, err
	}
	for _, s := range systems {
		devices, err := k.List("fs/btrfs/" + s + "/devices")
		if err != nil {
			return nil, err
		}
		for _, d := range devices {
			parts[d] = "btrfs " + s
		}
	}
	blocks, err := k.List("class/block")
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if file := k.Attribute("class/block/" + b + "/loop/backing_file"); strings.HasPrefix(file, "/dev/") {
			parts[filepath.Base(file)] = b
		}
	}
	return parts, nil
}

// blocksOf returns the block devices of a function, with their partitions.
func blocksOf(k sysfs.Kernel, address string) ([]string, error) {
	blocks, err := below(k, "block", address)
	if err != nil {
		return nil, err
	}
	controllers, err := below(k, "nvme", address)
	if err != nil || len(controllers) == 0 {
		return blocks, err
	}
	// With native multipath, a namespace belongs to the subsystem, and that to its controllers.
	subsystems, err := k.List("class/nvme-subsystem")
	if err != nil {
		return nil, err
	}
	for _, s := range subsystems {
		members, err := k.List("class/nvme-subsystem/" + s)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(members, func(m string) bool { return slices.Contains(controllers, m) }) {
			continue
		}
		shared, err := below(k, "block", s)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, shared...)
	}
	return blocks, nil
}

// asNetwork returns how a network interface of a function is used. One that is up and connected is taken to be in use: of routes only
// those of the main table can be seen, and not all of these.
func asNetwork(k sysfs.Kernel, address string) (string, error) {
	interfaces, err := below(k, "net", address)
	if err != nil {
		return "", err
	}
	if len(interfaces) == 0 {
		driver, err := k.Link(devices + address + "/driver")
		if err == nil && !assigns(driver) && strings.HasPrefix(k.Attribute(devices+address+"/class"), "0x02") {
			return "its network interface is not visible, and may be in use in another network namespace", nil
		}
		return "", err
	}
	routed, err := routes(k)
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		if to, ok := routed[i]; ok {
			return fmt.Sprintf("%s has a route to %s", i, to), nil
		}
		links, err := k.List("class/net/" + i)
		if err != nil {
			return "", err
		}
		for _, l := range links {
			if upper, ok := strings.CutPrefix(l, "upper_"); ok {
				return fmt.Sprintf("%s is used by %s", i, upper), nil
			}
		}
		if flags, err := strconv.ParseUint(k.Attribute("class/net/"+i+"/flags"), 0, 64); err == nil && flags&syscall.IFF_UP != 0 && k.Attribute("class/net/"+i+"/carrier") == "1" {
			return i + " is up and connected: set it down first", nil
		}
	}
	return "", nil
}

// routes returns a destination of each interface that has a route, other than those that every interface has.
func routes(k sysfs.Kernel) (map[string]string, error) {
	proc, err := k.Proc()
	if err != nil {
		return nil, err
	}
	routed := map[string]string{}
	four, err := proc.Read("1/net/route")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(four) {
		if f := strings.Fields(line); len(f) > 7 && f[0] != "Iface" {
			to := "a network"
			if f[1] == "00000000" {
				to = "everywhere"
			} else if n, err := strconv.ParseUint(f[1], 16, 32); err == nil {
				to = fmt.Sprintf("%d.%d.%d.%d", byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
			}
			routed[f[0]] = to
		}
	}
	six, err := proc.Read("1/net/ipv6_route")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
		return nil, err
	}
	for line := range strings.Lines(six) {
		f := strings.Fields(line)
		if len(f) < 10 || strings.HasPrefix(f[0], "fe80") || strings.HasPrefix(f[0], "ff") {
			continue
		}
		routed[f[9]] = "an IPv6 network"
	}
	return routed, nil
}

// asFiles returns which process has a file open through which it uses a function, or another one of its IOMMU group.
func asFiles(k sysfs.Kernel, address string) (string, error) {
	files, err := filesOf(k, address)
	if err != nil || len(files) == 0 {
		return "", err
	}
	proc, err := k.Proc()
	if err != nil {
		return "", err
	}
	processes, err := proc.ReadDir(".")
	if err != nil {
		return "", err
	}
	ended := func(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
	for _, pid := range processes {
		if strings.Trim(pid, "0123456789") != "" {
			continue
		}
		open, err := proc.ReadDir(pid + "/fd")
		if err != nil && !ended(err) {
			return "", err
		}
		for _, fd := range open {
			to, err := proc.Readlink(pid + "/fd/" + fd)
			if err != nil && !ended(err) {
				return "", err
			}
			if slices.Contains(files, strings.TrimSuffix(to, " (deleted)")) {
				name, _ := proc.Read(pid + "/comm")
				return fmt.Sprintf("process %s (%s) has %s open", pid, strings.TrimSpace(name), to), nil
			}
		}
	}
	return "", nil
}

// filesOf returns the device files through which a function, or its IOMMU group, is used.
func filesOf(k sysfs.Kernel, address string) (files []string, err error) {
	dev := devices + address
	group, err := k.Link(dev + "/iommu_group")
	if err != nil {
		return nil, err
	}
	members := []string{address}
	if group != "" {
		files = append(files, "/dev/vfio/"+group, "/dev/vfio/noiommu-"+group)
		if members, err = k.List("kernel/iommu_groups/" + group + "/devices"); err != nil {
			return nil, err
		}
	}
	for _, m := range members {
		nodes, err := k.List(devices + m + "/vfio-dev")
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			files = append(files, "/dev/vfio/devices/"+n)
		}
	}
	for class, dir := range map[string]string{
		"drm": "/dev/dri/", "accel": "/dev/accel/", "uio": "/dev/", "infiniband_verbs": "/dev/infiniband/", "infiniband_mad": "/dev/infiniband/",
		"nvme": "/dev/", "nvme-generic": "/dev/",
	} {
		names, err := below(k, class, address)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			files = append(files, dir+n)
		}
	}
	blocks, err := blocksOf(k, address)
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		files = append(files, "/dev/"+b)
	}
	if driver, err := k.Link(dev + "/driver"); err != nil || driver != "nvidia" {
		return files, err
	}
	proc, err := k.Proc()
	if err != nil {
		return nil, err
	}
	about, err := proc.Read("driver/nvidia/gpus/" + address + "/information")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(about) {
		if minor, ok := strings.CutPrefix(line, "Device Minor:"); ok {
			files = append(files, "/dev/nvidia"+strings.TrimSpace(minor))
		}
	}
	return files, nil
}
