package guard

import (
	"slices"
	"testing"
	"time"
)

// A model is the protocol of one guarded change in small, explored completely: a site whose lock may be taken over, the agent of the node
// and its ledger, the program, the disk, and a change that cuts the node off or does not. Every part may crash, and every answer may be
// lost. What the program decides is decided by judge, admit and settle. A rule that is left out leads to a violation.
type model struct{ without string }

const (
	step      = 25 * time.Second // time in the model passes in steps
	modelTerm = time.Minute
)

// A call is how far the agent got with the change.
type callPhase int8

const (
	idle    callPhase = iota
	sent              // on its way
	begun             // the agent has it
	armed             // it is armed, and may be made
	applied           // it is made, and not answered yet
)

// What a leader of the site says.
type said int8

const (
	nothing said = iota
	saidKept
	saidUndone
	saidChanged // a new leader, after its fence: the change is there
	saidBefore
)

// A state is one of the whole. It is comparable.
type state struct {
	cuts    bool // the change cuts the node off
	changed bool // the change is there
	boot    int8
	now     int8 // steps since the machine was started
	age     int8 // steps for which the node is cut off, in all boots

	call   callPhase
	calls  int8 // that the site made
	agent  bool // it runs
	fenced bool // the ledger refuses the first leader
	guard  bool // the program runs

	capsule  bool
	capBoot  int8
	deadline int8 // in seconds: now is in steps
	verdict  verdict
	undone   bool

	know    bool // the first leader knows that the call is made
	first   said
	second  said
	fresh   bool // the verdict kept came over a connection made after the change
	crashes int8
	bad     string // what was violated by the transition here
}

// boots are the ids of boots.
var boots = []string{"boot 0", "boot 1", "boot 2", "boot 3"}

func (s state) cut() bool { return s.cuts && s.changed }

func (s state) standing() standing {
	return standing{
		terms:   terms{Epoch: 5, Boot: boots[s.capBoot], Deadline: time.Duration(s.deadline) * time.Second, Within: modelTerm},
		verdict: s.verdict, undone: s.undone,
	}
}

func (s state) moment() moment { return moment{boots[s.boot], time.Duration(s.now) * step} }

// judge is the package's, unless its rule is left out.
func (m model) judge(s state) act {
	at, now := s.standing(), s.moment()
	if m.without == "another boot undoes" {
		at.Boot = now.Boot
	}
	do, _ := judge(at, now)
	if m.without == "an undo is finished after a crash" && s.verdict == undoing && !s.undone && s.crashes > 0 {
		do = wait
	}
	return do
}

// rule stores a verdict.
func (m model) rule(s state, v verdict) state {
	if s.verdict != open && s.verdict != v {
		s.bad = "the verdict changed"
	}
	s.verdict = v
	return s
}

