package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/internal/ovstest"
)

// switches is a site with a bridge and a port on each of two nodes, N of them with a tag.
const switches = `package site

apiVersion: "converge.dev/v1"
site: {name: "fra1", id: "6f1c2a70-3f0e-4c53-9d55-6a0a4d7f2b11"}
policy: max_destroy: "100%%"
carbide: tenant: acme: {}
nodes: ["gpu-01" | "gpu-02"]: ovs: {
	bridge: br0: {datapath_type: "netdev", fail_mode: "secure"}
	port: p0: {bridge: "br0", tag: %d, interface: type: "internal"}
}
nodes: {"gpu-01": {}, "gpu-02": {}}
`

// Two nodes with a real Open vSwitch each, behind agents: the document comes true by itself, what others change is put right, and
// neither an agent nor the site agent that is killed at work leaves anything behind.
func TestSiteRunsItself(t *testing.T) {
	t.Parallel()
	hosts := map[string]*ovstest.Switch{"gpu-01": ovstest.Start(t), "gpu-02": ovstest.Start(t)}
	s := newSite(t)
	s.write("converge.yaml", "site: fra1\nserver: unix:.converge/serve.sock\n"+s.read("converge.yaml"))
	s.write("site.cue", fmt.Sprintf(switches, 100))
	s.run(0, "put", "site.cue")
	s.run(0, "trust", "init", "-threshold=2", "-of=3", "-roots=roots")
	address, second := loopback.Address(t), loopback.Address(t)
	site := s.start("serve", "-mode=enforce", "-listen="+address, "-http=none", "-metrics=none")
	site.await(&site.stderr, "this site agent keeps the site", 1)
	other := s.start("serve", "-mode=enforce", "-listen="+second, "-socket=.converge/second.sock", "-http=none", "-metrics=none")
	other.await(&other.stderr, "another site agent keeps the site; this one waits", 1)
	agents := map[string]*process{}
	attend := func(node string) {
		agents[node] = s.start("agent", "run", "-config="+filepath.Join(node, "agent.yaml"))
	}
	for node, host := range hosts {
		s.must(os.MkdirAll(filepath.Join(s.dir, node), 0o700))
		s.run(0, "agent", "token", "create", "-out="+filepath.Join(node, "token"), node)
		s.run(0, "agent", "bootstrap", "-server="+address, "-token-file="+filepath.Join(node, "token"), "-dir="+filepath.Join(node, "identity")).says("is node " + node)
		s.write(filepath.Join(node, "agent.yaml"), "servers: [\""+address+"\", \""+second+"\"]\novs: "+host.Endpoint+"\n")
		attend(node)
	}
	site.await(&site.stderr, "phase=in-sync", 1)
	s.run(0, "plan", "-detailed-exitcode").says("No changes")
	tagged := func(want string) {
		t.Helper()
		for node, host := range hosts {
			s.until("the port of "+node+" has tag "+want, func() bool { return host.Vsctl(t, "get", "port", "p0", "tag") == want+"\n" })
		}
	}
	tagged("100")

	// Another client changes a port.
	hosts["gpu-02"].Vsctl(t, "set", "port", "p0", "tag=999")
	tagged("100")

	// A new revision, while the agent of one node is away: the other node has it, and this one when it is back.
	agents["gpu-01"].kill()
	site.await(&site.stderr, `node disconnected" node=gpu-01`, 1)
	s.write("site.cue", fmt.Sprintf(switches, 200))
	s.run(0, "put", "site.cue")
	site.await(&site.stderr, "phase=unknown serial=2", 1)
	if got := hosts["gpu-01"].Vsctl(t, "get", "port", "p0", "tag"); got != "100\n" {
		t.Errorf("the node without an agent has tag %s", got)
	}
	s.run(8, "plan").says("gpu-01", "is not connected since")
	attend("gpu-01")
	site.await(&site.stderr, "phase=in-sync serial=2", 1)
	tagged("200")

	// The site agent is killed, and the one that waits goes on, with the same keys and the agents that are there.
	other.await(&other.stderr, "node connected", 2)
	site.kill()
	hosts["gpu-01"].Vsctl(t, "set", "port", "p0", "tag=999")
	site = other
	site.await(&site.stderr, "this site agent keeps the site", 1)
	tagged("200")
	s.run(0, "plan", "-detailed-exitcode", "-server=unix:.converge/second.sock").says("No changes")

	// The root keys sign new online keys, and the nodes follow.
	s.run(1, "trust", "rotate", "-key=roots/root-1.key").says("1 of 2 signatures are missing")
	s.run(0, "trust", "rotate", "-key=roots/root-1.key", "-out=next.json")
	s.run(0, "trust", "sign", "-key=roots/root-3.key", "next.json")
	s.run(0, "trust", "rotate", "next.json").says("Version 2 of the trust document is in force")

	// A person takes everything away, through the agents, while the site agent only looks.
	s.must(site.cmd.Process.Signal(os.Interrupt))
	site.ended(0)
	site = s.start("serve", "-listen="+address, "-http=none", "-metrics=none")
	site.await(&site.stderr, "node connected", 2)
	s.run(0, "destroy", "-auto-approve")
	for node, host := range hosts {
		if got := host.Vsctl(t, "list-br"); got != "" {
			t.Errorf("%s still has %q", node, got)
		}
	}
	for name, text := range map[string]string{"site": site.stderr.String(), "gpu-01": agents["gpu-01"].stderr.String(), "gpu-02": agents["gpu-02"].stderr.String()} {
		if strings.Contains(text, "level=ERROR") {
			t.Errorf("%s logs errors:\n%s", name, text)
		}
	}
}
