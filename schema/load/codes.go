package load

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
