package pci_test

import (
	"path"
	"strings"
	"testing"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/schema"
)

// call is a call for an object of a kind.
func call(kind, name string, want schema.Object) providers.Call {
	return providers.Call{Ref: schema.Ref{Scope: "gpu-01", Kind: kind, Name: name}, ID: name, Want: want}
}

func served(t *testing.T, k *kerneltest.Kernel, kind string) providers.Kind {
	t.Helper()
	set, err := providers.NewSet(pci.New("gpu-01", k.Kernel(), nil))
	if err != nil {
		t.Fatal(err)
	}
	s, _, ok := set.Find("gpu-01", kind)
	if !ok {
		t.Fatalf("%s is not served", kind)
	}
	return s.Kind
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused checks that a call was refused for a reason and changed nothing.
func refused(t *testing.T, k *kerneltest.Kernel, class providers.Class, says string, do func() error) {
	t.Helper()
	before := k.Dump()
	err := do()
	if err == nil || providers.ClassOf(err) != class || !strings.Contains(err.Error(), says) {
		t.Errorf("the error is %v, of class %s; want %s, with %q", err, providers.ClassOf(err), class, says)
	}
	if after := k.Dump(); after != before {
		t.Errorf("a refused call changed something. Before:\n%s\nAfter:\n%s", before, after)
	}
}

var assigned = schema.Object{"driver": "vfio-pci"}

// What the node itself uses is not taken away from it, and the message says what that is.
func TestInUse(t *testing.T) {
	const disk, nic, gpu = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
	m := kerneltest.Machine{Drivers: []string{"vfio-pci"}, Functions: []kerneltest.Function{
		{Address: disk, Class: "0x010802", Native: "nvme", Group: "1", Disks: []string{"nvme0n1"}},
		{Address: nic, Native: "mlx5_core", Group: "2", Interfaces: []string{"eth0"}},
		{Address: gpu, Class: "0x030200", Native: "nvidia", Group: "3"},
	}}
	for _, c := range []struct {
		name, address string
		use           func(k *kerneltest.Kernel)
		says          string
	}{
		{"a mounted disk", disk, func(k *kerneltest.Kernel) {
			k.Proc("1/mountinfo", "22 1 8:0 / /var/lib/models rw,relatime shared:1 - ext4 /dev/nvme0n1 rw\n")
		}, "nvme0n1 is mounted at /var/lib/models"},
		{"a mounted partition", disk, func(k *kerneltest.Kernel) {
			k.Partition(disk, "nvme0n1", "nvme0n1p1", "8:1")
			k.Proc("1/mountinfo", "22 1 8:1 / /boot rw - vfat /dev/nvme0n1p1 rw\n")
		}, "nvme0n1p1 is mounted at /boot"},
		{"swap", disk, func(k *kerneltest.Kernel) {
			k.Proc("swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/nvme0n1 partition 1024 0 -2\n")
		}, "nvme0n1 is swap"},
		{"a part of a volume group", disk, func(k *kerneltest.Kernel) { k.Hold(disk, "nvme0n1", "dm-0") }, "nvme0n1 is a part of dm-0"},
		{"the default route", nic, func(k *kerneltest.Kernel) {
			k.Proc("1/net/route", "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n")
		}, "eth0 has a route to everywhere"},
		{"a route of IPv6", nic, func(k *kerneltest.Kernel) {
			k.Proc("1/net/ipv6_route", "20010db8000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n")
		}, "eth0 has a route to an IPv6 network"},
		{"a port of a bridge", nic, func(k *kerneltest.Kernel) { k.Enslave("eth0", "br0") }, "eth0 is used by br0"},
		{"a part of a btrfs", disk, func(k *kerneltest.Kernel) { k.Attribute("fs/btrfs/7d9f/devices/nvme0n1", "") }, "nvme0n1 is a part of btrfs 7d9f"},
		{"a device of another name, mounted", disk, func(k *kerneltest.Kernel) {
			k.Proc("1/mountinfo", "22 1 0:31 / /srv rw - btrfs /dev/nvme0n1 rw\n")
		}, "nvme0n1 is mounted at /srv"},
		{"behind a loop device", disk, func(k *kerneltest.Kernel) { k.Attribute("class/block/loop3/loop/backing_file", "/dev/nvme0n1") }, "nvme0n1 is a part of loop3"},
		{"a member of a ZFS pool", disk, func(k *kerneltest.Kernel) { k.Claims("nvme0n1") }, "nvme0n1 is claimed"},
		{"the disk of a virtual machine", disk, func(k *kerneltest.Kernel) { k.Opens(77, "qemu-system-x86", "/dev/nvme0n1") }, "process 77 (qemu-system-x86) has /dev/nvme0n1 open"},
		{"a VLAN on it", nic, func(k *kerneltest.Kernel) { k.Attribute("class/net/eth0/upper_eth0.100", "") }, "eth0 is used by eth0.100"},
		{"up and connected", nic, func(k *kerneltest.Kernel) {
			k.Attribute("class/net/eth0/flags", "0x1003")
			k.Attribute("class/net/eth0/carrier", "1")
		}, "eth0 is up and connected: set it down first"},
		{"in a container", nic, func(k *kerneltest.Kernel) { k.Hide("eth0") }, "may be in use in another network namespace"},
		{"RDMA", nic, func(k *kerneltest.Kernel) {
			k.Link("class/infiniband_verbs/uverbs0", "../../devices/pci0000:00/"+nic+"/infiniband_verbs/uverbs0")
			k.Opens(78, "all_reduce_perf", "/dev/infiniband/uverbs0")
		}, "process 78 (all_reduce_perf) has /dev/infiniband/uverbs0 open"},
		{"another function of its group is assigned", nic, func(k *kerneltest.Kernel) { k.Opens(79, "qemu-system-x86", "/dev/vfio/2") }, "process 79 (qemu-system-x86) has /dev/vfio/2 open"},
		{"a GPU that computes", gpu, func(k *kerneltest.Kernel) {
			k.Proc("driver/nvidia/gpus/"+gpu+"/information", "Model: \t\t NVIDIA H100\nDevice Minor: \t 3\n")
			k.Opens(4711, "python3", "/dev/nvidia3")
		}, "process 4711 (python3) has /dev/nvidia3 open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := kerneltest.New(t, m)
			c.use(k)
			kind := served(t, k, "pci.function")
			refused(t, k, providers.Denied, c.says, func() error {
				return kind.Create(t.Context(), call("pci.function", c.address, assigned))
			})
			// What its own driver may keep is no reason to refuse.
			native := map[string]string{disk: "nvme", nic: "mlx5_core", gpu: "nvidia"}[c.address]
			own := call("pci.function", c.address, schema.Object{"driver": native})
			must(t, kind.Create(t.Context(), own))
			must(t, kind.Delete(t.Context(), own))
		})
	}
}

