package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/internal/loadtest"
)

// TestChildIsTheSame evaluates good and bad sources in a child process and in this process.
func TestChildIsTheSame(t *testing.T) {
	for _, sources := range [][]Source{
		{{Name: "a.cue", Data: loadtest.SiteCUE(100)}},
		{{Name: "a.cue", Data: []byte(head)}, {Name: "b.yaml", Data: []byte("site: {name: y}")}},
		{{Name: "a.cue", Data: []byte("a: int, b: a")}},
		{{Name: "testdata/package", Dir: true}},
		{{Name: "testdata/missing", Dir: true}},
	} {
		here, wrongHere := evaluateHere(context.Background(), sources)
		there, wrongThere := child(Limits{})(context.Background(), sources)
		if diff := cmp.Diff(here, there); diff != "" {
			t.Errorf("%s (-here +child):\n%s", sources[0].Name, diff)
		}
		if diff := cmp.Diff(wrongHere, wrongThere); diff != "" {
			t.Errorf("%s (-here +child):\n%s", sources[0].Name, diff)
		}
		if (here == nil) == (len(wrongHere) == 0) {
			t.Errorf("%s: %v with %v", sources[0].Name, here, wrongHere)
		}
	}
}

func TestChildIsBounded(t *testing.T) {
	endless := []Source{{Name: "endless.cue", Data: []byte(cueTime)}}
	_, ds := child(Limits{Time: 300 * time.Millisecond})(context.Background(), endless)
	wantOne(t, ds, codeLimit, "Evaluating endless.cue used more than 300ms of CPU time. Simplify it, or raise -eval-timeout.")

	_, ds = child(Limits{Time: time.Minute, Memory: 96 << 20})(context.Background(), []Source{{Name: "big.cue", Data: []byte(cueMemory)}})
	wantOne(t, ds, codeLimit, "Evaluating big.cue used more than 96 MiB of memory. Simplify it, or raise -eval-memory.")

	_, ds = ChildEvaluator([]string{"/bin/sleep", "1h"}, Limits{Time: 50 * time.Millisecond})(context.Background(), endless)
	wantOne(t, ds, codeLimit, "Evaluating endless.cue did not finish within 1s: it was waiting for a file, or for a CPU on a busy machine. Try again, or raise -eval-timeout.")

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("enough"))
	_, ds = child(Limits{})(ctx, endless)
	wantOne(t, ds, codeInterrupted, "Evaluating endless.cue was cancelled: enough.")
}

func TestChildFails(t *testing.T) {
	sources := []Source{{Name: "a.cue"}, {Name: "b.cue"}, {Name: "c.cue"}, {Name: "d.cue"}, {Name: "e.cue"}}
	_, ds := ChildEvaluator([]string{os.Args[0], "complain"}, Limits{})(context.Background(), sources)
	wantOne(t, ds, codeEvaluation, "Evaluating a.cue, b.cue, c.cue, and 2 more failed: exit status 3: no such command")
	_, ds = ChildEvaluator([]string{"/does/not/exist"}, Limits{})(context.Background(), sources[:1])
	wantOne(t, ds, codeEvaluation, "Evaluating a.cue failed: ")
	_, ds = ChildEvaluator([]string{"/bin/true"}, Limits{})(context.Background(), sources[:1])
	wantOne(t, ds, codeEvaluation, "the result could not be read")
}

func wantOne(t *testing.T, ds Diagnostics, code, detail string) {
	t.Helper()
	if len(ds) != 1 || ds[0].Code != code || ds[0].Severity != Error || !strings.Contains(ds[0].Detail, detail) {
		t.Errorf("got %v\nwant %s: %s", ds, code, detail)
	}
}

// TestCUERefuses checks that errors of packages and imports use the names that the user gave.
func TestCUERefuses(t *testing.T) {
	two := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(two, name+".cue"), []byte("package "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		source Source
		want   string
	}{
		{Source{Name: two, Dir: true}, "In " + two + ", CUE says: found packages"},
		{Source{Name: "testdata/missing", Dir: true}, "In testdata/missing, CUE says: cannot find package"},
		{Source{Name: "a.cue", Data: []byte("import \"example.com/x\"\na: x.y\n")}, "a.cue:1:8: error CV1054: Evaluation failed: CUE says: import failed: imports are unavailable"},
		{Source{Name: "odd:name.cue", Data: []byte("a: b\n")}, "odd:name.cue:1:4: error CV1054: Evaluation failed: a: CUE says: reference \"b\" not found."},
		{Source{Name: "<stdin>", Data: []byte("a: 1 & 2\n")}, "<stdin>:1:8: error CV1054: Evaluation failed: a: CUE says: conflicting values 2 and 1. See also <stdin>:1:4."},
		{Source{Name: "a.cue", Data: []byte(" \n")}, "a.cue:1:1: error CV1051: Unreadable document: The source is empty. A document needs at least apiVersion: \"converge.dev/v1\" and site."},
		{Source{Name: "a.cue", Data: []byte("[1]")}, "this is a list"},
		{Source{Name: "a.cue", Data: []byte("x: 10000000000000000000000")}, "a.cue:1:1: error CV1051: Unreadable document: x: A whole number does not fit in 64 bits"},
	} {
		doc, ds := Document(context.Background(), small(t), Options{}, c.source)
		if doc != nil || len(ds) != 1 || !strings.Contains(ds[0].String(), c.want) {
			t.Errorf("%s: %v\nwant %q", c.source.Name, ds, c.want)
		}
	}
}

// TestPackage loads a package directory: two files, a package of the same module, and one file that is wrong.
func TestPackage(t *testing.T) {
	s := small(t)
	doc, ds := Document(context.Background(), s, Options{}, Source{Name: "testdata/package", Dir: true})
	if doc == nil || len(doc.Resources) != 2 {
		t.Fatalf("%v", ds)
	}
	override := Source{Name: "override.cue", Data: []byte("toy: thing: a: owner: \"acne\"\n")}
	doc, ds = Document(context.Background(), s, Options{}, Source{Name: "testdata/package", Dir: true}, override)
	if doc != nil {
		t.Fatal("a conflict is accepted")
	}
	wantOne(t, ds, codeEvaluation, "conflicting values")
	all := ds[0].String()
	for _, place := range []string{"testdata/package/thing.cue:3:", "override.cue:1:"} {
		if !strings.Contains(all, place) {
			t.Errorf("%s does not name %s", all, place)
		}
	}
}
