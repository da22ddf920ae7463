package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Style says how text looks.
type Style struct {
	Color bool
}

// Colours, as parameters of the escape sequence.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
	purple = "35"
	cyan   = "36"
)

func (s Style) paint(color, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// clean makes text from outside harmless: a terminal obeys none of it, and it stays on its line.
func clean(s string) string {
	ok := true
	for _, r := range s {
		ok = ok && unicode.IsPrint(r)
	}
	if ok && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t':
			b.WriteByte(' ')
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// cleanLines is clean for text of several lines.
func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = clean(l)
	}
	return strings.Join(lines, "\n")
}

// longest is how many characters of one value are shown.
const longest = 100

// value shows one JSON value on one line; what does not fit is cut.
func value(v any) string {
	if v == nil {
		return "(none)"
	}
	if s, ok := v.(string); ok {
		return cut(strconv.Quote(s), longest)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "(not JSON: " + err.Error() + ")"
	}
	return cut(clean(strings.TrimSuffix(b.String(), "\n")), longest)
}

// cut shortens text to n characters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[:max(n-1, 0)]) + "…"
}

// pad fills text with blanks to n characters.
func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s)))
}

// count names a number of things: 1 step, 2 steps.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Count names a number of things: 1 step, 2 steps.
func Count(n int, noun string) string { return count(n, noun) }

// indent puts a margin before every line but empty ones.
func indent(text, margin string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = margin + l
		}
	}
	return strings.Join(lines, "\n")
}

// table shows rows in columns, the first of which is the head.
func table(s Style, rows [][]string) string {
	var widths []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for n, r := range rows {
		var line strings.Builder
		for i, c := range r {
			if i == len(r)-1 {
				line.WriteString(c)
			} else {
				line.WriteString(pad(c, widths[i]+2))
			}
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			text = s.paint(bold, text)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

// Strong makes text stand out.
func (s Style) Strong(text string) string { return s.paint(bold, text) }
