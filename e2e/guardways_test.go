package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/netns"
	"converge.dev/converge/internal/torture"
)

// A way is one to cut a node off from its site: what its document says of it then. %s is its address.
type way struct {
	name, how string
	switched  bool // the node is connected by a switch of Open vSwitch
}

// What a node has: a bridge of its kernel, or a switch that its uplink is a port of, and another one that has its address.
const (
	linked    = `host: link: br0: {type: "bridge", lifecycle: adopt: "match"}`
	addressed = linked + `, host: link: br0: addresses: ["%s"]`
	switched  = `ovs: bridge: br0: {datapath_type: "netdev", lifecycle: adopt: "match"}, ovs: port: mgmt: {bridge: "br0", interface: type: "internal", lifecycle: adopt: "match"}`
	uplinked  = switched + `, ovs: port: eth0: {bridge: "br0", lifecycle: adopt: "match"}`
)

// ways are twelve ways.
var ways = []way{
	{"another-address", linked + `, host: link: br0: addresses: ["198.18.9.9/24"]`, false},
	{"no-address", linked, false},
	{"prefix", linked + `, host: link: br0: addresses: ["198.18.0.200/32"]`, false},
	{"route", addressed + `, host: link: br0: routes: [{to: "198.18.0.1/32", via: "198.18.0.250"}]`, false},
	{"detour", addressed + `, host: link: nowhere: {type: "bridge", addresses: ["198.18.7.1/24"], routes: [{to: "198.18.0.1/32", via: "198.18.7.2"}]}`, false},
	{"uplink-vlan", uplinked + `, ovs: port: eth0: tag: 7`, true},
	{"node-vlan", uplinked + `, ovs: port: mgmt: tag: 7`, true},
	{"trunks", uplinked + `, ovs: port: eth0: trunks: [7, 8]`, true},
	{"no-uplink", switched, true},
	{"no-flows", uplinked + `, ovs: bridge: br0: fail_mode: "secure"`, true},
	{"protected", uplinked + `, ovs: port: [string]: protected: true`, true},
	{"tunnelled", uplinked + `, ovs: port: mgmt: {vlan_mode: "dot1q-tunnel", tag: 9}`, true},
}

// document is that of a site with one node.
func (h *hosts) document(node, how string) string {
	return "package site\n\napiVersion: \"converge.dev/v1\"\nsite: {name: \"fra1\", id: \"6f1c2a70-3f0e-4c53-9d55-6a0a4d7f2b11\"}\npolicy: max_destroy: \"100%\"\n" +
		fmt.Sprintf("nodes: %q: {%s}\n", node, strings.ReplaceAll(how, "%s", h.address(1)))
}

// A strike is what happens to a node while it is cut off: some processes are killed, and started again.
type strike struct {
	name                string
	armed               bool // right when its guard is armed, which is before the change or while it is made; otherwise once it is cut off
	apply, agent, guard bool // which processes are killed
	boot                bool // the guard then finds that the machine was restarted
}

// strikes are none, and one at each point.
var strikes = []strike{
	{name: "none"},
	{name: "apply-armed", armed: true, apply: true},
	{name: "apply", apply: true},
	{name: "agent-armed", armed: true, agent: true},
	{name: "agent", agent: true},
	{name: "guard-armed", armed: true, guard: true},
	{name: "guard", guard: true},
	{name: "boot-armed", armed: true, agent: true, guard: true, boot: true},
	{name: "boot", agent: true, guard: true, boot: true},
}

// Whatever way a change cuts a node off, and whatever is killed meanwhile, also by a restart of the machine: the node undoes it by itself,
// and nothing else on it has changed. Here each way and each strike are tried, one of each together.
func TestWaysToCut(t *testing.T) {
	t.Parallel()
	for i, w := range ways {
		k := strikes[i%len(strikes)]
		t.Run(w.name+"/"+k.name, func(t *testing.T) {
			t.Parallel()
			cut(t, w, k)
		})
	}
}

