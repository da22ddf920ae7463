package rules

import (
	"maps"
	"slices"
	"strings"
)

// cycles finds the groups of resources that refer to each other in a cycle and reports one shortest cycle of each.
// Creation follows the references and deletion goes against them, so without a cycle in one direction there is none in the other.
type cycles struct{}

func (cycles) whole(st *Site, p *reporter) { st.checkCycles(st.Resources, p) }

// again checks what is reached from what has changed: a cycle that did not exist before leads through that.
func (cycles) again(st *Site, t *Touched, p *reporter) {
	reached := map[*Resource]bool{}
	for work := slices.Clone(t.Changed); len(work) > 0; {
		r := work[len(work)-1]
		work = work[:len(work)-1]
		if !reached[r] {
			reached[r] = true
			for _, ref := range r.After {
				work = append(work, st.index[ref])
			}
		}
	}
	st.checkCycles(slices.SortedFunc(maps.Keys(reached), byNumber), p)
}

// checkCycles checks some resources and everything that they refer to, in the order of their refs.
func (st *Site) checkCycles(of []*Resource, p *reporter) {
	number := func(r *Resource) int { return r.Number }
	if len(of) < len(st.Resources) {
		number = func(r *Resource) int {
			i, _ := slices.BinarySearchFunc(of, r, byNumber)
			return i
		}
	}
	after := make([][]int, len(of))
	for i, r := range of {
		for _, ref := range r.After {
			after[i] = append(after[i], number(st.index[ref]))
		}
	}
	for _, group := range circles(after) {
		circle := shortestCircle(after, group)
		var refs []string
		for i, n := range circle {
			if i == 50 {
				refs = append(refs, "…")
				break
			}
			refs = append(refs, of[n].Ref.String())
		}
		refs = append(refs, refs[0])
		p.report(of[circle[0]], nil, "The references form a cycle, so no creation order exists: %s. Remove one of these references.", strings.Join(refs, " -> "))
	}
}

// circles returns the groups of nodes of a graph within which every node reaches every other, and itself: Tarjan's
// algorithm with an explicit stack, because a chain of references may be as long as the document.
func circles(after [][]int) [][]int {
	type frame struct{ node, next int }
	var groups [][]int
	var stack []int
	var calls []frame
	order := make([]int, len(after)) // when a node was reached, from 1; 0: not yet
	low := make([]int, len(after))
	onStack := make([]bool, len(after))
	reached := 0
	for start := range after {
		if order[start] != 0 {
			continue
		}
		calls = append(calls, frame{node: start})
		for len(calls) > 0 {
			f := &calls[len(calls)-1]
			n := f.node
			if f.next == 0 && order[n] == 0 {
				reached++
				order[n], low[n], onStack[n] = reached, reached, true
				stack = append(stack, n)
			}
			if f.next < len(after[n]) {
				to := after[n][f.next]
				f.next++
				if order[to] == 0 {
					calls = append(calls, frame{node: to})
				} else if onStack[to] {
					low[n] = min(low[n], order[to])
				}
				continue
			}
			calls = calls[:len(calls)-1]
			if len(calls) > 0 {
				up := calls[len(calls)-1].node
				low[up] = min(low[up], low[n])
			}
			if low[n] != order[n] {
				continue
			}
			at := len(stack) - 1
			for ; stack[at] != n; at-- {
				onStack[stack[at]] = false
			}
			onStack[n] = false
			group := slices.Clone(stack[at:])
			stack = stack[:at]
			if len(group) > 1 || slices.Contains(after[n], n) {
				slices.Sort(group)
				groups = append(groups, group)
			}
		}
	}
	return groups
}

// shortestCircle returns a shortest path from the first node of a group back to itself.
func shortestCircle(after [][]int, group []int) []int {
	start := group[0]
	from := map[int]int{}
	queue := []int{start}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		for _, to := range after[n] {
			if to == start {
				circle := []int{n}
				for n != start {
					n = from[n]
					circle = append(circle, n)
				}
				slices.Reverse(circle)
				return circle
			}
			if _, in := slices.BinarySearch(group, to); !in {
				continue
			}
			if _, seen := from[to]; !seen {
				from[to] = n
				queue = append(queue, to)
			}
		}
	}
	return group
}
