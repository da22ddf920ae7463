package load

import (
	"fmt"
	"strings"
	"testing"
)

// A line break for the YAML library that the CUE library does not know is refused at its position; those that both know are not.
func TestYAMLLines(t *testing.T) {
	for text, want := range map[string]string{
		"\r\r0":                   "U+000D",
		"a: b\rc: d\n":            "U+000D",
		"# \u2028\na: b\n":        "U+2028",
		"a: \"\u2029\"\n":         "U+2029",
		"a: \u0085\n":             "U+0085",
		"a: b\r\n\r\nc: d\r\n":    "",
		"a: \"\\r\\u2028\"\nc: d": "",
	} {
		f := checkYAML(Source{Name: "a.yaml", Data: []byte(text)})
		switch {
		case want == "" && f != nil:
			t.Errorf("%q is refused: %s", text, f.detail)
		case want != "" && (f == nil || !strings.Contains(f.detail, want)):
			t.Errorf("%q is not refused for %s: %v", text, want, f)
		case want != "" && fmt.Sprintf("%U", []rune(text[f.offset:])[0]) != want:
			t.Errorf("%q: the mistake is said to be at %d, where there is no %s", text, f.offset, want)
		}
	}
}
