package schema_test

import (
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/schema"
)

func TestWalk(t *testing.T) {
	k := &schema.Kind{Fields: []schema.Field{
		{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}},
		{Name: "rules", Type: schema.List, Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{
			{Name: "from", Type: schema.String, Ref: "x.y"},
			{Name: "to", Type: schema.String},
		}}},
	}}
	var all []string
	if !k.Spec().Walk(nil, func(path []string, _ *schema.Field) bool { all = append(all, strings.Join(path, ".")); return true }) {
		t.Error("the walk was stopped")
	}
	if want := []string{"", "labels", "labels.[]", "rules", "rules.[]", "rules.[].from", "rules.[].to"}; !slices.Equal(all, want) {
		t.Errorf("visited %q, want %q", all, want)
	}
	seen := 0
	if k.Spec().Walk(nil, func(path []string, _ *schema.Field) bool { seen++; return len(path) < 2 }) || seen != 3 {
		t.Errorf("%d fields were visited, want 3", seen)
	}
	if f := k.Spec().Under("rules").Under("7").Under("from"); f == nil || f.Ref != "x.y" {
		t.Errorf("rules.7.from is %v", f)
	}
	if k.Spec().Under("rule") != nil || k.Spec().Under("labels").Under("any").Under("more") != nil {
		t.Error("a name leads to what is not there")
	}
	if !k.Field("rules").HasRefs() || k.Field("labels").HasRefs() {
		t.Error("only rules refer to something")
	}
}

// TestNormalized: what has the form that is compared is returned as it is, all else is copied.
func TestNormalized(t *testing.T) {
	text := &schema.Field{Type: schema.String}
	rule := &schema.Field{Type: schema.Struct, Fields: []schema.Field{
		{Name: "ports", Type: schema.List, Elem: text, Set: true},
		{Name: "to", Type: schema.String},
	}}
	k := &schema.Kind{Fields: []schema.Field{
		{Name: "groups", Type: schema.Map, Elem: &schema.Field{Type: schema.List, Elem: text, Set: true}},
		{Name: "hops", Type: schema.List, Elem: text},
		{Name: "rules", Type: schema.List, Key: "to", Elem: rule},
	}}
	list := func(words ...any) []any { return words }
	sorted := func() schema.Object {
		return schema.Object{
			"groups": map[string]any{"a": list("x", "y")},
			"hops":   list("2", "1"),
			"rules":  list(map[string]any{"to": "a", "ports": list("1", "2")}, map[string]any{"to": "b"}),
			"other":  list("2", "1"),
		}
	}
	want := sorted()
	got := k.Normalized(want)
	if got["new"] = true; want["new"] != true {
		t.Error("what need not change was copied")
	}
	for name, change := range map[string]func(schema.Object){
		"a set in a map":            func(o schema.Object) { o["groups"].(map[string]any)["a"] = list("y", "x") },
		"a list with a key":         func(o schema.Object) { slices.Reverse(o["rules"].([]any)) },
		"a set in a list with keys": func(o schema.Object) { o["rules"].([]any)[0].(map[string]any)["ports"] = list("2", "1") },
	} {
		was, same := sorted(), sorted()
		change(was)
		change(same)
		if got := k.Normalized(was); !got.Equal(sorted()) {
			t.Errorf("%s: %v", name, got)
		}
		if !was.Equal(same) {
			t.Errorf("%s: what was given was modified: %v", name, was)
		}
	}
}
