package pci_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
	"github.com/google/go-cmp/cmp"
)

func list(t *testing.T, k providers.Kind) []providers.Thing {
	t.Helper()
	things, err := providers.Collect(k.List(t.Context()))
	must(t, err)
	return things
}

// Deleting leads back to what the kernel does by itself, byte for byte.
func TestBackToTheKernel(t *testing.T) {
	k := kerneltest.New(t, machine)
	before := k.Dump()
	for kind, make := range map[string]providers.Call{
		"pci.function": call("pci.function", "0000:01:00.0", assigned),
		"pci.sriov":    call("pci.sriov", "0000:02:00.0", schema.Object{"num_vfs": int64(3), "drivers_autoprobe": false}),
	} {
		must(t, served(t, k, kind).Create(t.Context(), make))
		if k.Dump() == before {
			t.Errorf("creating a %s changed nothing", kind)
		}
		must(t, served(t, k, kind).Delete(t.Context(), make))
		if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(k.Dump(), "\n")); d != "" {
			t.Errorf("after a %s was created and deleted (-before +after):\n%s", kind, d)
		}
	}
}

// The kernel reports success when it binds no driver: the function is read back, and gets its own driver again.
func TestTheKernelLies(t *testing.T) {
	const address = "0000:01:00.0"
	for _, c := range []struct {
		name, driver string
		machine      kerneltest.Machine
		says         string
	}{
		{"the driver refuses the function", "vfio-pci", machine, "did not bind 0000:01:00.0 to vfio-pci"},
		{"the driver does not know the function", "e1000e", machine, "e1000e does not support 0000:01:00.0"},
		{"there is no such driver", "mlx5_core", machine, "load its module first (modprobe mlx5_core)"},
		{"there is no IOMMU", "vfio-pci", kerneltest.Machine{
			Drivers: []string{"vfio-pci"}, Functions: []kerneltest.Function{{Address: address, Native: "nvme"}},
		}, "is in no IOMMU group, so vfio-pci cannot take it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := kerneltest.New(t, c.machine)
			k.Refuse("vfio-pci", address)
			refused(t, k, providers.Invalid, c.says, func() error {
				return served(t, k, "pci.function").Create(t.Context(), call("pci.function", address, schema.Object{"driver": c.driver}))
			})
		})
	}

	t.Run("and the old driver refuses, too", func(t *testing.T) {
		k := kerneltest.New(t, machine)
		k.Refuse("vfio-pci", address)
		k.Refuse("nvme", address)
		err := served(t, k, "pci.function").Create(t.Context(), call("pci.function", address, assigned))
		if providers.ClassOf(err) != providers.Unknown || !providers.Over(err) || !strings.Contains(err.Error(), "was bound to nvme before, and is bound to no driver now") {
			t.Errorf("the error is %v, of class %s; want one that says what was lost", err, providers.ClassOf(err))
		}
	})

	t.Run("in place of another override", func(t *testing.T) {
		k := kerneltest.New(t, machine)
		kind := served(t, k, "pci.function")
		must(t, kind.Create(t.Context(), call("pci.function", address, schema.Object{"driver": "pci-stub"})))
		k.Refuse("vfio-pci", address)
		refused(t, k, providers.Invalid, "It is bound to pci-stub again", func() error { return kind.Update(t.Context(), call("pci.function", address, assigned)) })
	})
}

// An IOMMU group can be assigned only as a whole: a function is ready once the rest of its group has no driver that would use it.
func TestGroup(t *testing.T) {
	const one, two, bridge = "0000:03:01.0", "0000:03:02.0", "0000:02:00.0"
	k := kerneltest.New(t, kerneltest.Machine{Drivers: []string{"vfio-pci"}, Functions: []kerneltest.Function{
		{Address: bridge, Class: "0x060400", Native: "pcieport", Group: "5"},
		{Address: one, Native: "e1000", Group: "5"},
		{Address: two, Native: "e1000", Group: "5"},
	}})
	kind := served(t, k, "pci.function")
	must(t, kind.Create(t.Context(), call("pci.function", one, assigned)))
	th := list(t, kind)[0]
	if th.Phase != providers.Pending || !strings.Contains(th.Detail, "IOMMU group 5 cannot be assigned as long as 0000:03:02.0 is bound to e1000") {
		t.Errorf("half of a group is %s: %s", th.Phase, th.Detail)
	}
	must(t, kind.Create(t.Context(), call("pci.function", two, assigned)))
	for _, th := range list(t, kind) {
		if th.Phase != providers.Ready {
			t.Errorf("%s of a whole group is %s: %s", th.ID, th.Phase, th.Detail)
		}
	}
}

// What others have overridden is reported and not taken; what appears and disappears is there and not there.
func TestOthers(t *testing.T) {
	const address = "0000:01:00.0"
	k := kerneltest.New(t, machine)
	must(t, k.Write("bus/pci/devices/"+address+"/driver_override", "vfio-pci"))
	kind := served(t, k, "pci.function")
	if things := list(t, kind); len(things) != 1 || things[0].ID != address || things[0].Spec["driver"] != "nvme" {
		t.Errorf("an override of others is listed as %+v", things)
	}
	refused(t, k, providers.Exists, "is set already", func() error { return kind.Create(t.Context(), call("pci.function", address, assigned)) })
	k.Unplug(address)
	if things := list(t, kind); len(things) != 0 {
		t.Errorf("an unplugged function is listed: %+v", things)
	}
	refused(t, k, providers.Absent, "node gpu-01 has no PCI function 0000:01:00.0", func() error { return kind.Create(t.Context(), call("pci.function", address, assigned)) })
}

