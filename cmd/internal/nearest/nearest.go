// Package nearest finds the name that somebody probably meant.
package nearest

import (
	"path"
	"slices"
	"strings"
)

// Name gives the one of names that is closest to word; ok is false when none is close enough to be worth mentioning.
func Name(word string, names []string) (name string, ok bool) {
	best := far(word)
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := distance(strings.ToLower(word), strings.ToLower(n)); d < best {
			name, best, ok = n, d, true
		}
	}
	return name, ok
}

// far is how many letters apart two words are not alike any more: one of three to five letters may have one that is wrong, a
// shorter one none.
func far(word string) int {
	if len(word) < 3 {
		return 1
	}
	return max(len(word)/3, 1) + 1
}

// Ref is Name for refs, or patterns of refs, that are close part by part: SCOPE/KIND/NAME. A part of the pattern that
// matches as it is, such as *, is kept.
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
			d := distance(strings.ToLower(p), strings.ToLower(of[i]))
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

// DidYouMean gives a sentence that suggests a name, with a blank before it; nothing when none is close.
func DidYouMean(word string, names []string) string {
	if n, ok := Name(word, names); ok {
		return " Did you mean " + n + "?"
	}
	return ""
}

// DidYouMeanKind is DidYouMean for the names of kinds, whose noun may stand for the whole: vpc for carbide.vpc.
func DidYouMeanKind(word string, kinds []string) string {
	if text := DidYouMean(word, kinds); text != "" || strings.Contains(word, ".") {
		return text
	}
	best, found := far(word), ""
	for _, k := range slices.Sorted(slices.Values(kinds)) {
		_, noun, _ := strings.Cut(k, ".")
		if d := distance(strings.ToLower(word), strings.ToLower(noun)); d < best {
			best, found = d, " Did you mean "+k+"?"
		}
	}
	return found
}

// distance counts the letters to insert, delete, replace or swap with their neighbour.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
