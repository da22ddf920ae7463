package replicas

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	sites "converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
	"converge.dev/converge/trust"
)

// agents is how many site agents a site has.
const agents = 3

// A site is a site whose agents run.
type site struct {
	*testing.T
	name  string
	dir   string
	store *state.Store
	kinds *kinds.Schema

	replicas [agents]*replica
	nodes    []*node

	serial  int64 // of the newest document
	tags    []int // of the ports of each node in it, in a soak
	started int   // processes

	mu  sync.Mutex
	all []*process
}

// A replica is a place for a site agent: its addresses stay when the process is another one.
type replica struct {
	nth     int
	etcd    *gate // between it and etcd
	listen  string
	metrics string
	now     *process // nil while there is none
}

// A node is a machine with a node agent, and with what it has in a file.
type node struct {
	s     *site
	name  string
	gates [agents]*gate // between it and each replica
	now   *process
}

var numbers atomic.Int64

// full skips a test unless the promised figures are to be reached.
func full(t *testing.T) {
	t.Helper()
	if !torture.Full() {
		t.Skip("it waits for leases of ten seconds: set CONVERGE_TORTURE=push")
	}
}

// newSite starts a site with so many nodes, whose worlds are files. It has no document yet.
func newSite(t *testing.T, nodes int) *site {
	t.Helper()
	return newSiteOf(t, nodes, func() string { return "fake: {world: world.json}\n" })
}

// newSiteOf starts a site with so many nodes. What a node has is configured in agent.yaml by what host returns.
func newSiteOf(t *testing.T, nodes int, host func() string) *site {
	t.Helper()
	s := &site{T: t, name: fmt.Sprint("site-", numbers.Add(1))}
	s.dir = filepath.Join(scratch, s.name)
	s.must(os.Mkdir(s.dir, 0o700))
	t.Cleanup(func() {
		for _, p := range s.all {
			p.kill()
			if text := p.out.String(); strings.Contains(text, "panic:") || strings.Contains(text, "DATA RACE") {
				t.Errorf("converge %s:\n%s", p.args, text)
			}
		}
		if t.Failed() {
			for _, p := range s.all {
				text := p.out.String()
				t.Logf("converge %s (PID %d, %v):\n%s", p.args, p.cmd.Process.Pid, p.cmd.ProcessState, text[max(0, len(text)-6000):])
			}
		}
		s.must(os.RemoveAll(s.dir))
	})
	members := shared(t)
	kv, err := etcd.Open(t.Context(), etcd.Options{Endpoints: members})
	s.must(err)
	t.Cleanup(func() { _ = kv.Close() })
	s.store = state.New(kv, s.name)
	s.kinds, err = schemas()
	s.must(err)
	s.write("converge.yaml", fmt.Sprintf("site: %s\netcd: {endpoints: [%q]}\n", s.name, members[0]))
	keys, err := trust.Init(filepath.Join(s.dir, ".converge", "trust"), schema.Site{Name: s.name, ID: siteID}, 1, trust.NewRoots(1), trust.Options{Dev: true})
	s.must(err)

	var hosts []string
	for i := range s.replicas {
		s.replicas[i] = &replica{nth: i, etcd: newGate(s, strings.TrimPrefix(members[i], "http://")), listen: loopback.Address(s), metrics: loopback.Address(s)}
	}
	for i := range nodes {
		n := &node{s: s, name: fmt.Sprintf("gpu-%02d", i+1)}
		for j, r := range s.replicas {
			n.gates[j] = newGate(s, r.listen)
			host, _, _ := net.SplitHostPort(n.gates[j].address)
			hosts = append(hosts, host)
		}
		s.nodes = append(s.nodes, n)
	}
	s.write("hosts", strings.Join(hosts, ","))
	s.serve(s.replicas[0], "").await(0, "this site agent keeps the site", 1)
	var enrolled []*process
	for _, n := range s.nodes {
		s.must(os.Mkdir(filepath.Join(s.dir, n.name), 0o700))
		token, err := keys.CreateToken(t.Context(), s.store, n.name, trust.TokenOptions{By: "test"})
		s.must(err)
		s.write(filepath.Join(n.name, "token"), token)
		enrolled = append(enrolled, s.start("", "agent", "bootstrap", "-server="+n.gates[0].address, "-token-file="+filepath.Join(n.name, "token"), "-dir="+filepath.Join(n.name, "identity")))
	}
	for i, n := range s.nodes {
		enrolled[i].ended(0)
		var servers []string
		for _, g := range n.gates {
			servers = append(servers, fmt.Sprintf("%q", g.address))
		}
		s.write(filepath.Join(n.name, "agent.yaml"), "servers: ["+strings.Join(servers, ", ")+"]\n"+host())
		n.attend()
	}
	for _, r := range s.replicas[1:] {
		s.serve(r, "").await(0, "another site agent keeps the site; this one waits", 1)
	}
	for _, r := range s.replicas {
		s.connected(r.now)
	}
	return s
}

