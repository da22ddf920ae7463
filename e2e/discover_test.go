package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/internal/ovstest"
)

// A foundNode is a node that people and other programs have set up, without converge.
type foundNode struct {
	*site
	host   *libvirttest.Host
	ovs    *ovstest.Switch
	kernel string // a copy of what the kernel of a node shows
	pool   string // the directory of the pool images
}

func findNode(t *testing.T) *foundNode {
	t.Helper()
	n := &foundNode{site: newSite(t), host: libvirttest.Start(t), ovs: ovstest.Start(t)}
	n.program = filepath.Join(n.dir, "converge")
	if out, err := exec.Command("go", "build", "-tags=libvirt_dlopen", "-o", n.program, "../cmd/converge").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.pool = filepath.Join(n.host.Dir, "srv", "images")
	n.configure(n.ovs.Endpoint)
	n.switches()
	n.machines()
	return n
}

// configure writes converge.yaml.
func (n *foundNode) configure(ovs string) {
	n.Helper()
	if n.kernel == "" {
		n.kernel = filepath.Join(kerneltest.Capture(n.T, "sriov"), "sys")
	}
	n.write("converge.yaml", fmt.Sprintf("nodes:\n  gpu-01: {libvirt: %q, ovs: %q, sysfs: %q}\n", n.host.URI(), ovs, n.kernel))
}

// switches sets up what ovs-vsctl sets up on nodes of OVN and of others.
func (n *foundNode) switches() {
	n.Helper()
	for _, words := range []string{
		"add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure other_config:disable-in-band=true external_ids:ct-zone-lr0=5 protocols=[OpenFlow13,OpenFlow15]",
		"add-br br-ex -- set bridge br-ex datapath_type=netdev rstp_enable=true other_config:mac-table-size=50000",
		"set open_vswitch . external_ids:system-id=node1 external_ids:ovn-encap-type=geneve other_config:vlan-limit=0",
		"add-port br-int patch-ex -- set interface patch-ex type=patch options:peer=patch-int",
		"add-port br-ex patch-int -- set interface patch-int type=patch options:peer=patch-ex",
		"add-port br-int tap1 tag=3 -- set interface tap1 type=internal mtu_request=1450 external_ids:iface-id=abc",
		"add-port br-int tap2 trunks=3,1 tag=5 vlan_mode=native-untagged -- set interface tap2 type=internal",
		"add-bond br-ex bond0 d1 d2 lacp=active bond_mode=balance-tcp -- set interface d1 type=internal -- set interface d2 type=internal -- set port bond0 other_config:lacp-time=fast bond_updelay=100",
		"add-port br-int ovn-b-0 -- set interface ovn-b-0 type=geneve options:key=flow options:remote_ip=10.0.0.3 -- set port ovn-b-0 external_ids:ovn-chassis-id=b",
		"-- --id=@q create qos type=linux-htb other_config:max-rate=1000000 queues:7=@b -- --id=@b create queue other_config:max-rate=500000 -- set port tap1 qos=@q",
		"-- --id=@p get port tap2 -- --id=@m create mirror name=m0 select_all=true output_port=@p -- set bridge br-int mirrors=@m",
		"add-port br-int vnet7 tag=10 -- set interface vnet7 type=internal external_ids:vm-id=4dea22b3-1d52-48f3-8516-782e98ab3fa0",
		"add-port br-ex odd tag=7 vlan_mode=trunk -- set interface odd type=internal",
		"--no-wait add-port br-ex lost",
	} {
		n.ovs.Vsctl(n.T, strings.Fields(words)...)
	}
	n.ovs.Settle(n.T)
}

