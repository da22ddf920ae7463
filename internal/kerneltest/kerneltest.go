// Package kerneltest is a fake of the kernel's part of sysfs that the providers of a node write to: drivers of PCI functions,
// virtual functions, huge pages. It behaves as Linux 6.1 does, including where that says nothing about what it has not done;
// package guest has the same facts tried on a real kernel.
//
// The trees are folders, so that what reads them reads links and folders as it would those of a machine. Only what is written
// through [Kernel] has an effect.
package kerneltest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/providers/sysfs"
)

// A Function is a PCI function of a machine.
type Function struct {
	Address string
	Class   string // 0x010802; empty: an Ethernet controller
	Native  string // the driver that claims it by its ids; empty: none
	Group   string // its IOMMU group; empty: none
	Node    string // its NUMA node; empty: none
	VFs     int    // how many virtual functions it supports, at .1, .2, … of its slot

	Interfaces []string // network interfaces, while its own driver has it; the first is that of the function itself
	Link       bool     // its interface is up and has a link
	// Answers are what its driver answers when it is told something of a virtual function, by mac, vlan, rate, link_state, spoof_check
	// and trust, where that is not what igb does. 0: it reports success, and does nothing.
	Answers map[string]syscall.Errno

	Disks []string // block devices, while its own driver has it
}

// A Machine is what a kernel runs on.
type Machine struct {
	Functions []Function
	Drivers   []string       // those that are loaded besides the native ones
	Pools     map[string]int // how many huge pages memory suffices for, by node0-2048kB
}

// vfio is the driver that hands functions to programs, if they have an IOMMU group.
const vfio = "vfio-pci"

// A Kernel is a fake kernel.
type Kernel struct {
	t              testing.TB
	sys, proc, run string

	mu        sync.Mutex
	functions map[string]Function
	room      map[string]int // of a pool, by its folder
	signals   int            // how many allocations of huge pages a signal ends early
	used      map[string]int // pages of it in use
	refuses   map[string]bool
	claims    []string
	virtuals  map[string][]sysfs.VF // what a network card has of its virtual functions, by the address of the physical one
	down      map[string]int        // how many looks the link of a card still takes to come up
	before    map[string]func()
}

// New boots a kernel.
func New(t testing.TB, m Machine) *Kernel {
	dir := t.TempDir()
	k := &Kernel{
		t: t, sys: filepath.Join(dir, "sys"), proc: filepath.Join(dir, "proc"), run: filepath.Join(dir, "run"), functions: map[string]Function{},
		room: map[string]int{}, used: map[string]int{}, refuses: map[string]bool{},
		virtuals: map[string][]sysfs.VF{}, down: map[string]int{},
	}
	for _, d := range []string{"bus/pci/devices", "bus/pci/drivers", "devices/pci0000:00", "class/block", "class/net", "kernel/iommu_groups"} {
		k.folder(d)
	}
	k.file("bus/pci/drivers_probe", "")
	for _, f := range m.Functions {
		if f.Native != "" {
			k.driver(f.Native)
		}
	}
	for _, d := range m.Drivers {
		k.driver(d)
	}
	for _, f := range m.Functions {
		k.appear(f)
	}
	for name, n := range m.Pools {
		node, size, _ := strings.Cut(name, "-")
		d := "devices/system/node/" + node + "/hugepages/hugepages-" + size
		k.room[d] = n
		k.pool(d, 0)
	}
	k.must(os.Mkdir(k.run, 0o755))
	for name, text := range map[string]string{"sys/kernel/osrelease": "6.1.0-27-amd64\n", "cmdline": "quiet intel_iommu=on\n", "1/mountinfo": "", "swaps": "Filename\tType\n", "1/net/route": "Iface\tDestination\n", "1/net/ipv6_route": ""} {
		k.Proc(name, text)
	}
	return k
}

// Kernel returns the access to the fake that a provider has to a real one.
func (k *Kernel) Kernel() sysfs.Kernel {
	return sysfs.Kernel{Sys: k, Processes: tree{k.proc}, Machine: tree{k.proc}, Run: tree{k.run}, Claim: k.claimed, VFs: vfs{k}, Poll: 10 * time.Millisecond}
}

