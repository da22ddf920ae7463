package replicas

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/schema"
	sites "converge.dev/converge/site"
	"converge.dev/converge/state"
)

var soaks = flag.Duration("soak", 0, "how long TestTortureSoak goes on; 0: not at all, but an hour with make torture NIGHTLY=1")

// What a site of 2 000 resources on 50 nodes may cost, however long it runs.
const (
	soakNodes   = 50
	soakPorts   = 39 // on each node, with its bridge
	siteMemory  = 256 << 20
	agentMemory = 64 << 20
)

// slack is how much the memory of a process varies while it does not grow, in bytes.
const slack = 4 << 20

// pace is how long a round of the soak takes at least: a site is not changed all the time.
const pace = 4 * time.Second

// A use is what a process uses.
type use struct {
	memory     int // bytes of its own; what it shares with others and the kernel can drop, the program above all, is not counted
	files      int
	live       int // bytes at which the next collection of garbage begins, twice what the last one left; of a site agent
	goroutines int // of a site agent
}

// each returns the result of f for each of two uses.
func (u use) each(v use, f func(a, b int) int) use {
	return use{f(u.memory, v.memory), f(u.files, v.files), f(u.live, v.live), f(u.goroutines, v.goroutines)}
}

func lesser(a, b int) int  { return min(a, b) }
func greater(a, b int) int { return max(a, b) }

// uses returns what a process uses now. Site agents say more of themselves at the address metrics.
func (p *process) uses(metrics string) (u use) {
	p.s.Helper()
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	p.s.must(err)
	status, err := proc.NewStatus()
	p.s.must(err)
	u.memory = int(status.RssAnon + status.RssShmem)
	u.files, err = proc.FileDescriptorsLen()
	p.s.must(err)
	if metrics == "" {
		return u
	}
	resp, err := http.Get("http://" + metrics + "/metrics")
	p.s.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	p.s.must(err)
	gauge := func(name string) int {
		m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
		if m == nil {
			p.s.Fatalf("there is no metric %s", name)
		}
		v, err := strconv.ParseFloat(string(m[1]), 64)
		p.s.must(err)
		return int(v)
	}
	u.live, u.goroutines = gauge("go_memstats_next_gc_bytes"), gauge("go_goroutines")
	return u
}

// happenings are what happens to a site again and again.
var happenings = []struct {
	name string
	come func(s *site, round int)
}{
	{"revision", func(s *site, round int) { s.revise(round) }},
	{"drift", func(s *site, round int) {
		n := s.nodes[round%len(s.nodes)]
		was := n.ports()
		id := slices.Sorted(maps.Keys(was))[0]
		var spec schema.Object
		s.must(json.Unmarshal(was[id], &spec))
		tag := spec["tag"]
		spec["tag"] = int64(4000)
		effects := n.effects()
		c := n.control()
		defer c.Close() // each would otherwise be a file of the node
		s.must(c.Change(s.Context(), n.name, "ovs.port", id, spec))
		s.until("the node is as it should be", func() bool {
			if n.effects() < effects+2 { // that one, and the one that undoes it
				return false
			}
			s.must(json.Unmarshal(n.ports()[id], &spec))
			return fmt.Sprint(spec["tag"]) == fmt.Sprint(tag)
		})
	}},
	{"lost connections", func(s *site, round int) {
		for _, g := range s.nodes[round%len(s.nodes)].gates {
			g.reset()
		}
		s.revise(round)
	}},
	{"new agent", func(s *site, _ int) {
		n := s.nodes[0]
		n.now.signal(syscall.SIGTERM)
		n.now.ended(0)
		n.attend()
		s.revise(0)
	}},
	{"failover", func(s *site, round int) {
		old := s.keeper(nil)
		from := len(old.now.out.String())
		old.etcd.cut(true)
		s.keeper(old.now)
		old.etcd.cut(false)
		old.now.await(from, "another site agent keeps the site; this one waits", 1)
		s.revise(round)
	}},
}

