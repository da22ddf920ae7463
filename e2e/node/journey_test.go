package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/guest"
	"converge.dev/converge/state"
)

// whole is the node of examples/vm-node.
var whole = guest.Machine{
	Name: "whole", IOMMU: true, NUMA: 2, MemoryMiB: 2048, Userland: true,
	Devices:  []guest.Device{guest.NVMe("disk").Node(0)},
	Modules:  []string{"openvswitch", "tun", "bridge"},
	Programs: []string{"converge.dev/converge/cmd/converge"},
}

// password is in the user data of the seed.
const password = "canary-in-the-seed"

// images is the directory of the pool.
const images = "/var/lib/libvirt/images/machines"

func TestNode(t *testing.T) { guest.Run(t, whole, "^TestWholeNode$", ".") }

// A document makes a whole node: huge pages, a disk bound to vfio-pci, a switch with a tagged port, a network with a reservation, a
// volume, a seed, and a running machine that owns the disk. A plan afterwards is empty, a run whose last step fails leaves nothing, and
// destroy leaves the node as it was. What others have there stays the same byte for byte.
func TestWholeNode(t *testing.T) {
	g := guest.In(t, whole.Name)
	n := &node{t, t.TempDir()}
	n.boot()
	n.write("converge.yaml", "nodes: {gpu-01: {libvirt: 'qemu:///system', ovs: 'unix:/run/openvswitch/db.sock', sysfs: /sys}}\nsecrets: {env: [VM_1_USER_DATA]}\n")
	must(t, os.CopyFS(filepath.Join(n.dir, "doc"), os.DirFS("../../examples/vm-node")))
	if got, want := g.Address("disk"), "0000:41:00.0"; got != want { // as in the example
		t.Fatalf("the disk is at %s, want %s", got, want)
	}
	n.sh("mkdir " + images) // which would stay
	n.others()
	before, others := n.dump(), n.theirs()

	n.converge(0, "put", "-eval-timeout=5m", "doc") // which an emulated processor needs

	// The guest's processor has no virtualization: the machine, which comes last, cannot be made as the example has it.
	n.converge(3, "apply", "-auto-approve").says("libvirt.domain/vm-1", "kvm")
	n.same(before, "after a run that failed")

	n.write("doc/here.cue", "package site\n\nnodes: [string]: libvirt: domain: [string]: {type: \"qemu\", cpu_mode: \"maximum\", stop_timeout: 0}\n")
	n.converge(0, "put", "-eval-timeout=5m", "doc")
	n.converge(0, "apply", "-auto-approve").says("10 added")
	n.converge(0, "plan", "-detailed-exitcode")
	n.converge(0, "drift").says("No drift")
	for _, c := range []struct{ says, command string }{
		{"^running$", "virsh domstate vm-1"},
		{"<driver name='vfio'/>", "virsh dumpxml vm-1"},
		{"52:54:00:6b:3c:01", "virsh net-dumpxml management"},
		{"/vfio-pci$", "readlink /sys/bus/pci/devices/0000:41:00.0/driver"},
		{"/srv/images/debian13", "qemu-img info -U " + images + "/vm-1"},
		{"^64$", "cat /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"},
		{"^0$", "cat /sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages"},
		{"^101$", "ovs-vsctl get port probe-101 tag"},
		{"^101$", "ovs-vsctl --bare --columns=tag find port name!=probe-101 tag=101"},
	} {
		if got := n.sh(c.command); !regexp.MustCompile("(?m)" + c.says).MatchString(got) {
			t.Errorf("%s prints %q, want what matches %q", c.command, got, c.says)
		}
	}

	n.changes()

	if got := n.theirs(); got != others {
		t.Errorf("what others have on the node was\n%s\nand is beside what converge made\n%s", others, got)
	}

	n.converge(0, "destroy", "-auto-approve", n.approval()).says("11 destroyed")
	n.same(before, "after destroy")
}