// definitions are those of networks and machines, by the command that makes one of each. POOL stands for the directory of the pool.
var definitions = []struct{ command, xml string }{
	{"net-define", `<network><name>default</name><forward mode='nat'/><bridge name='virbr0' stp='on' delay='0'/><dns><host ip='192.168.122.9'><hostname>box</hostname></host></dns>
		<ip address='192.168.122.1' netmask='255.255.255.0'><dhcp><range start='192.168.122.2' end='192.168.122.254'/>
		<host mac='52:54:00:00:00:11' name='web1' ip='192.168.122.11'/><host mac='52:54:00:00:00:12' ip='192.168.122.12'/></dhcp></ip></network>`},
	{"net-define", `<network><name>lab</name><forward mode='route'/><bridge name='virbr9' stp='off'/><mtu size='9000'/>
		<ip address='10.30.0.1' prefix='24'/><ip family='ipv6' address='2001:db8:ca2:2::1' prefix='64'/><route address='192.168.222.0' prefix='24' gateway='10.30.0.2'/></network>`},
	{"net-define", `<network><name>tenants</name><forward mode='bridge'/><bridge name='br-int'/><virtualport type='openvswitch'/>
		<portgroup name='trunk'><vlan trunk='yes'><tag id='20' nativeMode='tagged'/><tag id='10'/></vlan></portgroup><portgroup name='all' default='yes'/></network>`},
	{"net-create", `<network><name>edited</name><uuid>4611834d-7a1e-4495-9fe7-5cc3444b31e5</uuid><bridge name='virbr7'/><ip address='10.40.0.1' prefix='24'/></network>`},
	{"net-define", `<network><name>edited</name><uuid>4611834d-7a1e-4495-9fe7-5cc3444b31e5</uuid><bridge name='virbr7'/><ip address='10.40.0.2' prefix='24'/></network>`}, // while it runs
	{"net-create", `<network><name>passing</name><bridge name='virbr8'/></network>`},
	{"define", `<domain type='qemu'><name>debian12</name><metadata><os:libosinfo xmlns:os='http://libosinfo.org/xmlns/libvirt/domain/1.0'><os:os id='http://debian.org/debian/12'/></os:libosinfo></metadata>
		<memory unit='KB'>65537</memory><vcpu current='1'>2</vcpu><cputune><shares>2048</shares></cputune><os><type machine='q35'>hvm</type><boot dev='hd'/><boot dev='network'/></os>
		<features><acpi/><vmport state='off'/></features><cpu mode='maximum'/><clock offset='utc'><timer name='hpet' present='no'/></clock>
		<devices><disk type='file'><driver name='qemu' type='qcow2' discard='unmap'/><source file='POOL/top.qcow2'/><target dev='vda' bus='virtio'/><serial>A1</serial></disk>
		<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>
		<interface type='network'><mac address='52:54:00:ff:00:01'/><source network='default'/><model type='e1000e'/></interface>
		<interface type='network'><mac address='52:54:00:00:00:11'/><source network='default'/><model type='virtio'/><link state='down'/></interface>
		<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel><rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
		<graphics type='vnc' port='-1'/><video><model type='vga'/></video></devices></domain>`},
	{"define", `<domain type='qemu'><name>box_default</name><title>Vagrant</title><memory unit='MiB'>64</memory><vcpu cpuset='0-1,^1'>1</vcpu><os><type machine='pc'>hvm</type></os>
		<devices><disk type='volume'><driver name='qemu' type='raw' cache='none'/><source pool='images' volume='raw.img'/><target dev='vda' bus='virtio'/></disk>
		<filesystem type='mount'><source dir='/srv'/><target dir='share'/></filesystem><disk type='file' device='floppy'><target dev='fda'/></disk>
		<interface type='bridge'><mac address='52:54:00:00:02:01'/><source bridge='br-int'/><vlan><tag id='3'/></vlan>
		<virtualport type='openvswitch'><parameters interfaceid='b6f79f0c-4fb9-4e17-8d51-d4d3a2b4c1aa'/></virtualport><target dev='tapb6f79f0c'/><model type='virtio'/></interface></devices></domain>`},
	{"define", `<domain type='qemu'><name>instance-1f</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type machine='pc'>hvm</type></os>
		<devices><disk type='file'><source file='/var/lib/nova/instances/u1/disk'/><target dev='vda'/></disk></devices></domain>`},
	{"define", `<domain type='qemu'><name>usermode</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type machine='pc'>hvm</type></os>
		<devices><interface type='user'/></devices></domain>`},
	{"create", `<domain type='qemu'><name>passing</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type machine='pc'>hvm</type></os><devices/></domain>`},
}

