package cluster_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"converge.dev/converge/state"
)

// groupKeys is how many keys belong together. A transaction stays within one group, so each group is checked by itself.
const groupKeys = 3

// A cell is what the model knows of one key. A revision of unseen is of a write whose reply was lost, and is learned when
// the key is next read.
type cell struct {
	value             string // unique to the write; empty when the key does not exist
	created, modified int64
}

const unseen = -1

// cells is the state of the model: the keys of a group, and the highest revision that is known.
type cells struct {
	keys [groupKeys]cell
	last int64
}

// A call is what a client requested. Reads have no change and no guards.
type call struct {
	keys    []int // that are read
	guards  []guard
	changes []change
}

type guard struct {
	key      int
	created  bool
	revision int64
}

type change struct {
	key   int
	value string // empty deletes
}

// An answer is the result of a call.
type answer struct {
	keys     []cell // that were read
	revision int64  // of a commit that succeeded
	guarded  bool   // a guard did not hold
	unknown  bool   // it may have taken effect, or may yet, or never will
}

// kvModel is what state.KV promises of Get, List and Commit.
var kvModel = porcupine.Model{
	Init: func() any { return cells{} },
	Step: func(s, in, out any) (bool, any) {
		have, c, a := s.(cells), in.(call), out.(answer)
		if c.changes == nil {
			return have.read(c.keys, a.keys)
		}
		holds := have.holds(c.guards)
		switch {
		case a.unknown:
			if holds {
				have.change(c.changes, unseen)
			}
			return true, have
		case a.guarded:
			return !holds, have
		case !holds:
			return false, have
		}
		changed := have.change(c.changes, a.revision)
		if a.revision < have.last || changed && a.revision == have.last {
			return false, have
		}
		have.last = a.revision
		return true, have
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
}

// read reports whether the keys may be read so, and returns what is then known.
func (s cells) read(keys []int, got []cell) (bool, any) {
	for i, k := range keys {
		have := &s.keys[k]
		learn(&have.created, got[i].created)
		learn(&have.modified, got[i].modified)
		if *have != got[i] {
			return false, s
		}
		s.last = max(s.last, have.modified)
	}
	return true, s
}

func learn(have *int64, got int64) {
	if *have == unseen && got > 0 {
		*have = got
	}
}

// holds reports whether all guards hold. A guard cannot be made from a revision that no client has seen yet.
func (s cells) holds(guards []guard) bool {
	for _, g := range guards {
		have := s.keys[g.key].modified
		if g.created {
			have = s.keys[g.key].created
		}
		if have != g.revision {
			return false
		}
	}
	return true
}

func (s *cells) change(changes []change, revision int64) (changed bool) {
	for _, c := range changes {
		have := &s.keys[c.key]
		switch {
		case c.value == "" && have.value == "":
			continue
		case c.value == "":
			*have = cell{}
		case have.value == "":
			*have = cell{c.value, revision, revision}
		default:
			have.value, have.modified = c.value, revision
		}
		changed = true
	}
	return changed
}

// A lockCall is what a client requested of the site lock.
type lockCall struct {
	op    string // lock, commit, close, force, lapse, read
	epoch int64  // of the holder: commit, close, lapse
	value string // that a commit writes, or a read has returned
}

// A lockAnswer is its result. Failures that change nothing are not in the history.
type lockAnswer struct {
	epoch   int64 // lock: the one that was granted
	unknown bool  // it may have taken effect, or may yet, or never will
}

type lockState struct {
	epoch int64
	held  int64  // epoch of the holder; 0: none
	value string // last written under the lock
}

// lockModel is what the site lock promises: each holder has a higher epoch than all before, and only the holder writes.
// Where leases may expire unseen, a holder may follow another that has not released the lock. A lock that was broken while
// it was being taken is taken again, so the epoch may rise by more than one.
func lockModel(expires bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(s, in, out any) (bool, any) {
			have, c, a := s.(lockState), in.(lockCall), out.(lockAnswer)
			mine := c.epoch == have.epoch && (expires || c.epoch == have.held)
			switch c.op {
			case "lock":
				if a.unknown { // it may have raised the epoch, and then been released or forgotten
					have.epoch, have.held = have.epoch+1, 0
					return true, have
				}
				if a.epoch <= have.epoch || !expires && have.held != 0 {
					return false, have
				}
				have.epoch, have.held = a.epoch, a.epoch
			case "force":
				have.epoch, have.held = have.epoch+1, 0
			case "commit":
				if mine {
					have.value = c.value
				}
				return mine || a.unknown, have
			case "close", "lapse":
				if have.held == c.epoch {
					have.held = 0
				}
			case "read":
				return c.value == have.value, have
			}
			return true, have
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// A history is what clients did and saw, in independent groups: a new one begins when the old one is long, or has so many
// unknowns that checking it would take for ever.
type history struct {
	maxOps, maxUnknown int

	mu      sync.Mutex
	began   time.Time
	groups  [][]porcupine.Operation
	unknown int // in the last group
}

func newHistory(maxOps, maxUnknown int) *history {
	return &history{maxOps: maxOps, maxUnknown: maxUnknown, began: time.Now(), groups: make([][]porcupine.Operation, 1)}
}

// group returns the number of the group that is being written.
func (h *history) group() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.groups) - 1
}

// size returns the number of operations.
func (h *history) size() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.groups {
		n += len(g)
	}
	return n
}

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add records a call that was made at a time and is answered now.
func (h *history) add(group, client int, asked int64, in, out any, unknown bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op := porcupine.Operation{ClientId: client, Input: in, Call: asked, Output: out, Return: h.now()}
	if unknown {
		op.Return = math.MaxInt64
	}
	h.groups[group] = append(h.groups[group], op)
	if group < len(h.groups)-1 {
		return
	}
	if unknown {
		h.unknown++
	}
	if len(h.groups[group]) >= h.maxOps || h.unknown >= h.maxUnknown {
		h.groups, h.unknown = append(h.groups, nil), 0
	}
}

