// Command table prints what the torture tests reported, one line per test, and fails when a test failed or never reported.
//
//	go run ./internal/torture/table REPORT
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"converge.dev/converge/internal/torture"
)

// tests are the letters that must be reported, as in docs/reliability.md, with what each is about.
var tests = []struct{ letter, about string }{
	{"A", "kill -9 at every failpoint, and again during recovery"},
	{"B", "seeded simulation of the whole engine on a fake clock"},
	{"C", "three etcd members with faults"},
	{"D", "split brain: stopped beyond the lease at every failpoint"},
	{"E", "provider faults × methods × kinds of kinds"},
	{"F", "nodes that fail while a task is on its way"},
	{"J", "hostile input"},
	{"L", "torn and corrupted state, full disk"},
	{"M", "decoders on mutated input"},
	{"N", "random worlds"},
	{"O", "linearizability of store and epoch"},
	{"P", "seeded safety bugs"},
	{"Q", "secret canaries"},
	{"S", "failover of site agents"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: table REPORT")
		os.Exit(2)
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var lines []torture.Line
	for _, raw := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var l torture.Line
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			fmt.Fprintf(os.Stderr, "%q is no line of a report: %v\n", raw, err)
			os.Exit(2)
		}
		lines = append(lines, l)
	}
	missing := false
	for _, t := range tests {
		if !slices.ContainsFunc(lines, func(l torture.Line) bool { return l.Test == t.letter }) {
			fmt.Printf("%s  ✗ never reported: %s\n", t.letter, t.about)
			missing = true
		}
		for _, l := range lines {
			if l.Test != t.letter {
				continue
			}
			mark := "✓"
			if l.Failed {
				mark, missing = "✗", true
			}
			fmt.Printf("%s  %s %s: %s\n", t.letter, mark, t.about, l.Figures)
		}
	}
	if missing {
		os.Exit(1)
	}
}