// changes changes the running machine, after others have set by hand what the document does not state. The plan says of each field what a
// change of it means, and that is what happens: what needs a restart waits until the document asks for one. All else in the definitions
// stays.
func (n *node) changes() {
	n.Helper()
	n.sh("virsh memtune vm-1 --config --live --soft-limit 100000")
	n.sh("ovs-vsctl set port probe-101 external_ids:theirs=x -- set bridge br-tenants other_config:mac-aging-time=200")
	pid := n.sh("cat /run/libvirt/qemu/vm-1.pid")
	seen := map[string]string{}
	looks := []string{
		"virsh dumpxml vm-1", "virsh dumpxml --inactive vm-1", "virsh net-dumpxml management", "virsh pool-dumpxml machines | grep -v '<allocation\\|<available'",
		"ovs-vsctl --columns=tag,external_ids list port", "ovs-vsctl --columns=other_config list bridge",
	}
	for _, look := range looks {
		seen[look] = n.sh(look)
	}

	text, err := os.ReadFile(filepath.Join(n.dir, "doc/node.cue"))
	must(n.T, err)
	document := string(text)
	for _, c := range []struct{ from, to string }{
		{"vlan: 101}", "vlan: 102}"},
		{"vcpus:    1\n", "vcpus:    2\n"},
		{`"vm-1", boot_order: 1}]`, `"vm-1", boot_order: 2}, {target: "vdb", volume: "data"}]`},
		{"volume: debian13: external: true\n", "volume: debian13: external: true\n\t\tvolume: data: {pool: \"machines\", capacity: 1048576}\n"},
		{"autostart: false\n", "autostart: false\n\t\t\ttitle: \"Web\"\n"},
	} {
		if strings.Count(document, c.from) != 1 {
			n.Fatalf("the example has %q not once", c.from)
		}
		document = strings.Replace(document, c.from, c.to, 1)
	}
	n.write("doc/node.cue", document)
	n.converge(0, "put", "-eval-timeout=5m", "doc")
	n.converge(0, "apply", "-auto-approve").says(
		"vcpus: 1 → 2  # needs a restart", "boot_order: 1 → 2  # needs a restart", "vlan: 101 → 102\n", `title: "Web"`+"\n", "1 to add, 1 to change, 0 to destroy",
	)
	n.converge(0, "plan", "-detailed-exitcode").says("No changes", "Needs attention:", "the machine runs without what is stored of ")

	disk := []string{"+<disk type='volume' device='disk'>", "+<driver name='qemu' type='qcow2'/>", "+<source pool='machines' volume='data'/>", "+<target dev='vdb' bus='virtio'/>", "+</disk>"}
	stored := append(slices.Clip(disk), "-<vcpu placement='static'>1</vcpu>", "+<vcpu placement='static'>2</vcpu>", "-<boot order='1'/>", "+<boot order='2'/>", "-<tag id='101'/>", "+<tag id='102'/>", "+<title>Web</title>")
	port := []string{"-tag                 : 101", "+tag                 : 102"}
	n.differ(seen, map[string][]string{
		looks[0]: append(slices.Clip(disk), "+<backingStore/>", "-<tag id='101'/>", "+<tag id='102'/>", "+<title>Web</title>"), looks[1]: stored, looks[4]: port,
	})
	if now := n.sh("cat /run/libvirt/qemu/vm-1.pid"); now != pid {
		n.Error("the machine was restarted, unasked")
	}

	n.write("doc/restart.cue", "package site\n\nnodes: [string]: libvirt: domain: [string]: in_effect: true\n")
	n.converge(0, "put", "-eval-timeout=5m", "doc")
	n.converge(0, "apply", "-auto-approve").says("in_effect: false → true  # interrupts workload")
	if now := n.sh("cat /run/libvirt/qemu/vm-1.pid"); now == pid {
		n.Error("the machine was not restarted")
	}
	delete(seen, looks[0]) // it runs as it is stored, with other names of its devices
	n.differ(seen, map[string][]string{looks[1]: stored, looks[4]: port})
	if got := n.sh("virsh vcpucount vm-1 --live --current"); strings.TrimSpace(got) != "2" {
		n.Errorf("the restarted machine has %s processors, want 2", got)
	}
	// With this, which would be lost, the machine would not be deleted.
	n.sh("virsh memtune vm-1 --config --live --soft-limit -1")
}

