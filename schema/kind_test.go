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