// At nightly figures each way is tried with each strike. A push has TestWaysToCut.
func TestTortureWays(t *testing.T) {
	t.Parallel()
	if torture.Scale(0, 0, 1) == 0 {
		return
	}
	var undone atomic.Int32
	for _, w := range ways {
		for _, k := range strikes {
			t.Run(w.name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				cut(t, w, k)
				undone.Add(1)
			})
		}
	}
	t.Cleanup(func() {
		torture.Report(t, "G", "%d ways to cut a node off, each alone and with each of %d strikes: undone in %d runs", len(ways), len(strikes)-1, undone.Load())
	})
}

// cut cuts a node off and strikes.
func cut(t *testing.T, w way, k strike) {
	const node = "gpu-01"
	s := newSite(t)
	h := newHosts(s)
	before, settings := addressed, "sysfs: /sys\n"
	state := func() string { return h.says(node, "ip", "-br", "-4", "addr") + h.says(node, "ip", "route") }
	if w.switched {
		endpoint := h.addSwitched(node)
		before, settings = uplinked, "ovs: "+endpoint+"\n"
		kernel := state
		state = func() string { return kernel() + switchState(s, endpoint) }
	} else {
		h.add(node)
	}
	h.serve(settings, h.document(node, before), node)
	s.run(0, "apply", "-auto-approve", "site.cue")
	was, guards := state(), h.capsules(node)
	s.until(node+" is reached", func() bool { return h.reaches(node) })

	s.write("cut.cue", h.document(node, w.how))
	begun := time.Now()
	run := s.start("apply", "-auto-approve", "cut.cue")
	if k.armed {
		s.until("a guard is armed", func() bool { return len(h.capsules(node)) > len(guards) || run.gone() })
		h.strike(node, k, run)
	} else {
		s.until(node+" is cut off", func() bool { return !h.reaches(node) || run.gone() })
		if run.gone() {
			s.Fatalf("it has not cut %s off:\n%s", node, run.report())
		}
		h.strike(node, k, run)
	}
	if k.apply {
		s.until(node+" is reached again", func() bool { return h.closed(node) && h.reaches(node) })
		s.until("the run is resumed", func() bool {
			run = s.start("resume", "-lock-timeout=1m")
			return run.wait() != 8 // the agent is still about to connect
		})
	}
	switch status := run.wait(); {
	case status == 3 && k.armed: // it may have been undone before the change was made, which the guard then refuses
	case status != 9:
		s.Fatalf("converge %s: exit status %d, want 9\n%s", run.args, status, run.report())
	case k.name == "none":
		run.says("has undone it by itself", "was not confirmed and was reverted")
		if took := time.Since(begun); took < time.Minute { // the site has that long to reach the node
			s.Errorf("it took %v:\n%s", took, run.report())
		}
	}
	s.until(node+" is reached again", func() bool { return h.reaches(node) })
	if !h.closed(node) {
		s.Errorf("a guard of %s is open: %v", node, h.capsules(node))
	}
	if now := state(); now != was {
		s.Errorf("%s was\n%s\nand is\n%s", node, was, now)
	}
	if w.name == "no-uplink" { // the port that was restored is another one than was recorded
		s.run(0, "apply", "-auto-approve", "site.cue").says("0 added, 0 changed, 0 destroyed")
	}
	s.run(0, "plan", "-detailed-exitcode", "site.cue").says("No changes")
}

// strike kills processes of a node, and starts those again that belong to it.
func (h *hosts) strike(node string, k strike, run *process) {
	h.s.Helper()
	if k.apply {
		run.kill()
	}
	if k.agent {
		h.agents[node].kill()
	}
	if k.guard {
		h.guards[node].kill()
		if k.boot {
			h.boots[node] = "0d4e8d5c-5d0a-4b7e-9a4e-3f6d2c1b0a99"
		}
		h.guard(node)
	}
	if k.agent {
		h.agent(node)
	}
}

// reaches reports whether a node can connect to its site.
func (h *hosts) reaches(node string) bool {
	err := h.inside(node, func() error {
		c, err := net.DialTimeout("tcp4", siteAddress+":7443", 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		h.s.must(c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))) // whoever asks again does so after a while
		if _, err = c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return err
	})
	return err == nil
}

