package load

import (
	"fmt"
	"strings"
)

// Severity ranks a diagnostic.
type Severity string

// The severities. Only errors make a document invalid.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// A Diagnostic is one message to the author of a document. Summary is constant per Code; Detail says what is wrong,
// why it matters and what to do, in full sentences.
type Diagnostic struct {
	Severity Severity `json:"severity"`
	Code     string   `json:"code"` // CV1xxx; stable
	Summary  string   `json:"summary"`
	Detail   string   `json:"detail,omitempty"`
	Path     string   `json:"path,omitempty"` // path in the document: carbide.vpc.prod.vni
	Range    *Range   `json:"range,omitempty"`
	Snippet  string   `json:"snippet,omitempty"` // the source line, without its end
}

// A Range is a place in a source file. Lines and columns count from 1, columns in bytes.
type Range struct {
	Filename string `json:"filename"`
	Start    Pos    `json:"start"`
	End      Pos    `json:"end"`
}

// A Pos is a position in a file; Byte counts from 0.
type Pos struct {
	Line   int `json:"line"`
	Column int `json:"column"`
	Byte   int `json:"byte"`
}

// String returns the diagnostic on one line: FILE:LINE:COLUMN: severity CODE: summary: path: detail.
func (d Diagnostic) String() string {
	var b strings.Builder
	if d.Range != nil {
		fmt.Fprintf(&b, "%s:%d:%d: ", d.Range.Filename, d.Range.Start.Line, d.Range.Start.Column)
	}
	fmt.Fprintf(&b, "%s %s: %s", d.Severity, d.Code, d.Summary)
	if d.Path != "" {
		fmt.Fprintf(&b, ": %s", d.Path)
	}
	if d.Detail != "" {
		fmt.Fprintf(&b, ": %s", d.Detail)
	}
	return b.String()
}

// Diagnostics are all messages about a document, in the order of the source.
type Diagnostics []Diagnostic

// HasErrors reports whether any diagnostic is an error.
func (ds Diagnostics) HasErrors() bool {
	for _, d := range ds {
		if d.Severity == Error {
			return true
		}
	}
	return false
}

// Err returns the errors as one error, nil when there are none. It is the only bridge between diagnostics and errors.
func (ds Diagnostics) Err() error {
	if !ds.HasErrors() {
		return nil
	}
	return diagnosticsError(ds)
}

type diagnosticsError Diagnostics

func (e diagnosticsError) Error() string {
	lines := make([]string, 0, len(e))
	for _, d := range e {
		if d.Severity == Error {
			lines = append(lines, d.String())
		}
	}
	return strings.Join(lines, "\n")
}
