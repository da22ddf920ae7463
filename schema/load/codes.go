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
	codeTooLarge:      "Document too large",
	codeEvaluation:    "Evaluation failed",
	codeIncomplete:    "Value not given",
	codeLimit:         "Evaluation stopped",
	codeInterrupted:   "Loading interrupted",
	codeLeftOut:       "File left out",
}

// remedies holds, for each code of reading, what must be so, or what to do.
var remedies = map[string]string{
	codeTooMany:       "Mend what is shown and validate again: what is not shown is often the same mistake, or its consequence.",
	codeSyntax:        "A document is CUE, JSON or YAML as the name of its file says.",
	codeDuplicateName: "A name is there once. Which of two was meant is not guessed.",
	codeTooLarge:      "A document stays within the limits of size, depth and number of values. Split off what is generated, or have less of it.",
	codeEvaluation:    "The files of a document agree with each other, and with the schema, when CUE puts them together. Both places are named.",
	codeIncomplete:    "Every value of a document is given: none is left as a type or as a choice.",
	codeLimit:         "A document is evaluated within the limits of time and memory. Simplify its CUE, or raise -eval-timeout or -eval-memory for one that you trust.",
	codeInterrupted:   "Loading was stopped from outside. Nothing is known of the document; do it again.",
	codeLeftOut:       "Of a folder the CUE files are the document, and the JSON and YAML files that have converge's apiVersion. Name a file to have it taken whatever it says.",
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