// capsules returns the names of the guards of a node.
func (h *hosts) capsules(node string) []string {
	names, err := filepath.Glob(filepath.Join(h.s.dir, node, "guard", "*.capsule"))
	h.s.must(err)
	return names
}

// closed reports whether each guard of a node has ended.
func (h *hosts) closed(node string) bool {
	return !slices.ContainsFunc(h.capsules(node), func(name string) bool {
		_, err := os.Stat(strings.TrimSuffix(name, ".capsule") + ".verdict")
		return errors.Is(err, os.ErrNotExist)
	})
}

// addSwitched connects a machine to the network by a switch of its own, and returns the endpoint of that.
func (h *hosts) addSwitched(host string) string {
	s := h.s
	s.Helper()
	database, daemon := program(s.T, "ovsdb-server", "openvswitch-switch"), program(s.T, "ovs-vswitchd", "openvswitch-switch")
	port := h.plug(host)
	// The switch gets packets as the kernel has them, which leaves checksums to the hardware, that there is none of.
	s.must(h.inside(siteHost, func() error { return checksums(port) }))
	dir, err := os.MkdirTemp("", "ovs") // the path of a socket is short
	s.must(err)
	endpoint := "unix:" + filepath.Join(dir, "db.sock")
	s.must(exec.Command("ovsdb-tool", "create", filepath.Join(dir, "conf.db"), "/usr/share/openvswitch/vswitch.ovsschema").Run())
	run := func(args ...string) {
		cmd := exec.CommandContext(context.WithoutCancel(s.ctx), "ip", append([]string{"netns", "exec", h.name(host)}, args...)...)
		cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_DBDIR="+dir, "OVS_LOGDIR="+dir, "OVS_SYSCONFDIR="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		s.must(cmd.Start())
		s.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	s.Cleanup(func() { s.must(os.RemoveAll(dir)) })
	run(database, filepath.Join(dir, "conf.db"), "--remote=p"+endpoint, "--no-chdir")
	s.until("the database is there", func() bool { return exec.Command("ovs-vsctl", "--db="+endpoint, "--no-wait", "init").Run() == nil })
	run(daemon, endpoint, "--disable-system", "--no-chdir", "--pidfile")
	vsctl(s, endpoint, "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev",
		"--", "add-port", "br0", "eth0", "--", "add-port", "br0", "mgmt", "--", "set", "interface", "mgmt", "type=internal")
	h.ip(host, "link set eth0 up", "addr add "+h.address(h.n)+" dev mgmt", "link set mgmt up")
	return endpoint
}

func vsctl(s *site, endpoint string, args ...string) string {
	s.Helper()
	out, err := exec.Command("ovs-vsctl", append([]string{"--db=" + endpoint, "--timeout=60"}, args...)...).CombinedOutput()
	if err != nil {
		s.Fatalf("ovs-vsctl %q: %v: %s", args, err, out)
	}
	return string(out)
}

// switchState returns what is configured in a switch.
func switchState(s *site, endpoint string) string {
	s.Helper()
	var lines []string
	for table, columns := range map[string]string{
		"bridge":    "name,datapath_type,fail_mode,other_config,external_ids,stp_enable,rstp_enable,protocols",
		"port":      "name,tag,trunks,vlan_mode,protected,lacp,bond_mode,other_config,external_ids",
		"interface": "name,type,options,mtu_request,other_config,external_ids,link_state,error",
		"mirror":    "name", "controller": "target", "qos": "type", "queue": "dscp",
	} {
		for line := range strings.Lines(vsctl(s, endpoint, "--format=csv", "--no-headings", "--columns="+columns, "list", table)) {
			lines = append(lines, table+" "+strings.Replace(line, `,"""""",`, ",system,", 1)) // a type that is unset
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// inside does something in the network of a machine.
func (h *hosts) inside(host string, do func() error) error {
	return netns.Within("/run/netns/"+h.name(host), do)
}

// checksums makes the kernel compute the checksums of what leaves through an interface.
func checksums(name string) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	request := struct {
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		_     [16]byte
	}{value: unsafe.Pointer(&value)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("turn off the offload of checksums of %s: %w", name, errno)
	}
	return nil
}
