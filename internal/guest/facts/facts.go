// Package facts says what the Linux kernel does with PCI devices, their drivers, IOMMU groups, virtual functions, NUMA nodes and
// hugepages, as far as a program sees it below /sys: in a table of facts that can be tried.
//
// They are tried on the real kernel, in a guest. Whoever writes a fake kernel tries them on the fake as well: a fake that passes
// is modelled on what is, down to the error number. Each fact leaves the machine as it found it.
package facts

import (
	"errors"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Kernel is what stands below /sys. Paths are relative to it: bus/pci/drivers_probe. An error has the kernel's error number.
type Kernel interface {
	Read(path string) (string, error)
	Write(path, value string) error // opens for writing only, creates nothing, and writes once
	Readlink(path string) (string, error)
	ReadDir(path string) ([]string, error) // the names, in order
}

// A Host is a machine with a kernel, as seen from its own programs and, where the table needs that, from outside.
type Host struct {
	Kernel
	Address func(device string) string       // its PCI address, such as 0000:01:00.0
	Viable  func(group string) (bool, error) // whether VFIO_GROUP_GET_STATUS calls the IOMMU group viable
	Plug    func(device string)              // connects a device; the kernel may notice later
	Unplug  func(device string)              // disconnects it, and waits until the kernel has released it
	// Use opens a device as a program would: its disk, or through VFIO if it is bound to vfio-pci. wanted waits until the kernel
	// waits for the program to close it, which end does.
	Use     func(device string) (wanted, end func())
	Uevents func() func() string // listens, and returns what waits for the next event, such as remove@/devices/…
}

// The devices of the machine that the facts are tried on. It has two NUMA nodes, of which node N has CPU N alone, and less memory
// than 100000 hugepages.
const (
	Disk   = "disk"   // NVMe, of node 0 where there are nodes
	Far    = "far"    // NVMe, of node 1
	SRIOV  = "sriov"  // NVMe that can have Functions virtual functions
	Shared = "shared" // the bridge shared.bridge, without a driver, and behind it shared.0 and shared.1, bound to e1000
	NIC    = "nic"    // bound to e1000e
	Later  = "later"  // NVMe in an empty slot
)

// Functions is how many virtual functions SRIOV can have.
const Functions = 4

// A Fact is one thing that the kernel does.
type Fact struct {
	Name string
	Is   string // the fact, in a sentence
	try  func(*trial)
}

// Try tries every fact of a table, each as a subtest with the host that it is given.
func Try(t *testing.T, host func(testing.TB) Host, table []Fact) {
	for _, f := range table {
		t.Run(f.Name, func(t *testing.T) {
			t.Log(f.Is)
			f.try(&trial{t, host(t)})
		})
	}
}

// trial is a fact being tried.
type trial struct {
	*testing.T
	Host
}

const (
	devices = "bus/pci/devices/"
	drivers = "bus/pci/drivers/"
	probe   = "bus/pci/drivers_probe"
	groups  = "kernel/iommu_groups"
)

// at is the path of an attribute of a device.
func (t *trial) at(device string, attribute ...string) string {
	return path.Join(append([]string{devices, t.Address(device)}, attribute...)...)
}

// read returns what an attribute holds, without the end of its line.
func (t *trial) read(path string) string {
	t.Helper()
	text, err := t.Read(path)
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	line, ended := strings.CutSuffix(text, "\n")
	if !ended {
		t.Errorf("%s does not end its line: %q", path, text)
	}
	return line
}

// reads checks what an attribute holds.
func (t *trial) reads(path, want string) {
	t.Helper()
	if have := t.read(path); have != want {
		t.Errorf("%s reads %q, want %q", path, have, want)
	}
}

// write writes what has to be accepted.
func (t *trial) write(path, value string) {
	t.Helper()
	if err := t.Write(path, value); err != nil {
		t.Fatalf("write %q to %s: %v", value, path, err)
	}
}

// refused checks that the kernel does not accept a value, and with which error.
func (t *trial) refused(path, value string, want unix.Errno) {
	t.Helper()
	t.is(t.Write(path, value), want, "write "+value+" to "+path)
}

// absent checks that there is no such file.
func (t *trial) absent(path string) {
	t.Helper()
	_, err := t.Read(path)
	t.is(err, unix.ENOENT, "read "+path)
}

func (t *trial) is(err error, want unix.Errno, what string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %s (%v)", what, err, unix.ErrnoName(want), want)
	}
}

// list returns the names in a directory.
func (t *trial) list(path string) []string {
	t.Helper()
	names, err := t.ReadDir(path)
	if err != nil {
		t.Fatalf("list %s: %v", path, err)
	}
	return names
}

// link returns the last name of what a link points to, and "" when there is no link.
func (t *trial) link(at string) string {
	t.Helper()
	target, err := t.Readlink(at)
	if errors.Is(err, unix.ENOENT) {
		return ""
	}
	if err != nil {
		t.Fatalf("read the link %s: %v", at, err)
	}
	return path.Base(target)
}

// driven checks which driver has a device; "": none.
func (t *trial) driven(device, want string) {
	t.Helper()
	if have := t.link(t.at(device, "driver")); have != want {
		t.Errorf("the driver of %s is %q, want %q", device, have, want)
	}
}

// has says whether a directory has a name.
func (t *trial) has(dir, name string) bool {
	t.Helper()
	return slices.Contains(t.list(dir), name)
}

// eventually waits for what the kernel does in its own time.
func (t *trial) eventually(what string, done func() bool) {
	t.Helper()
	limit := time.NewTimer(2 * time.Minute) // against a hang; it takes less than a second
	defer limit.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !done() {
		select {
		case <-limit.C:
			t.Fatalf("it never came to be that %s", what)
		case <-again.C:
		}
	}
}

// rebind unbinds a device and probes it again, under an override or, when that is empty, without one.
func (t *trial) rebind(device, override string) {
	t.Helper()
	t.write(t.at(device, "driver_override"), override+"\n")
	if t.link(t.at(device, "driver")) != "" {
		t.write(t.at(device, "driver/unbind"), t.Address(device))
	}
	t.write(probe, t.Address(device))
}

// borrow gives a device back to its driver when the fact has been tried.
func (t *trial) borrow(device string) {
	t.Helper()
	native := t.link(t.at(device, "driver"))
	if native == "" {
		t.Fatalf("%s has no driver to begin with", device)
	}
	t.Cleanup(func() {
		t.rebind(device, "")
		t.driven(device, native)
	})
}
