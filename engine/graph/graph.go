// Package graph orders things that depend on one another. It is pure.
package graph

import "slices"

// Levels returns the wave of each node: 0 when it needs nothing, else one more than the highest of those it needs.
// Needs[i] lists the nodes that come before node i. When there is a cycle, it is returned instead: each of its nodes needs
// the next, and the last needs the first.
func Levels(needs [][]int) (levels []int, cycle []int) {
	n := len(needs)
	levels = make([]int, n)
	waits := make([]int, n)
	after := make([][]int, n)
	for i, ns := range needs {
		waits[i] = len(ns)
		for _, d := range ns {
			after[d] = append(after[d], i)
		}
	}
	ready := make([]int, 0, n)
	for i, w := range waits {
		if w == 0 {
			ready = append(ready, i)
		}
	}
	for done := 0; done < len(ready); done++ {
		i := ready[done]
		for _, a := range after[i] {
			levels[a] = max(levels[a], levels[i]+1)
			if waits[a]--; waits[a] == 0 {
				ready = append(ready, a)
			}
		}
	}
	if len(ready) == n {
		return levels, nil
	}
	return nil, findCycle(needs, waits)
}

// findCycle walks along nodes that still wait until one repeats.
func findCycle(needs [][]int, waits []int) []int {
	i := slices.IndexFunc(waits, func(w int) bool { return w > 0 })
	at := map[int]int{}
	var walk []int
	for {
		if start, seen := at[i]; seen {
			return walk[start:]
		}
		at[i] = len(walk)
		walk = append(walk, i)
		j := slices.IndexFunc(needs[i], func(d int) bool { return waits[d] > 0 })
		i = needs[i][j]
	}
}

// A Schedule says which nodes may start as others finish. It is a plain state machine: no clock, no goroutine.
//
// Nodes may have stages, from 1. A node of a later stage starts only when all earlier stages have finished, or when
// nothing else can start or is in flight: stages are a precaution, and what nodes need comes first.
type Schedule struct {
	waits  []int
	after  [][]int
	stage  func(int) int
	ready  [][]int // by stage
	rest   []int   // not finished, by stage
	flying int
	left   int
}

// NewSchedule starts a schedule over an acyclic graph; nodes that are already done are passed over. Stage returns the
// stage of each node, 0 for one that neither waits for a stage nor is waited for; nil: all have 0.
func NewSchedule(needs [][]int, done func(int) bool, stage func(int) int) *Schedule {
	if stage == nil {
		stage = func(int) int { return 0 }
	}
	s := &Schedule{waits: make([]int, len(needs)), after: make([][]int, len(needs)), stage: stage}
	for i, ns := range needs {
		if done(i) {
			continue
		}
		s.left++
		for len(s.rest) <= stage(i) {
			s.ready, s.rest = append(s.ready, nil), append(s.rest, 0)
		}
		s.rest[stage(i)]++
		for _, d := range ns {
			if !done(d) {
				s.waits[i]++
				s.after[d] = append(s.after[d], i)
			}
		}
		if s.waits[i] == 0 {
			s.ready[stage(i)] = append(s.ready[stage(i)], i)
		}
	}
	return s
}

// Next takes a node that may start; ok is false when none may right now. Every node that is taken must be returned with
// Done or Drop.
func (s *Schedule) Next() (node int, ok bool) {
	for at := range s.ready {
		if len(s.ready[at]) > 0 {
			node = s.ready[at][0]
			s.ready[at] = s.ready[at][1:]
			s.flying++
			return node, true
		}
		if at > 0 && s.rest[at] > 0 && s.flying > 0 {
			break
		}
	}
	return 0, false
}

// Done marks a node as finished: nodes that waited for it alone may start.
func (s *Schedule) Done(node int) {
	s.flying--
	s.left--
	s.rest[s.stage(node)]--
	for _, a := range s.after[node] {
		if s.waits[a]--; s.waits[a] == 0 {
			s.ready[s.stage(a)] = append(s.ready[s.stage(a)], a)
		}
	}
}

// Drop marks a node as ended without finishing: nodes that wait for it never start.
func (s *Schedule) Drop(int) { s.flying-- }

// Left returns the number of nodes that have not finished.
func (s *Schedule) Left() int { return s.left }

// Reverse inverts needs: in the result, each node needs those that needed it.
func Reverse(needs [][]int) [][]int {
	out := make([][]int, len(needs))
	for i, ns := range needs {
		for _, d := range ns {
			out[d] = append(out[d], i)
		}
	}
	return out
}