// ports returns the specs of the ports of a node, by their IDs.
func (n *node) ports() map[string]json.RawMessage {
	n.s.Helper()
	c := n.control()
	defer c.Close()
	text, err := c.World(n.s.Context())
	n.s.must(err)
	var world struct {
		Things map[string]map[string]map[string]struct{ Spec json.RawMessage }
	}
	n.s.must(json.Unmarshal(text, &world))
	specs := map[string]json.RawMessage{}
	for id, thing := range world.Things[n.name]["ovs.port"] {
		specs[id] = thing.Spec
	}
	return specs
}

// revise changes all ports of a few nodes, and waits for it.
func (s *site) revise(round int) {
	s.Helper()
	const few = 3
	if s.tags == nil {
		s.tags = make([]int, len(s.nodes))
	}
	for i := range few {
		s.tags[(few*round+i)%len(s.nodes)] = 100 + int(s.serial)%1000
	}
	s.put(s.document(func(node int) bed { return bed{tag: 1 + s.tags[node], ports: ports(soakPorts)} }))
	s.stands(sites.InSync)
}

// A site to which things keep happening uses no more after a long time than after a short one.
func TestTortureSoak(t *testing.T) {
	full(t)
	length := *soaks
	if length == 0 {
		length = time.Duration(torture.Scale(0, 0, 60)) * time.Minute
	}
	if length == 0 {
		t.Skip("it takes its time, and most of two processors: make soak")
	}
	t.Parallel()
	var names []string
	for _, h := range happenings {
		names = append(names, h.name)
	}
	reached := torture.Cover(t, "what happens to a site", names)
	s := newSite(t, soakNodes)
	s.revise(0)

	begun := time.Now()
	var most [2]use                                       // of a node agent, and of a site agent
	early, late := map[*process]use{}, map[*process]use{} // the least in the second and in the last quarter: what is there when nothing goes on
	sample := func(p *process, sort int, metrics string) {
		u := p.uses(metrics)
		most[sort] = most[sort].each(u, greater)
		least := map[int]map[*process]use{1: early, 3: late}[int(4*time.Since(begun)/length)]
		if least == nil {
			return
		}
		if was, ok := least[p]; ok {
			u = u.each(was, lesser)
		}
		least[p] = u
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for round := 0; time.Since(begun) < length; round++ {
		h := happenings[round%len(happenings)]
		h.come(s, round)
		reached.Reach(h.name)
		for _, n := range s.nodes {
			sample(n.now, 0, "")
		}
		for _, r := range s.replicas {
			sample(r.now, 1, r.metrics)
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	s.settled()
	if most[0].memory > agentMemory || most[1].memory > siteMemory {
		t.Errorf("a node agent has used %d bytes, and a site agent %d", most[0].memory, most[1].memory)
	}
	var grown use // the most that one of them has grown
	for p, was := range early {
		is, ok := late[p]
		if !ok {
			continue // another one is in its place
		}
		more := is.each(was, func(a, b int) int { return a - b })
		grown = grown.each(more, greater)
		if more.memory > was.memory/4+slack || more.live > was.live/10+slack || more.files > 4 || more.goroutines > 4+was.goroutines/100 {
			t.Errorf("it keeps growing, from %+v to %+v: converge %s", was, is, p.args)
		}
	}
	runs, err := s.store.Runs(t.Context())
	s.must(err)
	if slices.ContainsFunc(runs, func(r state.Run) bool { return r.Status != state.RunApplied }) {
		t.Error("a run was not applied")
	}
	torture.Report(t, "R", "%d resources on %d nodes, %v: %s; %d runs; at most %d MiB of a site agent (live %d) and %d of a node agent; grown by at most %d KiB, %d of them live, %d files, %d goroutines",
		soakNodes*(soakPorts+1), soakNodes, length, reached, len(runs), most[1].memory>>20, most[1].live>>20, most[0].memory>>20,
		grown.memory>>10, grown.live>>10, grown.files, grown.goroutines)
}
