package host_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// shown is what is to be seen of each machine of which there is a copy.
var shown = map[string]schema.Object{
	"arm": {
		"cpus": int64(4), "memory": int64(3884360 << 10), "modules": []any{"xhci_pci"},
		"kernel_arguments": []any{"coherent_pool=1M", "8250.nr_uarts=0", "root=PARTUUID=6c586e13-02", "rootwait"},
	},
	"gpu": {
		"kernel_release":   "6.8.0-1021-aws",
		"kernel_arguments": []any{"BOOT_IMAGE=/boot/vmlinuz-6.8.0-1021-aws", "root=PARTUUID=1c3f7d2e-01", "ro", "console=tty1", "console=ttyS0", "nvme_core.io_timeout=4294967295"},
		"modules":          []any{"efa", "nvidia", "nvidia_uvm"},
		"cpus":             int64(192), "memory": int64((1056427664 + 1056933172) << 10),
		"node_memory":     map[string]any{"node0": int64(1056427664 << 10), "node1": int64(1056933172 << 10)},
		"reboot_required": true, "reboot_packages": []any{"linux-base", "linux-image-6.8.0-1024-aws"},
	},
	"multipath": {"kernel_release": "5.14.0-427.13.1.el9_4.x86_64", "cpus": int64(128), "memory": int64(527938892 << 10)},
	"sriov":     {"iommu_groups": int64(3)},
}

