package pci_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// shown is what is to be seen of the functions of each machine of which there is a copy.
var shown = map[string]map[string]schema.Object{
	"gpu": {
		"0000:45:00.0": {"id": "1d0f:0200", "subsystem_id": "1d0f:0200", "class": "060400", "numa_node": int64(0), "link_speed": "16.0 GT/s", "link_width": int64(8)},
		"0000:52:00.0": {"id": "1d0f:efa1", "subsystem_id": "1d0f:efa1", "class": "020000", "driver": "efa", "numa_node": int64(0), "link_speed": "32.0 GT/s", "link_width": int64(16)},
		"0000:53:00.0": {
			"id": "10de:2330", "subsystem_id": "10de:16c1", "class": "030200", "driver": "nvidia", "numa_node": int64(0),
			"link_speed": "32.0 GT/s", "link_width": int64(16), "max_link_speed": "32.0 GT/s", "max_link_width": int64(16),
		},
		"0000:cf:00.0": {"id": "10de:22a3", "class": "068000", "numa_node": int64(1)}, // its link is none of PCI
	},
	"sriov": {
		"0000:05:00.0": {
			"id": "8086:10fb", "subsystem_id": "8086:0003", "class": "020000", "driver": "ixgbe", "iommu_group": "31",
			"total_vfs": int64(63), "num_vfs": int64(2), "interfaces": []any{"ens2f0"},
		},
		"0000:05:10.0": {
			"id": "8086:10ed", "subsystem_id": "8086:0003", "class": "020000", "driver": "ixgbevf", "iommu_group": "73",
			"physical_function": "0000:05:00.0", "interfaces": []any{"ens2f0v0"},
		},
		"0000:05:10.2": {
			"id": "8086:10ed", "subsystem_id": "8086:0003", "class": "020000", "driver": "vfio-pci", "iommu_group": "74", "physical_function": "0000:05:00.0",
		},
	},
	"multipath": {
		"0000:02:00.0": {"id": "1b4b:2241", "class": "010802", "driver": "nvme", "nvme_namespaces": []any{"eui.0050430000000001"}},
		"0000:b7:00.0": {"id": "144d:a824", "class": "010802", "driver": "nvme", "numa_node": int64(1), "nvme_namespaces": []any{"eui.36434d3055b000010025384500000001"}},
		"0000:b8:00.0": {"id": "144d:a824", "class": "010802", "driver": "nvme", "numa_node": int64(1), "nvme_namespaces": []any{"eui.36434d3055b000020025384500000001"}},
	},
	"arm": {
		"0000:00:00.0": {"id": "14e4:2711", "class": "060400", "driver": "pcieport"},
		"0000:01:00.0": {"id": "1106:3483", "subsystem_id": "1106:3483", "class": "0c0330", "driver": "xhci_hcd", "link_speed": "5.0 GT/s", "link_width": int64(1)},
	},
}

