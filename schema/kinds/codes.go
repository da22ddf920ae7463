package kinds

import (
	"slices"
	"strings"
)

// Codes of the problems that the schema refuses. They are stable: tests, filters and `converge explain CODE` name them.
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

// shapes holds the constant summary of each code of the schema.
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

// remedies holds, for each code, what must be so.
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
}

// A Code describes what the problems with that code have in common.
type Code struct {
	Code    string
	Summary string // what is wrong
	Doc     string // what must be so
}

// Codes lists the codes of all problems, in their order.
func Codes() []Code {
	var all []Code
	for code, summary := range shapes {
		all = append(all, Code{code, summary, remedies[code]})
	}
	slices.SortFunc(all, func(a, b Code) int { return strings.Compare(a.Code, b.Code) })
	return all
}

// A Problem is one thing in a document that the schema refuses.
type Problem struct {
	Path    []string // within the resource, or within the document for its head; elements of lists by their index
	Code    string
	Summary string // constant per code
	Detail  string // full sentences
}

func newProblem(path []string, code, detail string) Problem {
	return Problem{Path: path, Code: code, Summary: shapes[code], Detail: detail}
}
