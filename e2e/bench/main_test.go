package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What is measured still works. How long it takes does not matter to a test.
func TestBench(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, pkg := range map[string]string{"converge": "converge.dev/converge/cmd/converge", "bench": "."} {
		if out, err := exec.Command("go", "build", "-tags=libvirt_dlopen", "-o", filepath.Join(dir, name), pkg).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	out, err := exec.Command(filepath.Join(dir, "bench"), "-converge="+filepath.Join(dir, "converge"), "-rounds=1", "-most=1000", "-node=4", "-strict=false").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := 23
	for daemon, rows := range map[string]int{"libvirt": 3, "Open vSwitch": 2} { // which only run where they can
		if strings.Contains(string(out), "left out: "+daemon) {
			want -= rows
		}
	}
	if rows := strings.Count(string(out), "\n| ") - 1; rows != want { // the first is the header of the table
		t.Errorf("%d rows, want %d:\n%s", rows, want, out)
	}
}

// The median of the ratios is compared with a budget, whatever the machine did in a single round; bytes are compared as they are.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, r := range []row{
		{"ok", []float64{1, 2, 40}, []float64{1, 1, 1}, 2, 0},
		{"missed", []float64{3, 3, 1}, []float64{1, 1, 1}, 2, 0},
		{"ok", []float64{8, 3, 9}, []float64{4, 3, 1}, 2, 0}, // slower and slower, as is the floor
		{"", []float64{8}, []float64{1}, 0, 0},
		{"ok", []float64{8, 3, 9}, []float64{1, 1, 1}, 0, 8},
		{"missed", []float64{8, 3, 9}, []float64{9, 9, 9}, 0, 7}, // as fast as its floor, but not as fast as promised
		{"ok", []float64{64 << 20}, nil, 64 << 20, 0},
		{"missed", []float64{65 << 20}, nil, 64 << 20, 0},
	} {
		line, missed := r.verdict()
		if cells := strings.Split(line, "|"); strings.Trim(cells[len(cells)-2], " *") != r.what || missed != (r.what == "missed") {
			t.Errorf("%v against %v with budget %v: %s", r.figures, r.floors, r.budget, line)
		}
	}
}
