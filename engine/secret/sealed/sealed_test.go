package sealed

import (
	"strings"
	"testing"

	"converge.dev/converge/schema"
)

// TestEach checks that Each visits every secret once, with its path, and copies what it changes.
func TestEach(t *testing.T) {
	secret := schema.Field{Name: "value", Type: schema.Struct, Secret: true}
	k := &schema.Kind{Name: "a.b", Fields: []schema.Field{
		{Name: "keys", Type: schema.List, Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{secret}}},
		{Name: "map", Type: schema.Map, Elem: &secret},
		{Name: "plain", Type: schema.String},
		secret,
	}}
	spec := schema.Object{
		"keys": []any{map[string]any{"value": "1"}, map[string]any{}}, "map": map[string]any{"k": "2"}, "plain": "3", "value": "4", "unknown": "5",
	}
	seen := map[string]any{}
	out, err := Each(k, spec, func(path string, v any) (any, error) { seen[path] = v; return "x", nil })
	if err != nil || len(seen) != 3 || seen["keys[0].value"] != "1" || seen["map.k"] != "2" || seen["value"] != "4" {
		t.Errorf("%v, %v", seen, err)
	}
	if spec["value"] != "4" || out["value"] != "x" || out["plain"] != "3" || spec["map"].(map[string]any)["k"] != "2" {
		t.Errorf("%v became %v", spec, out)
	}
	if !Held(k) || Held(&schema.Kind{Fields: []schema.Field{{Name: "plain", Type: schema.String}}}) {
		t.Error("Held is wrong")
	}
	if !IsDigest(Algorithm+strings.Repeat("0", 64)) || IsDigest(Algorithm) || IsDigest(strings.Repeat("0", 76)) {
		t.Error("IsDigest is wrong")
	}
}
