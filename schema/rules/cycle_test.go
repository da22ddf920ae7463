package rules

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCircles(t *testing.T) {
	chain := make([][]int, 200_000)
	for i := range chain[1:] {
		chain[i+1] = []int{i}
	}
	if got := circles(chain); got != nil {
		t.Errorf("a chain has circles: %v", got)
	}
	chain[0] = []int{len(chain) - 1}
	if got := circles(chain); len(got) != 1 || len(got[0]) != len(chain) {
		t.Errorf("a ring is %d groups", len(got))
	}
	after := [][]int{{1, 2}, {2}, {0, 3}, {3}, {5}, {4, 0}, {}}
	got := circles(after)
	slices.SortFunc(got, slices.Compare)
	if diff := cmp.Diff([][]int{{0, 1, 2}, {3}, {4, 5}}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{0, 2}, shortestCircle(after, []int{0, 1, 2})); diff != "" {
		t.Error(diff)
	}
}
