package guest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"converge.dev/converge/internal/guest/order"
)

// A Machine is what a guest runs on. The zero machine has one CPU, no IOMMU, no NUMA nodes and no devices besides its chipset.
type Machine struct {
	Name      string // tells In which guest this is
	IOMMU     bool   // Intel's, with interrupt remapping
	NUMA      int    // number of nodes, each with one CPU and an equal part of the memory; 0: not a NUMA machine
	MemoryMiB int    // 0: 256
	Devices   []Device
	Modules   []string // to load besides vfio-pci and those of the devices
	// Userland gives the guest the programs and libraries of the computer: its whole file system, of which the guest changes a copy.
	// What is built for the guest then uses libvirt's library, too.
	Userland bool
	Programs []string // import paths of commands that are built and put in the guest's PATH
}

// A Device is a PCI device, or several that belong together, behind a root port of its own.
type Device struct {
	name      string
	objects   []object // as QEMU's -device takes them
	backends  []object // as QEMU's -blockdev takes them
	modules   []string // that drive it
	subsystem bool     // of NVMe, which SR-IOV needs
	newer     bool     // the QEMU of Debian's release does not know it
	unplugged bool
	node      int
}

// object is an object of QEMU with its properties, on its command line and through QMP alike.
type object map[string]any

// Node puts a device on a bus of a NUMA node. Other devices belong to no node.
func (d Device) Node(n int) Device {
	d.node = n + 1
	return d
}

// Unplugged leaves the slot of a device empty until Plug.
func (d Device) Unplugged() Device {
	d.unplugged = true
	return d
}

func (d Device) port() string { return d.name + ".port" }

// NVMe is an NVMe controller with an empty disk of 64 MiB.
func NVMe(name string) Device {
	return Device{
		name:     name,
		backends: []object{{"driver": "null-co", "node-name": name + ".disk", "size": 64 << 20, "read-zeroes": true}},
		objects:  []object{{"driver": "nvme", "id": name, "serial": name, "drive": name + ".disk"}},
		modules:  []string{"nvme"},
	}
}

// SRIOVNVMe is an NVMe controller with SR-IOV and without a disk. QEMU's virtual functions do not work as NVMe controllers, because
// nothing assigns queues to them, but they can be bound to vfio-pci.
func SRIOVNVMe(name string, functions int) Device {
	return Device{
		name: name,
		objects: []object{{
			"driver": "nvme", "id": name, "serial": name, "subsys": name + ".subsystem", "sriov_max_vfs": functions,
			// Two queues and one interrupt for each function, besides those of the controller.
			"sriov_vq_flexible": 2 * functions, "sriov_vi_flexible": functions, "max_ioqpairs": 2*functions + 2, "msix_qsize": functions + 6,
		}},
		modules:   []string{"nvme"},
		subsystem: true,
	}
}

// E1000e is a PCI Express network card.
func E1000e(name string) Device {
	return Device{
		name:    name,
		objects: []object{{"driver": "e1000e", "id": name, "romfile": ""}},
		modules: []string{"e1000e"},
	}
}

// IGB is a network card with SR-IOV, an Intel 82576, whose virtual functions are driven by igbvf. It can have seven of them. QEMU knows
// it since version 8.
func IGB(name string) Device {
	return Device{
		name:    name,
		objects: []object{{"driver": "igb", "id": name, "romfile": ""}},
		modules: []string{"igb", "igbvf"},
		newer:   true,
	}
}

// SharedGroup is two e1000 network cards, NAME.0 and NAME.1, behind a bridge to conventional PCI, NAME.bridge. An IOMMU cannot tell
// the three apart, so they share a group.
func SharedGroup(name string) Device {
	bridge := name + ".bridge"
	return Device{
		name: name,
		objects: []object{
			{"driver": "pcie-pci-bridge", "id": bridge},
			{"driver": "e1000", "id": name + ".0", "bus": bridge, "addr": "1", "romfile": ""},
			{"driver": "e1000", "id": name + ".1", "bus": bridge, "addr": "2", "romfile": ""},
		},
		modules: []string{"e1000"},
	}
}

// plugged returns the objects of a device as they are connected.
func (d Device) plugged() []object {
	var connected []object
	for _, o := range d.objects {
		c := object{"bus": d.port()}
		for k, v := range o {
			c[k] = v
		}
		connected = append(connected, c)
	}
	return connected
}

