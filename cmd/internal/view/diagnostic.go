package view

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"converge.dev/converge/schema/load"
)

// DiagnosticsText shows the problems of a document: each with its position, its line and a mark below it.
func DiagnosticsText(ds load.Diagnostics, s Style) string {
	var b strings.Builder
	for i, d := range ds {
		if i > 0 {
			b.WriteByte('\n')
		}
		diagnosticText(&b, d, s)
	}
	return b.String()
}

func diagnosticText(b *strings.Builder, d load.Diagnostic, s Style) {
	word, color := "Error", red
	if d.Severity == load.Warning {
		word, color = "Warning", yellow
	}
	fmt.Fprintf(b, "%s %s", s.paint(color, word+":"), s.paint(bold, clean(d.Summary)))
	if d.Code != "" {
		fmt.Fprintf(b, " %s", s.paint(dim, "("+d.Code+")"))
	}
	b.WriteString("\n")
	switch {
	case d.Range != nil:
		fmt.Fprintf(b, "  at %s:%d:%d", clean(d.Range.Filename), d.Range.Start.Line, d.Range.Start.Column)
		if d.Path != "" {
			fmt.Fprintf(b, ", in %s", clean(d.Path))
		}
		b.WriteString("\n")
	case d.Path != "":
		fmt.Fprintf(b, "  in %s\n", clean(d.Path))
	}
	snippetText(b, d, s, color)
	if d.Detail != "" {
		b.WriteString(indent(cleanLines(d.Detail), "  ") + "\n")
	}
}

// snippetText shows the line of the source and marks the relevant part.
func snippetText(b *strings.Builder, d load.Diagnostic, s Style, color string) {
	if d.Range == nil || d.Snippet == "" {
		return
	}
	start, end := d.Highlight()
	number := fmt.Sprintf("%4d", d.Range.Start.Line)
	// A tab must be as wide here as in the line above.
	margin := strings.Map(func(r rune) rune {
		if r == '\t' {
			return '\t'
		}
		return ' '
	}, d.Snippet[:start])
	mark := strings.Repeat("^", max(1, utf8.RuneCountInString(d.Snippet[start:end])))
	fmt.Fprintf(b, "  %s │ %s\n", number, d.Snippet)
	fmt.Fprintf(b, "  %s │ %s%s\n", strings.Repeat(" ", len(number)), margin, s.paint(color, mark))
}

// DiagnosticsSummary counts errors and warnings.
func DiagnosticsSummary(ds load.Diagnostics) string {
	errors, warnings := 0, 0
	for _, d := range ds {
		if d.Severity == load.Error {
			errors++
		} else {
			warnings++
		}
	}
	var parts []string
	if errors > 0 {
		parts = append(parts, count(errors, "error"))
	}
	if warnings > 0 {
		parts = append(parts, count(warnings, "warning"))
	}
	return strings.Join(parts, ", ")
}
