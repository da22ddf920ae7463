package graph_test

import (
	"fmt"

	"converge.dev/converge/engine/graph"
)

// Of four steps one fails: what needs it never starts, the rest continues.
func Example() {
	steps := []string{"vpc", "segment", "instance", "keyset"}
	needs := [][]int{1: {0}, 2: {1}, 3: nil} // the segment needs the vpc, the instance the segment

	levels, _ := graph.Levels(needs)
	fmt.Println("waves:", levels)

	s := graph.NewSchedule(needs, func(int) bool { return false }, nil)
	for {
		i, ok := s.Next()
		if !ok {
			break
		}
		if steps[i] == "segment" {
			fmt.Println(steps[i], "failed")
			s.Drop(i)
			continue
		}
		fmt.Println(steps[i], "done")
		s.Done(i)
	}
	fmt.Println("left:", s.Left())
	// Output:
	// waves: [0 1 2 0]
	// vpc done
	// keyset done
	// segment failed
	// left: 2
}