// machines sets up what virsh, virt-install and others set up.
func (n *foundNode) machines() {
	n.Helper()
	n.host.Sh(n.T, fmt.Sprintf(`mkdir -p %[1]s && cd %[1]s
qemu-img create -q -f qcow2 base.qcow2 8M
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 top.qcow2 16M
qemu-img create -q -f raw raw.img 1000003
qemu-img create -q -f vmdk odd.vmdk 8M
virsh -q pool-define-as images dir --target %[1]s && virsh -q pool-start images && virsh -q pool-autostart images`, n.pool))
	for _, d := range definitions {
		n.host.Define(n.T, d.command, strings.ReplaceAll(d.xml, "POOL", n.pool))
	}
	n.host.Sh(n.T, "virsh -q net-start default; virsh -q net-start tenants; virsh -q net-autostart tenants; virsh -q start debian12; virsh -q autostart box_default")
}

// What converge may write on a node: its marks.
var (
	noted  = regexp.MustCompile(`\s*<converge:domain [^>]*/>`)
	bare   = regexp.MustCompile(`\s*<metadata>\s*</metadata>`)
	marked = regexp.MustCompile(`converge\.dev/mark:[^ \]"]+ ?`)
)

// dump returns everything that the node has, without the marks of converge.
func (n *foundNode) dump() string {
	n.Helper()
	text := n.host.Sh(n.T, `exec 2>&1
for d in $(virsh -q list --all --name); do echo "== $d"; virsh -q dumpxml --inactive --security-info $d; virsh -q dumpxml $d; virsh -q dominfo $d | grep -v '^CPU time'; done
for n in $(virsh -q net-list --all --name); do echo "== $n"; virsh -q net-dumpxml --inactive $n; virsh -q net-dumpxml $n; virsh -q net-info $n; done
for p in $(virsh -q pool-list --all --name); do echo "== $p"; virsh -q pool-dumpxml --inactive $p; virsh -q pool-info $p | grep -v '^A[lv]'
	for v in $(virsh -q vol-list $p | awk '{print $1}'); do virsh -q vol-dumpxml --pool $p $v | grep -v '<atime>'; done; done`)
	text = bare.ReplaceAllString(noted.ReplaceAllString(text, ""), "")
	return text + strings.ReplaceAll(marked.ReplaceAllString(n.ovs.Dump(n.T), ""), " ]", "]")
}

// halves discovers the node while a part of it cannot be observed: that is missing in the document, with what refers to it, and the
// rest is there.
func (n *foundNode) halves() {
	n.Helper()
	n.configure("unix:" + filepath.Join(n.dir, "none.sock"))
	n.run(8, "import", "-discover", "-site=fra1", "-out=machines").says("Unknown, so not included here:", "gpu-01/ovs.*",
		"box_default: it refers to the ovs.bridge br-int, and these could not be observed: ")
	n.run(0, "validate", "machines")
	n.configure(n.ovs.Endpoint)
	n.host.Virsh(n.T, "pool-destroy", "images")
	n.run(8, "import", "-discover", "-site=fra1", "-out=switches").says(
		"top.qcow2, and these could not be observed: pool images is stopped, so its volumes are unknown")
	n.run(0, "validate", "switches")
	n.host.Virsh(n.T, "pool-start", "images")
}

