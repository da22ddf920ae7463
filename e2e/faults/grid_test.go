package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/state"
)

// A script is a scene that was played without a fault.
type script struct {
	*scene
	traits        providers.Traits
	last          string   // what is observed of the kind afterwards
	forward, undo []string // the changing calls, in order
	exact         bool     // it can be undone
	token         bool     // the kind has versions
}

// rehearse plays a scene, and undoes it where that is possible.
func rehearse(t *testing.T, s *scene) (out script) {
	synctest.Test(t, func(t *testing.T) {
		c := &cell{T: t, scene: s}
		defer c.end()
		c.begin()
		if res := c.apply(s.last, nil); res.Run.Status != state.RunApplied {
			t.Fatalf("it ended %s: %s", res.Run.Status, res.Run.Message)
		}
		out = script{scene: s, traits: c.traits, last: c.see(), forward: c.arrived, token: c.token}
		revert := map[string]providers.Revert{"create": c.traits.UndoCreate, "update": c.traits.UndoUpdate, "delete": c.traits.UndoDelete}[s.way]
		out.exact = revert.Reversible()
		if c.word(out.last) != "before" == (out.last == c.first) {
			t.Errorf("nothing is seen to change: %s", out.last)
		}
		if out.exact {
			c.arrived = nil
			if res := c.rollback(); res.Run.Status != state.RunReverted {
				t.Fatalf("the undo ended %s: %v", res.Run.Status, res.Differences)
			}
			out.undo = c.arrived
		}
	})
	return out
}

// cells returns all cells of a script.
func (s *script) cells(all []fault) (cells []cell) {
	for _, undo := range []bool{false, true} {
		calls, verb := s.forward, s.way
		if undo {
			calls, verb = s.undo, map[string]string{"create": "delete", "update": "update", "delete": "create"}[s.way]
		}
		count := map[string]int{}
		for _, method := range calls {
			count[method]++
			for _, f := range all {
				if f.verbs != "" && !slices.Contains(strings.Fields(f.verbs), verb) || f.forward != nil && (undo || !s.exact || s.way == "create" && len(calls) > 1) {
					continue
				}
				cells = append(cells, cell{scene: s.scene, undo: undo || f.forward != nil, method: method, nth: count[method], fault: f, last: s.last})
			}
		}
	}
	return cells
}

// at returns the name of a cell.
func (c *cell) at() string {
	direction := ""
	if c.undo {
		direction = "~"
	}
	method := c.method
	if c.nth > 1 {
		method += fmt.Sprint(" ", c.nth)
	}
	return fmt.Sprintf("%s/%s%s/%s/%s", c.name, direction, c.way, method, c.fault.name)
}

// want returns the end that the cell must come to.
func (c *cell) want(s *script) string {
	if end, ok := c.otherwise[strings.TrimPrefix(c.at(), c.name+"/")]; ok {
		return end
	}
	verb, calls := s.way, s.forward
	if c.undo && c.fault.forward == nil {
		verb, calls = map[string]string{"create": "delete", "update": "update", "delete": "create"}[s.way], s.undo
	}
	if c.fault.forward != nil {
		verb = map[string]string{"create": "delete", "update": "update", "delete": "create"}[s.way]
	}
	m := met{traits: s.traits, verb: verb, undo: c.undo, exact: s.exact, later: calls[0] != c.method || c.nth > 1, token: s.token}
	for i, n := 0, 0; i < len(calls); i++ {
		if calls[i] == c.method {
			n++
		}
		if n == c.nth {
			m.sooner = i < len(calls)-1
			break
		}
	}
	// Once the site knows that a host is to be on, it turns it on by itself.
	on := s.String() == "instance off/update" && !c.undo || s.String() == "instance on/update" && c.undo
	m.itself = on || c.method == "AdminPowerControl" && verb == "delete"
	m.unproven = verb == "update" && strings.HasPrefix(s.String(), "instance o") // of power
	m.looks = c.ref.Kind == "carbide.instance"                                   // whose power is known
	if verb == "create" {
		m.refusal = c.internal
	}
	return expected(c.fault, m)
}

