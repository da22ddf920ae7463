package replicas

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers/fake"
	sites "converge.dev/converge/site"
	"converge.dev/converge/state"
)

// A breakage is a way in which a node, or the way to it, fails while a change of it is to be made.
type breakage struct {
	name  string
	fault *fake.Fault                 // makes the change take so long that the agent can be killed meanwhile; nil: it is the way that breaks
	begin func(node *node, way *gate) // breaks it, before the site agent sends the change
	sent  bool                        // the node gets the change all the same
	end   func(node *node, way *gate)
}

// breakages are all of them. A node dials the site: tasks come back through its gate, and answers go in.
var breakages = []breakage{
	{name: "answer lost", sent: true, begin: func(_ *node, way *gate) { way.in.shut(true) }, end: func(_ *node, way *gate) { way.reset(); way.in.shut(false) }},
	{name: "answer late", sent: true, begin: func(_ *node, way *gate) { way.in.shut(true) }, end: func(_ *node, way *gate) { way.in.shut(false) }},
	{name: "task late", begin: func(_ *node, way *gate) { way.out.shut(true) }, end: func(_ *node, way *gate) { way.out.shut(false) }},
	{name: "task lost", begin: func(_ *node, way *gate) { way.out.shut(true) }, end: func(_ *node, way *gate) { way.reset(); way.out.shut(false) }},
	{name: "cut off", begin: func(_ *node, way *gate) { way.cut(true) }, end: func(_ *node, way *gate) { way.reset(); way.cut(false) }},
	{name: "stands still", begin: func(n *node, _ *gate) { n.now.signal(syscall.SIGSTOP) }, end: func(n *node, _ *gate) { n.now.signal(syscall.SIGCONT) }},
	{
		name: "agent killed after the effect", sent: true, fault: &fake.Fault{Effect: fake.EffectAfter},
		begin: func(*node, *gate) {}, end: func(n *node, _ *gate) { n.now.kill(); n.attend() },
	},
	{
		name: "agent killed before the effect", sent: true, fault: &fake.Fault{Effect: fake.EffectBefore},
		begin: func(*node, *gate) {}, end: func(n *node, _ *gate) { n.now.kill(); n.attend() },
	},
}

// Whatever becomes of a task on its way, of its answer, or of the agent that carries it out: the change is made once, its outcome becomes
// known, and the run ends applied.
func TestTortureNodeFails(t *testing.T) {
	full(t)
	t.Parallel()
	var names []string
	for _, b := range breakages {
		names = append(names, b.name)
	}
	reached := torture.Cover(t, "failures of a node", names)
	s := newSite(t, 3)
	n := s.nodes[1]
	revision := func() string {
		return s.document(func(int) bed { return bed{tag: 100 + int(s.serial), ports: ports(1)} })
	}
	s.put(revision())
	s.stands(sites.InSync)
	counter := fake.Fault{Op: "update", Ref: "*/ovs.port/*", Nth: 1 << 30} // it fails nothing, and counts the calls
	s.must(n.control().Fail(t.Context(), counter))
	calls := func() int {
		faults, err := n.control().Faults(t.Context())
		s.must(err)
		return faults[0].Seen
	}
	effects, called := n.effects(), 0
	for range torture.Scale(0, 1, 20) {
		// Nodes take turns, so the second of three calls of a run is that of the second node. The last breakage makes one more call.
		var rules []string
		for i := range breakages {
			rules = append(rules, fmt.Sprintf("call.update.before:%d=stop", 2+3*i))
		}
		keeper := s.hand(strings.Join(rules, ";"))
		way := n.gates[keeper.nth]
		for _, b := range breakages {
			if b.fault != nil {
				f := *b.fault
				f.Op, f.Ref, f.Delay = "update", "*/ovs.port/*", fake.Duration(torture.Patience)
				s.must(n.control().Fail(t.Context(), f))
			}
			s.put(revision())
			keeper.now.stopped()
			b.begin(n, way)
			keeper.now.signal(syscall.SIGCONT)
			effects++
			called++
			switch {
			case b.fault != nil:
				s.until("the node carries the task out", func() bool { return calls() == called })
				if b.fault.Effect == fake.EffectBefore {
					called++ // there was none, so it is tried again
				}
			case b.sent:
				s.until("the node carries the task out", func() bool { return n.effects() == effects })
			}
			if st := s.status(); st.Phase != sites.Applying {
				t.Errorf("%s: the site is %s (%s)", b.name, st.Phase, st.Detail)
			}
			b.end(n, way)
			s.stands(sites.InSync)
			if got := n.effects(); got != effects {
				t.Errorf("%s: the node was changed %d times, want %d", b.name, got, effects)
			}
			if got := calls(); got != called {
				t.Errorf("%s: the node was called %d times, want %d", b.name, got, called)
			}
			runs, records := s.journals()
			if runs[0].Status != state.RunApplied || len(runs) != int(s.serial) {
				t.Errorf("%s: run %d ended %s", b.name, len(runs), runs[0].Status)
			}
			if slices.ContainsFunc(records[runs[0].ID], func(r journal.Record) bool { return r.Undo || r.Kind == journal.Revert }) {
				t.Errorf("%s: something was undone", b.name)
			}
			s.settled()
			if b.fault != nil {
				s.must(n.control().Mend(t.Context()))
				s.must(n.control().Fail(t.Context(), counter))
				called = 0
			}
			reached.Reach(b.name)
		}
	}
	torture.Report(t, "F", "a node that fails while a task is on its way: %s; each change was made once, and each run ended applied", reached)
}
