package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/internal/loadtest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// documents are small documents, good and bad, for everything that reads documents.
var documents = []string{
	``, `{}`, `null`, `[]`, `"x"`, `{"a":1}{"b":2}`, `{"a":1,"a":2}`, `{"a":{"b":[1,2.5,1e3,-0,true,null,"x"]}}`, `{"a":"\u0000"}`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}",
	`{"a":99999999999999999999}`, `{"a":1e400}`, `{"a":1e18}`, `{"a":0.1e-5}`, `{"a":"<&>\u2028"}`, `{"":{"":1}}`, `{"a":1,}`, `{"a"`, "\ufeff{}", `{"\u0061":1,"a":2}`, `{"A":1,"a":2}`,
	`{"apiVersion":"converge.dev/v1","site":{"name":"x","id":"` + loadtest.SiteID + `"}}`,
	`{"apiVersion":"converge.dev/v1","site":{"name":"x","id":"` + loadtest.SiteID + `","serial":3},"policy":{"max_destroy":"10%"},"carbide":{"tenant":{"acme":{"display_name":"A < B"}},"vpc":{"prod":{"tenant":"acme","vni":70000,"labels":{"env":"\u001b[31m"}}}},"nodes":{"gpu-01":{"ovs":{"bridge":{"br":{"fail_mode":"secure","protocols":["OpenFlow14","OpenFlow10"]}},"port":{"p":{"bridge":"br","tag":7,"interface":{"type":"internal"}}}}}}}`,
	`{"apiVersion":"converge.dev/v2","site":{},"nodes":[],"carbide":{"vpc":{"":{},"a/b":{},"\u202e":{"tenant":1,"nope":{}}},"nope":{}},"__proto__":{}}`,
	`{"apiVersion":"converge.dev/v1","site":{"name":"x","id":"` + loadtest.SiteID + `"},"carbide":{"tenant":{"a1":{"depends_on":["site/carbide.tenant/a1","x","site/ovs.bridge/\u001b[2J"],"lifecycle":{"ignore":["a.b.c","display_name"]},"timeouts":{"create":"999999999h"}}}}}`,
}

// FuzzDocument reads documents strictly. What it accepts every JSON reader accepts, as the same values; it has one
// canonical form.
func FuzzDocument(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, d := range documents {
		f.Add([]byte(d))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > budget.Largest {
			return
		}
		var doc map[string]any
		var fault *fault
		budget.Spend(t, func() { doc, fault = decodeJSON(data) })
		if fault != nil {
			var ds Diagnostics
			budget.Spend(t, func() { ds = (&origin{sources: []Source{{Name: "a.json", Data: data}}, json: data}).fault(fault) })
			tellable(t, ds)
			return
		}
		if !jsontext.Value(data).IsValid() { // no name twice, no bad UTF-8
			t.Errorf("%q is taken and is no strict JSON", data)
		}
		var plain schema.Object
		if err := plain.UnmarshalJSON(data); err != nil || !reflect.DeepEqual(map[string]any(plain), doc) {
			t.Fatalf("%q reads as %#v, and for package json as %#v, %v", data, doc, plain, err)
		}
		text := canonical.Append(nil, doc)
		again, fault := decodeJSON(text)
		if fault != nil || !reflect.DeepEqual(again, doc) || !bytes.Equal(canonical.Append(nil, again), text) {
			t.Errorf("%q is written as %q, which reads as %#v, %v", data, text, again, fault)
		}
		if !json.Valid(text) {
			t.Errorf("%q is written as %q", data, text)
		}
	})
}

// FuzzLoad loads documents completely. A refusal can be shown; what is accepted is the same document when it is loaded from
// its own JSON.
func FuzzLoad(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, d := range documents {
		f.Add([]byte(d))
	}
	s := embedded(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > budget.Largest {
			return
		}
		var doc *schema.Document
		var ds Diagnostics
		budget.Spend(t, func() { doc, ds = Document(context.Background(), s, Options{}, Source{Name: "a.json", Data: data}) })
		tellable(t, ds)
		if doc == nil {
			if !ds.HasErrors() {
				t.Errorf("%q is no document, and nothing is wrong", data)
			}
			return
		}
		again, ds := Document(context.Background(), s, Options{}, Source{Name: "b.json", Data: doc.JSON})
		if again == nil || again.Digest != doc.Digest || !reflect.DeepEqual(again.Resources, doc.Resources) {
			t.Errorf("%q is stored as %q, which is another document: %v", data, doc.JSON, ds)
		}
		for _, r := range doc.Resources {
			if back, err := schema.ParseRef(r.Ref.String()); err != nil || back != r.Ref {
				t.Errorf("the ref %q reads as %+v, %v", r.Ref, back, err)
			}
		}
	})
}

