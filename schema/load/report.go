package load

import (
	"strings"

	"converge.dev/converge/schema/internal/message"
)

// A Report is diagnostics in the JSON form of `terraform validate -json`, with the code and the path added.
type Report struct {
	FormatVersion string             `json:"format_version"`
	Valid         bool               `json:"valid"`
	ErrorCount    int                `json:"error_count"`
	WarningCount  int                `json:"warning_count"`
	Diagnostics   []ReportDiagnostic `json:"diagnostics"`
}

// A ReportDiagnostic is one diagnostic of a [Report].
type ReportDiagnostic struct {
	Severity Severity       `json:"severity"`
	Code     string         `json:"code"`
	Summary  string         `json:"summary"`
	Detail   string         `json:"detail"`
	Path     string         `json:"path,omitempty"`
	Range    *Range         `json:"range,omitempty"`
	Snippet  *ReportSnippet `json:"snippet,omitempty"`
}

// A ReportSnippet is the line of the source that a diagnostic is about. The highlighted part is counted in bytes of Code.
type ReportSnippet struct {
	Context              *string  `json:"context"` // always null: the path says it
	Code                 string   `json:"code"`
	StartLine            int      `json:"start_line"`
	HighlightStartOffset int      `json:"highlight_start_offset"`
	HighlightEndOffset   int      `json:"highlight_end_offset"`
	Values               []string `json:"values"` // always empty: a document has no expressions
}

// NewReport returns the report of diagnostics.
func NewReport(ds Diagnostics) Report {
	r := Report{FormatVersion: "1.0", Valid: !ds.HasErrors(), Diagnostics: []ReportDiagnostic{}}
	for _, d := range ds {
		if d.Severity == Error {
			r.ErrorCount++
		} else {
			r.WarningCount++
		}
		out := ReportDiagnostic{Severity: d.Severity, Code: d.Code, Summary: d.Summary, Detail: d.Detail, Path: d.Path, Range: d.Range}
		if d.Snippet != "" {
			start, end := d.Highlight()
			out.Snippet = &ReportSnippet{Code: d.Snippet, StartLine: d.Range.Start.Line, HighlightStartOffset: start, HighlightEndOffset: end, Values: []string{}}
		}
		r.Diagnostics = append(r.Diagnostics, out)
	}
	return r
}

// Highlight returns the bytes of the snippet from start to end that the diagnostic is about; both are 0 when there is none.
func (d Diagnostic) Highlight() (start, end int) {
	if d.Range == nil || d.Snippet == "" {
		return 0, 0
	}
	start = d.Range.Start.Column - 1
	if strings.HasPrefix(d.Snippet, message.Cut) { // see snippet
		start = len(message.Cut)
	}
	start = min(start, len(d.Snippet))
	return start, min(start+max(d.Range.End.Byte-d.Range.Start.Byte, 0), len(d.Snippet))
}
