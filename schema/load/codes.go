package load

import (
	"bytes"
	"context"
	"embed"
	"io/fs"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// Codes of what the schema refuses. They are stable: tests, filters and `converge explain CODE` name them.
const (
	codeUnknownField    = "CV1001"
	codeMissingField    = "CV1002"
	codeWrongType       = "CV1003"
	codeOutOfRange      = "CV1004"
	codePattern         = "CV1005"
	codeEnum            = "CV1006"
	codeReadOnly        = "CV1007"
	codeBadName         = "CV1008"
	codeUnknownKind     = "CV1009"
	codeUnknownProvider = "CV1010"
	codeLength          = "CV1011"
	codeWrongScope      = "CV1012"
	codeSchema          = "CV1013"
)

// shapes gives the constant summary of each code of the schema.
var shapes = map[string]string{
	codeUnknownField:    "Unknown field",
	codeMissingField:    "Required field is missing",
	codeWrongType:       "Value is of the wrong type",
	codeOutOfRange:      "Number is out of range",
	codePattern:         "Text is not of the right form",
	codeEnum:            "Value is not one of those allowed",
	codeReadOnly:        "Field is read only",
	codeBadName:         "Name is not allowed",
	codeUnknownKind:     "Unknown kind",
	codeUnknownProvider: "Unknown provider",
	codeLength:          "Too many or too few",
	codeWrongScope:      "Kind lives elsewhere",
	codeSchema:          "Value is refused by the schema",
}

// remedies says of each code that is no rule's what must be so, or what to do. Of a rule it is [Rule.Doc].
var remedies = map[string]string{
	codeUnknownField:    "A field is one that the schema has. converge schema KIND lists them.",
	codeMissingField:    "A field that the schema requires is there. converge schema KIND says which those are.",
	codeWrongType:       "A value is of the type that its field takes: text in quotes, numbers and true or false without.",
	codeOutOfRange:      "A number is within the bounds that its field takes.",
	codePattern:         "A text has the form that its field takes.",
	codeEnum:            "A value is one of those that its field takes, spelt as they are.",
	codeReadOnly:        "A field that only the far side sets stands in no document. Leave it out.",
	codeBadName:         "A name has the form that its kind takes.",
	codeUnknownKind:     "A kind is one of those that converge schema lists, under its provider.",
	codeUnknownProvider: "The fields of a document beside apiVersion, site, nodes and policy are providers.",
	codeLength:          "A text, a list or an object is as long as its field takes.",
	codeWrongScope:      "A kind of the site stands under its provider at the top, a kind of nodes under nodes: NODE.",
	codeSchema:          "A value fits the schema also where only CUE can tell. The detail is what CUE says.",
	codeTooMany:         "Mend what is shown and validate again: what is not shown is often the same mistake, or its consequence.",
	codeSyntax:          "A document is CUE, JSON or YAML as the name of its file says.",
	codeDuplicateName:   "A name is there once. Which of two was meant is not guessed.",
	codeTooLarge:        "A document stays within the limits of size, depth and number of values. Split off what is generated, or have less of it.",
	codeEvaluation:      "The files of a document agree with each other, and with the schema, when CUE puts them together. Both places are named.",
	codeIncomplete:      "Every value of a document is given: none is left as a type or as a choice.",
	codeLimit:           "A document is evaluated within the limits of time and memory. Simplify its CUE, or raise -eval-timeout or -eval-memory for one that you trust.",
	codeInterrupted:     "Loading was stopped from outside. Nothing is known of the document; do it again.",
	codeLeftOut:         "Of a folder the CUE files are the document, and the JSON and YAML files that have converge's apiVersion. Name a file to have it taken whatever it says.",
}

// A Code is what diagnostics have in common that bear it. Codes stay forever.
type Code struct {
	Code    string `json:"code"`
	Name    string `json:"name,omitempty"` // of the rule
	Summary string `json:"summary"`        // what is wrong
	Doc     string `json:"doc"`            // what must be so, or what to do
}

// Codes lists all codes that a diagnostic may bear, in their order.
func Codes() []Code {
	var all []Code
	for _, of := range []map[string]string{shapes, summaries} {
		for code, summary := range of {
			all = append(all, Code{Code: code, Summary: summary, Doc: remedies[code]})
		}
	}
	for _, r := range rules {
		all = append(all, Code{Code: r.Code, Name: r.Name, Summary: r.Summary, Doc: r.Doc + "."})
	}
	slices.SortFunc(all, func(a, b Code) int { return strings.Compare(a.Code, b.Code) })
	return all
}

// wrong are documents with mistakes, and what is said of them; the tests keep them true.
//
//go:embed testdata/wrong/*.txtar
var wrong embed.FS

// Example loads a wrong document and gives a diagnostic of it that bears the code; ok is false when none is kept.
func (s *Schema) Example(ctx context.Context, code string) (d Diagnostic, ok bool) {
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
		_, ds := s.Load(ctx, Options{}, sources...)
		if i := slices.IndexFunc(ds, func(d Diagnostic) bool { return d.Code == code }); i >= 0 {
			return ds[i], true
		}
	}
	return Diagnostic{}, false
}

// A violation is one thing in a document that the schema refuses.
type violation struct {
	Path    []string // below the resource, or below the document for its head; elements of lists by their index
	Code    string
	Summary string // constant per code
	Detail  string // full sentences
}

func newViolation(path []string, code, detail string) violation {
	return violation{Path: path, Code: code, Summary: shapes[code], Detail: detail}
}
