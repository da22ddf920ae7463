package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the pages that are made from what the program says")

// The page of wrong documents shows what the program really says about each of them.
func TestWrongDocumentsPage(t *testing.T) {
	cases, err := filepath.Glob("../schema/load/testdata/wrong/*.txtar")
	if err != nil || len(cases) < 12 {
		t.Fatalf("%d wrong documents, %v", len(cases), err)
	}
	var page strings.Builder
	page.WriteString("# Wrong documents, and what converge says about them\n\n" +
		"Made from `schema/load/testdata/wrong` by `go test ./e2e -run WrongDocuments -update`; a test keeps it true.\n")
	for _, file := range cases {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		var names []string
		fmt.Fprintf(&page, "\n## %s\n\n%s\n", strings.TrimSuffix(filepath.Base(file), ".txtar"), strings.TrimSpace(string(ar.Comment)))
		for _, f := range ar.Files {
			if f.Name == "want" {
				continue
			}
			names = append(names, f.Name)
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f.Name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f.Name, ".cue") || strings.HasSuffix(f.Name, ".json") || strings.HasSuffix(f.Name, ".yaml") {
				fmt.Fprintf(&page, "\n`%s`\n\n```%s\n%s```\n", f.Name, strings.TrimPrefix(filepath.Ext(f.Name), "."), f.Data)
			}
		}
		cmd := exec.Command(binary, append([]string{"validate", "-no-color"}, names...)...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir} // the output depends on nothing else
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err = cmd.Run()
		said := strings.TrimSpace(stderr.String() + "\n" + stdout.String())
		if err == nil && !strings.Contains(said, "Warning") {
			t.Errorf("%s: converge has nothing against it", file)
		}
		if !strings.Contains(said, names[0]) {
			t.Errorf("%s: the message does not name the file:\n%s", file, said)
		}
		fmt.Fprintf(&page, "\n```\n$ converge validate %s\n%s\n```\n", strings.Join(names, " "), said)
	}
	kept(t, "../docs/wrong-documents.md", page.String())
}

// The page of the node shows what depends on what in its document.
func TestVMNodePage(t *testing.T) {
	const path = "../docs/vm-node.md"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(have), "```mermaid\n")
	_, after, ends := strings.Cut(rest, "```\n")
	if !begins || !ends {
		t.Fatalf("%s has no graph", path)
	}
	cmd := exec.Command(binary, "graph", "-format=mermaid", "../examples/vm-node")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	graph, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	kept(t, path, before+"```mermaid\n"+string(graph)+"```\n"+after)
}

// kept checks that a page is as the program makes it, or makes it so.
func kept(t *testing.T, path, page string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(have), page); d != "" {
		t.Errorf("%s is not what the program says now; rewrite it with -update and read the difference (-have +want):\n%s", path, d)
	}
}