const siteID = "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"

var schemas = sync.OnceValues(kinds.New)

// shared returns the URLs of a cluster of etcd that all sites use: a member for each site agent.
var shared = func() func(t *testing.T) []string {
	var once sync.Once
	var urls []string
	return func(t *testing.T) []string {
		once.Do(func() {
			path, err := exec.LookPath("etcd")
			if err != nil {
				return
			}
			var members, peers []string
			for i := range agents {
				urls = append(urls, "http://"+loopback.Address(t))
				peers = append(peers, "http://"+loopback.Address(t))
				members = append(members, fmt.Sprintf("m%d=%s", i, peers[i]))
			}
			for i, url := range urls {
				name := fmt.Sprint("m", i)
				cmd := exec.Command(path, "--name", name, "--data-dir", filepath.Join(scratch, "etcd", name), "--listen-client-urls", url, "--advertise-client-urls", url,
					"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(members, ","), "--log-level", "error")
				cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				if err := cmd.Start(); err != nil {
					urls = nil
					return
				}
				before := stop
				stop = func() { before(); _ = cmd.Process.Kill(); _ = cmd.Wait() }
			}
		})
		if urls == nil {
			t.Fatal("etcd is needed: install the Debian package etcd-server")
		}
		ctx, cancel := context.WithTimeout(t.Context(), torture.Patience)
		defer cancel()
		for _, url := range urls {
			for {
				kv, err := etcd.Open(ctx, etcd.Options{Endpoints: []string{url}})
				if err == nil {
					_ = kv.Close()
					break
				}
				if ctx.Err() != nil {
					t.Fatal(err)
				}
			}
		}
		return urls
	}
}()

// stop ends what shared has started.
var stop = func() {}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) write(name, text string) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// until checks again and again whether something has become true.
func (s *site) until(what string, true func() bool) {
	s.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(torture.Patience); !true(); {
		select {
		case <-tick.C:
		case <-s.Context().Done():
			s.Fatalf("waiting until %s: %v", what, context.Cause(s.Context()))
		}
		if time.Now().After(late) {
			s.Fatalf("%s: it did not come true in %v", what, torture.Patience)
		}
	}
}

// run runs a command, which must work, and returns what it says.
func (s *site) run(args ...string) string {
	s.Helper()
	return s.start("", args...).ended(0).out.String()
}

// serve starts a site agent at a place, to which the rules of package failpoint apply.
func (s *site) serve(r *replica, rules string) *process {
	s.Helper()
	hosts, err := os.ReadFile(filepath.Join(s.dir, "hosts"))
	s.must(err)
	r.now = s.start(rules, "serve", "-mode=enforce", "-listen="+r.listen, "-host="+string(hosts), fmt.Sprintf("-socket=serve-%d.sock", r.nth),
		"-http=none", "-metrics="+r.metrics, "-etcd-endpoints=http://"+r.etcd.address)
	return r.now
}

// attend starts the agent of a node.
func (n *node) attend() {
	n.s.Helper()
	n.now = n.s.start("", "agent", "run", "-config="+filepath.Join(n.name, "agent.yaml"))
}

