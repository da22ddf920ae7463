package fuzzed

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// The same seeds become the same inputs, the inputs differ from the seeds and from each other, and the seeds are unchanged.
func TestInputs(t *testing.T) {
	seeds := func() [][]any {
		return [][]any{{[]byte(`{"a":1}`), "x", byte(1), true, 7}, {[]byte(nil), "", byte(0), false, -1}}
	}
	draw := func() (all []string) {
		m := mutator{rand.New(rand.NewPCG(1, 1)), seeds()}
		for range 1000 {
			all = append(all, fmt.Sprintf("%#v", m.input()))
		}
		if !reflect.DeepEqual(m.seeds, seeds()) {
			t.Errorf("the seeds have become %v", m.seeds)
		}
		return all
	}
	all := draw()
	if !reflect.DeepEqual(all, draw()) {
		t.Error("drawn again they are others")
	}
	distinct := map[string]bool{}
	for _, in := range all {
		distinct[in] = true
	}
	for _, s := range seeds() {
		delete(distinct, fmt.Sprintf("%#v", s))
	}
	if len(distinct) < 500 {
		t.Errorf("of 1000 inputs %d are new", len(distinct))
	}
}

// FuzzSeeds is a typical fuzz test: each of its arguments is changed.
func FuzzSeeds(tf *testing.F) {
	f := New(tf)
	f.Add([]byte("a"), "b", byte(3), true, 4)
	tried := map[string]int{}
	f.Cleanup(func() {
		if len(tried) < 20 {
			f.Errorf("%d inputs were tried", len(tried))
		}
	})
	f.Fuzz(func(_ *testing.T, b []byte, s string, n byte, yes bool, i int) {
		tried[fmt.Sprint(b, s, n, yes, i)]++
	})
}
