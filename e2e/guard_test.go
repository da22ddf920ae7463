package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"converge.dev/converge/internal/ovstest"
)

// A hosts is a network of machines, each a network namespace, with a bridge that they are all connected to.
type hosts struct {
	s      *site
	prefix string
	n      int

	guards, agents map[string]*process
	boots          map[string]string // the boots that guards find; none: that of this machine
}

// The machine of the site agent, and its address.
const (
	siteHost    = "site"
	siteAddress = "198.18.0.1"
)

// networks counts those that were made, for their names.
var networks atomic.Int32

// newHosts returns a network with nothing but the machine of the site agent. Without root it skips the test, or fails it when the
// environment sets ovstest.Required.
func newHosts(s *site) *hosts {
	s.Helper()
	h := &hosts{s: s, prefix: fmt.Sprintf("cv%d-%d-", os.Getpid(), networks.Add(1)), guards: map[string]*process{}, agents: map[string]*process{}, boots: map[string]string{}}
	if os.Geteuid() != 0 || exec.Command("ip", "netns", "add", h.name(siteHost)).Run() != nil {
		if os.Getenv(ovstest.Required) != "" {
			s.Fatalf("%s is set, but network namespaces cannot be made", ovstest.Required)
		}
		s.Skip("it needs root and network namespaces")
	}
	s.Cleanup(func() { _ = exec.Command("ip", "netns", "del", h.name(siteHost)).Run() })
	h.ip(siteHost, "link set lo up", "link add fabric type bridge", "link set fabric up", "addr add "+siteAddress+"/24 dev fabric")
	return h
}

func (h *hosts) name(host string) string { return h.prefix + host }

// ip runs commands of ip in a machine.
func (h *hosts) ip(host string, commands ...string) {
	h.s.Helper()
	for _, c := range commands {
		if out, err := exec.Command("ip", append([]string{"-n", h.name(host)}, strings.Fields(c)...)...).CombinedOutput(); err != nil {
			h.s.Fatalf("ip %s in %s: %v: %s", c, host, err, out)
		}
	}
}

// says returns what a command says in a machine.
func (h *hosts) says(host string, command ...string) string {
	h.s.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", h.name(host)}, command...)...).CombinedOutput()
	if err != nil {
		h.s.Fatalf("%s in %s: %v: %s", command, host, err, out)
	}
	return string(out)
}

// add connects a machine to the network, by a bridge with its address.
func (h *hosts) add(host string) {
	h.s.Helper()
	h.plug(host)
	h.ip(host, "link add br0 type bridge", "link set eth0 master br0 up", "link set br0 up", "addr add "+h.address(h.n)+" dev br0")
}

// plug adds a machine whose eth0 is connected to the network, and returns the name of the other end.
func (h *hosts) plug(host string) (port string) {
	h.s.Helper()
	h.n++
	h.s.must(exec.Command("ip", "netns", "add", h.name(host)).Run())
	h.s.Cleanup(func() { _ = exec.Command("ip", "netns", "del", h.name(host)).Run() })
	port = fmt.Sprintf("p%d", h.n)
	h.ip(siteHost, "link add "+port+" type veth peer name eth0 netns "+h.name(host), "link set "+port+" master fabric up")
	h.ip(host, "link set lo up")
	return port
}

// address is that of the nth machine.
func (h *hosts) address(n int) string { return fmt.Sprintf("198.18.0.%d/24", 10+n) }

