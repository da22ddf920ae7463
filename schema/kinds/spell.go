package kinds

import (
	"fmt"
	"maps"
	grammar "regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// spelled describes a pattern in words that follow the noun "text": "of 1 to 64 printable ASCII characters". It knows
// patterns that are one class of characters, repeated or anywhere; longer patterns are definitions with a comment,
// which says more. For others ok is false.
func spelled(pattern string) (words string, ok bool) {
	re, err := grammar.Parse(pattern, grammar.Perl)
	if err != nil {
		return "", false
	}
	if of, ok := characters(re, 1); ok { // it may occur anywhere
		return "with at least 1 " + of, true
	}
	if re.Op != grammar.OpConcat || len(re.Sub) != 3 || re.Sub[0].Op != grammar.OpBeginText || re.Sub[2].Op != grammar.OpEndText {
		return "", false
	}
	times := re.Sub[1]
	switch times.Op {
	case grammar.OpPlus:
		of, ok := characters(times.Sub[0], 2)
		return "of " + of, ok
	case grammar.OpRepeat:
		of, ok := characters(times.Sub[0], times.Max)
		if times.Max < 0 {
			return fmt.Sprintf("of at least %d %s", times.Min, of), ok
		}
		return fmt.Sprintf("of %d to %d %s", times.Min, times.Max, of), ok
	}
	return "", false
}

const (
	lower = "abcdefghijklmnopqrstuvwxyz"
	upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// alphabet lists names of sets of characters; the first match counts.
var alphabet = []struct{ all, called string }{
	{lower + upper, "letters"}, {lower, "lower-case letters"}, {upper, "upper-case letters"}, {"0123456789", "digits"},
	{".", "dots"}, {":", "colons"}, {"/", "slashes"}, {"@", "at signs"}, {"_", "underscores"}, {"-", "hyphens"},
}

// characters returns a description of n characters of a class.
func characters(expr *grammar.Regexp, n int) (words string, ok bool) {
	noun := "characters"
	if n == 1 {
		noun = "character"
	}
	if expr.Op == grammar.OpAnyCharNotNL {
		return noun, true
	}
	if expr.Op != grammar.OpCharClass {
		return "", false
	}
	switch r := expr.Rune; {
	case slices.Equal(r, []rune(" ~")):
		return "printable ASCII " + noun, true
	case slices.Equal(r, []rune("!~")):
		return "printable ASCII " + noun + " other than spaces", true
	case r[len(r)-1] == unicode.MaxRune:
		return noun + " other than spaces", blanksOnly(r)
	}
	left := map[rune]bool{}
	for i := 0; i < len(expr.Rune); i += 2 {
		for r := expr.Rune[i]; r <= expr.Rune[i+1]; r++ {
			left[r] = true
		}
	}
	var names []string
	for _, a := range alphabet {
		if !strings.ContainsFunc(a.all, func(r rune) bool { return !left[r] }) {
			names = append(names, a.called)
			maps.DeleteFunc(left, func(r rune, _ bool) bool { return strings.ContainsRune(a.all, r) })
		}
	}
	if len(left) > 0 || len(names) == 0 {
		return "", false
	}
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " and " + names[last], true
	}
	return names[0], true
}

// blanksOnly reports whether only blanks are missing between the ranges of a class.
func blanksOnly(ranges []rune) bool {
	next := rune(0)
	for i := 0; i < len(ranges); i += 2 {
		for r := next; r < ranges[i]; r++ {
			if !unicode.IsSpace(r) && !unicode.Is(unicode.Z, r) {
				return false
			}
		}
		next = ranges[i+1] + 1
	}
	return true
}