// open connects to a copy of what a kernel shows.
func open(t *testing.T, dir string) *providers.Provider {
	t.Helper()
	p, err := pci.Config{Config: sysfs.Config(filepath.Join(dir, "sys"))}.Open(t.Context(), providers.Opening{Scope: "gpu-01"})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// observed returns what a kind shows, by id.
func observed(t *testing.T, p *providers.Provider, kind string) map[string]schema.Object {
	t.Helper()
	i := slices.IndexFunc(p.Kinds, func(k providers.Served) bool { return k.Name == kind })
	all := map[string]schema.Object{}
	for th, err := range p.Kinds[i].Kind.List(t.Context()) {
		must(t, err)
		all[th.ID] = th.Status
		if kind != "pci.device" {
			all[th.ID] = th.Spec
		}
	}
	return all
}

func TestDevices(t *testing.T) {
	for _, name := range kerneltest.Captures {
		if d := cmp.Diff(shown[name], observed(t, open(t, kerneltest.Capture(t, name)), "pci.device")); d != "" {
			t.Errorf("%s (-want +observed):\n%s", name, d)
		}
	}
	p := open(t, kerneltest.Capture(t, "sriov"))
	if got, want := observed(t, p, "pci.function"), (map[string]schema.Object{"0000:05:10.2": {"driver": "vfio-pci", "physical_function": "0000:05:00.0"}}); !cmp.Equal(got, want) {
		t.Errorf("the functions are %v", got)
	}
	if got, want := observed(t, p, "pci.sriov"), (map[string]schema.Object{"0000:05:00.0": {"num_vfs": int64(2), "drivers_autoprobe": true}}); !cmp.Equal(got, want) {
		t.Errorf("those with virtual functions are %v", got)
	}
}

// Whatever a copy lacks, every function that is left in it is shown, and what was not taken from a function is shown as before.
func TestIncompleteCopies(t *testing.T) {
	touches := func(path, other string) bool {
		return strings.HasPrefix(path+"/", other+"/") || strings.HasPrefix(other+"/", path+"/")
	}
	kinds := []string{"pci.device", "pci.function", "pci.sriov"}
	for _, name := range kerneltest.Captures {
		dir := kerneltest.Capture(t, name)
		p := open(t, dir)
		whole, at := map[string]map[string]schema.Object{}, map[string]string{}
		for _, kind := range kinds {
			whole[kind] = observed(t, p, kind)
		}
		for id := range whole["pci.device"] {
			to, err := os.Readlink(filepath.Join(dir, "sys/bus/pci/devices", id))
			must(t, err)
			at[id] = path.Join("sys/bus/pci/devices", to)
		}
		for _, gone := range kerneltest.Paths(t, dir) {
			if gone == "sys" { // which is open
				continue
			}
			put := kerneltest.Remove(t, dir, gone)
			for _, kind := range kinds {
				now := observed(t, p, kind)
				for id, is := range now {
					for field, v := range is {
						if was := whole[kind][id][field]; !cmp.Equal(v, was) {
							t.Errorf("%s without %s: the %s of %s %s is %v in place of %v", name, gone, field, kind, id, v, was)
						}
					}
				}
				if kind != "pci.device" {
					continue
				}
				for id, was := range whole[kind] {
					listed := "sys/bus/pci/devices/" + id
					links, _ := filepath.Glob(filepath.Join(dir, "sys/bus/pci/devices/*"))
					there := listed
					if len(links) == 0 {
						there = at[id]
					}
					_, err := os.Lstat(filepath.Join(dir, there))
					if is, ok := now[id]; ok != (err == nil) {
						t.Errorf("%s without %s: %s is shown: %v", name, gone, id, ok)
					} else if was = was.Clone(); !touches(gone, listed) && !touches(gone, at[id]) {
						delete(was, "nvme_namespaces") // may be shown at the subsystem alone
						delete(is, "nvme_namespaces")
						if !cmp.Equal(is, was) {
							t.Errorf("%s without %s: %s is %v, want %v", name, gone, id, is, was)
						}
					}
				}
			}
			put()
		}
	}
}

// Tools that copy a sysfs do not all write the same. What they do to links and texts is no difference.
func TestCopies(t *testing.T) {
	each := func(dir string, do func(path string, link bool) error) {
		for _, p := range kerneltest.Paths(t, dir) {
			path := filepath.Join(dir, p)
			if e, err := os.Lstat(path); err == nil && !e.IsDir() {
				must(t, do(path, e.Mode()&fs.ModeSymlink != 0))
			}
		}
	}
	instead := func(path string, write func(target string) error) error {
		target, err := os.Readlink(path)
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil {
			err = write(target)
		}
		return err
	}
	texts := func(text func(string) string) func(dir string) {
		return func(dir string) {
			each(dir, func(path string, link bool) error {
				b, err := os.ReadFile(path)
				if err != nil || link { // also links to folders
					return nil
				}
				return os.WriteFile(path, []byte(text(string(b))), 0o644)
			})
		}
	}
	for what, c := range map[string]struct {
		change  func(dir string)
		differs func(id string, o schema.Object) // what that takes away
	}{
		"files with the targets of links": {change: func(dir string) {
			each(dir, func(path string, link bool) error {
				if !link {
					return nil
				}
				return instead(path, func(target string) error { return os.WriteFile(path, []byte(target), 0o644) })
			})
		}},
		"folders in place of the links to functions": {change: func(dir string) {
			each(dir, func(path string, link bool) error {
				if !strings.Contains(path, "sys/bus/pci/devices/") {
					return nil
				}
				return instead(path, func(target string) error { return os.CopyFS(path, os.DirFS(filepath.Join(filepath.Dir(path), target))) })
			})
		}},
		"ends of lines as on Windows": {change: texts(func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") })},
		"a zero byte at the end":      {change: texts(func(s string) string { return strings.TrimSuffix(s, "\n") + "\x00" })},
		"no files but uevent": {change: func(dir string) {
			each(dir, func(path string, link bool) error {
				if link || filepath.Base(path) == "uevent" || !strings.Contains(path, "sys/devices/pci") {
					return nil
				}
				return os.Remove(path)
			})
		}, differs: func(id string, o schema.Object) {
			delete(o, "total_vfs")
			delete(o, "num_vfs")
		}},
		"no links to drivers and groups": {change: func(dir string) {
			each(dir, func(path string, link bool) error {
				if !link || !slices.Contains([]string{"driver", "iommu_group"}, filepath.Base(path)) {
					return nil
				}
				return os.Remove(path)
			})
		}},
		"folders in place of links to drivers, groups and functions": {change: func(dir string) {
			each(dir, func(path string, link bool) error {
				if !link || !slices.Contains([]string{"driver", "iommu_group", "physfn", "virtfn0"}, filepath.Base(path)) {
					return nil
				}
				of, _ := os.ReadFile(filepath.Join(path, "uevent")) // a driver has none
				return instead(path, func(string) error {
					return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "uevent"), of, 0o644))
				})
			})
		}},
	} {
		dir := kerneltest.Capture(t, "sriov")
		c.change(dir)
		want := map[string]schema.Object{}
		for id, o := range shown["sriov"] {
			want[id] = o.Clone()
			if c.differs != nil {
				c.differs(id, want[id])
			}
		}
		p := open(t, dir)
		if d := cmp.Diff(want, observed(t, p, "pci.device")); d != "" {
			t.Errorf("%s (-want +observed):\n%s", what, d)
		}
		observed(t, p, "pci.function")
		observed(t, p, "pci.sriov")
	}
}