// start starts converge in a machine.
func (h *hosts) start(host string, args ...string) *process {
	h.s.Helper()
	p := h.s.prepare(args...)
	ip, err := exec.LookPath("ip")
	h.s.must(err)
	command := append([]string{p.cmd.Path}, p.cmd.Args[1:]...)
	if boot := h.boots[host]; boot != "" { // each process that ip starts has mounts of its own
		file := filepath.Join(h.s.dir, host, "boot_id")
		h.s.must(os.WriteFile(file, []byte(boot+"\n"), 0o600))
		command = append([]string{"sh", "-c", `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, file}, command...)
	}
	p.cmd.Path, p.cmd.Args = ip, append([]string{"ip", "netns", "exec", h.name(host)}, command...)
	p.start()
	return p
}

// serve starts a site agent for a document, and on each of its machines an agent with a guard.
func (h *hosts) serve(how, document string, nodes ...string) {
	s := h.s
	s.Helper()
	s.write("converge.yaml", "site: fra1\nserver: unix:.converge/serve.sock\npolicy: {guard: 1m}\n")
	s.write("site.cue", document)
	s.run(0, "trust", "init", "-dev", "site.cue")
	serve := h.start(siteHost, "serve", "-mode=observe", "-listen="+siteAddress+":7443")
	serve.await(&serve.stderr, "this site agent keeps the site", 1)
	for _, node := range nodes {
		s.must(os.MkdirAll(filepath.Join(s.dir, node), 0o700))
		s.run(0, "agent", "token", "create", "-out="+filepath.Join(node, "token"), node)
		h.start(node, "agent", "bootstrap", "-server="+siteAddress+":7443", "-token-file="+filepath.Join(node, "token"), "-dir="+filepath.Join(node, "identity")).ended(0)
		s.write(filepath.Join(node, "agent.yaml"), "servers: [\""+siteAddress+":7443\"]\nguard: guard\n"+how)
		h.guard(node)
		h.agent(node)
	}
	serve.await(&serve.stderr, "node connected", len(nodes))
}

// guard starts the guard of a machine, and agent its agent.
func (h *hosts) guard(node string) {
	h.s.Helper()
	_ = os.Remove(filepath.Join(h.s.dir, node, "guard", "guard.sock"))
	p := h.start(node, "agent", "guard", "-config="+filepath.Join(node, "agent.yaml"))
	h.guards[node] = p
	h.s.until("the guard of "+node+" is there", func() bool {
		_, err := os.Stat(filepath.Join(h.s.dir, node, "guard", "guard.sock"))
		return err == nil || p.gone()
	})
}

func (h *hosts) agent(node string) {
	h.s.Helper()
	h.agents[node] = h.start(node, "agent", "run", "-config="+filepath.Join(node, "agent.yaml"))
}

// gone reports whether a process has ended.
func (p *process) gone() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// A run that has to be confirmed keeps its guards until somebody confirms it; until then, and when its process is killed, the node
// undoes what it has changed, also when its agent and its guard have been killed meanwhile.
func TestConfirmRun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	h := newHosts(s)
	h.add("gpu-01")
	h.serve("sysfs: /sys\n", h.document("gpu-01", addressed), "gpu-01")
	s.run(0, "apply", "-auto-approve", "site.cue")
	more := func(address string) {
		s.write("more.cue", h.document("gpu-01", fmt.Sprintf(`%s, host: link: br0: addresses: ["%s", "%s"]`, linked, h.address(1), address)))
	}
	addresses := func() string { return h.says("gpu-01", "ip", "-br", "-4", "addr", "show", "dev", "br0") }
	waiting := regexp.MustCompile(`converge confirm (\S+)`)
	start := func() (*process, string) {
		t.Helper()
		apply := s.start("apply", "-auto-approve", "-confirm=40s", "more.cue")
		apply.await(&apply.stderr, "Confirm the run within", 1)
		return apply, waiting.FindStringSubmatch(apply.stderr.String())[1]
	}

	more("198.18.5.1/24")
	apply, run := start()
	if got := addresses(); !strings.Contains(got, "198.18.5.1/24") {
		t.Errorf("the change is not made: %s", got)
	}
	s.run(0, "confirm", run).says("ended applied")
	apply.ended(0)
	s.run(1, "confirm", run).says("already finished: applied")
	if got := addresses(); !strings.Contains(got, "198.18.5.1/24") {
		t.Errorf("what was confirmed is gone: %s", got)
	}

	// The process is killed, and so are the agent and the guard. When the guard is back, it knows what to do.
	more("198.18.6.1/24")
	apply, run = start()
	apply.kill()
	h.agents["gpu-01"].kill()
	h.guards["gpu-01"].kill()
	if got := addresses(); !strings.Contains(got, "198.18.6.1/24") {
		t.Errorf("the change is not made: %s", got)
	}
	h.guard("gpu-01")
	s.until("the guard has undone the change", func() bool { return !strings.Contains(addresses(), "198.18.6.1/24") })
	h.agent("gpu-01")
	s.run(1, "confirm", run).says("has ended")
	s.run(9, "resume", "-lock-timeout=1m").says("was not confirmed and was reverted")
	if got := addresses(); !strings.Contains(got, "198.18.5.1/24") || strings.Contains(got, "198.18.6.1/24") {
		t.Errorf("the node has %s", got)
	}
}
