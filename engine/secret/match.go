package secret

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// match reports whether text begins with want, in whatever way each character is written: plain, JSON-escaped or
// Go-quoted, and percent-encoded up to the given number of times. N is the length of the match in text.
func match(text, want string, fold bool, percent int) (n int, ok bool) {
	for m := (matcher{fold: fold}); m.percent <= percent; m.percent++ {
		if n, ok = m.match(text, want); ok {
			return n, true
		}
	}
	return 0, false
}

// maxPercent is how many nested percent-encodings are understood.
const maxPercent = 3

// A matcher reads a text in one way; there is one for each way, so that a value with percent signs is found too.
type matcher struct {
	fold    bool // letters match in either case
	percent int  // how many times %XX is decoded to a byte, and + to a space
}

func (m matcher) match(text, want string) (n int, ok bool) {
	for len(want) > 0 {
		if want[0] == '\\' {
			// Every level of quoting doubles a backslash, so a run of them only gets longer.
			w, t := 0, 0
			for w < len(want) && want[w] == '\\' {
				w++
			}
			for n < len(text) {
				size, is := m.octet(text[n:], '\\')
				if !is {
					break
				}
				n, t = n+size, t+1
			}
			if t < w {
				return 0, false
			}
			want = want[w:]
			if w2, size, is := m.character(text[n:], want); t > w && is {
				// The last backslashes of the run may have escaped what follows.
				n, want = n+size, want[w2:]
			} else if w2, size, is := escaped(text[n:], want); t > w && is {
				n, want = n+size, want[w2:]
			}
			continue
		}
		w, size, is := m.character(text[n:], want)
		if !is {
			return 0, false
		}
		n, want = n+size, want[w:]
	}
	return n, true
}

// character matches the first character of want, or its first byte, which is not a backslash. It returns how many bytes
// of want and of text were consumed.
func (m matcher) character(text, want string) (w, n int, ok bool) {
	if text == "" || want == "" {
		return 0, 0, false
	}
	if size, is := m.octet(text, want[0]); is {
		return 1, size, true
	}
	if size, is := m.octet(text, '+'); is && m.percent > 0 && want[0] == ' ' {
		return 1, size, true
	}
	slashes := 0
	for slashes < len(text) {
		size, is := m.octet(text[slashes:], '\\')
		if !is {
			break
		}
		slashes += size
	}
	if slashes == 0 {
		return 0, 0, false
	}
	if w, size, is := escaped(text[slashes:], want); is {
		return w, slashes + size, true
	}
	if size, is := m.octet(text[slashes:], want[0]); is { // \" or \/
		return 1, slashes + size, true
	}
	return 0, 0, false
}

// octet matches one byte, plain or percent-encoded, even when the percent sign is encoded again.
func (m matcher) octet(text string, b byte) (n int, ok bool) {
	if text == "" {
		return 0, false
	}
	if m.percent > 0 && text[0] == '%' {
		if c, is := hexNumber(text[1:], 2); is {
			n = 3
			for range m.percent - 1 {
				inner, more := hexNumber(text[n:], 2)
				if c != '%' || !more {
					break
				}
				c, n = inner, n+2
			}
			return n, m.same(byte(c), b)
		}
	}
	return 1, m.same(text[0], b)
}

func (m matcher) same(a, b byte) bool { return a == b || m.fold && lower(a) == lower(b) }

// letters are the one-letter escapes.
var letters = map[byte]byte{'a': '\a', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v'}

// escaped matches what follows a backslash with the beginning of want.
func escaped(text, want string) (w, n int, ok bool) {
	if text == "" || want == "" {
		return 0, 0, false
	}
	if c, is := letters[text[0]]; is && c == want[0] {
		return 1, 1, true
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[0]]
	if digits == 0 {
		if len(text) >= 3 && text[0] >= '0' && text[0] <= '3' { // octal, one byte
			if c := octal(text[:3]); c >= 0 && byte(c) == want[0] {
				return 1, 3, true
			}
		}
		return 0, 0, false
	}
	c, is := hexNumber(text[1:], digits)
	if !is {
		return 0, 0, false
	}
	n = 1 + digits
	if digits == 2 {
		return 1, n, byte(c) == want[0]
	}
	r := rune(c)
	if utf16.IsSurrogate(r) { // JSON writes two
		rest := strings.TrimLeft(text[n:], `\`)
		skipped := len(text) - n - len(rest)
		if skipped == 0 || len(rest) < 5 || rest[0] != 'u' {
			return 0, 0, false
		}
		low, is := hexNumber(rest[1:], 4)
		if !is {
			return 0, 0, false
		}
		r, n = utf16.DecodeRune(r, rune(low)), n+skipped+5
	}
	got, size := utf8.DecodeRuneInString(want)
	return size, n, got == r
}

func octal(s string) int {
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '7' {
			return -1
		}
		n = n*8 + int(s[i]-'0')
	}
	return n
}

// hexNumber reads the given number of hex digits.
func hexNumber(s string, digits int) (n uint32, ok bool) {
	if len(s) < digits {
		return 0, false
	}
	for i := range digits {
		c := lower(s[i])
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint32(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | uint32(c-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