// A node that others have set up becomes a document whose plan only adopts. Applying it changes nothing on the node but the marks, and
// what the document says later changes nothing else. What no document can say is listed with the reason, and does no harm to the rest.
func TestDiscoverNode(t *testing.T) {
	t.Parallel()
	n := findNode(t)
	n.halves()
	before := n.dump()
	same := func(when string) {
		t.Helper()
		if now := n.dump(); now != before {
			t.Fatalf("%s, the node is not as it was:\n%s", when, difference(before, now))
		}
	}

	n.run(1, "import", "-discover").says("import -discover -site=NAME")
	n.run(1, "init").says("import -discover -site=NAME")
	n.run(0, "import", "-discover", "-site=fra1", "-out=found").says(
		"gpu-01/libvirt.dhcp_host  52:54:00:00:00:12: ",
		"gpu-01/libvirt.domain  instance-1f: it refers to the libvirt.volume /var/lib/nova/instances/u1/disk, which was not found",
		"gpu-01/libvirt.domain  passing: it is not stored, so it ends with its run",
		"gpu-01/libvirt.domain  usermode: The interface is not attached to anything.",
		"gpu-01/libvirt.network  passing: it is not stored",
		`gpu-01/libvirt.volume  odd.vmdk: format: "vmdk" is not allowed`,
		"gpu-01/ovs.port  vnet7: it belongs to a virtual machine",
		"gpu-01/ovs.port  odd: A trunk port has no VLAN of its own.",
		"gpu-01/ovs.port  lost: it has failed: ",
	)
	n.run(0, "validate", "found")
	n.run(2, "plan", "-detailed-exitcode", "-out=found.plan", "found")
	for _, step := range n.steps("found.plan") {
		if len(step.Changes) > 0 || step.Action != plan.Adopt && step.Action != plan.Update {
			t.Errorf("%s is to %s: %s: %v", step.Ref, step.Action, step.Reason, step.Changes)
		}
	}
	for file, text := range map[string]string{"libvirt_domain": "in_effect: true", "ovs_port": "external_ids: {}"} {
		if found := n.read("found/gpu-01_" + file + ".cue"); regexp.MustCompile(`(?m)^\s*` + text).MatchString(found) {
			t.Errorf("%s says %s, which nobody has asked for:\n%s", file, text, found)
		}
	}
	same("after the plan")
	n.run(0, "apply", "-auto-approve", "found").says("0 added", "0 destroyed", "All verified as planned")
	same("after the apply")
	n.run(0, "plan", "-detailed-exitcode", "found").says("No changes")
	n.run(0, "drift").says("No drift")

	ports := n.read("found/gpu-01_ovs_port.cue")
	changed := regexp.MustCompile(`(?m)^\t\ttag: +3$`).ReplaceAllString(ports, "\t\ttag: 4")
	n.write("found/gpu-01_ovs_port.cue", changed)
	machines := n.read("found/gpu-01_libvirt_domain.cue")
	n.write("found/gpu-01_libvirt_domain.cue", strings.Replace(machines, "debian12: {", "debian12: {\n\t\ttitle: \"Web\"", 1))
	n.run(0, "apply", "-auto-approve", "found").says("2 changed")
	n.ovs.Vsctl(t, "set", "port", "tap1", "tag=3")
	if now := strings.ReplaceAll(n.dump(), "  <title>Web</title>\n", ""); now != before {
		t.Errorf("a title and a tag changed more than that:\n%s", difference(before, now))
	}
	n.run(0, "apply", "-auto-approve", "found")
	n.write("found/gpu-01_libvirt_domain.cue", machines)
	n.write("found/gpu-01_ovs_port.cue", ports)
	n.run(0, "apply", "-auto-approve", "found").says("2 changed")
	same("after the changes were taken back")

	n.host.Sh(t, "virsh -q net-destroy edited; virsh -q net-start edited")
	n.run(0, "plan", "-detailed-exitcode", "found").says("No changes")
	before = n.dump()

	n.run(0, "state", "rm", "gpu-01/libvirt.domain/debian12", "gpu-01/libvirt.volume/top.qcow2", "gpu-01/ovs.port/tap1")
	same("after some of it was given up")
	n.run(2, "plan", "-detailed-exitcode", "found").says("0 to add, 0 to change, 0 to destroy, 3 to adopt")
}
