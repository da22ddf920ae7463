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

// The same holds within a stated field: of that, others may change what the document does not mention.
func TestWantedWithinWhatChangesByItself(t *testing.T) {
	slot := &schema.Field{Type: schema.Struct, Fields: []schema.Field{{Name: "card", Type: schema.String}, {Name: "lane", Type: schema.String}}}
	kind := &schema.Kind{Fields: []schema.Field{{Name: "slots", Type: schema.Map, Elem: slot}}}
	slots := func(pairs ...string) schema.Object {
		all := map[string]any{}
		for i := 0; i < len(pairs); i += 3 {
			in, _ := all[pairs[i]].(map[string]any)
			if in == nil {
				in = map[string]any{}
				all[pairs[i]] = in
			}
			in[pairs[i+1]] = pairs[i+2]
		}
		return schema.Object{"slots": all}
	}
	planned := slots("1", "lane", "a", "2", "lane", "x")
	before := planned.Digest()
	w := &worker{known: known{
		kind: kind, traits: providers.Traits{SelfChanging: []string{"slots"}},
		want: planned, stated: slots("1", "lane", "a"), dropped: slots("1", "card", "old", "1", "lane", "b"),
	}}
	got := w.wanted(&providers.Thing{Spec: slots("1", "lane", "b", "1", "card", "old", "2", "lane", "x", "2", "card", "new", "3", "card", "new")})
	if want := slots("1", "lane", "a", "2", "lane", "x", "2", "card", "new", "3", "card", "new"); !got.Equal(want) {
		t.Errorf("it requests %v, want %v", got, want)
	}
	if planned.Digest() != before {
		t.Error("the plan itself was changed")
	}
}
