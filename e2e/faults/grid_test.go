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

	"converge.dev/converge/providers"
	"converge.dev/converge/state"
	"converge.dev/converge/torture"
)

// A script is a scene that was played without a fault.
type script struct {
	*scene
	traits        providers.Traits
	last          string   // what is seen of the kind afterwards
	forward, undo []string // the calls that change something, in their order
	exact         bool     // it can be undone
	token         bool     // the kind has versions
}

// rehearse plays a scene, and undoes it where that can be done.
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

// cells are all that a script makes.
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

// at names a cell.
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

// want is the end that the cell must come to.
func (c *cell) want(s *script) string {
	if end, ok := deviations()[c.at()]; ok {
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
	m.looks = c.ref.Kind == "carbide.instance" // whose power is known
	if verb == "create" {
		m.refusal = refusals[c.ref.Kind]
	}
	return expected(c.fault, m)
}

// E: every fault meets every method that the provider calls, on the way forward and while a run is undone.
func TestTortureCarbideFaults(t *testing.T) {
	changes, reads := called(t)
	all := faults()
	var names, crossed []string
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
	for i := range every {
		if pair := every[i].fault.name + " × " + every[i].method; !slices.Contains(crossed, pair) {
			crossed = append(crossed, pair)
		}
	}
	stride := torture.Scale(23, 1, 1)
	coverMethods, coverFaults := torture.Cover(t, "methods", changes), torture.Cover(t, "faults", names)
	coverEnds := torture.Cover(t, "ends", slices.Sorted(maps.Keys(endings)))
	coverPairs := torture.Cover(t, "faults × methods", crossed)
	var wrong atomic.Int64
	tried, begin := 0, time.Now()
	t.Cleanup(func() {
		torture.Report(t, "E", "Carbide: %d of %d cells (%d faults, %d methods, %d scenes), %d ends, %d known deviations, %d wrong, in %s",
			tried, len(every), len(all), len(changes), len(scripts), len(endings), len(deviations()), wrong.Load(), time.Since(begin).Round(time.Millisecond))
	})
	_ = coverPairs
	for i := range every {
		c := &every[i]
		if i%stride != 0 {
			continue
		}
		tried++
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
			coverMethods.Reach(c.method)
			coverFaults.Reach(c.fault.name)
			coverPairs.Reach(c.fault.name + " × " + c.method)
			if !t.Failed() {
				coverEnds.Reach(name)
			}
		})
	}
}
