package graph_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/engine/graph"
)

func ExampleLevels() {
	levels, _ := graph.Levels([][]int{{1, 2}, {2}, nil})
	_, cycle := graph.Levels([][]int{{1}, {0}, {0}})
	fmt.Println(levels, cycle)
	// Output: [2 1 0] [0 1]
}

// dag draws an acyclic graph, numbered in no particular order.
func dag(t *rapid.T) [][]int {
	n := rapid.IntRange(1, 12).Draw(t, "n")
	at := rapid.Permutation(seq(n)).Draw(t, "order")
	needs := make([][]int, n)
	for i := range n {
		for j := range i {
			if rapid.Bool().Draw(t, "edge") {
				needs[at[i]] = append(needs[at[i]], at[j])
			}
		}
	}
	return needs
}

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// However many steps are in progress, none starts before what it needs has finished, and all start once; in the reverse
// direction, the same holds for what needed it.
func TestScheduleKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		needs := dag(t)
		for _, g := range [][][]int{needs, graph.Reverse(needs)} {
			before := make([]bool, len(g))
			for i := range before {
				before[i] = rapid.Bool().Draw(t, "done before") && len(g[i]) == 0
			}
			s := graph.NewSchedule(g, func(i int) bool { return before[i] }, nil)
			done, started := slices.Clone(before), slices.Clone(before)
			var flying []int
			for {
				if i, ok := s.Next(); ok {
					if started[i] {
						t.Fatalf("%d is started twice", i)
					}
					for _, d := range g[i] {
						if !done[d] {
							t.Fatalf("%d is started before %d is done", i, d)
						}
					}
					started[i], flying = true, append(flying, i)
					if rapid.Bool().Draw(t, "go on") {
						continue
					}
				}
				if len(flying) == 0 {
					break
				}
				k := rapid.IntRange(0, len(flying)-1).Draw(t, "which ends")
				done[flying[k]] = true
				s.Done(flying[k])
				flying = slices.Delete(flying, k, k+1)
			}
			if s.Left() != 0 || slices.Contains(done, false) {
				t.Fatalf("%d are left: %v", s.Left(), done)
			}
		}
	})
}

func TestLevelsOrCycle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		needs := dag(t)
		levels, cycle := graph.Levels(needs)
		if cycle != nil {
			t.Fatalf("a cycle %v in %v", cycle, needs)
		}
		for i, ns := range needs {
			for _, d := range ns {
				if levels[d] >= levels[i] {
					t.Fatalf("%d needs %d and is not above it: %v", i, d, levels)
				}
			}
		}
		// One edge back along a path makes a cycle.
		for i, ns := range needs {
			if len(ns) == 0 {
				continue
			}
			needs[ns[0]] = append(needs[ns[0]], i)
			_, cycle = graph.Levels(needs)
			if len(cycle) < 2 {
				t.Fatalf("no cycle in %v", needs)
			}
			for k, n := range cycle {
				if !slices.Contains(needs[n], cycle[(k+1)%len(cycle)]) {
					t.Fatalf("%v is not a cycle of %v", cycle, needs)
				}
			}
			return
		}
	})
}
