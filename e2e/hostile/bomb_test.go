package hostile

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/torture"
)

// What refusing a document may cost.
const (
	maxTime   = 2 * time.Second // of processors
	maxMemory = 256             // MiB resident, of the program or of a child of it
)

const bombHead = `{"apiVersion":"converge.dev/v1","site":{"name":"hostile","id":"7d9f1c62-3a54-4b0e-9c86-2f1d8e5b7a30"}`

// A bomb is a document that tries to take the machine down.
type bomb struct {
	name  string
	ext   string // of its file; standard input has none, so its content is recognized as JSON or CUE
	write func(w io.Writer)
	want  string // in the output
	stdin string // the same for standard input; empty: as want
}

func padded(size int) func(io.Writer) {
	return func(w io.Writer) {
		blank := strings.Repeat(" ", 1<<20)
		fmt.Fprint(w, bombHead)
		for range size >> 20 {
			io.WriteString(w, blank)
		}
		fmt.Fprint(w, "}")
	}
}

// bombs are the three that are promised, a size, a depth and an expansion, in every language that has them.
var bombs = []bomb{
	{"100 MB of JSON", "json", padded(100_000_000), "the limit is 64 MiB", "exceeds 64 MiB"},
	{"100 MB of CUE", "cue", func(w io.Writer) {
		line := strings.Repeat("x", 1000) + ": 1\n"
		for range 100_000 {
			io.WriteString(w, line)
		}
	}, "the limit is 64 MiB", "exceeds 64 MiB"},
	{"100 MB of YAML", "yaml", padded(100_000_000), "the limit is 64 MiB", "exceeds 64 MiB"},
	{"64 MiB of zeros as CUE", "cue", func(w io.Writer) {
		for range 64 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}, "This is not text", ""},
	{"64 MiB of comments", "cue", func(w io.Writer) { // as much as is read at all: it reaches the evaluating process
		line := "// " + strings.Repeat("x", 1020) + "\n"
		for range 64 << 10 {
			_, _ = io.WriteString(w, line)
		}
	}, "CV10", ""},
	{"JSON lists 1e5 deep", "json", func(w io.Writer) {
		fmt.Fprint(w, bombHead, `,"x":`, strings.Repeat("[", 100_000), strings.Repeat("]", 100_000), "}")
	}, "32 levels deep", ""},
	{"JSON objects 1e5 deep", "json", func(w io.Writer) {
		fmt.Fprint(w, strings.Repeat(`{"a":`, 100_000), "0", strings.Repeat("}", 100_000))
	}, "32 levels deep", ""},
	{"CUE structs 1e5 deep", "cue", func(w io.Writer) {
		fmt.Fprint(w, "x: ", strings.Repeat("{a: ", 100_000), "0", strings.Repeat("}", 100_000))
	}, "CV105", ""},
	{"CUE lists 1e5 deep", "cue", func(w io.Writer) {
		fmt.Fprint(w, "x: ", strings.Repeat("[", 100_000), strings.Repeat("]", 100_000))
	}, "CV105", ""},
	{"CUE parentheses 1e5 deep", "cue", func(w io.Writer) {
		fmt.Fprint(w, "x: ", strings.Repeat("(", 100_000), "1", strings.Repeat(")", 100_000))
	}, "CV105", ""},
	{"YAML lists 1e5 deep", "yaml", func(w io.Writer) { fmt.Fprint(w, "a: ", strings.Repeat("[", 100_000)) }, "CV105", ""},
	{"YAML mappings 5000 deep", "yaml", func(w io.Writer) { // each level needs one more space, so the text grows with the square
		for i := range 5000 {
			fmt.Fprint(w, strings.Repeat(" ", i), "a:\n")
		}
	}, "CV105", ""},
	{"a billion laughs", "yaml", func(w io.Writer) {
		fmt.Fprintln(w, "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]")
		for i := range 30 {
			fmt.Fprintf(w, "a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 8), i)
		}
	}, "expand to more than 50000 values", "CV105"},
	{"CUE that grows", "cue", func(w io.Writer) {
		fmt.Fprintln(w, "a0: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]")
		for i := range 8 {
			fmt.Fprintf(w, "a%d: [%s]\n", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("a%d, ", i), 10), ", "))
		}
	}, "CV1056", ""},
	{"CUE strings that grow", "cue", func(w io.Writer) {
		fmt.Fprintln(w, `a0: "lololololo"`)
		for i := range 9 {
			fmt.Fprintf(w, "a%d: \"%s\"\n", i+1, strings.Repeat(fmt.Sprintf(`\(a%d)`, i), 10))
		}
	}, "CV105", ""},
	{"CUE that takes time", "cue", func(w io.Writer) {
		fmt.Fprint(w, "import \"list\"\nl: list.Range(0, 1000, 1)\nn: [for a in l for b in l for c in l if a*b*c < 0 {a}]\n")
	}, "CV1056", ""},
	{"CUE in its own shape", "cue", func(w io.Writer) { fmt.Fprint(w, "#a: {x: #b}\n#b: {x: #a}\nd: #a & {x: x: x: x: {}}\n") }, "CV105", ""},
	{"CUE that asks for much at once", "cue", func(w io.Writer) {
		fmt.Fprintf(w, "import \"strings\"\na: strings.Repeat(\"a\", 1000000000)\nb: a + a + a + a\n")
	}, "CV105", ""},
}

