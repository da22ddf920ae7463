package view

import (
	"reflect"
	"testing"
)

// TestWithin: an element is found by what identifies it, and by its position where a path has that, as those of references do.
func TestWithin(t *testing.T) {
	list := []any{map[string]any{"mac": "a"}, map[string]any{"mac": "b"}}
	for index, want := range map[string]any{"a": list[0], "b": list[1], "0": list[0], "1": list[1], "2": nil, "c": nil} {
		if got := within(list, &branch{index: index}, "mac"); !reflect.DeepEqual(got, want) {
			t.Errorf("element %s is %v, want %v", index, got, want)
		}
	}
}
