package load

import (
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct{ name, in, out string }{
		{"a.cue", "// the site\nsite:{name:  \"x\"}// inline\n", "// the site\nsite: {name: \"x\"} // inline\n"},
		{"a.json", `{"b":1.50,"a":[1e2,{}],"c":"\u00e4"}`, "{\n  \"b\": 1.50,\n  \"a\": [\n    1e2,\n    {}\n  ],\n  \"c\": \"\\u00e4\"\n}\n"},
		{"a.yaml", "# the site\n\nsite:   {name: x} # inline\n", "# the site\n\nsite:   {name: x} # inline\n"},
	} {
		got, err := Format(Source{Name: c.name, Data: []byte(c.in)})
		if err != nil || string(got) != c.out {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.out)
		}
		again, err := Format(Source{Name: c.name, Data: got})
		if err != nil || string(again) != c.out {
			t.Errorf("%s: formatted twice: %q, %v", c.name, again, err)
		}
	}
	for _, c := range []struct{ name, in, want string }{
		{"a.cue", "a: {\n", "a.cue:1:"},
		{"a.cue", "a: \"\xff\"\n", "a.cue:1:5: error CV1051: Unreadable document: This is not text: byte 4 is 0xff"},
		{"a.json", "{\n\"a\": }", "a.json:2:6"},
		{"a.json", `{"a":1,"a":2}`, "twice"},
		{"a.yaml", "a: 1\n b: 2\n", "a.yaml:2:1"},
	} {
		if out, err := Format(Source{Name: c.name, Data: []byte(c.in)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %q: %q, %v, want an error with %q", c.name, c.in, out, err, c.want)
		}
	}
	if _, err := Format(Source{Name: "dir", Dir: true}); err == nil {
		t.Error("a directory is formatted")
	}
}