// Dump returns all of sysfs as text, and what network cards have of their virtual functions.
func (k *Kernel) Dump() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	k.must(filepath.WalkDir(k.sys, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		var text string
		if e.Type()&fs.ModeSymlink != 0 {
			text, err = os.Readlink(path)
		} else {
			var content []byte
			content, err = os.ReadFile(path)
			text = string(content)
		}
		fmt.Fprintf(&b, "%s: %q\n", strings.TrimPrefix(path, k.sys+"/"), text)
		return err
	}))
	return b.String() + k.cards()
}

// Read implements [sysfs.Tree].
func (k *Kernel) Read(path string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if filepath.Base(path) == "carrier" {
		if _, err := os.Stat(filepath.Join(k.sys, path)); err != nil { // a test may have written one
			return k.carrier(path)
		}
	}
	return tree{k.sys}.Read(path)
}

// Readlink implements [sysfs.Tree].
func (k *Kernel) Readlink(path string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return tree{k.sys}.Readlink(path)
}

// ReadDir implements [sysfs.Tree].
func (k *Kernel) ReadDir(path string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return tree{k.sys}.ReadDir(path)
}

// Write implements [sysfs.Tree].
func (k *Kernel) Write(path, value string) error {
	k.do(filepath.Base(path))
	k.mu.Lock()
	defer k.mu.Unlock()
	real, err := filepath.EvalSymlinks(filepath.Join(k.sys, path))
	if err != nil {
		return err
	}
	root, err := filepath.EvalSymlinks(k.sys)
	if err != nil {
		return err
	}
	real, err = filepath.Rel(root, real)
	if err != nil {
		return err
	}
	dir, file := filepath.Split(real)
	dir = strings.TrimSuffix(dir, "/")
	if err := k.write(dir, file, strings.TrimSuffix(value, "\n")); err != 0 {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// do does what a test wants done before a write; see [Kernel.Before].
func (k *Kernel) do(name string) {
	k.mu.Lock()
	before := k.before[name]
	delete(k.before, name)
	k.mu.Unlock()
	if before != nil {
		before()
	}
}

func (k *Kernel) write(dir, file, value string) syscall.Errno {
	name := filepath.Base(dir)
	switch file {
	case "bind":
		f, ok := k.functions[value]
		if !ok || k.candidate(f) != name {
			return syscall.ENODEV
		}
		if _, bound := k.bound(value); bound {
			return syscall.EBUSY
		}
		k.probe(f)
		if _, bound := k.bound(value); !bound {
			return syscall.EINVAL
		}
		return 0
	case "driver_override":
		k.file(dir+"/driver_override", override(value)+"\n")
		return 0
	case "unbind":
		if driver, ok := k.bound(value); !ok || driver != name {
			return syscall.ENODEV
		}
		k.release(value)
		return 0
	case "drivers_probe":
		f, ok := k.functions[value]
		if !ok {
			return syscall.ENODEV
		}
		k.probe(f)
		return 0 // whether or not a driver has taken it
	case "sriov_drivers_autoprobe":
		if value != "0" && value != "1" {
			return syscall.EINVAL
		}
		k.file(dir+"/sriov_drivers_autoprobe", value+"\n")
		return 0
	case "sriov_numvfs":
		return k.virtual(k.functions[name], value)
	case "nr_hugepages":
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return syscall.EINVAL
		}
		if dirs := k.pools(dir); len(dirs) > 0 { // all nodes together, each with its share
			for i, d := range dirs {
				share := min((n+len(dirs)-i-1)/(len(dirs)-i), k.room[d])
				k.pool(d, max(k.used[d], share))
				n -= share
			}
			return 0
		}
		n = max(k.used[dir], min(n, k.room[dir]))
		if has := k.number(dir + "/nr_hugepages"); k.signals > 0 && n > has {
			k.signals--
			n = has + 1 // the signal is looked for after each page
		}
		k.pool(dir, n)
		return 0
	}
	return syscall.EACCES
}

func override(value string) string {
	if value == "" {
		return "(null)"
	}
	return value
}

// probe binds a function to the driver that is to have it, if one is and takes it.
func (k *Kernel) probe(f Function) {
	if _, bound := k.bound(f.Address); bound {
		return
	}
	dev, driver := k.device(f.Address), k.candidate(f)
	if of, err := os.Readlink(filepath.Join(k.sys, dev, "physfn")); err == nil && driver == f.Native {
		if k.text(k.device(filepath.Base(of))+"/sriov_drivers_autoprobe") == "0" {
			return
		}
	}
	if driver == "" || k.refuses[driver+" "+f.Address] || driver == vfio && (f.Group == "" || strings.HasPrefix(f.Class, "0x0604")) {
		return
	}
	if _, err := os.Stat(filepath.Join(k.sys, "bus/pci/drivers", driver)); err != nil {
		return
	}
	if driver != f.Native && driver != vfio && driver != "pci-stub" {
		k.t.Errorf("%s was told to drive %s, which it does not know: a real kernel may hang", driver, f.Address)
		return
	}
	k.link(dev+"/driver", "../../../bus/pci/drivers/"+driver)
	if driver == vfio {
		k.folder("class/vfio/" + f.Group)
		k.file("class/vfio/"+f.Group+"/dev", "240:0\n")
	}
	if driver != f.Native {
		return
	}
	for _, i := range f.Interfaces {
		k.folder(dev + "/net/" + i)
		k.link("class/net/"+i, "../../"+dev+"/net/"+i)
		address, chosen := k.address(f)
		k.file(dev+"/net/"+i+"/address", address+"\n")
		k.file(dev+"/net/"+i+"/addr_assign_type", chosen+"\n")
		if f.Link {
			k.file(dev+"/net/"+i+"/flags", "0x1003\n")
		}
	}
	for n, d := range f.Disks {
		k.folder(dev + "/block/" + d + "/holders")
		k.file(dev+"/block/"+d+"/dev", fmt.Sprintf("8:%d\n", 16*n))
		k.link("class/block/"+d, "../../"+dev+"/block/"+d)
	}
}

// candidate returns the driver that is to have a function, if there is one.
func (k *Kernel) candidate(f Function) string {
	if o := k.text(k.device(f.Address) + "/driver_override"); o != "(null)" {
		return o
	}
	return f.Native
}

func (k *Kernel) release(address string) {
	f, dev := k.functions[address], k.device(address)
	k.remove(dev + "/driver")
	if f.Group != "" && !slices.ContainsFunc(slices.Collect(maps.Values(k.functions)), func(o Function) bool {
		driver, bound := k.bound(o.Address)
		return o.Group == f.Group && bound && driver == vfio
	}) {
		k.remove("class/vfio/" + f.Group)
	}
	for _, i := range f.Interfaces {
		k.remove("class/net/" + i)
	}
	for _, d := range f.Disks {
		k.remove("class/block/" + d)
	}
	k.remove(dev + "/net")
	k.remove(dev + "/block")
}

// virtual changes the number of virtual functions.
func (k *Kernel) virtual(f Function, value string) syscall.Errno {
	dev := k.device(f.Address)
	was := k.number(dev + "/sriov_numvfs")
	n, err := strconv.Atoi(value)
	vf := func(i int) string { return f.Address[:len(f.Address)-1] + strconv.Itoa(i) }
	switch {
	case err != nil || n < 0 || n > 65535:
		return syscall.EINVAL
	case n > f.VFs:
		return syscall.ERANGE
	case n == was:
		return 0
	case n > 0 && was > 0:
		return syscall.EBUSY
	}
	if _, driven := k.bound(f.Address); !driven {
		return syscall.ENOENT
	}
	k.file(dev+"/sriov_numvfs", value+"\n")
	k.tell(f, n)
	for i := 1; i <= was; i++ {
		k.remove(fmt.Sprintf("%s/virtfn%d", dev, i-1))
		k.vanish(vf(i))
	}
	for i := 1; i <= n; i++ {
		v := Function{Address: vf(i), Class: f.Class, Native: f.Native, Node: f.Node}
		if f.Group != "" {
			v.Group = f.Group + "0" + strconv.Itoa(i)
		}
		k.folder(k.device(v.Address))
		k.link(k.device(v.Address)+"/physfn", "../"+f.Address)
		k.link(fmt.Sprintf("%s/virtfn%d", dev, i-1), "../"+v.Address)
		k.appear(v)
	}
	return 0
}

func (k *Kernel) device(address string) string { return "devices/pci0000:00/" + address }

// appear makes a function known, and lets its driver have it.
func (k *Kernel) appear(f Function) {
	if f.Class == "" {
		f.Class = "0x020000"
	}
	if f.Class == "0x020000" && f.Interfaces == nil {
		f.Interfaces = []string{"en" + strings.NewReplacer(":", "", ".", "").Replace(f.Address)}
	}
	k.functions[f.Address] = f
	dev := k.device(f.Address)
	k.folder(dev)
	node := "-1"
	if f.Node != "" {
		node = f.Node
	}
	for name, text := range map[string]string{"vendor": "0x8086", "device": "0x10d3", "class": f.Class, "numa_node": node, "driver_override": "(null)"} {
		k.file(dev+"/"+name, text+"\n")
	}
	if f.VFs > 0 {
		k.file(dev+"/sriov_totalvfs", fmt.Sprintln(f.VFs))
		k.file(dev+"/sriov_numvfs", "0\n")
		k.file(dev+"/sriov_drivers_autoprobe", "1\n")
	}
	k.link("bus/pci/devices/"+f.Address, "../../../"+dev)
	if f.Group != "" {
		k.folder("kernel/iommu_groups/" + f.Group + "/devices")
		k.link(dev+"/iommu_group", "../../../kernel/iommu_groups/"+f.Group)
		k.link("kernel/iommu_groups/"+f.Group+"/devices/"+f.Address, "../../../../"+dev)
	}
	k.probe(f)
}

func (k *Kernel) vanish(address string) {
	f := k.functions[address]
	k.release(address)
	k.remove("bus/pci/devices/" + address)
	k.remove("kernel/iommu_groups/" + f.Group + "/devices/" + address)
	k.remove(k.device(address))
	delete(k.functions, address)
}

func (k *Kernel) bound(address string) (string, bool) {
	to, err := os.Readlink(filepath.Join(k.sys, k.device(address), "driver"))
	return filepath.Base(to), err == nil
}

func (k *Kernel) driver(name string) {
	k.folder("bus/pci/drivers/" + name)
	k.file("bus/pci/drivers/"+name+"/bind", "")
	k.file("bus/pci/drivers/"+name+"/unbind", "")
}

// pools returns the pools of the nodes of which a folder shows the sum; none for a folder of a node.
func (k *Kernel) pools(dir string) (dirs []string) {
	if !strings.HasPrefix(dir, sums) {
		return nil
	}
	for d := range k.room {
		if filepath.Base(d) == filepath.Base(dir) {
			dirs = append(dirs, d)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// sums is where the pools of all nodes are shown together.
const sums = "kernel/mm/hugepages/"

func (k *Kernel) pool(dir string, n int) {
	k.folder(dir)
	k.file(dir+"/nr_hugepages", fmt.Sprintln(n))
	k.file(dir+"/free_hugepages", fmt.Sprintln(n-k.used[dir]))
	sum := sums + filepath.Base(dir)
	k.folder(sum)
	n = 0
	for _, d := range k.pools(sum) {
		if _, err := os.Stat(filepath.Join(k.sys, d)); err == nil {
			n += k.number(d + "/nr_hugepages")
		}
	}
	k.file(sum+"/nr_hugepages", fmt.Sprintln(n))
}

func (k *Kernel) folder(path string) { k.must(os.MkdirAll(filepath.Join(k.sys, path), 0o755)) }

func (k *Kernel) file(path, text string) {
	k.must(os.WriteFile(filepath.Join(k.sys, path), []byte(text), 0o644))
}

func (k *Kernel) link(path, to string) {
	k.remove(path)
	k.must(os.Symlink(to, filepath.Join(k.sys, path)))
}

func (k *Kernel) remove(path string) { k.must(os.RemoveAll(filepath.Join(k.sys, path))) }

func (k *Kernel) text(path string) string {
	b, err := os.ReadFile(filepath.Join(k.sys, path))
	k.must(err)
	return strings.TrimSpace(string(b))
}

func (k *Kernel) number(path string) int {
	n, err := strconv.Atoi(k.text(path))
	k.must(err)
	return n
}

func (k *Kernel) must(err error) {
	if err != nil {
		k.t.Error(err)
	}
}

// A tree is a folder; nothing in it can be written.
type tree struct{ dir string }

func (t tree) Read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(t.dir, path))
	return strings.TrimSuffix(string(b), "\n"), err
}

func (t tree) Write(path, _ string) error {
	return &fs.PathError{Op: "write", Path: path, Err: syscall.EACCES}
}

func (t tree) Readlink(path string) (string, error) { return os.Readlink(filepath.Join(t.dir, path)) }

func (t tree) ReadDir(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(t.dir, path))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, err
}