// check fails the test unless every group can be explained by calls that took effect one after the other. That the
// checker does not know is as bad as that there is no explanation.
func (h *history) check(t *testing.T, model porcupine.Model) (ops int) {
	t.Helper()
	if result, why := h.verdict(model); result != porcupine.Ok {
		t.Errorf("%s: %s", result, why)
	}
	return h.size()
}

// verdict returns Ok, or the result of the first group that is not, with the reason.
func (h *history) verdict(model porcupine.Model) (porcupine.CheckResult, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, group := range h.groups {
		if result, info := porcupine.CheckOperationsVerbose(model, group, checkLimit); result != porcupine.Ok {
			return result, fmt.Sprintf("group %d, %d operations%s", i, len(group), stuck(model, group, info))
		}
	}
	return porcupine.Ok, ""
}

// checkLimit is how long the checker may spend on one group.
const checkLimit = 30 * time.Second

// stuck shows how far an explanation gets: the last calls that can be explained, and some that cannot.
func stuck(model porcupine.Model, group []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, ops := range partition {
			if len(ops) > len(longest) {
				longest = ops
			}
		}
	}
	s := model.Init()
	explained := map[string]bool{}
	text := ""
	for i, op := range longest {
		_, s = model.Step(s, op.Input, op.Output)
		explained[fmt.Sprint(op.ClientId, op.Call)] = true
		if i >= len(longest)-8 {
			text += "\n  explained: " + describe(model, op)
		}
	}
	text += "\n  then the state is " + model.DescribeState(s)
	left := 0
	for _, op := range group {
		if !explained[fmt.Sprint(op.ClientId, op.Call)] {
			if left++; left <= 12 {
				text += "\n  open:      " + describe(model, op)
			}
		}
	}
	return text
}

func describe(model porcupine.Model, op porcupine.Operation) string {
	return fmt.Sprintf("client %d, %v to %v: %s", op.ClientId, time.Duration(op.Call), time.Duration(op.Return),
		model.DescribeOperation(op.Input, op.Output))
}

// seen returns a cell of what was read.
func seen(it state.Item) cell { return cell{string(it.Value), it.Created, it.Modified} }
