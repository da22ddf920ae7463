//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A vm is a machine under test; its guest has nothing to boot, and obeys nothing.
type vm struct {
	*node
	name string
	seen string // the process that runs it
}

func (v *vm) update(fields schema.Object) error {
	return v.node.update("libvirt.domain", v.name, fields)
}

// pid identifies the run of the machine.
func (v *vm) pid() string {
	v.Helper()
	pid, err := os.ReadFile(filepath.Join(v.host.Dir, "run", "qemu", v.name+".pid"))
	v.must(err)
	return string(pid)
}

// runsOn checks whether the machine was restarted, and whether it runs as it is stored.
func (v *vm) runsOn(what string, restarted, inEffect bool) {
	v.Helper()
	pid := v.pid()
	if (pid != v.seen) != restarted {
		v.Errorf("%s: restarted is %t, want %t", what, pid != v.seen, restarted)
	}
	v.seen = pid
	v.field("libvirt.domain", v.name, "in_effect", inEffect)
}

// devices returns what the running machine has, as virsh lists it.
func (v *vm) devices() string {
	return v.host.Virsh(v, "domblklist", v.name) + v.host.Virsh(v, "domiflist", v.name)
}

// TestMachine changes a running machine on a real libvirtd: each field does what its description says.
func TestMachine(t *testing.T) {
	n := newNode(t, realFar(libvirttest.Start(t)))
	v := &vm{node: n, name: "converge-machine"}
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	for _, name := range []string{"root", "data", "spare"} {
		n.must(n.create("libvirt.volume", "p/"+name, schema.Object{"pool": "p", "capacity": int64(1 << 20)}))
	}
	n.must(n.create("libvirt.network", "net", schema.Object{"forward_mode": "none", "bridge": "vbr-one"}))
	n.must(n.create("libvirt.network", "other", schema.Object{"forward_mode": "none", "bridge": "vbr-two"}))
	disk := func(target, volume string, order int64) map[string]any {
		return map[string]any{"target": target, "volume": "p/" + volume, "bus": "virtio", "read_only": false, "boot_order": order}
	}
	card := func(mac, network string) map[string]any {
		return map[string]any{"mac": mac, "network": network, "model": "virtio"}
	}
	root, first := disk("vda", "root", 1), card("52:54:00:00:09:01", "net")
	drive := func(volume string) []any {
		return []any{map[string]any{"target": "sda", "volume": volume, "bus": "sata"}}
	}
	want := schema.Object{
		"type": "qemu", "machine": "q35", "vcpus": int64(1), "memory": int64(64 << 20), "stop_timeout": int64(1), "cpu_mode": "maximum",
		"disks": []any{root}, "cdroms": drive(""), "interfaces": []any{first},
	}
	n.must(n.create("libvirt.domain", v.name, want))
	v.seen = v.pid()
	v.runsOn("after it was made", false, true)
	made := n.look("libvirt.domain", v.name).Spec
	n.fails(n.delete("libvirt.volume", "p/root"), providers.Invalid, "disk vda of domain "+v.name)

	// What a running machine can take.
	n.must(v.update(schema.Object{"title": "Web", "description": "a\nb", "stop_timeout": int64(0), "autostart": false}))
	v.runsOn("a title", false, true)
	n.must(v.update(schema.Object{"disks": []any{root, disk("vdb", "data", 0)}}))
	v.runsOn("a disk more", false, true)
	n.must(v.update(schema.Object{"cdroms": drive("p/spare")}))
	v.runsOn("a medium", false, true)
	n.must(v.update(schema.Object{"interfaces": []any{card("52:54:00:00:09:01", "other"), card("52:54:00:00:09:02", "net")}}))
	v.runsOn("another network", false, true)
	for _, has := range []string{"vdb", "data", "spare", "52:54:00:00:09:02"} {
		if now := v.devices(); !strings.Contains(now, has) {
			t.Errorf("%s is not there:\n%s", has, now)
		}
	}
	if link := n.host.Sh(t, "ip -o link show master vbr-two"); !strings.Contains(link, "vnet") {
		t.Errorf("the interface is not at the other bridge: %s", link)
	}
	n.must(v.update(schema.Object{"cdroms": drive("")}))
	v.runsOn("no medium", false, true)
	n.must(v.update(schema.Object{"state": "paused"}))
	v.runsOn("paused", false, true)
	n.must(v.update(schema.Object{"state": "running"}))
	v.runsOn("running", false, true)

	// What it cannot is stored, and restarts nothing; what QEMU refuses is taken back.
	n.unchanged(func() {
		n.fails(v.update(schema.Object{"title": "x", "hostdevs": []any{map[string]any{"address": "0000:fe:1f.7"}}}), providers.Invalid, "the running machine cannot be changed: add PCI function 0000:fe:1f.7")
	})
	n.must(v.update(schema.Object{"vcpus": int64(2), "memory": int64(96 << 20), "disks": []any{disk("vda", "root", 2), disk("vdb", "data", 1)}}))
	v.runsOn("vcpus, memory and boot order", false, false)
	stored := n.look("libvirt.domain", v.name)
	if want := "disks, memory, vcpus"; !strings.Contains(stored.Detail, want) {
		t.Errorf("it is said to differ in %q, want %q", stored.Detail, want)
	}
	n.must(v.update(schema.Object{"autostart": true})) // the document says nothing of in_effect
	v.runsOn("something else", false, false)
	addresses := func() (at []string) {
		for line := range strings.Lines(n.host.Virsh(t, "dumpxml", "--inactive", v.name)) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "<address") || strings.HasPrefix(line, "<mac") || strings.HasPrefix(line, "<uuid") || strings.HasPrefix(line, "<type") {
				at = append(at, line)
			}
		}
		return at
	}
	pinned := addresses()
	n.must(v.update(schema.Object{"in_effect": true})) // it was false
	v.runsOn("requested", true, true)
	if d := cmp.Diff(pinned, addresses()); d != "" {
		t.Errorf("addresses moved (-before +after):\n%s", d)
	}

	// What the guest does not release stays until the machine is started again.
	n.must(v.update(schema.Object{"interfaces": []any{first}, "disks": []any{disk("vda", "root", 1)}}))
	if strings.Contains(v.devices(), "vdb") {
		v.runsOn("a disk less", false, false)
	}
	n.must(v.update(schema.Object{"state": "stopped"}))
	n.field("libvirt.domain", v.name, "in_effect", true)
	back := n.look("libvirt.domain", v.name)
	n.must(n.kind("libvirt.domain").Update(t.Context(), func() providers.Call {
		c := n.call("libvirt.domain", v.name)
		c.Have, c.Want = back.Spec, made
		return c
	}()))
	if d := cmp.Diff(made, n.look("libvirt.domain", v.name).Spec); d != "" {
		t.Errorf("it is not what it was (-was +is):\n%s", d)
	}

	// What others have set, or libvirt keeps, would be lost with it.
	n.host.Virsh(t, "desc", v.name, "--config", "--title", "Theirs")
	n.host.Virsh(t, "blkdeviotune", v.name, "vda", "--config", "--total-iops-sec", "100")
	n.fails(n.delete("libvirt.domain", v.name), providers.Invalid, "domain/devices/disk/iotune")
	n.host.Virsh(t, "blkdeviotune", v.name, "vda", "--config", "--total-iops-sec", "0")
	n.must(v.update(schema.Object{"state": "stopped"}))
	n.host.Virsh(t, "start", v.name)
	n.host.Virsh(t, "managedsave", v.name)
	n.fails(n.delete("libvirt.domain", v.name), providers.Invalid, "a saved state")
	n.host.Virsh(t, "managedsave-remove", v.name)
	n.host.Virsh(t, "start", v.name)
	n.must(n.delete("libvirt.domain", v.name))
	n.must(n.delete("libvirt.volume", "p/root"))
}