// FuzzYAML checks YAML before anything evaluates it, and evaluates what passes.
func FuzzYAML(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, d := range documents {
		f.Add([]byte(d))
	}
	for _, d := range []string{
		"apiVersion: converge.dev/v1\nsite: {name: x, id: " + loadtest.SiteID + "}\ncarbide:\n  tenant: {acme: {}}\n", "a: &a [*a]\n", "a0: &a0 [x, x]\na1: &a1 [*a0, *a0]\n", "a: &x {b: 1}\nc: {<<: *x}\n",
		"- a\n", "a: b\n---\nc: d\n", "a: !!binary aGk=\n", "a: !!float 1\n", "? [a]\n: b\n", "a: 0o17\nb: 0x1F\nc: 1_000\nd: .inf\ne: .nan\n", "a: 2001-12-14t21:59:43.10-05:00\n", "a: |\n  x\n  y\n",
		"a: 'x\n", "\ta: b\n", "a: @b\n", "%YAML 1.2\n---\na: b\n", "a: *nobody\n", "yes: no\n", "~: 1\n", "1: a\n", "a: 1\na: 2\n", "\"\\x00\": 1\n", strings.Repeat("a: {", 50), strings.Repeat("- ", 50), "#", "a: [\n",
		"&a a: *a\n", "a: &a\n  b: *a\n", "*a : b\n", "{a: b}: c\n", "a: \"\\ud800\"\n", "a: !<tag:x> b\n",
		"\r\r0", "a: b\r\nc: d\r\n", "# \u2028\na: \"\u0085\"\n",
	} {
		f.Add([]byte(d))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 { // what passes is evaluated by CUE, which has limits only in a process of its own
			return
		}
		src := Source{Name: "a.yaml", Data: data}
		var fault *fault
		budget.Spend(t, func() { fault = checkYAML(src) })
		if fault != nil {
			tellable(t, (&origin{sources: []Source{src}, json: data}).fault(fault))
			return
		}
		e, ds := evaluateHere(context.Background(), []Source{src})
		tellable(t, (&origin{sources: []Source{src}}).snippets(ds))
		if e == nil {
			return
		}
		if _, f := decodeJSON(e.JSON); f != nil && f.code != codeTooLarge && f.code != codeSyntax {
			t.Errorf("%q evaluates to %q, which is refused: %s", data, e.JSON, f.detail)
		}
	})
}

// FuzzFormatCUE passes text to the parser of CUE and its printer, which is all of CUE that sees a document outside a
// process with limits.
func FuzzFormatCUE(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, d := range documents {
		f.Add([]byte(d))
	}
	for _, d := range []string{
		"package site\n\na: b: 1\n", "a: [for x in [1, 2] {x}]", "import \"list\"\na: list.Range(0, 9, 1)", "#A: {x!: int, y?: *1 | int}\na: #A & {x: 1}", `a: "\(b)"`, "a: '''\n\tx\n\t'''", "// c\na: 1 // d\n", "a: @x(y)\n",
		"a: _|_", "if true {a: 1}", "let x = 1\na: x", "a: [...]", "a: {[string]: int}", "@if(x)\n", "a: 1_000Ki", "a: #\"x\\#(b)\"#", "a: ((((1))))", "a: {b: c: d: 1}", "a:\n", "\"a\": \"\\u0000\"", "package \u202e", "a: 0x", "a~b: 1",
	} {
		f.Add([]byte(d))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		var text []byte
		var err error
		budget.Spend(t, func() { text, err = Format(Source{Name: "a.cue", Data: data}) })
		if err != nil {
			tellableText(t, err.Error())
			return
		}
		if again, err := Format(Source{Name: "a.cue", Data: text}); err != nil {
			t.Errorf("%q is laid out as %q, which does not read: %v", data, text, err)
		} else if _, err := Format(Source{Name: "a.cue", Data: again}); err != nil {
			t.Errorf("%q is laid out as %q and then as %q, which does not read: %v", data, text, again, err)
		}
	})
}

// FuzzFormatJSON formats JSON: the same values, numbers as they were written, and formatting again changes nothing.
func FuzzFormatJSON(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, d := range documents {
		f.Add([]byte(d))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > budget.Largest {
			return
		}
		var text []byte
		var err error
		budget.Spend(t, func() { text, err = Format(Source{Name: "a.json", Data: data}) })
		if err != nil {
			return
		}
		before, _ := decodeJSON(data)
		after, fault := decodeJSON(text)
		if fault != nil || !reflect.DeepEqual(before, after) || !slices.Equal(numbers(t, data), numbers(t, text)) {
			t.Errorf("%q is laid out as %q", data, text)
		}
		if again, err := Format(Source{Name: "a.json", Data: text}); err != nil || !bytes.Equal(again, text) {
			t.Errorf("%q is laid out as %q and then as %q, %v", data, text, again, err)
		}
	})
}

// numbers returns the numbers of a text as they are written.
func numbers(t *testing.T, data []byte) (list []string) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := tok.(json.Number); ok {
			list = append(list, n.String())
		}
	}
}

// tellable fails when something in diagnostics cannot be shown.
func tellable(t *testing.T, ds Diagnostics) {
	t.Helper()
	for _, d := range ds {
		if d.Code == "" || d.Summary == "" || d.Detail == "" {
			t.Errorf("%+v says nothing", d)
		}
		if start, end := d.Highlight(); start < 0 || end < start || end > len(d.Snippet) {
			t.Errorf("%+v points at %d to %d", d, start, end)
		}
		tellableText(t, d.String())
		tellableText(t, d.Snippet)
	}
}

func tellableText(t *testing.T, text string) {
	t.Helper()
	if len(text) > 1<<20 {
		t.Errorf("it says %d bytes", len(text))
	}
	for i, r := range text {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' || r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			t.Errorf("%q holds %U as it is", text, r)
			return
		}
	}
}