// differ checks which lines that commands print have come and gone since they were seen. Where a device is on its bus is libvirt's choice.
func (n *node) differ(seen map[string]string, want map[string][]string) {
	n.Helper()
	chosen := regexp.MustCompile(`(?m)^\s*<(address|alias) .*\n| index='\d+'`)
	for look, before := range seen {
		lines := map[string]int{}
		count := func(text string, by int) {
			for line := range strings.Lines(chosen.ReplaceAllString(text, "")) {
				lines[strings.TrimSpace(line)] += by
			}
		}
		count(before, -1)
		count(n.sh(look), 1)
		var got []string
		for line, n := range lines {
			got = append(got, slices.Repeat([]string{"-" + line}, max(0, -n))...)
			got = append(got, slices.Repeat([]string{"+" + line}, max(0, n))...)
		}
		if got, want := slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want[look])); !slices.Equal(got, want) {
			n.Errorf("%s differs by\n%s\nwant\n%s", look, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// approval returns the flag that approves to destroy everything: the data of the volumes will not come back.
func (n *node) approval() string {
	n.Helper()
	digest := regexp.MustCompile(`To approve it: (-approve=\w+)`).FindStringSubmatch(n.converge(7, "destroy", "-auto-approve").text)
	if digest == nil {
		n.Fatal("destroy does not say how to approve it")
	}
	return digest[1]
}

type node struct {
	*testing.T
	dir string
}

// boot starts what runs on a node.
func (n *node) boot() {
	n.Helper()
	must(n.T, os.MkdirAll("/run/openvswitch", 0o755))
	must(n.T, os.MkdirAll("/etc/openvswitch", 0o755))
	n.sh("ip link set lo up")
	n.sh("ovsdb-tool create /run/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema")
	n.sh("ovsdb-server /run/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --pidfile --detach --no-chdir --log-file")
	n.sh("ovs-vsctl --no-wait init")
	n.sh("ovs-vswitchd --pidfile --detach --no-chdir --log-file")
	n.sh("virtlogd -d && libvirtd -d && virsh version")
}

// others makes what somebody else has on the node: a network that runs, a machine with a disk, a base image, and a switch with a port
// and a flow.
func (n *node) others() {
	n.Helper()
	n.sh("virsh net-start default")
	n.sh("mkdir /srv/theirs && virsh pool-create-as theirs dir --target /srv/theirs && virsh vol-create-as theirs disk 1M")
	n.write("theirs.xml", `<domain type='qemu'><name>theirs</name><description>"quoted" &amp; kept</description><memory unit='MiB'>64</memory>
		<os><type>hvm</type></os><devices><disk type='volume' device='disk'><source pool='theirs' volume='disk'/><target dev='vda'/></disk>
		<interface type='network'><source network='default'/></interface></devices></domain>`)
	n.sh("virsh define theirs.xml")
	n.sh("mkdir /srv/images && qemu-img create -q -f qcow2 /srv/images/debian13 1G && virsh pool-create-as images dir --target /srv/images")
	n.sh("ovs-vsctl add-br theirs -- add-port theirs their-port tag=7 -- set interface their-port type=internal -- set bridge theirs other_config:note=x")
	n.sh("ovs-ofctl add-flow theirs priority=9,tcp,actions=drop")
}

// theirs returns that, as libvirt and the switch have it.
func (n *node) theirs() string {
	n.Helper()
	return n.prints("virsh net-dumpxml default", "virsh dumpxml --inactive theirs", "virsh pool-dumpxml theirs", "sha256sum /srv/theirs/disk /srv/images/debian13",
		"ovs-vsctl list bridge theirs", "ovs-vsctl list port theirs their-port", "ovs-ofctl --no-stats dump-flows theirs")
}

// prints returns what commands print.
func (n *node) prints(commands ...string) string {
	n.Helper()
	var b strings.Builder
	for _, command := range commands {
		fmt.Fprintf(&b, "%s:\n%s", command, n.sh(command))
	}
	return b.String()
}

func (n *node) write(name, content string) {
	n.Helper()
	must(n.T, os.WriteFile(filepath.Join(n.dir, name), []byte(content), 0o600))
}

// sh runs a command of a shell and returns what it prints.
func (n *node) sh(command string) string {
	n.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = n.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// printed is what converge printed.
type printed struct {
	n    *node
	args []string
	text string
}

// converge runs converge, which has to exit with a status. Its store shares an emulated processor with all that a run starts. On a
// busy machine it may not answer for as long as the site lock lasts, or may end its lease; then the run has to be open, and is resumed,
// as often as that, or a daemon that does not answer, is in the way.
func (n *node) converge(status int, args ...string) printed {
	n.Helper()
	out, got := n.once(args...)
	for last := out; got == 4 && strings.Contains(last, state.ErrFenced.Error()) || last != out && got == 8 && strings.Contains(last, "no answer within"); out += last {
		n.Log("the node was too slow for the lock, and the run is resumed")
		last, got = n.once("resume", "-lock-timeout=2m")
	}
	if got != status {
		n.Fatalf("converge %s exits with %d, want %d:\n%s", strings.Join(args, " "), got, status, out)
	}
	if strings.Contains(out, password) {
		n.Errorf("converge %s prints the secret of the seed:\n%s", strings.Join(args, " "), out)
	}
	return printed{n, args, out}
}

// once runs converge once, and returns what it prints and its status.
func (n *node) once(args ...string) (out string, status int) {
	n.Helper()
	cmd := exec.Command("converge", args...)
	cmd.Dir = n.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + n.dir, "VM_1_USER_DATA=#cloud-config\npassword: " + password + "\n"}
	text, _ := cmd.CombinedOutput() // the status says what the error does
	return string(text), cmd.ProcessState.ExitCode()
}

func (p printed) says(texts ...string) {
	p.n.Helper()
	for _, text := range texts {
		if !strings.Contains(p.text, text) {
			p.n.Errorf("converge %s does not say %q:\n%s", strings.Join(p.args, " "), text, p.text)
		}
	}
}

// dump returns what the document can change on the node.
func (n *node) dump() string {
	n.Helper()
	return dump(n.T) + n.theirs() + n.prints(
		"virsh list --all --name", "virsh net-list --all --name", "virsh pool-list --all --name", "ls -A "+images, "ip -brief link",
		"find /etc/libvirt/qemu -name *.xml", "ovs-vsctl --columns=name list bridge", "ovs-vsctl --columns=name list port",
		"ovs-vsctl --columns=other_config list open_vswitch",
	)
}

func (n *node) same(before, when string) {
	n.Helper()
	if after := n.dump(); after != before {
		n.Errorf("%s the node is not as it was. Before:\n%s\nAfter:\n%s", when, before, after)
	}
}