// connected waits until all nodes are connected to a site agent.
func (s *site) connected(p *process) {
	s.Helper()
	for _, n := range s.nodes {
		p.await(0, `node connected" node=`+n.name, 1)
	}
}

// keeper returns who keeps the site, once that is another process than the one that did; nil if it is not important which.
func (s *site) keeper(was *process) (keeps *replica) {
	s.Helper()
	s.until("somebody keeps the site", func() bool {
		info, err := s.store.Kept(s.Context())
		if err != nil || info == nil {
			return false
		}
		i := slices.IndexFunc(s.replicas[:], func(r *replica) bool { return r.now != nil && r.now.cmd.Process.Pid == info.PID })
		if i < 0 || s.replicas[i].now == was || s.replicas[i].now.gone() {
			return false
		}
		keeps = s.replicas[i]
		return true
	})
	return keeps
}

// settled is how long a connection has lasted after which a node that loses it tries again at once. Connections that are made and lost
// faster than that, as a test would, make the node wait longer each time.
const settled = 5 * time.Second

// hand makes a new process keep the site, to which the rules apply. The others wait, and have all nodes.
func (s *site) hand(rules string) *replica {
	s.Helper()
	keeper := s.keeper(nil)
	var next *replica
	for _, r := range s.replicas { // the place of one that is gone, or of one that waits
		if r != keeper && (next == nil || r.now == nil || r.now.gone()) {
			next = r
		}
	}
	if next.now != nil && !next.now.gone() {
		next.now.signal(syscall.SIGINT)
		next.now.ended(0)
	}
	for _, r := range s.replicas {
		if r != keeper && r != next && r.now != nil && !r.now.gone() {
			r.now.signal(syscall.SIGSTOP) // so that it is not faster
			r.now.stopped()
		}
	}
	s.serve(next, rules).await(0, "this one waits", 1)
	s.connected(next.now)
	began := time.Now()
	keeper.now.signal(syscall.SIGINT)
	keeper.now.ended(0)
	next.now.await(0, "this site agent keeps the site", 1)
	for _, r := range s.replicas {
		switch {
		case r == next:
		case r.now == nil || r.now.gone():
			s.serve(r, "").await(0, "this one waits", 1)
			s.connected(r.now)
		default:
			r.now.signal(syscall.SIGCONT)
		}
	}
	time.Sleep(time.Until(began.Add(settled)))
	return next
}

// put makes a document the newest one.
func (s *site) put(document string) {
	s.Helper()
	s.write("site.json", document)
	s.run("put", "site.json")
	s.serial++
}

// status returns how the site stands, as it was published last.
func (s *site) status() (st sites.Status) {
	s.Helper()
	body, err := s.store.Published(s.Context(), "status")
	if err == nil {
		s.must(json.Unmarshal(body, &st))
	} else if !errors.Is(err, state.ErrNotFound) {
		s.Fatal(err)
	}
	return st
}

// stands waits until the newest document has a phase.
func (s *site) stands(phase sites.Phase) {
	s.Helper()
	s.until(fmt.Sprintf("serial %d is %s", s.serial, phase), func() bool {
		st := s.status()
		return st.Phase == phase && st.Site.Serial == s.serial
	})
}

// control returns a way to change what a node has, as somebody else would.
func (n *node) control() *fake.Control {
	n.s.Helper()
	c, err := fake.OpenControl(n.s.Context(), n.file(), n.s.kinds.Kinds())
	n.s.must(err)
	n.s.Cleanup(func() { _ = c.Close() })
	return c
}

func (n *node) file() string { return filepath.Join(n.s.dir, n.name, "world.json") }

// effects returns how often something was made or changed on a node, by whom ever: the number of the last version that its world has given
// away. It reads the files of the world, so it also works while there is no agent.
func (n *node) effects() (serial int64) {
	n.s.Helper()
	var record struct{ Serial int64 }
	if text, err := os.ReadFile(n.file()); err == nil {
		n.s.must(json.Unmarshal(text, &record))
		serial = record.Serial
	}
	log, err := os.Open(n.file() + ".journal")
	if err != nil {
		return serial
	}
	defer log.Close()
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil { // what is not complete is not there yet
			return serial
		}
		record.Serial = 0
		if bytes.Contains(line, []byte(`"serial"`)) {
			n.s.must(json.Unmarshal(line, &record))
		}
		serial = max(serial, record.Serial)
	}
}

