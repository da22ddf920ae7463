package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/guest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

var (
	full = guest.Machine{
		Name: "node", IOMMU: true, NUMA: 2, MemoryMiB: 1024,
		Devices: []guest.Device{guest.NVMe("disk").Node(0), guest.SRIOVNVMe("sriov", 4), guest.SharedGroup("shared"), guest.E1000e("nic"), guest.E1000e("spare")},
	}
	plain = guest.Machine{Name: "plain", Devices: []guest.Device{guest.E1000e("nic")}}
)

func TestKernel(t *testing.T)             { guest.Run(t, full, "^TestGuest", ".") }
func TestKernelWithoutIOMMU(t *testing.T) { guest.Run(t, plain, "^TestPlain", ".") }

// world is the kernel of the guest, which in the end is as it is by itself.
func world(t *testing.T, kinds func(t *testing.T) *providers.Provider) providertest.World {
	t.Helper()
	t.Cleanup(func() {
		p := kinds(t)
		for _, k := range p.Kinds { // functions come before those that make them
			if k.Traits.Delete == providers.Never {
				continue
			}
			things, err := providers.Collect(k.Kind.List(context.Background()))
			must(t, err)
			for _, th := range things {
				must(t, k.Kind.Delete(context.Background(), call(k.Name, th.ID, nil)))
			}
		}
		must(t, p.Close())
	})
	return providertest.World{Provider: kinds(t), Dump: func() string { return dump(t) }}
}

func devices(t *testing.T) *providers.Provider {
	t.Helper()
	p, err := pci.Config{Config: sysfs.DefaultRoot}.Open(context.Background(), providers.Opening{Scope: "gpu-01"})
	must(t, err)
	p.Limit = 2 // the machine has no more functions to spare
	return p
}

// pools opens the pools of huge pages. They need memory in one piece, which the tests before may have left in many.
func pools(t *testing.T) *providers.Provider {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0))
	p, err := host.Config{Config: sysfs.DefaultRoot}.Open(context.Background(), providers.Opening{Scope: "gpu-01"})
	must(t, err)
	p.Limit = 2
	p.Kinds = slices.DeleteFunc(p.Kinds, func(k providers.Served) bool { return k.Name == "host.link" }) // tried in a network of its own: see package host
	return p
}

// dump returns what the kinds can change.
func dump(t *testing.T) string {
	var b strings.Builder
	for _, pattern := range []string{
		"/sys/bus/pci/devices/*/driver_override", "/sys/bus/pci/devices/*/sriov_numvfs", "/sys/bus/pci/devices/*/sriov_drivers_autoprobe",
		"/sys/devices/system/node/node*/hugepages/*/nr_hugepages", "/sys/bus/pci/devices/*/driver",
	} {
		paths, err := filepath.Glob(pattern)
		must(t, err)
		for _, path := range paths {
			text, err := os.Readlink(path)
			if err != nil {
				var content []byte
				content, err = os.ReadFile(path)
				text = string(content)
			}
			must(t, err)
			fmt.Fprintf(&b, "%s: %q\n", path, text)
		}
	}
	return b.String()
}

func served(t *testing.T, w providertest.World, kind string) providers.Kind {
	t.Helper()
	for _, k := range w.Provider.Kinds {
		if k.Name == kind {
			return k.Kind
		}
	}
	t.Fatalf("%s is not served", kind)
	return nil
}

