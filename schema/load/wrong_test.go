package load

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// TestWrongDocuments loads each of testdata/wrong: files that form a document, and under "want" its diagnostics.
func TestWrongDocuments(t *testing.T) {
	s := embedded(t)
	cases, err := filepath.Glob("testdata/wrong/*.txtar")
	if err != nil || len(cases) < 12 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, name := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var sources []Source
			var inputs []txtar.File
			want := ""
			for _, f := range archive.Files {
				if f.Name == "want" {
					want = string(f.Data)
					continue
				}
				inputs = append(inputs, f)
				sources = append(sources, Source{Name: f.Name, Data: f.Data})
			}
			doc, ds := Document(context.Background(), s, Options{}, sources...)
			if doc != nil || !ds.HasErrors() {
				t.Errorf("the document is accepted")
			}
			for _, d := range ds {
				if d.Range == nil || d.Detail == "" || d.Summary == "" || d.Code == "" {
					t.Errorf("incomplete: %+v", d)
				}
			}
			got := render(ds)
			if *update {
				archive.Files = append(inputs, txtar.File{Name: "want", Data: []byte(got)})
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("diagnostics (-want +got):\n%s", diff)
			}
		})
	}
}

// render shows diagnostics with their lines, the highlighted part underlined.
func render(ds Diagnostics) string {
	var b strings.Builder
	for i, d := range ds {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintln(&b, d)
		if d.Snippet == "" {
			continue
		}
		start, end := d.Highlight()
		lead := strings.Map(func(r rune) rune {
			if r == '\t' {
				return r
			}
			return ' '
		}, d.Snippet[:start])
		fmt.Fprintf(&b, "\t| %s\n\t| %s%s\n", d.Snippet, lead, strings.Repeat("^", max(end-start, 1)))
	}
	return b.String()
}

// TestEveryRuleIsShown checks that there is a wrong document for every rule.
func TestEveryRuleIsShown(t *testing.T) {
	all := ""
	cases, _ := filepath.Glob("testdata/wrong/*.txtar")
	for _, name := range cases {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all += string(b)
	}
	seen := make(map[string]bool)
	for _, r := range rules.All() {
		if seen[r.Code] || seen[r.Name] || r.Code < "CV1101" || r.Doc == "" || r.Summary == "" {
			t.Errorf("rule %+v: want a code from CV1101 and a name, both its own, and words", r)
		}
		seen[r.Code], seen[r.Name] = true, true
		if !strings.Contains(all, " "+r.Code+": ") {
			t.Errorf("no document in testdata/wrong breaks %s %s", r.Code, r.Name)
		}
	}
}

// Every code can be explained: in words, and, except for a few that no small document causes, with an example.
func TestEveryCodeIsExplained(t *testing.T) {
	s := embedded(t)
	without := map[string]bool{"CV1013": true, codeTooMany: true, codeLimit: true, codeInterrupted: true, codeLeftOut: true}
	seen := make(map[string]bool)
	for _, c := range Codes() {
		if seen[c.Code] || c.Summary == "" || c.Doc == "" {
			t.Errorf("%+v: want a code of its own, and words", c)
		}
		seen[c.Code] = true
		if d, ok := Example(context.Background(), s, c.Code); ok == without[c.Code] || ok && d.Code != c.Code {
			t.Errorf("%s has the example %+v, %v", c.Code, d, ok)
		}
	}
}

// Every kind has an example, all of which are one valid document; and what a kind accepts is said in words, not patterns.
func TestExample(t *testing.T) {
	s := embedded(t)
	doc, ds := Document(t.Context(), s, Options{}, Source{Name: "example.cue", Data: []byte(schema.Example)})
	if len(ds) > 0 {
		t.Fatalf("the example is not valid:\n%s", render(ds))
	}
	has := make(map[string]bool)
	for _, r := range doc.Resources {
		has[r.Ref.Kind] = true
	}
	for name, k := range s.Kinds() {
		text, err := s.Describe(name)
		if err != nil {
			t.Fatal(err)
		}
		part := kinds.Example(k)
		if !has[name] || part == "" || !strings.Contains(text, "\nexample\n\n    "+part[:10]) {
			t.Errorf("%s has the example %q", name, part)
		}
		if strings.Contains(text, "matches ^") {
			t.Errorf("%s is described by a pattern; give it a definition with a comment:\n%s", name, text)
		}
	}
	if part := kinds.Example(s.Kinds()["ovs.bridge"]); !strings.HasPrefix(part, `nodes: "gpu-01": ovs: bridge: `) {
		t.Errorf("the example of ovs.bridge is %q", part)
	}
}
