package apply

import (
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// What changes by itself is requested by a call only if the document states it: how it was when the plan was made is no request,
// also when the call is made again after the first one has changed it.
func TestWantedOfWhatChangesByItself(t *testing.T) {
	planned := schema.Object{"vcpus": int64(4), "in_effect": true}
	now := &providers.Thing{Spec: schema.Object{"vcpus": int64(4), "in_effect": false}}
	traits := providers.Traits{SelfChanging: []string{"in_effect"}}
	for _, c := range []struct {
		name   string
		stated schema.Object
		have   *providers.Thing
		undo   bool
		want   any
	}{
		{"not stated", schema.Object{"vcpus": int64(4)}, now, false, false},
		{"stated", schema.Object{"vcpus": int64(4), "in_effect": true}, now, false, true},
		{"not there any more", schema.Object{"vcpus": int64(4)}, &providers.Thing{Spec: schema.Object{"vcpus": int64(4)}}, false, nil},
		{"a new thing", schema.Object{"vcpus": int64(4)}, nil, false, true},
		{"an undo", schema.Object{"vcpus": int64(4)}, now, true, true},
	} {
		w := &worker{known: known{traits: traits, undo: c.undo, want: planned, stated: c.stated}}
		if got := w.wanted(c.have)["in_effect"]; got != c.want {
			t.Errorf("%s: it requests %v, want %v", c.name, got, c.want)
		}
	}
	gone := &worker{known: known{traits: traits, stated: schema.Object{}}}
	if want := gone.wanted(now); want != nil {
		t.Errorf("a delete requests %v", want)
	}
	if planned["in_effect"] != true {
		t.Error("the plan itself was changed")
	}
}
