package view

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Style says how text looks.
type Style struct {
	Color bool
	Width int // maximum columns of a line; 80 when zero
}

// Unbroken is a width that no line reaches.
const Unbroken = 1 << 20

// width returns the maximum columns of a line. On very narrow terminals, lines are wider than the terminal.
func (s Style) width() int {
	if s.Width == 0 {
		return 80
	}
	return max(s.Width, 40)
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

// A span is text in one colour.
type span struct {
	text, color string
	value       bool // may be cut where a word is longer than a line
}

// stuck is a blank at which no line is broken.
const stuck = "\u00a0"

// flow breaks text at blanks, so that no line is longer than the width. The text begins in column at, and every further
// line at hang. A longer word, such as a key, is cut where that is allowed; otherwise its line is longer.
func (t *planText) flow(at, hang int, spans []span) string {
	words := [][]span{nil}
	for _, s := range spans {
		for i, piece := range strings.Split(s.text, " ") {
			if i > 0 {
				words = append(words, nil)
			}
			if piece != "" {
				words[len(words)-1] = append(words[len(words)-1], span{strings.ReplaceAll(piece, stuck, " "), s.color, s.value})
			}
		}
	}
	var b, run strings.Builder // run: text in one colour
	color := ""
	write := func(text, c string) {
		if c != color {
			b.WriteString(t.paint(color, run.String()))
			run.Reset()
			color = c
		}
		run.WriteString(text)
	}
	blanks := 0
	for i, word := range words {
		n := length(word)
		if i > 0 {
			blanks++
		}
		if n == 0 {
			continue
		}
		if room := t.room(at+blanks, words[i+1:]); len(word) == 1 && word[0].value && n > opaque && n > room && at+blanks+n > t.width() && !t.Full {
			if room < opaque { // it begins on a line of its own
				room = t.room(hang, words[i+1:])
			}
			if n > room {
				if !strings.HasSuffix(word[0].text, "…") {
					t.cuts++
				}
				word = []span{{cut(word[0].text, room), word[0].color, true}}
				n = length(word)
			}
		}
		if at+blanks+n > t.width() && at > hang {
			write("\n"+strings.Repeat(" ", hang), "")
			at, blanks = hang, 0
		}
		if blanks > 0 && color != word[0].color {
			write(strings.Repeat(" ", blanks), "")
		} else {
			write(strings.Repeat(" ", blanks), color)
		}
		for _, s := range word {
			write(s.text, s.color)
		}
		at, blanks = at+blanks+n, 0
	}
	write("", "end")
	return b.String()
}

// opaque is the length from which words are not read letter by letter.
const opaque = 32

// room returns how long a word that begins in a column may be, so that a short text after it still fits on the same line.
func (t *planText) room(at int, rest [][]span) int {
	after := 0
	for _, word := range rest {
		after += 1 + length(word)
	}
	if after > opaque {
		after = 0
	}
	return t.width() - at - after
}

func length(word []span) (n int) {
	for _, s := range word {
		n += utf8.RuneCountInString(s.text)
	}
	return n
}

func (s Style) paint(color, text string) string {
	if !s.Color || color == "" || strings.TrimSpace(text) == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// clean makes text from outside harmless: without control characters that a terminal obeys, and on one line.
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

// count returns a number with its noun: 1 step, 2 steps.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok && !strings.HasSuffix(stem, "a") { // stray becomes strays
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Count returns a number with its noun: 1 step, 2 steps.
func Count(n int, noun string) string { return count(n, noun) }

// indent puts a margin before every non-empty line.
func indent(text, margin string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = margin + l
		}
	}
	return strings.Join(lines, "\n")
}

// table shows rows in columns; the first row is the head.
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
