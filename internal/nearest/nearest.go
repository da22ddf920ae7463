// Package nearest finds the name that a user probably meant.
package nearest

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hbollon/go-edlib"
)

// Name returns the one of names that is closest to word; ok is false when none is close enough to be worth mentioning.
func Name(word string, names []string) (name string, ok bool) {
	best := far(word)
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := distance(word, n, best); d < best {
			name, best, ok = n, d, true
		}
	}
	return name, ok
}

// longest is the maximum number of letters of a word that a user mistypes.
const longest = 128

// far is the number of wrong letters from which on two words are no longer similar: a word of three to five letters may have
// one wrong, a shorter one none, and the longest four.
func far(word string) int {
	n := utf8.RuneCountInString(word)
	if n < 3 || n > longest {
		return 1
	}
	return max(1, min(n/3, 4)) + 1
}

// distance counts the letters to insert, delete, replace or swap with their neighbour; when that reaches limit, it returns at
// least limit. It is case-sensitive.
func distance(a, b string, limit int) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	apart := utf8.RuneCountInString(a) - utf8.RuneCountInString(b)
	if apart = max(apart, -apart); apart >= limit || a != b && limit <= 1 {
		return max(apart, limit)
	}
	return edlib.OSADamerauLevenshteinDistance(a, b)
}

// Ref is Name for refs, or patterns of refs, that are close part by part: SCOPE/KIND/NAME. A part of the pattern that
// already matches, such as *, is kept.
func Ref(pattern string, refs []string) (ref string, ok bool) {
	parts := strings.Split(pattern, "/")
	best := -1
	for _, r := range slices.Sorted(slices.Values(refs)) {
		of := strings.Split(r, "/")
		if len(of) != len(parts) {
			continue
		}
		total, alike := 0, true
		for i, p := range parts {
			if match, err := path.Match(p, of[i]); match && err == nil {
				of[i] = p
				continue
			}
			d := distance(p, of[i], far(p))
			total, alike = total+d, alike && d < far(p)
		}
		if alike && (best < 0 || total < best) {
			ref, best, ok = strings.Join(of, "/"), total, true
		}
	}
	if ref == pattern {
		return "", false
	}
	return ref, ok
}

// DidYouMeanRef is DidYouMean for refs.
func DidYouMeanRef(pattern string, refs []string) string {
	if r, ok := Ref(pattern, refs); ok {
		return " Did you mean " + r + "?"
	}
	return ""
}

// DidYouMean returns a sentence that suggests a name, with a space before it; "" when none is close.
func DidYouMean(word string, names []string) string {
	if n, ok := Name(word, names); ok {
		return " Did you mean " + n + "?"
	}
	return ""
}

// DidYouMeanKind is DidYouMean for the names of kinds, for which their noun may stand: vpc for carbide.vpc.
func DidYouMeanKind(word string, kinds []string) string {
	if text := DidYouMean(word, kinds); text != "" || strings.Contains(word, ".") {
		return text
	}
	best, found := far(word), ""
	for _, k := range slices.Sorted(slices.Values(kinds)) {
		_, noun, _ := strings.Cut(k, ".")
		if d := distance(word, noun, best); d < best {
			best, found = d, " Did you mean "+k+"?"
		}
	}
	return found
}