// Entries that make no sense hide no others, and what is no text becomes one.
func TestOddEntries(t *testing.T) {
	dir := kerneltest.Capture(t, "gpu")
	const functions = "sys/bus/pci/devices/"
	write := func(path, text string) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644))
	}
	link := func(path, to string) { must(t, os.Symlink(to, filepath.Join(dir, path))) }
	write(functions+".DS_Store", "")
	write(functions+"0000:1F:00.0/vendor", "0x8086")
	write(functions+"0000:c1:00.0", "")                                        // a link that became an empty file
	link(functions+"0000:c2:00.0", "../../../devices/pci0000:c0/0000:c2:00.0") // leads nowhere
	link(functions+"0000:c3:00.0", "/sys/devices/pci0000:c0/0000:c3:00.0")     // absolute
	write("sys/devices/pci0000:c0/0000:c3:00.0/class", "0x060400")
	link(functions+"0000:c8:00.0", "/etc")          // leads out of the copy
	link(functions+"0000:c4:00.0", "0000:c4:00.0")  // leads in a circle
	write(functions+"0000:c5:00.0/vendor/more", "") // a folder in place of a file
	write(functions+"0000:c5:00.0/sriov_numvfs", "")
	write(functions+"0000:c5:00.0/driver_override/more", "")
	write(functions+"0000:c6:00.0/class", "0x0302\xff\n")
	write(functions+"0000:c6:00.0/sriov_numvfs", "many")
	link(functions+"0000:c6:00.0/driver", "/etc/passwd")
	write(functions+"0000:c7:00.0/class", "0x030200")
	must(t, os.MkdirAll(filepath.Join(dir, "sys/class"), 0o755))
	for _, pipe := range []string{functions + "0000:c7:00.0/vendor", functions + "0000:c7:00.0/net", "sys/class/net"} { // nobody will ever write to it
		must(t, os.RemoveAll(filepath.Join(dir, pipe)))
		must(t, unix.Mkfifo(filepath.Join(dir, pipe), 0o644))
	}
	write("sys/class/nvme", "")
	link("sys/class/block", "nowhere")
	p := open(t, dir)
	want := maps.Clone(shown["gpu"])
	for _, i := range []int{1, 2, 4, 5, 8} {
		want[fmt.Sprintf("0000:c%d:00.0", i)] = schema.Object{}
	}
	want["0000:c3:00.0"] = schema.Object{"class": "060400"}
	want["0000:c7:00.0"] = schema.Object{"class": "030200"}
	want["0000:c6:00.0"] = schema.Object{"class": "0302\uFFFD", "driver": "passwd"}
	if d := cmp.Diff(want, observed(t, p, "pci.device")); d != "" {
		t.Errorf("(-want +observed):\n%s", d)
	}
	for _, kind := range []string{"pci.function", "pci.sriov"} {
		if got := observed(t, p, kind); len(got) > 0 {
			t.Errorf("%s: %v", kind, got)
		}
	}
}

