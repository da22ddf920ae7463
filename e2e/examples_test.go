package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/ovstest"
)

// Every example is a valid document and can be planned on an empty site.
func TestExamples(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("../examples")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, e := range entries {
		files, _ := filepath.Glob(filepath.Join("../examples", e.Name(), "*.*"))
		if !e.IsDir() || len(files) == 0 {
			continue
		}
		tried++
		t.Run(e.Name(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(o *carbidesim.Options) { o.Rules.Peering = carbidesim.PeeringMixed })
			s.open()
			s.must(os.CopyFS(filepath.Join(s.dir, "doc"), os.DirFS(filepath.Join("../examples", e.Name()))))
			s.informed(0, "validate", "-strict", "doc").says("Success!")
			s.run(0, "put", "doc")
			var doc struct{ Nodes map[string]any }
			s.must(json.Unmarshal([]byte(s.run(0, "get").stdout.String()), &doc))
			switch {
			case e.Name() == "vm-node": // e2e/node has it on a kernel, libvirt and switch
				s.write("converge.yaml", "fake: {world: world.json}\n")
				s.write("images.cue", `apiVersion: "converge.dev/v1"
site: {name: "images", id: "7c0e5f38-52f4-4d5b-8f8c-1f7f0c9b6a11"}
nodes: "gpu-01": libvirt: {pool: images: path: "/srv/images", volume: debian13: {pool: "images", capacity: 1073741824}}
`)
				s.run(0, "apply", "-data-dir=others", "-auto-approve", "images.cue")
			case len(doc.Nodes) > 0:
				config := s.read("converge.yaml") + "nodes:\n"
				for node := range doc.Nodes {
					config += "  " + node + ": {ovs: " + ovstest.Fake(t).Endpoint + "}\n"
				}
				s.write("converge.yaml", config)
				s.userspace("doc")
			}
			s.informed(2, "plan", "-detailed-exitcode", "doc").says(" to add, ")
			switch e.Name() {
			case "gpu-site":
				s.established("doc")
				s.informed(0, "plan", "-detailed-exitcode", "doc")
				s.informed(0, "drift").says("No drift") // nor does the far side by itself change what the document leaves out
			case "vm-node":
				s.informed(0, "apply", "-auto-approve", "doc").says("Apply complete!")
				s.informed(0, "plan", "-detailed-exitcode", "doc")
			default:
				s.run(0, "apply", "-auto-approve", "doc").says("Apply complete!")
				s.settled("doc")
			}
		})
	}
	if tried < 2 {
		t.Errorf("only %d examples were found", tried)
	}
}

// The demo runs to its end. It has its own program and examples, so that it needs nothing from this checkout.
func TestDemo(t *testing.T) {
	t.Parallel()
	program(t, "cmp", "diffutils")
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("../examples")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(dir, "bin", "converge")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "examples", "demo.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	demo := exec.CommandContext(t.Context(), filepath.Join(dir, "examples", "demo.sh"))
	demo.Env = append(os.Environ(), "TMPDIR="+dir)
	out, err := demo.CombinedOutput()
	if err != nil {
		t.Fatalf("the demo: %v\n%s", err, out)
	}
	for _, want := range []string{"Apply complete!", "No changes", "objects of this run are as they were before", "mine now", "A site that runs itself", "It is put right", "has undone it by itself", "(exit status 9)", "takes over"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "tmp.*"))
	if err != nil || len(left) > 0 {
		t.Errorf("the demo left %v, %v", left, err)
	}
}
