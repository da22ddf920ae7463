//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/cidata"
	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A node is a provider under test on a libvirt.
type node struct {
	*testing.T
	far
	p *providers.Provider
	c conn
}

func newNode(t *testing.T, f far) *node {
	t.Helper()
	f.clear(t)
	p, c := f.opened(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &node{t, f, p, c}
}

func (n *node) kind(name string) providers.Kind {
	n.Helper()
	for _, k := range n.p.Kinds {
		if k.Name == name {
			return k.Kind
		}
	}
	n.Fatalf("there is no kind %s", name)
	return nil
}

// call returns a call about the thing with an id; the last part of that is its name.
func (n *node) call(kind, id string) providers.Call {
	ref := schema.Ref{Scope: "gpu-01", Kind: kind, Name: id[strings.LastIndexByte(id, '/')+1:]}
	return providers.Call{Ref: ref, ID: id, Mark: providers.Mark{Site: providertest.Site, Ref: ref, Incarnation: 1}, Epoch: 1}
}

func (n *node) create(kind, id string, want schema.Object) error {
	c := n.call(kind, id)
	c.Want = want
	return n.kind(kind).Create(n.Context(), c)
}

// update changes fields of a thing from what they are now.
func (n *node) update(kind, id string, fields schema.Object) error {
	n.Helper()
	have := n.look(kind, id)
	c := n.call(kind, id)
	c.Have, c.Want, c.Version = have.Spec, have.Spec.Clone(), have.Version
	for name, v := range fields {
		c.Want[name] = v
	}
	return n.kind(kind).Update(n.Context(), c)
}

func (n *node) delete(kind, id string) error {
	return n.kind(kind).Delete(n.Context(), n.call(kind, id))
}

func (n *node) look(kind, id string) providers.Thing {
	n.Helper()
	things, err := n.kind(kind).Get(n.Context(), []string{id})
	if err != nil || len(things) != 1 {
		n.Fatalf("looking at %s %s shows %d things (%v)", kind, id, len(things), err)
	}
	return things[0]
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// fails checks the class of an error, and what it says.
func (n *node) fails(err error, class providers.Class, says ...string) {
	n.Helper()
	if err == nil || providers.ClassOf(err) != class {
		n.Errorf("it failed as %s, want %s: %v", providers.ClassOf(err), class, err)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			n.Errorf("the error is %v, want it to say %q", err, s)
		}
	}
}

// unchanged checks that what happens within leaves libvirt as it is.
func (n *node) unchanged(within func()) {
	n.Helper()
	before := dump(n.T, n.c)
	within()
	if d := cmp.Diff(before, dump(n.T, n.c)); d != "" {
		n.Errorf("it changed (-before +after):\n%s", d)
	}
}

// field checks one field of the spec of a thing.
func (n *node) field(kind, id, field string, want any) {
	n.Helper()
	if d := cmp.Diff(want, n.look(kind, id).Spec[field]); d != "" {
		n.Errorf("%s of %s %s (-want +is):\n%s", field, kind, id, d)
	}
}

// TestForeign has what others made: it is reported as it is, and survives our changes beside it and of it.
func TestForeign(t *testing.T) {
	n := newNode(t, driver(t))
	n.field("libvirt.network", "default", "forward_mode", "nat")
	n.field("libvirt.pool", "images", "path", "/srv/images")
	if things, err := n.kind("libvirt.pool").Get(t.Context(), []string{"vg0"}); err != nil || len(things) > 0 {
		t.Errorf("a volume group is reported as a directory: %v (%v)", things, err)
	}
	n.unchanged(func() {
		n.fails(n.create("libvirt.network", "default", schema.Object{}), providers.Exists, "default exists already")
		n.fails(n.create("libvirt.pool", "images", schema.Object{"path": "/srv/other"}), providers.Exists)
		n.fails(n.create("libvirt.pool", "vg0", schema.Object{"path": "/srv/other"}), providers.Exists)
		n.fails(n.delete("libvirt.network", "default"), providers.Invalid, "network/dns/host")
		n.must(n.create("libvirt.pool", "ours", schema.Object{"path": "/srv/ours"}))
		n.must(n.delete("libvirt.pool", "ours"))
	})
	n.must(n.update("libvirt.network", "default", schema.Object{"active": false}))
	n.must(n.update("libvirt.network", "default", schema.Object{"domain": "lab.example"}))
	ds, err := n.c.read(t.Context(), networkObject, []string{"default"})
	n.must(err)
	if !strings.Contains(ds[0].stored, "printer") || !strings.Contains(ds[0].stored, "lab.example") {
		t.Errorf("it lost the DNS host that others added:\n%s", ds[0].stored)
	}
	n.field("libvirt.network", "default", "uuid", "0a1b2c3d-0000-4000-8000-000000000001")
}

// TestRefusals: what the schema lets through and libvirt would do is refused where it would take something away.
func TestRefusals(t *testing.T) {
	n := newNode(t, driver(t))
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": "/srv/p"}))
	n.must(n.create("libvirt.volume", "p/v", schema.Object{"pool": "p", "capacity": int64(4096)}))
	n.unchanged(func() {
		n.fails(n.delete("libvirt.pool", "p"), providers.Invalid, "pool p still has the volumes v")
		n.fails(n.update("libvirt.pool", "p", schema.Object{"path": "/srv/q"}), providers.Invalid, "path cannot")
		n.fails(n.update("libvirt.volume", "p/v", schema.Object{"capacity": int64(2048)}), providers.Invalid, "cannot shrink")
		n.fails(n.update("libvirt.volume", "p/v", schema.Object{"capacity": int64(5000)}), providers.Invalid, "multiple of 1024")
		n.fails(n.update("libvirt.volume", "p/v", schema.Object{"format": "raw"}), providers.Invalid, "format cannot")
		n.fails(n.create("libvirt.volume", "p/w", schema.Object{"pool": "p", "capacity": int64(5000)}), providers.Invalid, "multiple of 1024")
		n.fails(n.create("libvirt.volume", "p/w", schema.Object{"pool": "p", "capacity": int64(4096), "backing": "p/none"}), providers.Absent, "p/none")
		n.fails(n.create("libvirt.volume", "none/w", schema.Object{"pool": "none", "capacity": int64(4096)}), providers.Absent)
		n.fails(n.create("libvirt.network", "x", schema.Object{"colour": "red"}), providers.Invalid, "colour")
	})
	// libvirt does not compare versions; we do, with what is there right before the change.
	stale := n.call("libvirt.volume", "p/v")
	stale.Want, stale.Version = n.look("libvirt.volume", "p/v").Spec, "before"
	n.unchanged(func() {
		n.fails(n.kind("libvirt.volume").Update(t.Context(), stale), providers.Conflict)
		n.fails(n.kind("libvirt.volume").Delete(t.Context(), stale), providers.Conflict)
	})
	// What is in a stopped pool is unknown, and not absent.
	n.must(n.update("libvirt.pool", "p", schema.Object{"active": false}))
	if _, err := providers.Collect(n.kind("libvirt.volume").List(t.Context())); err == nil || !strings.Contains(err.Error(), "pool p is stopped") {
		t.Errorf("listing the volumes while a pool is stopped: %v", err)
	}
	n.fails(n.delete("libvirt.volume", "p/v"), providers.Invalid, "pool p is stopped")
	n.must(n.update("libvirt.pool", "p", schema.Object{"active": true}))
	n.look("libvirt.volume", "p/v")
}

// TestText: names and paths with all that XML and shells treat specially reach libvirt as data.
func TestText(t *testing.T) {
	n := newNode(t, driver(t))
	const odd = `/srv/a'b"c<d>&amp;]]><!--$(id)`
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": odd}))
	n.field("libvirt.pool", "p", "path", odd)
	n.unchanged(func() {
		if err := n.create("libvirt.network", "a/../b", schema.Object{}); err == nil {
			t.Error("a network with slashes in its name was made")
		}
	})
	n.must(n.create("libvirt.network", "x<y>&'\"", schema.Object{"active": false}))
	n.look("libvirt.network", "x<y>&'\"")
}

// TestUUIDs: what is created again has the UUID that it had, whoever chose it.
func TestUUIDs(t *testing.T) {
	n := newNode(t, driver(t))
	var ours []any
	for range 2 {
		n.must(n.create("libvirt.pool", "p", schema.Object{"path": "/srv/p"}))
		ours = append(ours, n.look("libvirt.pool", "p").Spec["uuid"])
		n.must(n.delete("libvirt.pool", "p"))
	}
	if ours[0] != ours[1] || ours[0] == nil {
		t.Errorf("the pool had the UUIDs %v", ours)
	}
	theirs := n.look("libvirt.pool", "images").Spec
	n.must(n.delete("libvirt.pool", "images"))
	n.must(n.create("libvirt.pool", "images", theirs))
	if d := cmp.Diff(theirs, n.look("libvirt.pool", "images").Spec); d != "" {
		t.Errorf("it is not what it was (-was +is):\n%s", d)
	}
}

// TestRefusedCopy: what libvirt answers to a call that is made within another one is its answer, and no lost connection.
func TestRefusedCopy(t *testing.T) {
	n := newNode(t, driver(t))
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": "/srv/p"}))
	for _, name := range []string{"a", "b"} {
		n.must(n.create("libvirt.volume", "p/"+name, schema.Object{"pool": "p", "capacity": int64(1 << 20)}))
	}
	xml, err := textOf(newFile("b", 1<<20, "qcow2"))
	n.must(err)
	err = n.c.copyVolume(t.Context(), "p", xml, "p", "a")
	if errors.As(err, new(*lost)) || !errors.As(err, new(*answer)) {
		t.Errorf("a copy to a volume that exists ended with %#v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	libvirttest.Library(t)
	for want, o := range map[string]Options{
		"the node and the site":  {Site: providertest.Site},
		"the id of the site":     {Node: "gpu-01", Site: "here"},
		"connect to libvirt at ": {Node: "gpu-01", Site: providertest.Site, URI: "qemu+unix:///system?socket=" + t.TempDir() + "/none"},
	} {
		p, err := Open(t.Context(), o)
		if err == nil {
			p.Close()
			t.Errorf("%s: it opened", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want it to say %q", err, want)
		}
	}
}

// realNode is a node on a real libvirtd.
func realNode(t *testing.T) *node {
	t.Helper()
	return newNode(t, realFar(libvirttest.Start(t)))
}

// aNetwork has a bridge of libvirt with DHCP.
var aNetwork = schema.Object{"forward_mode": "nat", "ips": []any{map[string]any{
	"address": "10.90.0.1/24", "dhcp_ranges": []any{map[string]any{"start": "10.90.0.100", "end": "10.90.0.199"}},
}}}

// TestReal is about what only a real libvirtd does. It is one test, because starting one takes longer than most of its parts.
func TestReal(t *testing.T) {
	n := realNode(t)
	for _, part := range []struct {
		name string
		test func(*node)
	}{
		{"what libvirt fills in", filledIn},
		{"stored and running", storedAndRunning},
		{"what others made", foreign},
		{"a network that cannot start", cannotStart},
		{"files made by hand", byHand},
		{"in use", inUse},
		{"a seed", aSeed},
		{"a copy", aCopy},
		{"an upload", anUpload},
		{"closed", closed},
		{"a cut copy", cutCopy},
		{"killed", killed},
		{"frozen", frozen},
	} {
		t.Run(strings.ReplaceAll(part.name, " ", "-"), func(t *testing.T) {
			n.clear(t)
			part.test(&node{t, n.far, n.p, n.c})
		})
	}
}

// filledIn: what libvirt chooses by itself is observed, and an update that says nothing of it keeps it.
func filledIn(n *node) {
	n.must(n.create("libvirt.network", "net", aNetwork))
	made := n.look("libvirt.network", "net").Spec
	if made["bridge"] == nil || made["mac"] == nil || made["in_effect"] != true {
		n.Errorf("it is observed as %v", made)
	}
	n.must(n.update("libvirt.network", "net", schema.Object{"domain": "a.example"}))
	now := n.look("libvirt.network", "net").Spec
	if d := cmp.Diff(made["bridge"], now["bridge"]) + cmp.Diff(made["mac"], now["mac"]); d != "" || now["in_effect"] != true {
		n.Errorf("an update changed more than it should have (%v):\n%s", now["in_effect"], d)
	}
}

// storedAndRunning: another client changes only what is stored, or only what runs.
func storedAndRunning(n *node) {
	n.must(n.create("libvirt.network", "net", aNetwork))
	xml := n.host.Virsh(n, "net-dumpxml", "--inactive", "net")
	n.host.Define(n, "net-define", strings.Replace(xml, "<ip ", "<domain name='theirs.example'/><ip ", 1))
	n.field("libvirt.network", "net", "in_effect", false)
	n.must(n.update("libvirt.network", "net", schema.Object{"in_effect": true}))
	n.field("libvirt.network", "net", "in_effect", true)
	n.field("libvirt.network", "net", "domain", "theirs.example")

	n.must(n.create("libvirt.dhcp_host", "net/web", schema.Object{"network": "net", "mac": "52:54:00:00:09:01", "ip": "10.90.0.11"}))
	n.host.Virsh(n, "net-update", "net", "delete", "ip-dhcp-host", "<host mac='52:54:00:00:09:01'/>", "--live")
	n.field("libvirt.dhcp_host", "net/web", "in_effect", false)
	n.must(n.update("libvirt.dhcp_host", "net/web", schema.Object{"in_effect": true}))
	n.field("libvirt.dhcp_host", "net/web", "in_effect", true)
	n.fails(n.create("libvirt.dhcp_host", "net/other", schema.Object{"network": "net", "mac": "52:54:00:00:09:01", "ip": "10.90.0.12"}), providers.Invalid)
	n.fails(n.update("libvirt.network", "net", schema.Object{"ips": []any{}}), providers.Invalid, "reservations of address 10.90.0.1/24")

	// A network that is undefined while it runs ends with its run.
	n.host.Virsh(n, "net-undefine", "net")
	n.field("libvirt.network", "net", "in_effect", false)
	n.must(n.update("libvirt.network", "net", schema.Object{"in_effect": true, "autostart": true}))
	n.field("libvirt.network", "net", "in_effect", true)
}

// foreign: what others set stays, and what this program does not know is not dropped.
func foreign(n *node) {
	n.host.Define(n, "net-define", `<network><name>theirs</name><forward mode='bridge'/><bridge name='br9'/>
<portgroup name='slow'><bandwidth><inbound average='10'/></bandwidth></portgroup></network>`)
	n.host.Define(n, "pool-define", "<pool type='dir'><name>theirs</name><target><path>"+n.dir+"</path></target></pool>")
	theirs := n.host.Virsh(n, "net-dumpxml", "theirs") + n.host.Virsh(n, "pool-dumpxml", "theirs")
	n.must(n.create("libvirt.network", "ours", aNetwork))
	n.must(n.update("libvirt.network", "ours", schema.Object{"autostart": false}))
	n.must(n.delete("libvirt.network", "ours"))
	n.fails(n.update("libvirt.network", "theirs", schema.Object{"bridge": "br8"}), providers.Invalid, "network/portgroup/bandwidth")
	n.fails(n.delete("libvirt.network", "theirs"), providers.Invalid, "network/portgroup/bandwidth")
	if now := n.host.Virsh(n, "net-dumpxml", "theirs") + n.host.Virsh(n, "pool-dumpxml", "theirs"); now != theirs {
		n.Errorf("what others made changed:\n%s", cmp.Diff(theirs, now))
	}
}

// cannotStart: a network that libvirt stores and cannot start is taken back, and one that was running runs again.
func cannotStart(n *node) {
	n.must(n.create("libvirt.network", "net", aNetwork))
	other := aNetwork.Clone()
	other["bridge"] = "vbr-other"
	n.unchanged(func() {
		n.fails(n.create("libvirt.network", "other", other), providers.Invalid, "already in use by interface")
	})
	other["ips"] = []any{map[string]any{"address": "10.91.0.1/24"}}
	n.must(n.create("libvirt.network", "other", other))
	n.unchanged(func() {
		n.fails(n.update("libvirt.network", "other", schema.Object{"ips": aNetwork["ips"]}), providers.Invalid, "already in use by interface")
	})
	n.field("libvirt.network", "other", "active", true)
}

// byHand: libvirt looks at a directory only when it is told to. A file that appeared since is not overwritten, and one that is gone is
// unknown until then, because the whole directory may be missing.
func byHand(n *node) {
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	n.must(os.WriteFile(filepath.Join(n.dir, "p", "v"), []byte("precious"), 0o600))
	n.fails(n.create("libvirt.volume", "p/v", schema.Object{"pool": "p", "capacity": int64(4096)}), providers.Invalid, "already exists")
	if text, err := os.ReadFile(filepath.Join(n.dir, "p", "v")); err != nil || string(text) != "precious" {
		n.Errorf("the file is %q now (%v)", text, err)
	}
	n.must(n.create("libvirt.volume", "p/w", schema.Object{"pool": "p", "capacity": int64(64 << 20), "format": "raw"}))
	var file unix.Stat_t
	if n.must(unix.Stat(filepath.Join(n.dir, "p", "w"), &file)); file.Size != 64<<20 || file.Blocks*512 > 1<<20 {
		n.Errorf("a new volume of 64 MiB has %d bytes, and %d of them on the disk", file.Size, file.Blocks*512)
	}
	n.must(os.Remove(filepath.Join(n.dir, "p", "w")))
	_, get := n.kind("libvirt.volume").Get(n.Context(), []string{"p/w"})
	_, list := providers.Collect(n.kind("libvirt.volume").List(n.Context()))
	for _, err := range []error{get, list} {
		n.fails(err, providers.Invalid, "pool p lists the volume w", "may not be mounted", "virsh pool-refresh p")
	}
	n.host.Virsh(n, "pool-refresh", "p")
	if things, err := n.kind("libvirt.volume").Get(n.Context(), []string{"p/w"}); err != nil || len(things) > 0 {
		n.Errorf("a volume whose file is gone is observed as %v (%v)", things, err)
	}
	n.look("libvirt.volume", "p/v") // the one that appeared

	// A pool that exists does not get a directory in the place of one that is not mounted.
	n.must(n.update("libvirt.pool", "p", schema.Object{"active": false}))
	n.must(os.Rename(filepath.Join(n.dir, "p"), filepath.Join(n.dir, "away")))
	n.unchanged(func() {
		n.fails(n.update("libvirt.pool", "p", schema.Object{"active": true}), providers.Invalid, "No such file or directory")
	})
	if _, err := os.Stat(filepath.Join(n.dir, "p")); err == nil {
		n.Error("the pool got another directory")
	}
	n.must(os.Rename(filepath.Join(n.dir, "away"), filepath.Join(n.dir, "p")))
	n.must(n.update("libvirt.pool", "p", schema.Object{"active": true}))
}

// inUse runs a domain with a volume and an interface: neither is taken from under it, and the volume grows with it.
func inUse(n *node) {
	n.must(n.create("libvirt.network", "net", aNetwork))
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	n.must(n.create("libvirt.volume", "p/base", schema.Object{"pool": "p", "capacity": int64(1 << 20)}))
	n.must(n.create("libvirt.volume", "p/disk", schema.Object{"pool": "p", "capacity": int64(1 << 20), "backing": "p/base"}))
	n.host.Define(n, "define", fmt.Sprintf(`<domain type='qemu'><name>converge-in-use</name><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s/p/disk'/><target dev='vda' bus='virtio'/></disk>
<interface type='network'><source network='net'/></interface></devices></domain>`, n.dir))
	for _, state := range []string{"stopped", "running"} {
		if state == "running" {
			n.host.Virsh(n, "start", "converge-in-use")
			n.unchanged(func() {
				n.fails(n.update("libvirt.network", "net", schema.Object{"active": false}), providers.Invalid, "domain converge-in-use has an interface")
				n.fails(n.update("libvirt.network", "net", schema.Object{"domain": "b.example"}), providers.Invalid, "domain converge-in-use has an interface")
			})
		}
		n.fails(n.delete("libvirt.volume", "p/disk"), providers.Invalid, "disk vda of domain converge-in-use")
		n.fails(n.delete("libvirt.volume", "p/base"), providers.Invalid, "the backing volume of p/disk")
		n.fails(n.delete("libvirt.network", "net"), providers.Invalid, "domain converge-in-use has an interface")
		capacity := n.look("libvirt.volume", "p/disk").Spec["capacity"].(int64) * 2
		n.must(n.update("libvirt.volume", "p/disk", schema.Object{"capacity": capacity}))
		n.field("libvirt.volume", "p/disk", "capacity", capacity)
	}
	n.host.Virsh(n, "destroy", "converge-in-use")
	n.host.Virsh(n, "undefine", "converge-in-use")
	n.must(n.delete("libvirt.volume", "p/disk"))
	n.must(n.delete("libvirt.volume", "p/base"))
	n.must(n.delete("libvirt.network", "net"))
}

// aSeed runs a domain with a seed, which is replaced under it, and not deleted. What was cut off is written again.
func aSeed(n *node) {
	const id, file = "p/web.cidata.iso", "p/web.cidata.iso"
	seed := func(instance, data string) schema.Object {
		return schema.Object{"pool": "p", "instance_id": instance, "hostname": "web", "user_data": data}
	}
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	n.must(n.create("libvirt.cloudinit", id, seed("i-1", "#cloud-config\n")))
	path := filepath.Join(n.dir, file)
	if info, err := os.Stat(path); err != nil || info.Size() != cidata.Size || info.Mode().Perm() != 0o600 {
		n.Errorf("the file is %v (%v)", info, err)
	}
	if status := n.look("libvirt.cloudinit", id).Status["path"]; status != path {
		n.Errorf("the path is %v, want %s", status, path)
	}
	n.host.Define(n, "define", `<domain type='qemu'><name>converge-seed</name><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<disk type='volume' device='cdrom'><driver name='qemu' type='raw'/><source pool='p' volume='web.cidata.iso'/><target dev='sda' bus='sata'/><readonly/></disk></devices></domain>`)
	n.host.Virsh(n, "start", "converge-seed")
	before := n.look("libvirt.cloudinit", id).Version
	n.must(n.update("libvirt.cloudinit", id, seed("i-1", "#cloud-config\nhostname: other\n")))
	if now := n.look("libvirt.cloudinit", id).Version; now == before {
		n.Error("a change of the user data alone leaves the version")
	}
	n.must(n.update("libvirt.cloudinit", id, seed("i-2", "#cloud-config\nhostname: other\n")))
	n.field("libvirt.cloudinit", id, "instance_id", "i-2")
	image, err := os.ReadFile(path)
	n.must(err)
	if s, err := cidata.Read(image); err != nil || s.UserData != "#cloud-config\nhostname: other\n" {
		n.Errorf("the file has %v (%v)", s, err)
	}
	n.fails(n.delete("libvirt.cloudinit", id), providers.Invalid, "disk sda of domain converge-seed")
	n.host.Virsh(n, "destroy", "converge-seed")
	n.fails(n.delete("libvirt.cloudinit", id), providers.Invalid, "disk sda of domain converge-seed")
	n.host.Virsh(n, "undefine", "converge-seed")

	image[writingAt] = replacing
	n.must(n.c.upload(n.Context(), "p", "web.cidata.iso", 0, 100<<10, bytes.NewReader(image)))
	if th := n.look("libvirt.cloudinit", id); th.Phase != providers.Failed || th.Detail != string(replaced) {
		n.Errorf("a seed that was cut off is observed as %v", th)
	}
	n.must(n.update("libvirt.cloudinit", id, seed("i-3", "")))
	n.field("libvirt.cloudinit", id, "instance_id", "i-3")
	n.fails(n.delete("libvirt.pool", "p"), providers.Invalid, "still has the volumes web.cidata.iso")
	n.must(n.delete("libvirt.cloudinit", id))
	n.must(n.delete("libvirt.pool", "p"))

	if short, err := beginning(n.Context(), n.c, "p", "none", 10); err == nil {
		n.Errorf("a volume that does not exist has %q", short)
	}
}

// closed: a provider that was closed has no connection any more, and says so.
func closed(n *node) {
	connections := func() int {
		links, err := os.ReadDir("/proc/self/fd")
		n.must(err)
		return len(links)
	}
	before := connections()
	for range 3 {
		p, _ := n.opened(n.T)
		for range 2 {
			n.must(p.Close())
		}
		_, err := providers.Collect(p.Kinds[0].Kind.List(n.Context()))
		n.fails(err, providers.Transient, "the provider is closed")
	}
	deadline := time.Now().Add(2 * time.Minute)
	for connections() > before && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // the event loop closes them
	}
	if now := connections(); now > before {
		n.Errorf("%d files are open, %d more than before", now, now-before)
	}
}

// killed: while libvirtd is away the provider says so, calls have no effect and may be repeated, a watch ends, and once it is back the
// provider notices by itself. What runs goes on.
func killed(n *node) {
	n.must(n.create("libvirt.network", "net", aNetwork))
	ended := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		var last error
		begun := false
		for _, err := range n.p.Kinds[1].Watch(n.Context()) {
			if last = err; !begun {
				begun = true
				close(began)
			}
		}
		ended <- last
	}()
	<-began
	n.host.Kill(n)
	if err := <-ended; providers.ClassOf(err) != providers.Transient {
		n.Errorf("the watch ended with %v", err)
	}
	_, err := providers.Collect(n.kind("libvirt.network").List(n.Context()))
	n.fails(err, providers.Transient)
	n.fails(n.create("libvirt.network", "other", schema.Object{}), providers.Transient)
	if n.p.Health(n.Context()) == nil {
		n.Error("while libvirtd is away, the health is good")
	}
	n.host.Restart(n)
	deadline := time.Now().Add(2 * time.Minute)
	for n.p.Health(n.Context()) != nil && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	if down := n.p.Health(n.Context()); down != nil {
		n.Errorf("after libvirtd came back: %v", down)
	}
	n.field("libvirt.network", "net", "active", true)
	n.must(n.delete("libvirt.network", "net"))
}

// frozen: a libvirtd that does not answer keeps nobody longer than the caller waits, and nobody for ever, also not who has nothing more to
// ask; and it can be used when it goes on.
func frozen(n *node) {
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	other, _ := n.opened(n.T)
	n.host.Freeze(n)
	ctx, cancel := context.WithTimeout(n.Context(), 500*time.Millisecond)
	defer cancel()
	call := n.call("libvirt.pool", "p")
	if err := n.kind("libvirt.pool").Delete(ctx, call); providers.ClassOf(err) != providers.Transient {
		n.Errorf("a delete of which only the look was sent: %v", err)
	}
	var all sync.WaitGroup
	for range maxCalls {
		all.Go(func() {
			n.fails(n.kind("libvirt.pool").Delete(n.Context(), call), providers.Transient, "has not answered for 15s")
		})
	}
	all.Go(func() {
		if err := other.Close(); err != nil {
			n.Error(err)
		}
	})
	all.Wait()
	n.host.Thaw(n)
	n.look("libvirt.pool", "p") // only looks were sent
}