// next returns all states that may follow.
func (m model) next(s state) []state {
	var all []state
	add := func(f func(s *state)) {
		t := s
		f(&t)
		all = append(all, t)
	}
	reach := !s.cut()

	// The site. A call may be on its way for any time, and its answer may be lost.
	if s.call == idle && s.calls < 2 && s.first == nothing {
		add(func(t *state) { t.call, t.calls = sent, t.calls+1 })
	}
	if s.call == sent {
		if s.agent && reach && (!s.fenced || m.without == "the ledger refuses older epochs") {
			add(func(t *state) { t.call = begun })
		}
		add(func(t *state) { t.call = idle })
	}
	// The agent.
	if s.agent && s.call == begun {
		if m.without == "armed before it is made" {
			add(func(t *state) { t.call = armed })
		}
		if s.guard {
			admitted := !s.capsule || admit(s.standing(), 5, s.moment()) == nil
			if m.without == "no change after the verdict" {
				admitted = true
			}
			add(func(t *state) {
				if !admitted {
					t.call = idle
					return
				}
				t.call = armed
				if !t.capsule {
					t.capsule, t.capBoot, t.deadline = true, t.boot, t.now*int8(step/time.Second)+int8(modelTerm/time.Second)
				}
			})
		}
	}
	if s.agent && s.call == armed {
		add(func(t *state) {
			t.call, t.changed = applied, true
		})
		add(func(t *state) { t.call = idle }) // it is cancelled, or refused
	}
	if s.agent && s.call == applied {
		if reach {
			add(func(t *state) { t.call, t.know = idle, true })
		}
		add(func(t *state) { t.call = idle })
	}
	// The first leader settles: it knows that the change is made, or looks; and it keeps what it reaches over a new connection.
	through := reach || m.without == "keep over a new connection"
	flying := s.agent && s.call >= begun
	if s.first == nothing && s.capsule && s.agent && s.guard {
		for _, keep := range []bool{true, false} {
			if keep && (!through || !s.changed && m.without != "no verdict during a call") || !keep && !reach {
				continue
			}
			if keep && flying && m.without != "no verdict during a call" {
				continue
			}
			if s.fenced && s.verdict == open {
				continue // an older epoch
			}
			t := s
			now := t.moment()
			at := t.standing()
			if m.without == "nothing is kept in the end" {
				at.Deadline += modelTerm
			}
			if m.without == "one verdict" {
				at.verdict = open
			}
			v := settle(at, keep, now)
			if t.verdict == open || m.without == "one verdict" {
				if v == kept {
					t.fresh = reach
					if t.standing().Deadline-now.At < 12*time.Second || t.capBoot != t.boot {
						t.bad = "it was kept too late"
					}
				}
				t = m.rule(t, v)
			}
			all = append(all, t) // the answer is lost, or comes later
			if m.without == "a lost answer says nothing" && keep {
				u := s
				u.first = saidKept
				all = append(all, u)
			}
			switch {
			case t.verdict == kept:
				t.first = saidKept
				all = append(all, t)
			case t.undone || m.without == "not undone before that is verified":
				t.first = saidUndone
				all = append(all, t)
			}
		}
	}
	// Anybody may ask.
	if m.without == "asking does not extend" && s.guard && s.capsule && s.verdict == open && s.deadline < 90 {
		add(func(t *state) { t.deadline += 25 })
	}
	// A new leader: the ledger stores its epoch and waits for what runs, then the guard undoes, then it looks.
	if !s.fenced && s.agent && reach && s.call < begun {
		add(func(t *state) { t.fenced = true })
	}
	if s.fenced && s.second == nothing && s.agent && s.guard && reach {
		switch {
		case m.without == "a fence undoes" || !s.capsule || s.verdict == kept || s.undone:
			add(func(t *state) {
				t.second = saidBefore
				if t.changed {
					t.second = saidChanged
				}
			})
		case s.verdict == open:
			all = append(all, m.rule(s, undoing))
		}
	}
	// The program.
	if s.guard && s.capsule && m.judge(s) == undo {
		switch {
		case s.verdict == open:
			all = append(all, m.rule(s, undoing))
		case s.changed:
			add(func(t *state) { t.changed, t.age = false, 0 })
		case !flying || m.without == "what is in progress is waited for":
			add(func(t *state) { t.undone = true })
		}
	}
	// Time passes only when the program has done what is due: it is that fast.
	if s.now < 4 && (!s.guard || !s.capsule || m.judge(s) != undo || flying) {
		add(func(t *state) {
			t.now++
			if t.cut() {
				t.age = min(t.age+1, 3)
			}
		})
	}
	// Crashes.
	if s.crashes < 2 {
		down := func(t *state, agent, guard bool) {
			t.crashes++
			if agent {
				t.agent = false
				if t.call >= begun {
					t.call = idle
				}
			}
			if guard {
				t.guard = false
				if m.without == "the capsule is durable" {
					t.capsule = false
				}
			}
		}
		if s.agent {
			add(func(t *state) { down(t, true, m.without == "a program of its own") })
		}
		if s.guard && m.without != "a program of its own" {
			add(func(t *state) { down(t, false, true) })
		}
		add(func(t *state) {
			down(t, true, true)
			t.boot, t.now = t.boot+1, 0
		})
	}
	// What has crashed is started again. The agent may never be.
	if !s.agent && m.without != "a program of its own" {
		add(func(t *state) { t.agent = true })
	}
	if !s.guard && m.without != "a program of its own" {
		add(func(t *state) { t.guard = true })
	}
	return all
}