// modules lists what the machine's kernel loads: VFIO first, so that its parts are there when a driver is looked for.
func (m Machine) modules() []string {
	names := []string{"vfio-pci", "vfio_iommu_type1"}
	for _, d := range m.Devices {
		for _, name := range d.modules {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if m.Userland {
		names = append(names, "virtio_pci", "9pnet_virtio", "9p", "overlay")
	}
	return append(names, m.Modules...)
}

// command is QEMU's command line for the machine, without its channels and what it boots.
func (m Machine) command() ([]string, error) {
	memory := m.MemoryMiB
	if memory == 0 {
		memory = 256
	}
	args := []string{"-accel", "tcg", "-cpu", "max", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-m", strconv.Itoa(memory), "-smp", strconv.Itoa(max(m.NUMA, 1))}
	var failed error
	add := func(option string, o object) {
		text, err := json.Marshal(o)
		if err != nil {
			failed = err
		}
		args = append(args, option, string(text))
	}
	if m.IOMMU { // before what it translates for
		args = append(args, "-machine", "q35,kernel-irqchip=split", "-device", "intel-iommu,intremap=on,caching-mode=on")
	} else {
		args = append(args, "-machine", "q35")
	}
	for n := range m.NUMA {
		add("-object", object{"qom-type": "memory-backend-ram", "id": fmt.Sprintf("memory%d", n), "size": memory / m.NUMA << 20})
		args = append(args, "-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d,memdev=memory%d", n, n, n))
		// A bus of a node's own: only what is on such a one is near a node. The numbers leave room for the ports behind.
		add("-device", object{"driver": "pxb-pcie", "id": fmt.Sprintf("node%d", n), "bus": "pcie.0", "bus_nr": 64 * (n + 1), "numa_node": n})
	}
	for i, d := range m.Devices {
		bus := "pcie.0"
		if d.node > 0 {
			bus = fmt.Sprintf("node%d", d.node-1)
		}
		add("-device", object{"driver": "pcie-root-port", "id": d.port(), "bus": bus, "chassis": i + 1, "slot": i + 1})
		if d.subsystem {
			add("-device", object{"driver": "nvme-subsys", "id": d.name + ".subsystem"})
		}
		for _, b := range d.backends {
			add("-blockdev", b)
		}
		if d.unplugged {
			continue
		}
		for _, o := range d.plugged() {
			add("-device", o)
		}
	}
	if m.Userland {
		args = append(args, "-fsdev", "local,id=userland,path=/,security_model=none,readonly=on,multidevs=remap")
		add("-device", object{"driver": "virtio-9p-pci", "bus": "pcie.0", "fsdev": "userland", "mount_tag": order.Userland})
	}
	return append(args, "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"), failed
}

// device finds a device by its name.
func (m Machine) device(name string) (Device, bool) {
	i := slices.IndexFunc(m.Devices, func(d Device) bool { return d.name == name })
	if i < 0 {
		return Device{}, false
	}
	return m.Devices[i], true
}

// newer has a QEMU that is newer than that of Debian's release, as its packages have it below usr. .ci/deps writes it.
const newer = "/var/cache/converge/qemu"

// emulator returns the program that emulates the machine, and the arguments that say where its firmware is.
func (m Machine) emulator() (program string, args []string) {
	if !slices.ContainsFunc(m.Devices, func(d Device) bool { return d.newer }) {
		return "qemu-system-x86_64", nil
	}
	usr := filepath.Join(newer, "usr")
	return filepath.Join(usr, "bin/qemu-system-x86_64"), []string{"-L", filepath.Join(usr, "share/qemu"), "-L", filepath.Join(usr, "share/seabios")}
}

// emulated returns what keeps the newer QEMU from emulating the machine, if it needs that.
func (m Machine) emulated() error {
	program, firmware := m.emulator()
	if firmware == nil {
		return nil
	}
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("there is no %s, which knows a device that this machine has", program)
	}
	// It comes with programs and firmware, but uses the libraries of this computer.
	if out, err := exec.Command(program, "-version").CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not run: %w: %s", program, err, bytes.TrimSpace(out))
	}
	return nil
}