// open connects to a copy of what a kernel shows.
func open(t *testing.T, dir string) *providers.Provider {
	t.Helper()
	p, err := host.Config{Config: sysfs.Config(filepath.Join(dir, "sys"))}.Open(t.Context(), providers.Opening{Scope: "gpu-01"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// list returns the objects of a kind.
func list(t *testing.T, p *providers.Provider, kind string) []providers.Thing {
	t.Helper()
	i := slices.IndexFunc(p.Kinds, func(k providers.Served) bool { return k.Name == kind })
	things, err := providers.Collect(p.Kinds[i].Kind.List(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return things
}

// facts returns what the only object of host.facts shows.
func facts(t *testing.T, dir string) schema.Object {
	t.Helper()
	things := list(t, open(t, dir), "host.facts")
	if len(things) != 1 || things[0].ID != "node" || things[0].Phase != providers.Ready {
		t.Fatalf("the facts are %+v", things)
	}
	return things[0].Status
}

func TestFacts(t *testing.T) {
	for _, name := range kerneltest.Captures {
		if d := cmp.Diff(shown[name], facts(t, kerneltest.Capture(t, name))); d != "" {
			t.Errorf("%s (-want +observed):\n%s", name, d)
		}
	}
}

// Whatever a copy lacks, the rest of it is shown.
func TestIncompleteCopies(t *testing.T) {
	for _, name := range kerneltest.Captures {
		dir := kerneltest.Capture(t, name)
		pools := list(t, open(t, dir), "host.hugepages")
		for _, gone := range kerneltest.Paths(t, dir) {
			if gone == "sys" || gone == "sys/bus" && name != "arm" && name != "sriov" && name != "gpu" { // nothing is left then
				continue
			}
			put := kerneltest.Remove(t, dir, gone)
			for field, v := range facts(t, dir) {
				if was := shown[name][field]; !cmp.Equal(v, was) && !within(gone, field) {
					t.Errorf("%s without %s: %s is %v in place of %v", name, gone, field, v, was)
				}
			}
			if now := list(t, open(t, dir), "host.hugepages"); len(now) != len(pools) && !strings.Contains(gone, "hugepages") && !strings.HasPrefix("sys/devices/system/node/node0/hugepages", gone) && !strings.HasPrefix("sys/kernel/mm/hugepages", gone) {
				t.Errorf("%s without %s has the pools %v", name, gone, now)
			}
			put()
		}
	}
}

// within reports whether a fact is the number or the sum of what was taken away.
func within(gone, field string) bool {
	switch field {
	case "iommu_groups":
		return strings.HasPrefix(gone, "sys/kernel/iommu_groups/")
	case "memory", "node_memory":
		return strings.HasPrefix(gone, "sys/devices/system/node/")
	case "modules":
		return gone == "proc" || gone == "proc/modules"
	case "reboot_required", "reboot_packages":
		return strings.HasPrefix(gone, "run")
	}
	return false
}

// The command line is split as the kernel does it, and what looks like a secret is not shown.
func TestKernelArguments(t *testing.T) {
	for line, want := range map[string][]any{
		"":                                                   nil,
		"  ro   quiet\t":                                     {"ro", "quiet"},
		`dyndbg="file core.c +p" ro`:                         {`dyndbg="file core.c +p"`, "ro"},
		`"init=/bin/sh -c x" ro`:                             {`"init=/bin/sh -c x"`, "ro"},
		`a="b c`:                                             {`a="b c`},
		"rd.luks.key=/k:UUID=1 ro":                           {"rd.luks.key=(sensitive)", "ro"},
		`rd.iscsi.password="a b" x=1`:                        {"rd.iscsi.password=(sensitive)", "x=1"},
		`"api_token=a b"`:                                    {`"api_token=(sensitive)`},
		"systemd.set_credential=a:b":                         {"systemd.set_credential=(sensitive)"},
		"Agent-Secret=s --grub_pass=s":                       {"Agent-Secret=(sensitive)", "--grub_pass=(sensitive)"},
		"vconsole.keymap=us key= token":                      {"vconsole.keymap=us", "key=", "token"},
		"iommu.passthrough=1 memmap=1G@4G":                   {"iommu.passthrough=1", "memmap=1G@4G"},
		"inst.ks=https://me:pw@ks.example/a@b":               {"inst.ks=https://(sensitive)@b"}, // the password may have all these signs
		"systemd.setenv=DB_PASSWORD=hunter2":                 {"systemd.setenv=DB_PASSWORD=(sensitive)"},
		"inst.ks=https://h/ks?a=b&token=abc":                 {"inst.ks=https://h/ks?a=b&token=(sensitive)"},
		"ignition.config.url=https://h/i?X-Amz-Signature=ab": {"ignition.config.url=https://h/i?X-Amz-Signature=(sensitive)"},
		`netroot="iscsi:me:p/w@192.0.2.1"`:                   {`netroot="iscsi:(sensitive)@192.0.2.1"`},
		"//u:p@ss@h rootpw=x wlanpsk=y":                      {"//(sensitive)@h", "rootpw=(sensitive)", "wlanpsk=(sensitive)"},
		"netroot=iscsi:me:pw@192.0.2.1::3260::iqn":           {"netroot=iscsi:(sensitive)@192.0.2.1::3260::iqn"},
		"netroot=iscsi:@192.0.2.1::3260::iqn.a root=LABEL=x": {"netroot=iscsi:@192.0.2.1::3260::iqn.a", "root=LABEL=x"},
		"a\xff=b\x00c":                                       {"a\uFFFD=b"},
	} {
		dir := kerneltest.Capture(t, "arm")
		if err := os.WriteFile(filepath.Join(dir, "proc/cmdline"), []byte(line+"\r\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		got, _ := facts(t, dir)["kernel_arguments"].([]any)
		if !cmp.Equal(got, want) {
			t.Errorf("%q is %q, want %q", line, got, want)
		}
	}
}

// A package asks for a reboot with a file in /run, which may be at its older place in a copy. Where neither exists, nobody can tell.
func TestReboot(t *testing.T) {
	for what, c := range map[string]struct {
		run  string // the folder
		file bool
		dpkg bool
		want any
	}{
		"asked for":             {"run", true, true, true},
		"without the packages":  {"run", true, false, true},
		"at the older place":    {"var/run", true, true, true},
		"not asked for":         {"run", false, true, false},
		"no packages of Debian": {"run", false, false, nil},
		"unknown":               {"elsewhere", true, true, nil},
	} {
		dir := kerneltest.Capture(t, "arm")
		if c.dpkg {
			if err := os.MkdirAll(filepath.Join(dir, "var/lib/dpkg"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		run := filepath.Join(dir, c.run)
		if err := os.MkdirAll(run, 0o755); err != nil {
			t.Fatal(err)
		}
		if c.file {
			if err := os.WriteFile(filepath.Join(run, "reboot-required"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := facts(t, dir)["reboot_required"]; got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