// Without the folder of links, the functions are found where they are connected. What the links alone say of them is not known.
func TestCopyWithoutLinks(t *testing.T) {
	dir := kerneltest.Capture(t, "gpu")
	must(t, os.RemoveAll(filepath.Join(dir, "sys/bus")))
	got, want := observed(t, open(t, dir), "pci.device"), shown["gpu"]
	if len(got) == 0 || len(got) != len(want) {
		t.Fatalf("of %d functions, %d are found", len(want), len(got))
	}
	for a, o := range got {
		for _, field := range []string{"id", "class", "numa_node", "link_speed"} {
			if !cmp.Equal(o[field], want[a][field]) {
				t.Errorf("%s of %s is %v, want %v", field, a, o[field], want[a][field])
			}
		}
	}
}

// A copy behind a link has beside it what is beside its target; a pipe there is not waited for either.
func TestBesideCopies(t *testing.T) {
	dir := kerneltest.Capture(t, "gpu")
	must(t, os.Remove(filepath.Join(dir, "proc/modules")))
	must(t, unix.Mkfifo(filepath.Join(dir, "proc/modules"), 0o644))
	elsewhere := t.TempDir()
	must(t, os.Symlink(filepath.Join(dir, "sys"), filepath.Join(elsewhere, "current")))
	k, closing, err := sysfs.Config(filepath.Join(elsewhere, "current")).Kernel(providers.Opening{Scope: "gpu-01"})
	must(t, err)
	defer func() { must(t, closing()) }()
	if k.Machine == nil || k.Run == nil || sysfs.Text(k.Machine, "modules") != "" || sysfs.Text(k.Machine, "sys/kernel/osrelease") == "" {
		t.Errorf("beside the copy there is %+v", k)
	}
}

// A copy of a part of a sysfs is one. A path that leads beside it is none, and is told.
func TestPartsOfCopies(t *testing.T) {
	for _, part := range []string{"bus/pci/devices", "class/net", "devices/system"} {
		dir := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(dir, "sys", part), 0o755))
		p := open(t, dir)
		for _, k := range p.Kinds {
			if got := observed(t, p, k.Name); len(got) > 0 {
				t.Errorf("with %s alone, %s is %v", part, k.Name, got)
			}
		}
	}
	dir := kerneltest.Capture(t, "gpu")
	for _, path := range []string{".", "proc", "sys/bus", "sys/bus/pci", "sys/class", "sys/devices", "nowhere"} {
		p, err := pci.Config{Config: sysfs.Config(filepath.Join(dir, path))}.Open(t.Context(), providers.Opening{Scope: "gpu-01"})
		if err == nil {
			t.Errorf("%s is taken for a sysfs", path)
			must(t, p.Close())
		} else if !strings.Contains(err.Error(), "is not a sysfs, nor a copy of one") && path != "nowhere" && path != "sys/class" {
			t.Errorf("%s: %v", path, err)
		}
	}
}