// E: every fault is tried at every method that the provider calls, on the way forward and while a run is undone.
func TestTortureCarbideFaults(t *testing.T) {
	changes, reads := called(t)
	all := faults()
	var names []string
	for i := range all {
		all[i].reads = reads
		names = append(names, all[i].name)
	}
	var scripts []script
	var lock sync.Mutex
	t.Run("rehearsal", func(t *testing.T) {
		for _, s := range scenes(t) {
			t.Run(s.String(), func(t *testing.T) {
				t.Parallel()
				out := rehearse(t, s)
				lock.Lock()
				defer lock.Unlock()
				scripts = append(scripts, out)
			})
		}
	})
	if t.Failed() {
		return
	}
	slices.SortFunc(scripts, func(a, b script) int { return strings.Compare(a.String(), b.String()) })
	var every []cell
	from := map[string]*script{}
	for i := range scripts {
		from[scripts[i].String()] = &scripts[i]
		every = append(every, scripts[i].cells(all)...)
	}
	met, otherwise := map[string]bool{}, map[string]bool{}
	for i := range every {
		c := &every[i]
		met[c.method], met[c.at()] = true, true
		for at := range c.otherwise {
			otherwise[c.name+"/"+at] = true
		}
	}
	for at := range otherwise {
		if !met[at] {
			t.Errorf("%s is said to end otherwise, and is no cell", at)
		}
	}
	for _, m := range changes {
		if !met[m] {
			t.Errorf("the provider calls %s, and no scene meets it", m)
		}
	}
	// A sample has every method, each with another fault, and some more cells. A push has every fault of every method and of
	// every end, in one scene or another.
	var chosen []*cell
	stride, taken := torture.Scale(40, 12, 1), map[string]bool{}
	for i := range every {
		c := &every[i]
		first := func(what string) bool { defer func() { taken[what] = true }(); return !taken[what] }
		switch {
		case !torture.Full():
			at := slices.Index(changes, c.method) % len(names)
			if i%stride == 0 || slices.Index(names, c.fault.name) >= at && first(c.method) {
				chosen = append(chosen, c)
			}
		case first(c.fault.name + " × " + c.method), first(c.want(from[c.scene.String()])), i%stride == 0:
			chosen = append(chosen, c)
		}
	}
	sets := [4]map[string]bool{{}, {}, {}, {}}
	for _, c := range chosen {
		for i, name := range []string{c.method, c.fault.name, c.fault.name + " × " + c.method, c.want(from[c.scene.String()])} {
			sets[i][name] = true
		}
	}
	if torture.Full() {
		for name := range endings {
			sets[3][name] = true
		}
	}
	cover := [4]*torture.Coverage{}
	for i, what := range []string{"methods", "faults", "faults × methods", "ends"} {
		cover[i] = torture.Cover(t, what, slices.Collect(maps.Keys(sets[i])))
	}
	var wrong atomic.Int64
	begin := time.Now()
	t.Cleanup(func() {
		torture.Report(t, "E", "Carbide: %d of %d cells (%d faults, %d methods, %d scenes), %d ends, %d known deviations, %d wrong, in %s",
			len(chosen), len(every), len(all), len(changes), len(scripts), len(endings), len(otherwise), wrong.Load(), time.Since(begin).Round(time.Millisecond))
	})
	for _, c := range chosen {
		s := from[c.scene.String()]
		t.Run(strings.ReplaceAll(c.at(), " ", "-"), func(t *testing.T) {
			t.Parallel()
			name := c.want(s)
			exact, ok := endings[name]
			if !ok {
				t.Fatalf("there is no end %q", name)
			}
			t.Cleanup(func() {
				if t.Failed() {
					wrong.Add(1)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				c.T = t
				defer c.end()
				c.begin()
				if got := c.play(); got != exact {
					t.Errorf("got:  %s\nwant: %s (%s)\n%s", got, exact, name, strings.Join(c.story, "\n"))
				}
			})
			for i, reached := range []string{c.method, c.fault.name, c.fault.name + " × " + c.method} {
				cover[i].Reach(reached)
			}
			if !t.Failed() {
				cover[3].Reach(name)
			}
		})
	}
}
