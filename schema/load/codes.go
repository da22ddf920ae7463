package load

import (
	"bytes"
	"context"
	"embed"
	"io/fs"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"

	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

// Codes of the problems that keep a document from being read. Those of what a schema refuses are in package kinds, those of
// the rules in the table of rules.
const (
	codeTooMany       = "CV1050"
	codeSyntax        = "CV1051"
	codeDuplicateName = "CV1052"
	codeTooLarge      = "CV1053"
	codeEvaluation    = "CV1054"
	codeIncomplete    = "CV1055"
	codeLimit         = "CV1056"
	codeInterrupted   = "CV1057"
	codeLeftOut       = "CV1058"
)

// summaries holds the constant summary of each code of reading.
var summaries = map[string]string{
	codeTooMany:       "More problems",
	codeSyntax:        "Unreadable document",
	codeDuplicateName: "Duplicate name",
	codeTooLarge:      "Document is too large",
	codeEvaluation:    "Evaluation failed",
	codeIncomplete:    "Value is incomplete",
	codeLimit:         "Evaluation limit exceeded",
	codeInterrupted:   "Loading interrupted",
	codeLeftOut:       "File skipped",
}

// remedies holds, for each code of reading, what must be so, or what to do.
var remedies = map[string]string{
	codeTooMany:       "Fix the problems shown and validate again: the others are often the same mistake, or its consequence.",
	codeSyntax:        "A document must be CUE, JSON or YAML, as its file name says.",
	codeDuplicateName: "A name must be unique within its object. converge does not guess which of two was meant.",
	codeTooLarge:      "A document must stay within the limits on size, depth and number of values. Split off what is generated, or generate less.",
	codeEvaluation:    "The files of a document must not conflict with each other or with the schema when CUE unifies them. Both places are shown.",
	codeIncomplete:    "Every value of a document must be concrete: none may be left as a type or a choice.",
	codeLimit:         "A document must evaluate within the limits on time and memory. Simplify its CUE, or raise -eval-timeout or -eval-memory if you trust the document.",
	codeInterrupted:   "Loading was interrupted from outside, so nothing is known about the document. Try again.",
	codeLeftOut:       "In a directory, the document consists of the CUE files and of the JSON and YAML files that have converge's apiVersion. A file that you name explicitly is always loaded.",
}

// A Code describes what diagnostics with that code have in common. Codes stay forever.
type Code struct {
	Code    string `json:"code"`
	Name    string `json:"name,omitempty"` // of the rule
	Summary string `json:"summary"`        // what is wrong
	Doc     string `json:"doc"`            // what must be so, or what to do
}

// Codes lists all codes that a diagnostic may have, in their order.
func Codes() []Code {
	var all []Code
	for code, summary := range summaries {
		all = append(all, Code{Code: code, Summary: summary, Doc: remedies[code]})
	}
	for _, c := range kinds.Codes() {
		all = append(all, Code{Code: c.Code, Summary: c.Summary, Doc: c.Doc})
	}
	for _, r := range rules.All() {
		all = append(all, Code{Code: r.Code, Name: r.Name, Summary: r.Summary, Doc: r.Doc + "."})
	}
	slices.SortFunc(all, func(a, b Code) int { return strings.Compare(a.Code, b.Code) })
	return all
}

// wrong holds documents with mistakes, and their diagnostics; tests keep them up to date.
//
//go:embed testdata/wrong/*.txtar
var wrong embed.FS

// Example loads a wrong document and returns a diagnostic of it with the given code; ok is false when there is no example.
func Example(ctx context.Context, s *kinds.Schema, code string) (d Diagnostic, ok bool) {
	names, _ := fs.Glob(wrong, "testdata/wrong/*.txtar")
	for _, name := range names {
		text, err := wrong.ReadFile(name)
		if err != nil || !bytes.Contains(text, []byte(" "+code+": ")) {
			continue
		}
		var sources []Source
		for _, f := range txtar.Parse(text).Files {
			if f.Name != "want" {
				sources = append(sources, Source{Name: f.Name, Data: f.Data})
			}
		}
		_, ds := Document(ctx, s, Options{}, sources...)
		if i := slices.IndexFunc(ds, func(d Diagnostic) bool { return d.Code == code }); i >= 0 {
			return ds[i], true
		}
	}
	return Diagnostic{}, false
}
