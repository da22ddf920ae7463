package schema_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/schema"
)

// anyValue draws trees of JSON values as an object has them.
func anyValue(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		switch kind := rapid.IntRange(0, 6).Draw(t, "kind"); {
		case kind == 0:
			return nil
		case kind == 1:
			return rapid.Bool().Draw(t, "bool")
		case kind == 2:
			return rapid.Int64().Draw(t, "integer")
		case kind == 3:
			return rapid.Float64Range(-1e9, 1e9).Filter(func(f float64) bool { return f != math.Trunc(f) }).Draw(t, "fraction")
		case kind == 4 || depth == 0:
			return rapid.String().Draw(t, "text")
		case kind == 5:
			return rapid.SliceOfN(anyValue(depth-1), 0, 3).Draw(t, "list")
		}
		return map[string]any(anyObject(depth-1).Draw(t, "object"))
	})
}

func anyObject(depth int) *rapid.Generator[schema.Object] {
	return rapid.Custom(func(t *rapid.T) schema.Object {
		return rapid.MapOfN(rapid.StringN(0, 3, 9), anyValue(depth), 0, 3).Draw(t, "members")
	})
}

// An object stays the same when it is copied, or written and read. What is equal has one digest, and nothing else has it.
func TestObjectsAreValues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyObject(2).Draw(t, "one"), anyObject(2).Draw(t, "other")
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		var read schema.Object
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		if !read.Equal(a) || read.Digest() != a.Digest() {
			t.Errorf("%s reads as %v", text, read)
		}
		if !a.Clone().Equal(a) || a.Clone().Digest() != a.Digest() {
			t.Errorf("%s is not its copy", text)
		}
		if a.Equal(b) != (a.Digest() == b.Digest()) || a.Equal(b) != b.Equal(a) {
			t.Errorf("%v equals %v: %t", a, b, a.Equal(b))
		}
		changed := a.Clone()
		changed["more"] = []any{}
		if changed.Equal(a) || changed.Digest() == a.Digest() {
			t.Errorf("%s equals one with more", text)
		}
	})
}

func TestObjectIsRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]schema.Object{
		`{"a": [1, 2.0, 2.5, 1e3, null, true, "x"]}`: {"a": []any{int64(1), int64(2), 2.5, int64(1000), nil, true, "x"}},
		`{"a\u0062": {}}`: {"ab": map[string]any{}},
		`null`:            nil,
	} {
		var o schema.Object
		if err := json.Unmarshal([]byte(text), &o); err != nil || !o.Equal(want) || (o == nil) != (want == nil) {
			t.Errorf("%s reads as %v: %v", text, o, err)
		}
	}
	for _, text := range []string{`[]`, `7`, `"x"`, `{"a": 1, "a": 1}`, `{"a": {"b": 1, "\u0062": 1}}`, `{"a": 1e999}`} {
		var o schema.Object
		if err := json.Unmarshal([]byte(text), &o); err == nil {
			t.Errorf("%s reads as %v", text, o)
		}
	}
	for _, text := range []string{`{"a": 1} {}`, `{"a": 1}]`, `{"a": 1} x`, `null 7`, ``} { // which package json does not give to it
		if o := (schema.Object{}); o.UnmarshalJSON([]byte(text)) == nil {
			t.Errorf("%s reads as %v", text, o)
		}
	}
}

// A value that no JSON has is a mistake of the program, and has no digest that another value could share.
func TestOnlyJSONHasADigest(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("it has a digest")
		}
	}()
	schema.Object{"n": 7}.Digest() // an int, not an int64
}

func TestRefs(t *testing.T) {
	t.Parallel()
	to := schema.Field{Type: schema.String, Ref: "x.net"}
	k := &schema.Kind{Fields: []schema.Field{
		{Name: "net", Type: schema.String, Ref: "x.net"},
		{Name: "text", Type: schema.String},
		{Name: "list", Type: schema.List, Elem: &to},
		{Name: "map", Type: schema.Map, Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{{Name: "host", Type: schema.String, Ref: "x.host"}}}},
		{Name: "free", Type: schema.List},
	}}
	spec := schema.Object{
		"net": "a", "text": "t", "list": []any{"b", "", "c"}, "map": map[string]any{"k": map[string]any{"host": "h", "other": "o"}}, "free": []any{"f"},
	}
	before := spec.Clone()
	var read, replaced []string
	for kind, value := range k.Refs(spec) {
		read = append(read, kind+" "+value)
	}
	if want := []string{"x.net a", "x.net b", "x.net c", "x.host h"}; !slices.Equal(read, want) || !spec.Equal(before) {
		t.Errorf("it refers to %q, want %q; the spec is %v", read, want, spec)
	}
	k.ReplaceRefs(spec, func(kind, value string) string {
		replaced = append(replaced, kind+" "+value)
		return value + "!"
	})
	want := schema.Object{
		"net": "a!", "text": "t", "list": []any{"b!", "", "c!"}, "map": map[string]any{"k": map[string]any{"host": "h!", "other": "o"}}, "free": []any{"f"},
	}
	if !slices.Equal(replaced, read) || !spec.Equal(want) {
		t.Errorf("%q were replaced: %v", replaced, spec)
	}
	for range k.Refs(spec) {
		break // no more is read
	}
}