// effects returns that of all nodes.
func (s *site) effects() (all []int64) {
	s.Helper()
	for _, n := range s.nodes {
		all = append(all, n.effects())
	}
	return all
}

// specs returns what the nodes have, without the identities and versions of it.
func (s *site) specs() string {
	s.Helper()
	var all strings.Builder
	for _, n := range s.nodes {
		text, err := n.control().World(s.Context())
		s.must(err)
		var world struct {
			Things map[string]map[string]map[string]struct {
				Spec json.RawMessage `json:"spec"`
			} `json:"things"`
		}
		s.must(json.Unmarshal(text, &world))
		out, err := json.Marshal(world.Things)
		s.must(err)
		fmt.Fprintf(&all, "%s\n", out)
	}
	return all.String()
}

// journals fails unless the journal of each run is complete: it ends, and each step that was not undone was done by one call that is known
// to have worked. It returns the runs, the newest one first, and their records.
func (s *site) journals() (runs []state.Run, records map[string][]journal.Record) {
	s.Helper()
	runs, err := s.store.Runs(s.Context())
	s.must(err)
	records = map[string][]journal.Record{}
	for _, run := range runs {
		log, err := journal.Read(s.Context(), s.store, run.ID)
		s.must(err)
		records[run.ID] = log.Records
		done := map[int]int{}
		for _, r := range log.Records {
			if r.Kind == journal.Outcome && r.Result == journal.Done && !r.Undo {
				done[r.Step]++
			}
		}
		if last := len(log.Records) - 1; last < 0 || log.Records[last].Kind != journal.End {
			s.Errorf("the journal of run %s, which is %s, does not end", run.ID, run.Status)
		}
		for step, n := range done {
			if n != 1 {
				s.Errorf("step %d of run %s is done %d times", step, run.ID, n)
			}
		}
		if run.Status == state.RunApplied && len(done) != run.Steps {
			s.Errorf("run %s is applied, and %d of %d steps are done", run.ID, len(done), run.Steps)
		}
	}
	return runs, records
}

// settled fails unless the site is as the newest document says, and the commands say so.
func (s *site) settled() {
	s.Helper()
	server := fmt.Sprintf("-server=unix:serve-%d.sock", s.keeper(nil).nth)
	if said := s.run("plan", "-detailed-exitcode", server); !strings.Contains(said, "No changes") {
		s.Errorf("the plan is not empty:\n%s", said)
	}
	said := s.run("runs")
	runs, _ := s.journals()
	for _, run := range runs {
		if run.Status == state.RunOpen || !strings.Contains(said, run.ID) {
			s.Errorf("run %s is %s, and converge runs says\n%s", run.ID, run.Status, said)
		}
	}
}

// A bed is what a node has: a bridge, and ports with a tag.
type bed struct {
	tag   int
	ports []string
	extra string // further fields of the last port
}

// document returns a document in which all nodes have the same, or, where it is said so, something else.
func (s *site) document(of func(node int) bed) string {
	nodes := map[string]any{}
	for i, n := range s.nodes {
		b := of(i)
		ports := map[string]any{}
		for j, name := range b.ports {
			port := map[string]any{"bridge": "br0", "tag": b.tag, "interface": map[string]any{"type": "internal"}}
			if j == len(b.ports)-1 && b.extra != "" {
				s.must(json.Unmarshal([]byte(b.extra), &port))
			}
			ports[name] = port
		}
		nodes[n.name] = map[string]any{"ovs": map[string]any{"bridge": map[string]any{"br0": map[string]any{}}, "port": ports}}
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "converge.dev/v1", "site": map[string]any{"name": s.name, "id": siteID},
		"policy": map[string]any{"max_destroy": "100%"}, "nodes": nodes,
	})
	s.must(err)
	return string(text)
}

// ports returns the names of n ports.
func ports(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("p%02d", i))
	}
	return names
}
