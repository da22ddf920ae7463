// Package graph orders things that need one another. It is pure.
package graph

import "slices"

// Levels gives each node its wave: 0 when it needs nothing, else one more than the highest of those it needs.
// Needs[i] lists the nodes that come before node i. When there is a cycle, it is returned instead: each node of it needs
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

// findCycle walks along nodes that still wait until one comes again.
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

// A Schedule says which nodes may start, as others finish. It is a plain state machine: no clock, no goroutine.
type Schedule struct {
	waits []int
	after [][]int
	ready []int
	left  int
}

// NewSchedule starts a schedule over an acyclic graph; the nodes that are done already are passed over.
func NewSchedule(needs [][]int, done func(int) bool) *Schedule {
	s := &Schedule{waits: make([]int, len(needs)), after: make([][]int, len(needs))}
	for i, ns := range needs {
		if done(i) {
			continue
		}
		s.left++
		for _, d := range ns {
			if !done(d) {
				s.waits[i]++
				s.after[d] = append(s.after[d], i)
			}
		}
		if s.waits[i] == 0 {
			s.ready = append(s.ready, i)
		}
	}
	return s
}

// Next takes a node that may start; ok is false when none may right now.
func (s *Schedule) Next() (node int, ok bool) {
	if len(s.ready) == 0 {
		return 0, false
	}
	node = s.ready[0]
	s.ready = s.ready[1:]
	return node, true
}

// Done says that a node has finished: those that waited for it alone may start.
func (s *Schedule) Done(node int) {
	s.left--
	for _, a := range s.after[node] {
		if s.waits[a]--; s.waits[a] == 0 {
			s.ready = append(s.ready, a)
		}
	}
}

// Left is the number of nodes that have not finished.
func (s *Schedule) Left() int { return s.left }

// Reverse turns needs around: in the result, each node needs those that needed it.
func Reverse(needs [][]int) [][]int {
	out := make([][]int, len(needs))
	for i, ns := range needs {
		for _, d := range ns {
			out[d] = append(out[d], i)
		}
	}
	return out
}