func TestVirtualFunctions(t *testing.T) {
	const pf = "0000:02:00.0"
	k := kerneltest.New(t, machine)
	virtual, function := served(t, k, "pci.sriov"), served(t, k, "pci.function")
	for says, c := range map[string]providers.Call{
		"supports 4 virtual functions, not 5": call("pci.sriov", pf, schema.Object{"num_vfs": int64(5)}),
		"does not support SR-IOV":             call("pci.sriov", "0000:01:00.0", schema.Object{"num_vfs": int64(1)}),
	} {
		refused(t, k, providers.Invalid, says, func() error { return virtual.Create(t.Context(), c) })
	}
	must(t, virtual.Create(t.Context(), call("pci.sriov", pf, schema.Object{"num_vfs": int64(2), "drivers_autoprobe": false})))
	if s := list(t, virtual)[0].Status; !schema.Object(s).Equal(schema.Object{"total_vfs": int64(4), "virtual_functions": []any{"0000:02:00.1", "0000:02:00.2"}}) {
		t.Errorf("the status is %v", s)
	}
	refused(t, k, providers.Invalid, "0000:01:00.0 is not a virtual function of "+pf, func() error {
		return function.Create(t.Context(), call("pci.function", "0000:01:00.0", schema.Object{"driver": "vfio-pci", "physical_function": pf}))
	})
}

// A copy of a tree has files in place of links, and lacks what could not be copied. It is read as far as it goes.
func TestCopiedTree(t *testing.T) {
	sys := filepath.Join(t.TempDir(), "sys")
	write := func(name, text string) {
		path := filepath.Join(sys, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	must(t, os.MkdirAll(filepath.Join(sys, "devices"), 0o755))
	write("bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
	write("bus/pci/devices/0000:02:00.0/driver_override", "vfio-pci\n")
	write("bus/pci/devices/0000:03:00.0/driver_override", "vfio-pci\n")
	write("bus/pci/devices/0000:03:00.0/driver", "")
	write("bus/pci/devices/0000:03:00.0/numa_node", "-1\n")
	write("bus/pci/devices/10000:e1:00.0/driver_override", "vfio-pci\n")
	must(t, os.Symlink("../../drivers/vfio-pci", filepath.Join(sys, "bus/pci/devices/10000:e1:00.0/driver")))
	p, err := pci.Config{Config: sysfs.Config(sys)}.Open(t.Context(), providers.Opening{Scope: "gpu-01", Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer p.Close()
	var seen []string
	for th, err := range p.Kinds[0].Kind.List(t.Context()) {
		must(t, err)
		driver, _ := th.Spec["driver"].(string)
		seen = append(seen, th.ID+" "+driver)
	}
	if want := []string{"0000:02:00.0 ", "0000:03:00.0 ", "10000:e1:00.0 vfio-pci"}; !cmp.Equal(seen, want) {
		t.Errorf("the tree has %q, want %q", seen, want)
	}
	if things := list(t, p.Kinds[1].Kind); len(things) != 0 {
		t.Errorf("the tree has virtual functions: %+v", things)
	}
}

// What is not a sysfs shows no functions, and must not be taken for a machine that has none.
func TestNoSysfs(t *testing.T) {
	_, err := pci.Config{Config: sysfs.Config(t.TempDir())}.Open(t.Context(), providers.Opening{Scope: "gpu-01"})
	if err == nil || !strings.Contains(err.Error(), "is not a sysfs") {
		t.Errorf("an empty folder gave %v", err)
	}
}

// A driver may let go of a function only when its user does. The call that waits for it ends in time, without a word on the outcome; the
// function is left alone until the kernel has answered, and then the write has had its effect.
func TestKernelDoesNotAnswer(t *testing.T) {
	const address = "0000:01:00.0"
	k := kerneltest.New(t, machine)
	kind := served(t, k, "pci.function")
	asked, answer := make(chan struct{}), make(chan struct{})
	k.Before("unbind", func() {
		close(asked)
		<-answer
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if err := kind.Create(ctx, call("pci.function", address, assigned)); providers.ClassOf(err) != providers.Unknown || providers.Over(err) {
		t.Errorf("the call without an answer gave %v, of class %s", err, providers.ClassOf(err))
	}
	refused(t, k, providers.Busy, "has not answered the previous request yet", func() error {
		return kind.Update(t.Context(), call("pci.function", address, assigned))
	})
	close(answer)
	// The rest of the call was not made, and what it had begun was put back.
	err := retry.Policy{First: time.Millisecond}.Do(t.Context(), func() (over bool, err error) {
		err = kind.Create(t.Context(), call("pci.function", address, assigned))
		return providers.ClassOf(err) != providers.Busy || err == nil, err
	})
	must(t, err)
	if things := list(t, kind); len(things) != 1 || things[0].Spec["driver"] != "vfio-pci" {
		t.Errorf("after the answer and another call there is %+v", things)
	}
}
