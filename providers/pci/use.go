package pci

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/sysfs"
)

// unused fails when something on the node uses a function that is bound to a driver, so that taking it away would break that. A
// function without a driver is not used.
func unused(k sysfs.Kernel, address, driver string) error {
	if driver == "" {
		return nil
	}
	if k.Proc == nil {
		return sysfs.Refuse(providers.Denied, "it is unknown whether %s is in use, because there is no proc file system beside sysfs", address)
	}
	for _, use := range []func(sysfs.Kernel, string) (string, error){asDisk, asNetwork, asFiles} {
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

// asDisk returns how a disk of a function is used.
func asDisk(k sysfs.Kernel, address string) (string, error) {
	disks, err := disksOf(k, address)
	if err != nil || len(disks) == 0 {
		return "", err
	}
	mounts, err := k.Proc.Read("self/mountinfo")
	if err != nil {
		return "", err
	}
	mounted := map[string]string{} // by number of the device
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 4 {
			mounted[f[2]] = f[4]
		}
	}
	swaps, err := k.Proc.Read("swaps")
	if err != nil {
		return "", err
	}
	for _, disk := range disks {
		parts, err := k.List("class/block/" + disk)
		if err != nil {
			return "", err
		}
		parts = slices.DeleteFunc(parts, func(p string) bool { return !strings.HasPrefix(p, disk) })
		for _, block := range append(parts, disk) {
			if at, ok := mounted[k.Attribute("class/block/"+block+"/dev")]; ok {
				return fmt.Sprintf("%s is mounted at %s", block, at), nil
			}
			if slices.ContainsFunc(strings.Split(swaps, "\n"), func(l string) bool { return strings.HasPrefix(l, "/dev/"+block+" ") }) {
				return block + " is swap", nil
			}
			holders, err := k.List("class/block/" + block + "/holders")
			if err != nil {
				return "", err
			}
			if len(holders) > 0 {
				return fmt.Sprintf("%s is a part of %s", block, strings.Join(holders, ", ")), nil
			}
		}
	}
	return "", nil
}

// disksOf returns the block devices of a function, without partitions.
func disksOf(k sysfs.Kernel, address string) (disks []string, err error) {
	blocks, err := k.List("class/block")
	if err != nil {
		return nil, err
	}
	controllers, err := k.List(devices + address + "/nvme")
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		to, err := k.Sys.Readlink("class/block/" + b)
		if sysfs.Gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		elements := strings.Split(to, "/")
		if slices.Contains(elements, address) && elements[len(elements)-2] == "block" || slices.Contains(elements, address) && slices.Contains(elements, "nvme") && !partition.MatchString(b) {
			disks = append(disks, b)
		}
		// With native multipath, a namespace belongs to the subsystem, and that to its controllers.
		if i := slices.Index(elements, "nvme-subsystem"); i >= 0 && i+1 < len(elements) && !partition.MatchString(b) {
			members, err := k.List("class/nvme-subsystem/" + elements[i+1])
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(members, func(m string) bool { return slices.Contains(controllers, m) }) {
				disks = append(disks, b)
			}
		}
	}
	return disks, nil
}

// partition matches the names of partitions of NVMe namespaces.
var partition = regexp.MustCompile(`^nvme.*p[0-9]+$`)

// asNetwork returns how a network interface of a function is used.
func asNetwork(k sysfs.Kernel, address string) (string, error) {
	interfaces, err := k.List(devices + address + "/net")
	if err != nil || len(interfaces) == 0 {
		return "", err
	}
	routed, err := routes(k)
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		if master, err := k.Link("class/net/" + i + "/master"); err != nil || master != "" {
			return fmt.Sprintf("%s belongs to %s", i, master), err
		}
		if to, ok := routed[i]; ok {
			return fmt.Sprintf("%s has a route to %s", i, to), nil
		}
	}
	return "", nil
}

// routes returns a destination of each interface that has a route, other than those that every interface has.
func routes(k sysfs.Kernel) (map[string]string, error) {
	routed := map[string]string{}
	four, err := k.Proc.Read("net/route")
	if err != nil && !sysfs.Gone(err) {
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
	six, err := k.Proc.Read("net/ipv6_route")
	if err != nil && !sysfs.Gone(err) {
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

// asFiles returns which process has a file open through which it uses a function: of its VFIO group, or of a GPU.
func asFiles(k sysfs.Kernel, address string) (string, error) {
	files, err := filesOf(k, address)
	if err != nil || len(files) == 0 {
		return "", err
	}
	processes, err := k.Proc.ReadDir(".")
	if err != nil {
		return "", err
	}
	for _, pid := range processes {
		if strings.Trim(pid, "0123456789") != "" {
			continue
		}
		open, err := k.Proc.ReadDir(pid + "/fd")
		if err != nil {
			continue // it has ended, or is the kernel's own
		}
		for _, fd := range open {
			to, err := k.Proc.Readlink(pid + "/fd/" + fd)
			if err == nil && slices.Contains(files, to) {
				name, _ := k.Proc.Read(pid + "/comm")
				return fmt.Sprintf("process %s (%s) has %s open", pid, strings.TrimSpace(name), to), nil
			}
		}
	}
	return "", nil
}

// filesOf returns the device files through which a function is used.
func filesOf(k sysfs.Kernel, address string) (files []string, err error) {
	dev := devices + address
	driver, err := k.Link(dev + "/driver")
	if err != nil {
		return nil, err
	}
	group, err := k.Link(dev + "/iommu_group")
	if err != nil {
		return nil, err
	}
	if vfio(driver) && group != "" {
		files = append(files, "/dev/vfio/"+group, "/dev/vfio/noiommu-"+group)
	}
	nodes, err := k.List(dev + "/vfio-dev")
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		files = append(files, "/dev/vfio/devices/"+n)
	}
	if nodes, err = k.List(dev + "/drm"); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		files = append(files, "/dev/dri/"+n)
	}
	about, err := k.Proc.Read(filepath.Join("driver/nvidia/gpus", address, "information"))
	if err != nil && !sysfs.Gone(err) {
		return nil, err
	}
	for line := range strings.Lines(about) {
		if minor, ok := strings.CutPrefix(line, "Device Minor:"); ok {
			files = append(files, "/dev/nvidia"+strings.TrimSpace(minor))
		}
	}
	return files, nil
}
