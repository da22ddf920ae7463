package load

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name, text string
		code       string
		offset     int64
		path       string
	}{
		{"nothing", "", codeSyntax, 0, ""},
		{"blanks", " \n\t", codeSyntax, 0, ""},
		{"a list", "[]", codeSyntax, 0, ""},
		{"a text", `"x"`, codeSyntax, 0, ""},
		{"an open object", `{"a":1`, codeSyntax, 6, ""},
		{"something behind", "{} {}", codeSyntax, 4, ""},
		{"a comma too many", `{"a":1,}`, codeSyntax, 6, ""},
		{"a comment", `{"a":1 /* one */}`, codeSyntax, 7, ""},
		{"a name twice", `{"a":{"b":1,"b":1}}`, codeDuplicateName, 12, "a.b"},
		{"a name twice, spelt differently", `{"b":1,"\u0062":1}`, codeDuplicateName, 7, "b"},
		{"bad UTF-8 in a name", "{\"a\xff\":1}", codeSyntax, 3, ""},
		{"bad UTF-8 in a value", "{\"a\":\"\xc3\x28\"}", codeSyntax, 6, "a"},
		{"a lone surrogate", `{"a":"\ud800"}`, codeSyntax, 6, "a"},
		{"a NUL byte", "{\"a\":\"\x00\"}", codeSyntax, 6, "a"},
		{"a NUL character", `{"a":"x\u0000"}`, codeSyntax, 14, "a"},
		{"a byte order mark", "\ufeff{}", codeSyntax, 0, ""},
		{"a number too large", `{"a":1e400}`, codeSyntax, 10, "a"},
		{"a whole number too large", `{"a":9223372036854775808}`, codeSyntax, 24, "a"},
		{"a number that is none", `{"a":NaN}`, codeSyntax, 5, "a"},
		{"a leading zero", `{"a":01}`, codeSyntax, 6, ""},
		{"depth", strings.Repeat(`{"a":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1), codeTooLarge, 5*maxDepth - 1, strings.TrimPrefix(strings.Repeat(".a", maxDepth), ".")},
		{"a long name", `{"` + strings.Repeat("a", maxName+1) + `":1}`, codeTooLarge, maxName + 4, strings.Repeat("a", maxName+1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc, f := decodeJSON([]byte(c.text))
			if f == nil {
				t.Fatalf("read %v", doc)
			}
			if f.code != c.code || f.offset != c.offset || strings.Join(f.path, ".") != c.path || f.detail == "" {
				t.Errorf("refused with %s at byte %d, path %q: %s; want %s at byte %d, path %q", f.code, f.offset, strings.Join(f.path, "."), f.detail, c.code, c.offset, c.path)
			}
		})
	}
}

func TestDecodeAccepts(t *testing.T) {
	text := ` {"a": -9223372036854775808, "b": 1.5, "c": 1.0, "d": [true, false, null, []], "e": {"\u00e4\n": "ä\"\\", "f": ""}, "__proto__": {}} `
	want := map[string]any{
		"a": int64(-9223372036854775808), "b": 1.5, "c": int64(1), "d": []any{true, false, nil, []any{}},
		"e": map[string]any{"ä\n": `ä"\`, "f": ""}, "__proto__": map[string]any{},
	}
	got, f := decodeJSON([]byte(text))
	if f != nil {
		t.Fatal(f)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	deep := strings.Repeat(`{"a":`, maxDepth) + "1" + strings.Repeat("}", maxDepth)
	if _, f := decodeJSON([]byte(deep)); f != nil {
		t.Errorf("the deepest document: %v", f)
	}
}

// FuzzDecodeJSON compares the decoder with the lenient one of the standard library: what ours accepts theirs accepts too,
// with the same result, and the canonical form is a fixed point.
func FuzzDecodeJSON(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, seed := range []string{
		`{}`, `{"a":1}`, `{"a":{"b":[1,2.5,-3e2,"x",null,true]}}`, `{"nodes":{"n":{"ovs":{"bridge":{"b":{}}}}}}`,
		`{"a":1,"a":2}`, `{"a":"\ud83d\ude00\u0000"}`, "{\"a\":\"\xff\"}", `{"carbide":{"vpc":{"prod":{"vni":7001}}}}`, `[1`, `{"a":1e999}`, `{"<":"&\u2028"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, fault := decodeJSON(data)
		if fault != nil {
			if fault.offset < 0 || fault.offset > int64(len(data)) || summaries[fault.code] == "" || fault.detail == "" {
				t.Fatalf("fault %+v of %q", fault, data)
			}
			(&origin{sources: []Source{{Name: "f.json"}}, json: data}).fault(fault)
			return
		}
		var want schema.Object
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("%q is accepted, but not JSON: %v", data, err)
		}
		if diff := cmp.Diff(map[string]any(want), got); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", data, diff)
		}
		text := canonical.Append(nil, got)
		again, fault := decodeJSON(text)
		if fault != nil {
			t.Fatalf("canonical %q: %v", text, fault)
		}
		if twice := canonical.Append(nil, again); !bytes.Equal(text, twice) {
			t.Fatalf("canonical form is not stable: %q, %q", text, twice)
		}
	})
}

func TestLocate(t *testing.T) {
	text := `{"a": {"b": [10, {"c": "x"}], "a": "\"}{"}, "d": null}`
	for _, c := range []struct{ path, want string }{
		{"", "{"},
		{"a", `"a"`},
		{"a.b", `"b"`},
		{"a.b.0", "10"},
		{"a.b.1", "{"},
		{"a.b.1.c", `"c": "x"`},
		{"a.a", `"a": "\"}{"`},
		{"d", `"d": null`},
		{"d.e", `"d": null`}, // absent: the deepest on the way
		{"a.b.7.x", `"b"`},
		{"x", "{"},
	} {
		var path []string
		if c.path != "" {
			path = strings.Split(c.path, ".")
		}
		p := locate([]byte(text), [][]string{{"a", "b"}, path, {"d"}})[1]
		if got := text[p.start:p.end]; got != c.want {
			t.Errorf("%s is at %q, want %q", c.path, got, c.want)
		}
	}
}