// Addresses and routes of IPv6 that every interface has are no use of it; neither is what another interface has.
func TestNotInUse(t *testing.T) {
	k := kerneltest.New(t, kerneltest.Machine{Drivers: []string{"vfio-pci"}, Functions: []kerneltest.Function{
		{Address: "0000:02:00.0", Native: "mlx5_core", Group: "2", Interfaces: []string{"eth1"}},
	}})
	k.Proc("1/net/route", "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n")
	k.Proc("1/net/ipv6_route", "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth1\n"+
		"ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth1\n")
	must(t, served(t, k, "pci.function").Create(t.Context(), call("pci.function", "0000:02:00.0", assigned)))
}

// A function whose VFIO group a virtual machine has open stays with it, and so do the virtual functions of a device.
func TestAssigned(t *testing.T) {
	const pf, vf = "0000:02:00.0", "0000:02:00.1"
	k := kerneltest.New(t, kerneltest.Machine{Drivers: []string{"vfio-pci"}, Functions: []kerneltest.Function{{Address: pf, Native: "mlx5_core", Group: "2", VFs: 4}}})
	virtual, function := served(t, k, "pci.sriov"), served(t, k, "pci.function")
	must(t, virtual.Create(t.Context(), call("pci.sriov", pf, schema.Object{"num_vfs": int64(2)})))
	must(t, function.Create(t.Context(), call("pci.function", vf, assigned)))
	k.Opens(99, "qemu-system-x86", "/dev/vfio/201")
	const says = "process 99 (qemu-system-x86) has /dev/vfio/201 open"
	for _, err := range []func() error{
		func() error { return function.Delete(t.Context(), call("pci.function", vf, nil)) },
		func() error {
			return function.Update(t.Context(), call("pci.function", vf, schema.Object{"driver": "mlx5_core"}))
		},
		func() error { return virtual.Delete(t.Context(), call("pci.sriov", pf, nil)) },
	} {
		refused(t, k, providers.Denied, says, err)
	}
}