// violated returns which invariant does not hold.
func (m model) violated(s state) string {
	flying := s.agent && s.call >= armed
	switch {
	case s.bad != "":
		return s.bad
	case s.changed && !s.capsule:
		return "changed without being armed"
	case s.undone && s.changed:
		return "the result is undone, and it is not"
	case s.verdict == kept && (!s.fresh || !s.changed):
		return "kept without a new connection to what was changed"
	case s.verdict == kept && s.cut():
		return "a change is kept that cuts the node off"
	case s.first == saidKept && s.verdict != kept || s.first == saidUndone && (!s.undone || s.changed || flying):
		return "the report is not as the node"
	case s.second == saidChanged && s.verdict != kept || s.second == saidBefore && s.changed:
		return "the new leader builds on what is not decided"
	case s.guard && s.cut() && s.age >= 3 && s.capsule && m.judge(s) == wait:
		return "the node is cut off after the deadline"
	}
	return m.ends(s)
}

// ends carries out what is left to do when nothing fails any more, and returns what is wrong with the end.
func (m model) ends(s state) string {
	if m.without != "a program of its own" {
		s.guard = true
	}
	if s.call != applied {
		s.call = idle
	}
	for range 40 {
		if s.guard && s.capsule && m.judge(s) == undo {
			switch {
			case s.verdict == open:
				s.verdict = undoing
			case s.changed:
				s.changed = false
			default:
				s.undone = true
			}
			continue
		}
		s.now = min(s.now+1, 8)
		s.call = idle
	}
	if s.verdict != kept && s.changed || s.cut() {
		return "in the end it is neither kept nor as before"
	}
	if s.capsule && s.verdict == open {
		return "in the end there is no verdict"
	}
	return ""
}

// explore visits all states, breadth first, and returns how many there are, and the shortest way to a violation.
func (m model) explore() (states int, why string, path []state) {
	var queue []state
	from := map[state]state{}
	for _, cuts := range []bool{true, false} {
		s := state{cuts: cuts, agent: true, guard: true}
		queue, from[s] = append(queue, s), s
	}
	for i := 0; i < len(queue); i++ {
		s := queue[i]
		if why := m.violated(s); why != "" {
			for {
				path = append(path, s)
				if from[s] == s {
					break
				}
				s = from[s]
			}
			slices.Reverse(path)
			return len(queue), why, path
		}
		for _, t := range m.next(s) {
			if _, seen := from[t]; !seen {
				from[t] = s
				queue = append(queue, t)
			}
		}
	}
	return len(queue), "", nil
}

// The rules, each of which is needed.
var rules = []string{
	"armed before it is made", "the capsule is durable", "one verdict", "keep over a new connection", "a program of its own",
	"another boot undoes", "asking does not extend", "no change after the verdict", "what is in progress is waited for", "a fence undoes",
	"not undone before that is verified", "a lost answer says nothing", "no verdict during a call", "nothing is kept in the end",
	"an undo is finished after a crash", "the ledger refuses older epochs",
}

func TestModel(t *testing.T) {
	n, why, path := model{}.explore()
	t.Logf("%d states", n)
	if why != "" {
		for _, s := range path {
			t.Logf("%+v", s)
		}
		t.Fatal(why)
	}
}

func TestModelNeedsEachRule(t *testing.T) {
	for _, rule := range rules {
		n, why, path := model{without: rule}.explore()
		if why == "" {
			t.Errorf("without the rule that %s nothing is violated in %d states", rule, n)
			continue
		}
		t.Logf("without %q: %s, after %d steps", rule, why, len(path)-1)
	}
}
