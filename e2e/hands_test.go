package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/internal/ovstest"
)

// otherHands is a node of which POOL is the directory of its pool.
const otherHands = `package site

apiVersion: "converge.dev/v1"
site: {name: "fra1", id: "6f1c2a70-3f0e-4c53-9d55-6a0a4d7f2b11"}
policy: max_destroy: "100%"
nodes: "gpu-01": {
	ovs: {
		bridge: br0: {datapath_type: "netdev", fail_mode: "secure"}
		port: p0: {bridge: "br0", interface: type: "internal"}
	}
	libvirt: {
		network: n0: {bridge: "virbr50", ips: [{address: "10.50.0.1/24"}]}
		pool: po: path: "POOL"
		volume: {
			"base.qcow2": {pool: "po", capacity: 1048576}
			"top.qcow2": {pool: "po", capacity: 1048576, backing: "base.qcow2"}
		}
		domain: vm: {type: "qemu", vcpus: 1, memory: 67108864, state: "stopped", disks: [{target: "vda", volume: "top.qcow2"}]}
	}
}
`

// What people do by hand on a node beside converge, to what it manages: a plan says what it is, and nothing of theirs is changed or deleted.
func TestOtherHands(t *testing.T) {
	t.Parallel()
	n := &foundNode{site: newSite(t), host: libvirttest.Start(t), ovs: ovstest.Start(t)}
	n.program = filepath.Join(n.dir, "converge")
	if out, err := exec.Command("go", "build", "-tags=libvirt_dlopen", "-o", n.program, "../cmd/converge").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.pool = filepath.Join(n.host.Dir, "srv", "pool")
	n.host.Sh(t, "mkdir -p "+n.pool)
	n.configure(n.ovs.Endpoint)
	document := strings.ReplaceAll(otherHands, "POOL", n.pool)
	n.write("site.cue", document)
	n.run(0, "apply", "-auto-approve", "site.cue")
	unchanged := func() { t.Helper(); n.run(0, "plan", "-detailed-exitcode", "site.cue").says("No changes") }
	unchanged()

	// A mark that is gone is written again.
	n.ovs.Vsctl(t, "remove", "bridge", "br0", "external_ids", "converge.dev/mark")
	n.host.Virsh(t, "metadata", "vm", "https://converge.dev/libvirt", "--config", "--remove")
	n.run(2, "plan", "-detailed-exitcode", "site.cue").says("its ownership mark was removed outside converge", "has lost its ownership mark")
	n.run(2, "drift").says("has lost its ownership mark")
	n.run(0, "apply", "-auto-approve", "site.cue").says("2 changed")
	unchanged()

	// What others made in place of ours is theirs.
	n.ovs.Vsctl(t, "del-br", "br0")
	n.ovs.Vsctl(t, strings.Fields("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure")...)
	n.host.Sh(t, "virsh -q net-destroy n0; virsh -q net-undefine n0")
	n.host.Define(t, "net-define", "<network><name>n0</name><bridge name='virbr50'/><ip address='10.50.0.1' prefix='24'/></network>")
	n.ovs.Settle(t)
	theirs := n.dump()
	n.run(7, "plan", "site.cue").says("the ovs.bridge that converge manages was deleted, and another one with its name", "the libvirt.network that converge manages was deleted")
	n.run(7, "apply", "-auto-approve", "site.cue")
	if now := n.dump(); now != theirs {
		t.Errorf("theirs was changed:\n%s", difference(theirs, now))
	}
	n.write("adopted.cue", "package site\n\nnodes: \"gpu-01\": {ovs: bridge: br0: lifecycle: adopt: \"match\", libvirt: network: n0: lifecycle: adopt: \"match\"}\n")
	n.run(0, "apply", "-auto-approve", "site.cue", "adopted.cue")
	n.run(0, "plan", "-detailed-exitcode", "site.cue", "adopted.cue").says("No changes")
	unchanged()

	// A machine that was renamed is no reason to create another one.
	n.host.Virsh(t, "domrename", "vm", "mine")
	n.run(7, "plan", "site.cue").says("the libvirt.domain was renamed to mine outside converge", "rename it back to vm")
	n.host.Virsh(t, "domrename", "mine", "vm")
	unchanged()

	// What a machine of others needs is not deleted, which a plan says before anything else is.
	n.host.Define(t, "define", fmt.Sprintf("<domain type='qemu'><name>theirs</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices><disk type='file'><driver name='qemu' type='qcow2'/><source file='%s/base.qcow2'/><target dev='vda'/></disk></devices></domain>", n.pool))
	n.ovs.Vsctl(t, strings.Fields("add-port br0 x1 -- set interface x1 type=internal")...)
	n.ovs.Settle(t)
	theirs = n.dump()
	n.run(7, "plan", "-destroy").says("it cannot be deleted: it is disk vda of domain theirs", "it cannot be deleted: it still has the ports x1")
	n.run(7, "destroy", "-auto-approve")
	if now := n.dump(); now != theirs {
		t.Errorf("a destroy that was refused has changed something:\n%s", difference(theirs, now))
	}
	n.host.Virsh(t, "undefine", "theirs")
	n.ovs.Vsctl(t, "del-port", "x1")
	n.ovs.Settle(t)

	// A volume that is gone is created again under a machine that still has it.
	n.host.Virsh(t, "vol-delete", "--pool", "po", "top.qcow2")
	n.run(0, "apply", "-auto-approve", "site.cue").says("1 added", "0 changed")
	unchanged()

	// A pool that others made is theirs with what is in it.
	n.host.Sh(t, fmt.Sprintf("virsh -q undefine vm; virsh -q pool-destroy po; virsh -q pool-undefine po; mkdir -p %[1]s/other && virsh -q pool-define-as po dir --target %[1]s/other && virsh -q pool-start po && virsh -q vol-create-as po top.qcow2 1M --format qcow2", n.host.Dir))
	n.run(0, "destroy", "-auto-approve").says("another one with its name was created outside converge, and stays")
	if left := n.host.Sh(t, "virsh -q vol-list po; virsh -q list --all; virsh -q net-list --all"); !strings.Contains(left, "top.qcow2") || strings.Contains(left, "vm") || strings.Contains(left, "n0") {
		t.Errorf("left is:\n%s", left)
	}
}
