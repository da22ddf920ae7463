// Package message prepares parts of a document for messages: short, on one line, and without control characters that a terminal
// would obey.
package message

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"converge.dev/converge/internal/nearest"
)

// Cut marks where a text was cut.
const Cut = "…"

const maxValue = 60 // maximum characters of a value in a message

// Value returns a value for a message: short, quoted, on one line.
func Value(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		if utf8.RuneCountInString(v) > maxValue {
			v = string([]rune(v)[:maxValue]) + Cut
		}
		return strconv.Quote(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		if math.Abs(v) < 1e6 {
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return fmt.Sprintf("a list of length %d", len(v))
	case map[string]any:
		return "an object"
	}
	return fmt.Sprint(v)
}

// Unknown returns a message that there is no such name, with the one that was probably meant or all that exist.
func Unknown(what, name string, names []string) string {
	if s, ok := nearest.Name(name, names); ok {
		return fmt.Sprintf("There is no %s %s. Did you mean %q?", what, Value(name), s)
	}
	if len(names) == 0 {
		return fmt.Sprintf("There is no %s %s.", what, Value(name))
	}
	return fmt.Sprintf("There is no %s %s. Available: %s.", what, Value(name), strings.Join(names, ", "))
}

// maxBrief is how many bytes of a text a message repeats. The longest text that converge itself writes is a list of fields.
const maxBrief = 1000

// Brief cuts a text that is too long to be read. It cuts between characters.
func Brief(text string) string {
	if len(text) <= maxBrief {
		return text
	}
	return strings.ToValidUTF8(text[:maxBrief], "") + Cut
}

// Printable replaces what is not printable with question marks, byte by byte, so that columns stay right.
func Printable(s string) string {
	ok := func(r rune, size int) bool {
		return r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || size > 1)
	}
	var b []byte
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case ok(r, size):
			b = append(b, s[i:i+size]...)
		default:
			b = append(b, bytes.Repeat([]byte("?"), size)...)
		}
		i += size
	}
	return string(b)
}
