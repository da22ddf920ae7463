// Mutants seeds one safety bug after another and runs the tests that must catch it:
//
//	go run ./e2e/mutants [-n] [-part I/N] [NAME...]
//
// Each NAME.patch says in its head which rule of docs/reliability.md it breaks, how, and which tests must turn red. All bugs
// are built into one tree, each in a function of its own that an environment variable switches on, because the linker costs
// more than the tests. A bug that changes more than the bodies of functions is built by itself. With -n it only reports which
// patches do not apply, and with -part=I/N it tries every Nth, from the Ith of 0 to N-1 on. A patch that does not apply or compile, and a bug that no test catches, result in status 1.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"converge.dev/converge/internal/torture"
)

const folder = "e2e/mutants"

// A mutant is one seeded bug.
type mutant struct {
	name, rule string
	packages   []string // whose tests must catch it, like "./engine"
	flags      []string // of the test binary, which select these tests
	patch      string
	files      map[string][]byte // as the patch leaves them, by their paths from the root
}

func main() {
	check := flag.Bool("n", false, "only say which patches do not apply")
	part := flag.String("part", "0/1", "try every Nth, from the Ith on: `I/N`")
	flag.Parse()
	ok, err := run(*check, *part, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(check bool, part string, names []string) (bool, error) {
	var first, every int
	if _, err := fmt.Sscanf(part, "%d/%d", &first, &every); err != nil || first < 0 || first >= every {
		return false, fmt.Errorf("-part=%s: want I/N with 0 <= I < N", part)
	}
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return false, fmt.Errorf("find the top of the tree: %w", err)
	}
	if err := os.Chdir(strings.TrimSpace(string(top))); err != nil {
		return false, err
	}
	work, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(work)
	mutants, err := read(names, work)
	if err != nil || check {
		return err == nil, err
	}
	var tried []*mutant
	for i := first; i < len(mutants); i += every {
		tried = append(tried, mutants[i])
	}
	report := os.Getenv("CONVERGE_TORTURE_REPORT")
	for name, value := range map[string]string{"CONVERGE_TORTURE": "push", "CONVERGE_REAL": "1"} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
	os.Unsetenv("CONVERGE_TORTURE_REPORT") // the coverage of a mutant is not a figure
	lost, err := try(tried, work)
	if err != nil {
		return false, err
	}
	figure := fmt.Sprintf("%d of %d seeded bugs caught", len(tried)-len(lost), len(tried))
	if every > 1 {
		figure += fmt.Sprintf(", part %s of %d", part, len(mutants))
	}
	if len(lost) > 0 {
		figure += "; not caught: " + strings.Join(lost, " ")
	}
	fmt.Println(figure)
	if report != "" {
		err = torture.Line{Test: "P", Name: "mutants", Figures: figure, Failed: len(lost) > 0}.Append(report)
	}
	return len(lost) == 0, err
}

// read reads the patches and applies each to a copy of what it changes. Without names it reads all.
func read(names []string, work string) ([]*mutant, error) {
	if len(names) == 0 {
		all, err := filepath.Glob(folder + "/*.patch")
		if err != nil {
			return nil, err
		}
		for _, path := range all {
			names = append(names, strings.TrimSuffix(filepath.Base(path), ".patch"))
		}
	}
	var mutants []*mutant
	var errs []error
	for _, name := range names {
		m, err := readOne(name, filepath.Join(work, "patched", name))
		mutants, errs = append(mutants, m), append(errs, err)
	}
	return mutants, errors.Join(errs...)
}

var (
	header  = regexp.MustCompile(`(?m)^# (rule|test): (.*)$`)
	touched = regexp.MustCompile(`(?m)^\+\+\+ b/(\S+)`)
	word    = regexp.MustCompile(`'[^']*'|\S+`)
)

func readOne(name, tree string) (*mutant, error) {
	m := &mutant{name: name, patch: filepath.Join(folder, name+".patch"), files: map[string][]byte{}}
	patch, err := os.ReadFile(m.patch)
	if err != nil {
		return nil, err
	}
	for _, h := range header.FindAllSubmatch(patch, -1) {
		if string(h[1]) == "rule" {
			m.rule = string(h[2])
			continue
		}
		for _, w := range word.FindAllString(string(h[2]), -1) {
			switch {
			case strings.HasPrefix(w, "./"):
				m.packages = append(m.packages, w)
			case w == "-run":
				m.flags = append(m.flags, "-test.run")
			default:
				m.flags = append(m.flags, strings.Trim(w, "'"))
			}
		}
	}
	if len(m.packages) == 0 {
		return nil, fmt.Errorf("%s: its head names no test", m.patch)
	}
	for _, f := range touched.FindAllSubmatch(patch, -1) {
		file := string(f[1])
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.patch, err)
		}
		if err := write(filepath.Join(tree, file), b); err != nil {
			return nil, err
		}
		m.files[file] = nil
	}
	apply := exec.Command("patch", "-p1", "-s", "-f", "-d", tree)
	apply.Stdin = bytes.NewReader(patch)
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s does not apply: %s", m.patch, out)
	}
	for file := range m.files {
		if m.files[file], err = os.ReadFile(filepath.Join(tree, file)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func write(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// try runs the tests of all mutants and returns the names of those that stayed green.
func try(mutants []*mutant, work string) (lost []string, err error) {
	together, alone, err := weave(mutants)
	if err != nil {
		return nil, err
	}
	if len(together.mutants) > 0 {
		alone = append([]*build{together}, alone...)
	}
	var mu sync.Mutex
	for _, b := range alone {
		if err := b.make(filepath.Join(work, b.mutants[0].name)); err != nil {
			return nil, err
		}
		var jobs []func()
		if b == together {
			for p, patterns := range b.tests() {
				jobs = append(jobs, func() {
					out, failed := b.test(p, "", "10m", "-test.run", strings.Join(patterns, "|"))
					if failed == nil {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					err = errors.Join(err, fmt.Errorf("the tests of %s fail without a bug: %w\n%s", p, failed, out))
				})
			}
		}
		for _, m := range b.mutants {
			jobs = append(jobs, func() {
				red := b.run(m)
				mu.Lock()
				defer mu.Unlock()
				if red == "" {
					fmt.Printf("✗ %s (%s): SURVIVED %s %s\n", m.name, m.rule, strings.Join(m.packages, " "), strings.Join(m.flags, " "))
					lost = append(lost, m.name)
					return
				}
				fmt.Printf("✓ %s (%s): %s\n", m.name, m.rule, red)
			})
		}
		twoAtATime(jobs)
	}
	slices.Sort(lost)
	return lost, err
}

func twoAtATime(jobs []func()) {
	var running sync.WaitGroup
	slots := make(chan struct{}, 2)
	for _, job := range jobs {
		slots <- struct{}{}
		running.Go(func() { job(); <-slots })
	}
	running.Wait()
}

// A build is a tree with bugs in it.
type build struct {
	mutants  []*mutant
	files    map[string][]byte // what differs from the tree, or is not in it
	binaries map[string]string // the test binary of each package
}

// make builds the tests of the mutants into dir.
func (b *build) make(dir string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range b.files {
		path := filepath.Join(dir, "tree", file)
		if err := write(path, text); err != nil {
			return err
		}
		overlay.Replace[filepath.Join(here, file)] = path
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "overlay.json"), list); err != nil {
		return err
	}
	b.binaries = map[string]string{}
	// One command builds many, side by side, and everything that they share once. It names a binary by the last element of the path
	// of its package, so what is called the same is left to the next command.
	packages := slices.Sorted(maps.Keys(b.tests()))
	for n := 0; len(packages) > 0; n++ {
		folder := filepath.Join(dir, fmt.Sprint(n)) + "/"
		var these, rest []string
		for _, p := range packages {
			binary := folder + path.Base(p) + ".test"
			if slices.Contains(slices.Collect(maps.Values(b.binaries)), binary) {
				rest = append(rest, p)
				continue
			}
			b.binaries[p], these = binary, append(these, p)
		}
		c := exec.Command("go", append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", folder}, these...)...)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("build the tests of %s with %d bugs, of which %s is the first: %w\n%s", strings.Join(these, " "), len(b.mutants), b.mutants[0].name, err, out)
		}
		packages = rest
	}
	return nil
}

var failed = regexp.MustCompile(`--- FAIL: [A-Za-z0-9_/#-]+|panic: .*`)

// tests returns the patterns that select the tests of all mutants, by package. Without a bug they have to be green: tests
// that are red anyway would catch nothing.
func (b *build) tests() map[string][]string {
	tests := map[string][]string{}
	for _, m := range b.mutants {
		for _, p := range m.packages {
			pattern := "." // all
			if len(m.flags) > 0 {
				pattern = m.flags[1]
			}
			tests[p] = append(tests[p], pattern)
		}
	}
	return tests
}

// run runs the tests of a mutant, and returns the first that turned red, or "".
func (b *build) run(m *mutant) string {
	for _, p := range m.packages {
		out, err := b.test(p, m.name, "2m", m.flags...)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return strings.TrimPrefix(string(failed.Find(out)), "--- FAIL: ")
		}
	}
	return ""
}

// test runs tests of a package with a bug.
func (b *build) test(pkg, bug, timeout string, flags ...string) ([]byte, error) {
	c := exec.Command(b.binaries[pkg], append([]string{"-test.failfast", "-test.paniconexit0", "-test.timeout=" + timeout}, flags...)...)
	c.Dir = pkg
	c.Env = append(os.Environ(), variable+"="+bug)
	return c.CombinedOutput()
}
