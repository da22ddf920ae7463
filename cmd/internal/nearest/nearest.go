// Package nearest finds the name that somebody probably meant.
package nearest

import (
	"slices"
	"strings"
)

// Name gives the one of names that is closest to word; ok is false when none is close enough to be worth mentioning.
func Name(word string, names []string) (name string, ok bool) {
	best := len(word)/3 + 2 // beyond this it is another word
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := distance(strings.ToLower(word), strings.ToLower(n)); d < best {
			name, best, ok = n, d, true
		}
	}
	return name, ok
}

// DidYouMean gives a sentence that suggests a name, with a blank before it; nothing when none is close.
func DidYouMean(word string, names []string) string {
	if n, ok := Name(word, names); ok {
		return " Did you mean " + n + "?"
	}
	return ""
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