// A function with virtual functions stays with its driver, which would remove them.
func TestPhysicalFunction(t *testing.T) {
	const pf = "0000:02:00.0"
	k := kerneltest.New(t, machine)
	must(t, served(t, k, "pci.sriov").Create(t.Context(), call("pci.sriov", pf, schema.Object{"num_vfs": int64(2), "drivers_autoprobe": false})))
	refused(t, k, providers.Denied, "has 2 virtual functions, which would be removed", func() error {
		return served(t, k, "pci.function").Create(t.Context(), call("pci.function", pf, assigned))
	})
	refused(t, k, providers.Invalid, "set drivers_autoprobe to true", func() error {
		return served(t, k, "pci.function").Create(t.Context(), call("pci.function", "0000:02:00.1", schema.Object{"driver": "e1000e"}))
	})
}

// Virtual functions that another client has created meanwhile are not removed by the attempt to create ours.
func TestCreatedMeanwhile(t *testing.T) {
	const pf = "0000:02:00.0"
	k := kerneltest.New(t, machine)
	k.Before("sriov_numvfs", func() { must(t, k.Write("bus/pci/devices/"+pf+"/sriov_numvfs", "3")) })
	err := served(t, k, "pci.sriov").Create(t.Context(), call("pci.sriov", pf, schema.Object{"num_vfs": int64(2)}))
	if providers.ClassOf(err) != providers.Busy {
		t.Errorf("the error is %v, of class %s", err, providers.ClassOf(err))
	}
	if n, err := k.Read("bus/pci/devices/" + pf + "/sriov_numvfs"); err != nil || n != "3" {
		t.Errorf("of 3 virtual functions of another client there are %s (%v)", n, err)
	}
}

// Virtual functions whose driver goes meanwhile cannot be removed, and then nothing has changed.
func TestRemovedByNobody(t *testing.T) {
	const pf = "0000:02:00.0"
	k := kerneltest.New(t, machine)
	virtual := served(t, k, "pci.sriov")
	must(t, virtual.Create(t.Context(), call("pci.sriov", pf, schema.Object{"num_vfs": int64(2), "drivers_autoprobe": false})))
	driver, err := k.Readlink("bus/pci/devices/" + pf + "/driver")
	must(t, err)
	k.Before("sriov_numvfs", func() { must(t, k.Write("bus/pci/drivers/"+path.Base(driver)+"/unbind", pf)) })
	err = virtual.Delete(t.Context(), call("pci.sriov", pf, nil))
	if err == nil || providers.ClassOf(err) == providers.Unknown {
		t.Errorf("the error is %v, of class %s", err, providers.ClassOf(err))
	}
	if on, err := k.Read("bus/pci/devices/" + pf + "/sriov_drivers_autoprobe"); err != nil || on != "0" {
		t.Errorf("autoprobe is %s (%v)", on, err)
	}
}

// Without proc it is unknown what is in use, and unknown is not unused.
func TestNoProc(t *testing.T) {
	k := kerneltest.New(t, kerneltest.Machine{Drivers: []string{"vfio-pci"}, Functions: []kerneltest.Function{{Address: "0000:02:00.0", Native: "mlx5_core", Group: "2"}}})
	kernel := k.Kernel()
	kernel.Processes, kernel.Unseen = nil, "it is that of a container"
	set, err := providers.NewSet(pci.New("gpu-01", kernel, nil))
	must(t, err)
	s, _, _ := set.Find("gpu-01", "pci.function")
	refused(t, k, providers.Denied, "it is unknown whether 0000:02:00.0 is in use: it is that of a container", func() error {
		return s.Kind.Create(t.Context(), call("pci.function", "0000:02:00.0", assigned))
	})
}
