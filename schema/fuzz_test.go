package schema_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/schema"
)

// FuzzParseRef checks that a ref is the same after it was written and read, in every form that it has.
func FuzzParseRef(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range []string{
		"site/carbide.vpc/prod", "gpu-01/ovs.bridge/br-slice", "site/pci.function/0000:3b:00.0", "", "/", "//", "///", "a/b/c", "a/./b",
		"a/b.c/", "/b.c/d", "a/b.c/d/e", "../b.c/..", "a/b.c/\x00", "a/b.c/\xff", "site/carbide.vpc/\u202eprod", "a\n/b.c/d", "a/.../b",
		"site/carbide.vpc/prod#1", " a / b.c / d ", strings.Repeat("a", 300) + "/b.c/d",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > budget.Largest {
			return
		}
		var r schema.Ref
		var err error
		budget.Spend(t, func() { r, err = schema.ParseRef(s) })
		if err != nil {
			if !r.IsZero() {
				t.Errorf("%q is refused and gives %+v", s, r)
			}
			return
		}
		if r.IsZero() || r.String() != s || r.Scope == "" || r.Name == "" || strings.Contains(r.Scope+r.Name, "/") {
			t.Errorf("%q reads as %+v", s, r)
		}
		text, err := r.MarshalText()
		var back schema.Ref
		if err != nil || back.UnmarshalText(text) != nil || back != r {
			t.Errorf("%q comes back as %+v", s, back)
		}
		if r.Compare(back) != 0 {
			t.Errorf("%q does not compare with itself", s)
		}
	})
}

// FuzzObject checks that a JSON object is the same after it was written, digest for digest.
func FuzzObject(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range []string{
		`{}`, `null`, `[]`, `{"a":1}`, `{"a":1.0}`, `{"a":1e3}`, `{"a":-0}`, `{"a":0.1}`, `{"a":9223372036854775807}`, `{"a":9223372036854775808}`,
		`{"a":1e400}`, `{"a":[1,2.5,"x",null,true,{"b":[]}]}`, `{"a":"\u0000\ud83d\ude00"}`, `{"a":"<&>"}`, `{"a":9007199254740993.0}`,
		`{"a":1,"a":2}`, `{"":{"":{"":{}}}}`, "{\"a\":\"\xff\"}", `{"a":1e-400}`, `{"a":-1e18}`, `{"a":1e18}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > budget.Largest {
			return
		}
		var o, again schema.Object
		var err error
		budget.Spend(t, func() { err = o.UnmarshalJSON(b) })
		if err != nil || o == nil {
			return
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatalf("%q reads as what is no JSON: %v", b, err)
		}
		if err := again.UnmarshalJSON(text); err != nil {
			t.Fatalf("%q is written as %q, which does not read: %v", b, text, err)
		}
		if !reflect.DeepEqual(o, again) || o.Digest() != again.Digest() {
			t.Errorf("%q is written as %q, which reads otherwise: %#v, %#v", b, text, o, again)
		}
		if c := o.Clone(); !reflect.DeepEqual(o, c) {
			t.Errorf("the copy of %#v is %#v", o, c)
		}
	})
}
