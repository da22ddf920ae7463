package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/internal/ovstest"
)

// The site of examples/multi-file on two real switches and a simulated Carbide: it is created, changed behind converge's
// back, healed and destroyed, and what others add beside it is never touched.
func TestNodesWithOpenVSwitch(t *testing.T) {
	t.Parallel()
	first, second := ovstest.Start(t), ovstest.Start(t)
	s := newSite(t)
	s.must(os.CopyFS(filepath.Join(s.dir, "doc"), os.DirFS("../examples/multi-file")))
	s.userspace("doc")
	s.write("converge.yaml", "carbide:\n  address: "+s.address+"\n  tls:\n    ca: tls/ca.crt\n    cert: tls/client.crt\n    key: tls/client.key\n"+
		"nodes:\n  gpu-01:\n    ovs: "+first.Endpoint+"\n  gpu-02:\n    ovs: "+second.Endpoint+"\n")

	first.Vsctl(t, "add-br", "br-theirs", "--", "set", "bridge", "br-theirs", "datapath_type=netdev")
	theirs := first.Vsctl(t, "--columns=_uuid,name,datapath_type,fail_mode,external_ids", "list", "bridge", "br-theirs")

	s.run(2, "plan", "-detailed-exitcode", "doc").says("gpu-01/ovs.bridge/br-slice", "gpu-02/ovs.bridge/br-slice", "gpu-01/ovs.port/vm-1", "site/carbide.vpc/prod", "1 ovs.bridge on gpu-01")
	s.run(0, "apply", "-auto-approve", "doc")
	s.run(0, "plan", "-detailed-exitcode", "doc")
	s.run(0, "drift").says("No drift")
	if got := first.Vsctl(t, "get", "bridge", "br-slice", "fail_mode"); got != "secure\n" {
		t.Errorf("the fail mode is %q", got)
	}
	if got := first.Vsctl(t, "get", "port", "vm-2", "tag"); got != "102\n" {
		t.Errorf("the tag of vm-2 is %q", got)
	}

	// Another client changes a port, removes a bridge, and adds a port for its own machine.
	first.AddPort(t, "br-slice", "vnet0", map[string]string{"vm-id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"})
	first.Vsctl(t, "set", "port", "vm-1", "tag=999")
	second.Vsctl(t, "del-br", "br-slice")
	s.run(2, "drift").says("gpu-01/ovs.port/vm-1", "999", "101", "gpu-02/ovs.bridge/br-slice")
	s.run(0, "apply", "-auto-approve", "doc").says("1 added, 1 changed, 0 destroyed")
	s.run(0, "drift").says("No drift")
	if got := first.Vsctl(t, "get", "port", "vm-1", "tag"); got != "101\n" {
		t.Errorf("the tag of vm-1 is %q after it was healed", got)
	}
	second.Vsctl(t, "br-exists", "br-slice")

	// What is there comes back as a valid document, whoever made it.
	first.Vsctl(t, "add-port", "br-theirs", "theirs-0", "--", "set", "interface", "theirs-0", "type=internal")
	s.run(0, "import", "-discover", "-out=found")
	s.run(0, "validate", "found")
	s.run(2, "plan", "-detailed-exitcode", "found").says("gpu-01/ovs.bridge/br-theirs", "gpu-01/ovs.port/theirs-0", "0 to add, ", " 0 to destroy")
	first.Vsctl(t, "del-port", "theirs-0")

	// The state of a node that is away is unknown, and nothing is decided about it.
	s.write("away.yaml", strings.ReplaceAll(s.read("converge.yaml"), second.Endpoint, "unix:nobody.sock"))
	s.run(8, "plan", "-config=away.yaml", "doc").says("gpu-02/ovs.bridge", "nobody.sock")

	// The bridge with the foreign port stays for as long as that port does; the rest is deleted.
	world := first.Vsctl(t, "list-ports", "br-slice")
	if !strings.Contains(world, "vnet0") {
		t.Fatalf("the foreign port is gone:\n%s", world)
	}
	s.approved(4, "destroy", "-auto-approve", "-on-failure=continue").says("gpu-01/ovs.bridge/br-slice", "vnet0")
	if got := first.Vsctl(t, "list-ports", "br-slice"); got != "vnet0\n" {
		t.Errorf("the ports of br-slice are %q, want only the foreign one", got)
	}
	if got := second.Vsctl(t, "list-br"); got != "" {
		t.Errorf("the second node still has %q", got)
	}
	first.Vsctl(t, "del-port", "vnet0")
	s.run(0, "resume")
	if got := first.Vsctl(t, "list-br"); got != "br-theirs\n" {
		t.Errorf("the bridges are %q, want only the foreign one", got)
	}
	if got := first.Vsctl(t, "--columns=_uuid,name,datapath_type,fail_mode,external_ids", "list", "bridge", "br-theirs"); got != theirs {
		t.Errorf("the foreign bridge was\n%s\nand is\n%s", theirs, got)
	}
	s.run(0, "state", "list")
}

// userspace adds one more file to the document in a folder: the switches of tests only have the userspace datapath.
func (s *site) userspace(folder string) {
	s.Helper()
	s.write(filepath.Join(folder, "here.cue"), "package site\n\nnodes: [string]: ovs: bridge: [string]: datapath_type: \""+ovstest.Datapath+"\"\n")
}
