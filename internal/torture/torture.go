// Package torture holds what reliability tests share: how much to try, what was reached, and the table of figures.
//
// A torture test is a Go test whose name begins with TestTorture. It tries a sample in every `go test`, the push figures
// when CONVERGE_TORTURE is push, and the nightly ones when it is nightly. It counts what it reached, and fails when a
// point, a fault or an outcome was never reached: a test that injects nothing proves nothing.
package torture

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Scale returns how often something is tried: in every test run, with `make torture`, and with `make torture NIGHTLY=1`.
func Scale(sample, push, nightly int) int {
	switch os.Getenv("CONVERGE_TORTURE") {
	case "push":
		return push
	case "nightly":
		return nightly
	}
	return sample
}

// Worlds makes rapid.Check try that many random worlds in this test, scaled by Scale, unless -rapid.checks sets the number.
func Worlds(t *testing.T, sample, push, nightly int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	if checks == nil {
		t.Fatal("rapid has no flag -rapid.checks any more")
	}
	if checks.Value.String() != checks.DefValue {
		return
	}
	if err := checks.Value.Set(fmt.Sprint(Scale(sample, push, nightly))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
}

// Patience is how long anything may take before a test gives up, so that what hangs is reported: far more than it needs on a machine that is
// busy with other tests. Nothing is measured by it.
const Patience = 15 * time.Minute

// Full reports whether the promised figures are to be reached, not a sample.
func Full() bool { return Scale(0, 1, 1) == 1 }

// Together lets n tests of a package run for each processor, for tests that mostly wait. It is called by TestMain once flags are
// parsed, and leaves -parallel alone where it is set.
func Together(n int) {
	f := flag.Lookup("test.parallel")
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(fmt.Sprint(n * runtime.GOMAXPROCS(0))); err != nil {
		panic(err) // it is a number
	}
}

// Coverage counts how often each of a set of things was reached.
type Coverage struct {
	tb   testing.TB
	what string

	mu    sync.Mutex
	count map[string]int
}

// Cover begins to count. At the end of the test, everything in all that was never reached fails it.
func Cover(tb testing.TB, what string, all []string) *Coverage {
	c := &Coverage{tb: tb, what: what, count: make(map[string]int, len(all))}
	for _, name := range all {
		c.count[name] = 0
	}
	tb.Cleanup(func() {
		if never := c.Missing(); len(never) > 0 && !tb.Skipped() {
			tb.Errorf("%s never reached: %s", what, strings.Join(never, ", "))
		}
	})
	return c
}

// Missing lists what has not been reached yet. A test that relies on chance continues until there is nothing.
func (c *Coverage) Missing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var never []string
	for name, n := range c.count {
		if n == 0 {
			never = append(never, name)
		}
	}
	slices.Sort(never)
	return never
}

// Reach counts one. A name that is not in the set is a mistake of the test.
func (c *Coverage) Reach(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.count[name]; !known {
		c.tb.Errorf("%s: %q is not in the set that is counted", c.what, name)
		return
	}
	c.count[name]++
}

// String returns the counts, in the order of the names.
func (c *Coverage) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, 0, len(c.count))
	for name := range c.count {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, c.count[name])
	}
	return strings.Join(names, ", ")
}

// Report adds a line to the table of figures: the letter of the test in docs/reliability.md, and what was tried and
// found. It goes to the file that CONVERGE_TORTURE_REPORT names, and to the log of the test.
func Report(tb testing.TB, letter, format string, args ...any) {
	tb.Helper()
	figures := fmt.Sprintf(format, args...)
	tb.Logf("%s: %s", letter, figures)
	path := os.Getenv("CONVERGE_TORTURE_REPORT")
	if path == "" {
		return
	}
	if err := (Line{letter, tb.Name(), figures, tb.Failed()}).Append(path); err != nil {
		tb.Fatal(err)
	}
}

// A Line is one line of a report: what a test found.
type Line struct {
	Test    string `json:"test"` // its letter
	Name    string `json:"name"`
	Figures string `json:"figures"`
	Failed  bool   `json:"failed"`
}

// Append adds the line to the report in a file.
func (l Line) Append(path string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Close())
}
