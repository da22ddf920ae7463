package load

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/internal/loadtest"
)

const hostileHead = `{"apiVersion":"converge.dev/v1","site":{"name":"x","id":"` + loadtest.SiteID + `"}`

// cueTime is CUE that takes endless time and no memory.
const cueTime = `import "list"
l: list.Range(0, 1000, 1)
n: [for a in l for b in l for c in l if a*b*c < 0 {a}]
`

// cueMemory is CUE in which every line is ten times as large as the one before.
const cueMemory = `a: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
b: [a, a, a, a, a, a, a, a, a, a]
c: [b, b, b, b, b, b, b, b, b, b]
d: [c, c, c, c, c, c, c, c, c, c]
e: [d, d, d, d, d, d, d, d, d, d]
f: [e, e, e, e, e, e, e, e, e, e]
g: [f, f, f, f, f, f, f, f, f, f]
`

// TestHostile loads what tries to take the machine down, each in a process of its own, and measures how much memory that
// process and its children used.
func TestHostile(t *testing.T) {
	if raceEnabled {
		t.Skip("the memory would be that of the race detector")
	}
	for _, c := range []struct {
		name, file string
		write      func(w io.Writer)
		want       string // in the output
		limit      int64  // MiB
	}{
		{"100 MB", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead)
			for range 1_000_000 {
				fmt.Fprint(w, strings.Repeat(" ", 100))
			}
			fmt.Fprint(w, "}")
		}, "the limit is 64 MiB", 256},
		{"depth 1e5", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"x":`, strings.Repeat("[", 100_000), strings.Repeat("]", 100_000), "}")
		}, "32 levels deep", 256},
		{"depth 1e5 of objects", "a.json", func(w io.Writer) {
			fmt.Fprint(w, strings.Repeat(`{"a":`, 100_000), "0", strings.Repeat("}", 100_000))
		}, "32 levels deep", 256},
		{"1e6 resources", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"carbide":{"tenant":{"t":{}`)
			for i := range 1_000_000 {
				fmt.Fprintf(w, `,"tenant-%d":{}`, i)
			}
			fmt.Fprint(w, "}}}")
		}, "more than 200000 resources", 256},
		{"1e6 labels", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"carbide":{"vpc":{"v1":{"labels":{"a":""`)
			for i := range 1_000_000 {
				fmt.Fprintf(w, `,"l%d":""`, i)
			}
			fmt.Fprint(w, "}}}}}")
		}, "more than 100000 members", 256},
		{"1e6 unknown kinds", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead)
			for i := range 1_000_000 {
				fmt.Fprintf(w, `,"p%d":{}`, i)
			}
			fmt.Fprint(w, "}")
		}, "more than 100000 members", 256},
		{"lists of nothing", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"x":[[]`)
			for range 99 {
				fmt.Fprint(w, ",[[]", strings.Repeat(",[]", 99_998), "]")
			}
			fmt.Fprint(w, "]}")
		}, "more than 5000000 values", 512},
		{"long name", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"carbide":{"tenant":{"`, strings.Repeat("a", 1<<20), `":{}}}}`)
		}, "A name has 1048576 bytes; the limit is 256", 256},
		{"long number", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"x":`, strings.Repeat("9", 1<<20), `}`)
		}, "does not fit in 64 bits", 256},
		{"bad UTF-8", "a.json", func(w io.Writer) { fmt.Fprint(w, hostileHead, ",\"x\":\"\xc3\x28\"}") }, "invalid UTF-8", 256},
		{"NUL byte", "a.json", func(w io.Writer) { fmt.Fprint(w, hostileHead, ",\x00}") }, "This is not valid JSON", 256},
		{"all wrong", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"carbide":{"vpc":{"v1":{}`)
			for i := range 100_000 {
				fmt.Fprintf(w, `,"vpc-%d":{"tenant":"nobody-%d","vnni":1}`, i, i)
			}
			fmt.Fprint(w, "}}}")
		}, "more. Fix these first", 256},
		{"all dangling", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"carbide":{"tenant":{"t0":{}}, "vpc":{"v1":{"tenant":"t0"}`)
			for i := range 100_000 {
				fmt.Fprintf(w, `,"vpc-%d":{"tenant":"nobody-%d"}`, i, i)
			}
			fmt.Fprint(w, "}}}")
		}, "more. Fix these first", 384},
		{"chain of 1e5", "a.json", func(w io.Writer) {
			fmt.Fprint(w, hostileHead, `,"carbide":{"tenant":{"t0":{"depends_on":["site/carbide.tenant/t99999"]}`)
			for i := range 99_999 {
				fmt.Fprintf(w, `,"t%d":{"depends_on":["site/carbide.tenant/t%d"]}`, i+1, i)
			}
			fmt.Fprint(w, "}}}")
		}, "References form a cycle", 384},
		{"CUE that takes time", "a.cue", func(w io.Writer) { fmt.Fprint(w, cueTime) }, "used more than 1.7s of CPU time. Simplify it, or raise -eval-timeout", 300},
		{"CUE that takes memory", "a.cue", func(w io.Writer) { fmt.Fprint(w, cueMemory) }, "Simplify it, or raise", 300},
		{"CUE depth 1e5", "a.cue", func(w io.Writer) {
			fmt.Fprint(w, "x: ", strings.Repeat("{a: ", 100_000), "0", strings.Repeat("}", 100_000))
		}, "error CV105", 300},
		{"YAML bomb", "a.yaml", func(w io.Writer) {
			fmt.Fprintln(w, "a0: &a0 [x, x, x, x, x, x, x, x, x]")
			for i := range 30 {
				fmt.Fprintf(w, "a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 8), i)
			}
		}, "expand to more than 50000 values", 256},
		{"YAML that holds itself", "a.yaml", func(w io.Writer) { fmt.Fprint(w, "a: &a [*a]\n") }, "contains itself", 256},
		{"YAML depth 1e5", "a.yaml", func(w io.Writer) { fmt.Fprint(w, "a: ", strings.Repeat("[", 100_000)) }, "error CV105", 256},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.file)
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			w := bufio.NewWriter(f)
			c.write(w)
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			f.Close()
			// A child's peak begins at that of this process, which other tests have raised: it is reset first.
			debug.FreeOSMemory()
			_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // without it the figure is only less exact
			cmd := exec.Command(os.Args[0], "load", path)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 1 {
				t.Fatalf("ended with %v, want a refusal: %s", err, out)
			}
			if !strings.Contains(string(out), c.want) {
				t.Errorf("want %q in\n%.2000s", c.want, out)
			}
			if len(out) > 100_000 {
				t.Errorf("says %d bytes", len(out))
			}
			usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
			mib := usage.Maxrss >> 10
			t.Logf("%d MiB, %v", mib, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
			if mib > c.limit {
				t.Errorf("took %d MiB, want at most %d", mib, c.limit)
			}
		})
	}
}
