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
	codeWrongType:       "Value has the wrong type",
	codeOutOfRange:      "Number is out of range",
	codePattern:         "Text has an invalid format",
	codeEnum:            "Value is not allowed",
	codeReadOnly:        "Field is read-only",
	codeBadName:         "Name is not allowed",
	codeUnknownKind:     "Unknown kind",
	codeUnknownProvider: "Unknown provider",
	codeLength:          "Length is out of range",
	codeWrongScope:      "Kind is in the wrong place",
	codeSchema:          "Value does not match the schema",
}

// remedies holds, for each code, what must be so.
var remedies = map[string]string{
	codeUnknownField:    "Only fields defined by the schema are allowed. converge schema KIND lists them.",
	codeMissingField:    "Every field that the schema requires must be present. converge schema KIND shows which are required.",
	codeWrongType:       "A value must have the type of its field: text is quoted; numbers, true and false are not.",
	codeOutOfRange:      "A number must be within the bounds of its field.",
	codePattern:         "Text must have the format of its field.",
	codeEnum:            "A value must be one of those its field allows, spelt exactly.",
	codeReadOnly:        "A document must not contain fields that only the remote system sets. Remove the field.",
	codeBadName:         "A name must have the format that its kind requires.",
	codeUnknownKind:     "A kind must be one of those listed by converge schema, under its provider.",
	codeUnknownProvider: "All fields of a document other than apiVersion, site, nodes and policy must be providers.",
	codeLength:          "The length of text, a list or an object must be within the bounds of its field.",
	codeWrongScope:      "Kinds of the site belong under their provider at the top level, kinds of nodes under nodes: NODE.",
	codeSchema:          "A value must also satisfy the constraints that only CUE can check. The detail is CUE's message.",
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
