package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What is measured can still be done. How long it takes is no matter of a test.
func TestBench(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, pkg := range map[string]string{"converge": "converge.dev/converge/cmd/converge", "bench": "."} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	out, err := exec.Command(filepath.Join(dir, "bench"), "-converge="+filepath.Join(dir, "converge"), "-rounds=1", "-most=1000", "-strict=false").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if rows := strings.Count(string(out), "\n| ") - 1; rows != 7 { // the first is the head of the table
		t.Errorf("%d rows, want 7:\n%s", rows, out)
	}
}