// TestTortureBombs passes every bomb to the program as a file, on standard input, and on the way into the store.
func TestTortureBombs(t *testing.T) {
	var all []string
	for _, b := range bombs {
		all = append(all, b.name)
	}
	reached := torture.Cover(t, "bombs", all)
	routes := torture.Cover(t, "routes", []string{"plan FILE", "validate FILE", "put FILE", "plan -"})
	every := torture.Scale(4, 4, 1) // of the routes of a bomb
	var slowest time.Duration
	var largest int64
	runs := 0
	for i, b := range bombs {
		t.Run(b.name, func(t *testing.T) {
			y := newYard(t)
			file := filepath.Join(y.work, "bomb."+b.ext)
			f, err := os.Create(file)
			y.must(err)
			w := bufio.NewWriter(f)
			b.write(w)
			y.must(w.Flush())
			y.must(f.Close())
			before := y.outside()
			for j, route := range [][]string{{"plan", "FILE"}, {"validate", "FILE"}, {"put", "FILE"}, {"plan", "-"}} {
				if (i+j)%every != 0 {
					continue
				}
				want := b.want
				if route[1] == "-" && b.stdin != "" {
					want = b.stdin
				}
				// Beside other processes everything takes longer: the best of three runs is its cost.
				var r result
				for range 3 {
					args := []string{route[0], "bomb." + b.ext}
					var stdin io.Reader
					if route[1] == "-" {
						in, err := os.Open(file)
						y.must(err)
						defer in.Close()
						args, stdin = []string{route[0], "-"}, in
					}
					runs++
					r = y.ended(y.feed(stdin, args...), 1)
					if r.took <= limit() && (race || r.peak <= maxMemory) {
						break
					}
				}
				reached.Reach(b.name)
				routes.Reach(strings.Join(route, " "))
				if r.took > limit() {
					t.Errorf("%v: took %v, want at most %v", route, r.took, limit())
				}
				if !race && r.peak > maxMemory {
					t.Errorf("%v: took %d MiB, want at most %d", route, r.peak, maxMemory)
				}
				if !strings.Contains(r.out, want) {
					t.Errorf("%v: does not say %q:\n%.1000s", route, want, r.out)
				}
				if len(r.out) > 20_000 {
					t.Errorf("%v: says %d bytes", route, len(r.out))
				}
				if err := harmless(r.out); err != nil {
					t.Errorf("%v: %.300v", route, err)
				}
				t.Logf("%v: %v, %d MiB", route, r.took.Round(time.Millisecond), r.peak)
				slowest, largest = max(slowest, r.took), max(largest, r.peak)
			}
			y.unchanged(before)
		})
	}
	torture.Report(t, "J", "%d bombs refused in %d runs: at most %v and %d MiB", len(bombs), runs, slowest.Round(time.Millisecond), largest)
}

// limit returns what a refusal may take here: the race detector makes everything several times slower, and so do, up to
// twice, other processes on the machine of a push.
func limit() time.Duration {
	if race {
		return 5 * maxTime
	}
	return maxTime * time.Duration(torture.Scale(2, 2, 1))
}