func call(kind, name string, want schema.Object) providers.Call {
	return providers.Call{Ref: schema.Ref{Scope: "gpu-01", Kind: kind, Name: name}, ID: name, Want: want}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused checks that a call was refused for a reason and changed nothing.
func refused(t *testing.T, class providers.Class, says string, do func() error) {
	t.Helper()
	before := dump(t)
	err := do()
	if err == nil || providers.ClassOf(err) != class || !strings.Contains(err.Error(), says) {
		t.Errorf("the error is %v, of class %s; want %s, with %q", err, providers.ClassOf(err), class, says)
	}
	if after := dump(t); after != before {
		t.Errorf("a refused call changed something. Before:\n%s\nAfter:\n%s", before, after)
	}
}

var (
	assigned = schema.Object{"driver": "vfio-pci"}
	virtual  = schema.Object{"num_vfs": int64(2), "drivers_autoprobe": false}
)

func TestGuestLaws(t *testing.T) {
	g := guest.In(t, full.Name)
	schemas, err := kinds.New()
	must(t, err)
	others := []string{g.Address("nic"), g.Address("spare")}
	providertest.Run(t, providertest.Suite{
		Kinds: schemas.Kinds(), Direct: true, Open: func(t *testing.T) providertest.World { return world(t, devices) },
		Cases: []providertest.Case{
			{
				Kind: "pci.function", Name: g.Address("disk"),
				Want: assigned, Update: schema.Object{"driver": "nvme"}, Invalid: schema.Object{"driver": "e1000e"},
				Other: func(i int) providertest.Made {
					if i >= len(others) {
						return providertest.Made{Kind: "pci.function", Name: "0000:ff:1f.7"}
					}
					return providertest.Made{Kind: "pci.function", Name: others[i], Spec: assigned}
				},
			},
			{
				Kind: "pci.sriov", Name: g.Address("sriov"), Single: true,
				Want: virtual, Update: schema.Object{"num_vfs": int64(2), "drivers_autoprobe": true}, Invalid: schema.Object{"num_vfs": int64(5)},
			},
			{Kind: "pci.device", Name: g.Address("disk"), Want: schema.Object{}},
		},
	})
	two := []string{"node1-2048kB", "node0-2048kB"}
	kinds := maps.Clone(schemas.Kinds())
	delete(kinds, "host.link")
	providertest.Run(t, providertest.Suite{
		Kinds: kinds, Direct: true, Open: func(t *testing.T) providertest.World { return world(t, pools) },
		Cases: []providertest.Case{
			{
				Kind: "host.hugepages", Name: "node1-2048kB",
				Want: schema.Object{"count": int64(5)}, Update: schema.Object{"count": int64(3)}, Invalid: schema.Object{"count": int64(100000)},
				Other: func(i int) providertest.Made {
					if i >= len(two) {
						return providertest.Made{Kind: "host.hugepages", Name: "node7-2048kB"}
					}
					return providertest.Made{Kind: "host.hugepages", Name: two[i], Spec: schema.Object{"count": int64(2)}}
				},
			},
			{Kind: "host.facts", Name: "node", Want: schema.Object{}},
		},
	})
}

// What the kernel shows of functions that nobody has touched, and of the machine.
func TestGuestFacts(t *testing.T) {
	g := guest.In(t, full.Name)
	w := world(t, devices)
	look := func(address string) schema.Object {
		t.Helper()
		things, err := served(t, w, "pci.device").Get(t.Context(), []string{g.Address(address)})
		must(t, err)
		if len(things) != 1 {
			t.Fatalf("%s is shown as %+v", address, things)
		}
		return things[0].Status
	}
	has := func(what string, o schema.Object, want schema.Object) {
		t.Helper()
		for field, v := range want {
			if !schema.Equal(o[field], v) {
				t.Errorf("the %s of %s is %v, want %v", field, what, o[field], v)
			}
		}
	}
	disk := look("disk")
	has("the disk", disk, schema.Object{"class": "010802", "driver": "nvme", "numa_node": int64(0)})
	ids, _ := disk["nvme_namespaces"].([]any)
	var shown []string
	for _, place := range []string{"/sys/class/nvme/*/nvme*n*/wwid", "/sys/class/block/*/wwid"} {
		files, err := filepath.Glob(place)
		must(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			must(t, err)
			shown = append(shown, strings.TrimSpace(string(text)))
		}
	}
	if len(ids) != 1 || !slices.Contains(shown, fmt.Sprint(ids[0])) || disk["iommu_group"] == nil || disk["max_link_speed"] == nil {
		t.Errorf("the disk is %v; the kernel shows the namespaces %q", disk, shown)
	}
	must(t, served(t, w, "pci.sriov").Create(t.Context(), call("pci.sriov", g.Address("sriov"), virtual)))
	has("the function with virtual ones", look("sriov"), schema.Object{"total_vfs": int64(4), "num_vfs": int64(2)})
	all, err := providers.Collect(served(t, w, "pci.device").List(t.Context()))
	must(t, err)
	vfs := 0
	for _, th := range all {
		if th.Status["physical_function"] == g.Address("sriov") {
			vfs++
		}
	}
	if vfs != 2 {
		t.Errorf("of 2 virtual functions %d are shown among %d functions", vfs, len(all))
	}
	nic := look("nic")
	has("the network adapter", nic, schema.Object{"id": "8086:10d3", "class": "020000", "driver": "e1000e"})
	if of, _ := nic["interfaces"].([]any); len(of) != 1 {
		t.Errorf("the network adapter is %v", nic)
	}
	things, err := providers.Collect(served(t, world(t, pools), "host.facts").List(t.Context()))
	must(t, err)
	facts := things[0].Status
	of, _ := facts["node_memory"].(map[string]any)
	modules, _ := facts["modules"].([]any)
	groups, _ := facts["iommu_groups"].(int64)
	if len(things) != 1 || len(of) != 2 || groups < 2 || !slices.Contains(modules, any("nvme")) || facts["kernel_release"] == nil || facts["reboot_required"] != nil { // its packages are none of Debian
		t.Errorf("the facts are %+v", things)
	}
}

// A group of several functions is ready once all of them are bound to vfio-pci; their bridge stays with its driver.
func TestGuestGroup(t *testing.T) {
	g := guest.In(t, full.Name)
	functions := served(t, world(t, devices), "pci.function")
	for i, want := range []providers.Phase{providers.Pending, providers.Ready} {
		address := g.Address(fmt.Sprintf("shared.%d", i))
		must(t, functions.Create(t.Context(), call("pci.function", address, assigned)))
		things, err := functions.Get(t.Context(), []string{address})
		must(t, err)
		if th := things[0]; th.Phase != want {
			t.Errorf("after %d of 2 functions, %s is %s (%s), want %s", i+1, address, th.Phase, th.Detail, want)
		}
	}
}

// Virtual functions come, are assigned, and go.
func TestGuestVirtualFunctions(t *testing.T) {
	g := guest.In(t, full.Name)
	w := world(t, devices)
	physical, functions := served(t, w, "pci.sriov"), served(t, w, "pci.function")
	before, pf := dump(t), g.Address("sriov")
	must(t, physical.Create(t.Context(), call("pci.sriov", pf, virtual)))
	seen, err := physical.Get(t.Context(), []string{pf})
	must(t, err)
	vfs, _ := seen[0].Status["virtual_functions"].([]any)
	if len(vfs) != 2 {
		t.Fatalf("the virtual functions are %v", vfs)
	}
	vf := vfs[0].(string)
	c := call("pci.function", vf, schema.Object{"driver": "vfio-pci", "physical_function": pf})
	must(t, functions.Create(t.Context(), c))
	things, err := functions.Get(t.Context(), []string{vf})
	must(t, err)
	if th := things[0]; th.Phase != providers.Ready || !th.Spec.Equal(c.Want) {
		t.Errorf("the virtual function is %+v", th)
	}
	must(t, functions.Delete(t.Context(), c))
	must(t, physical.Delete(t.Context(), call("pci.sriov", pf, nil)))
	if after := dump(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// What the node uses stays with it: a disk with a mounted file system or a program that has it open, a route, a group in use.
func TestGuestInUse(t *testing.T) {
	g := guest.In(t, full.Name)
	functions := served(t, world(t, devices), "pci.function")
	nic := g.Address("nic")
	interfaces, err := os.ReadDir("/sys/bus/pci/devices/" + nic + "/net")
	must(t, err)
	route(t, interfaces[0].Name())
	refused(t, providers.Denied, interfaces[0].Name()+" has a route to", func() error {
		return functions.Create(t.Context(), call("pci.function", nic, assigned))
	})

	spare := call("pci.function", g.Address("spare"), assigned)
	must(t, functions.Create(t.Context(), spare))
	group, err := os.Readlink("/sys/bus/pci/devices/" + spare.ID + "/iommu_group")
	must(t, err)
	f, err := os.OpenFile("/dev/vfio/"+filepath.Base(group), os.O_RDWR, 0)
	must(t, err)
	refused(t, providers.Denied, "has /dev/vfio/"+filepath.Base(group)+" open", func() error { return functions.Delete(t.Context(), spare) })
	must(t, f.Close())
	must(t, functions.Delete(t.Context(), spare))
}

// Go's scheduler sends signals to threads that have run for long. The kernel ends an allocation of huge pages early then.
func TestGuestSignals(t *testing.T) {
	guest.In(t, full.Name)
	pool := served(t, world(t, pools), "host.hugepages")
	var stop atomic.Bool
	var sent sync.WaitGroup
	sent.Go(func() {
		for !stop.Load() {
			threads, err := os.ReadDir("/proc/self/task")
			must(t, err)
			for i := range 100 * len(threads) {
				thread, err := strconv.Atoi(threads[i%len(threads)].Name())
				must(t, err)
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // it may have ended
			}
		}
	})
	defer sent.Wait()
	defer stop.Store(true)
	for range 3 {
		c := call("host.hugepages", "node1-2048kB", schema.Object{"count": int64(20)})
		must(t, pool.Create(t.Context(), c))
		must(t, pool.Delete(t.Context(), c))
	}
}

// What happens to a function is told by the kernel's events: the watch does not look by itself here.
func TestGuestEvents(t *testing.T) {
	g := guest.In(t, full.Name)
	k, closing, err := sysfs.Config(sysfs.DefaultRoot).Kernel(providers.Opening{Scope: "gpu-01"})
	must(t, err)
	k.Poll = time.Hour
	watching := pci.New("gpu-01", k, closing)
	defer func() { must(t, watching.Close()) }()
	functions := served(t, world(t, devices), "pci.function")
	spare, created := call("pci.function", g.Address("spare"), assigned), false
	for ids, err := range watching.Kinds[0].Watch(t.Context()) {
		must(t, err)
		switch {
		case len(ids) == 0 && !created: // it has begun
			must(t, functions.Create(t.Context(), spare))
			created = true
		case len(ids) == 0: // once more, after the first look: what changed and changed back before it is told by nothing else
		case len(ids) != 1 || ids[0] != spare.ID:
			t.Fatalf("told of %v", ids)
		default:
			must(t, functions.Delete(t.Context(), spare))
			return
		}
	}
}

// route gives an interface an address, and with it a route, until the test ends.
func route(t *testing.T, name string) {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	must(t, err)
	flags := func(up bool) {
		r, err := unix.NewIfreq(name)
		must(t, err)
		if up {
			r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		}
		must(t, unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r))
	}
	r, err := unix.NewIfreq(name)
	must(t, err)
	must(t, r.SetInet4Addr([]byte{192, 0, 2, 1}))
	must(t, unix.IoctlIfreq(s, unix.SIOCSIFADDR, r))
	flags(true)
	t.Cleanup(func() {
		flags(false)
		must(t, unix.Close(s))
	})
}

// Without an IOMMU nothing is bound to vfio-pci, and nothing is tried.
func TestPlainVFIO(t *testing.T) {
	g := guest.In(t, plain.Name)
	functions := served(t, world(t, devices), "pci.function")
	refused(t, providers.Invalid, "is in no IOMMU group, so vfio-pci cannot take it", func() error {
		return functions.Create(t.Context(), call("pci.function", g.Address("nic"), assigned))
	})
	must(t, functions.Create(t.Context(), call("pci.function", g.Address("nic"), schema.Object{"driver": "e1000e"})))
}
