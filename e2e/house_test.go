package e2e

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "converge.dev/converge"

// layers says which of our packages each part may import besides itself: imports run one way,
// schema <- providers, state <- engine <- cmd, and implementations see neither the engine nor each other.
var layers = []struct {
	part string
	may  []string
}{
	{"internal/budget", nil},
	{"internal/failpoint", nil},
	{"internal/files", nil},
	{"internal/loopback", nil},
	{"internal/nearest", nil},
	{"internal/netns", nil},
	{"internal/tells", nil},
	{"internal/torture", nil},
	{"internal/guest/facts", nil},
	{"internal/guest/order", nil},
	{"internal/guest/init", []string{"internal/guest/order"}},
	{"internal/guest", nil},
	{"internal/loadtest", []string{"schema"}},
	{"internal/cidata", nil},
	{"internal/keyed", nil},
	{"internal/retry", nil},
	{"internal/dsse", nil},
	{"internal/reverse", []string{"internal/retry"}},
	{"internal/specgen", []string{"schema$", "schema/kinds"}},
	{"internal/providertest", []string{"schema", "providers$", "providers/wire$", "engine/secret/sealed"}},
	{"internal/carbidesim", []string{"schema", "providers/carbide", "internal/files"}},
	{"internal/carbidetest", []string{"schema", "providers$", "providers/carbide/forge", "internal/carbidesim", "internal/providertest"}},
	{"internal/ovstest", []string{"schema", "providers/ovs", "internal/netns"}},
	{"internal/kerneltest", []string{"providers/sysfs"}},
	{"internal/libvirttest", nil},
	{"internal/statetest", []string{"schema", "state"}},
	{"internal/cluster", []string{"schema", "state", "engine", "internal/torture", "internal/retry"}},
	{"internal/enginetest", []string{"schema", "providers", "state", "engine"}},
	{"schema/load", []string{"schema$", "schema/kinds", "schema/rules", "schema/internal", "internal/files"}},
	{"schema/rules", []string{"schema$", "schema/internal/message", "internal/nearest"}},
	{"schema/kinds", []string{"schema$", "schema/internal", "internal/nearest"}},
	{"schema/internal/message", []string{"internal/nearest"}},
	{"schema/internal/canonical", nil},
	{"schema/object", []string{"schema$"}},
	{"schema/signed", []string{"internal/dsse"}},
	{"schema", nil},
	{"providers/all", []string{"schema", "providers"}},
	{"providers/fake", []string{"schema$", "providers$", "internal/files", "internal/retry"}},
	{"providers/carbide/spec", []string{"schema$", "schema/object"}},
	{"providers/libvirt/spec", []string{"schema$", "schema/object"}},
	{"providers/ovs/spec", []string{"schema$", "schema/object"}},
	{"providers/carbide/enrol", []string{"internal/files", "internal/retry", "internal/tells"}},
	{"providers/carbide", []string{"schema$", "providers$", "internal/files", "internal/keyed"}},
	{"providers/wire/wirepb", nil},
	{"providers/remote/remotepb", []string{"providers/wire/wirepb"}},
	{"providers/remote", []string{"schema$", "providers$", "providers/wire", "agent/task", "agent/ledger", "internal/keyed", "internal/retry"}},
	{"providers/wire", []string{"schema$", "providers$", "providers/wire/wirepb", "internal/keyed"}},
	{"providers/libvirt", []string{"schema$", "providers$", "internal/cidata", "internal/keyed", "internal/retry"}},
	{"providers/ovs", []string{"schema$", "providers$"}},
	{"providers/pci/spec", []string{"schema$", "schema/object"}},
	{"providers/pci", []string{"schema$", "providers$", "providers/sysfs"}},
	{"providers/host/spec", []string{"schema$", "schema/object"}},
	{"providers/host", []string{"schema$", "providers$", "providers/sysfs", "internal/netns"}},
	{"providers/sysfs", []string{"schema$", "providers$"}},
	{"providers", []string{"schema$"}},
	{"state/mem", []string{"schema$", "state$"}},
	{"state/etcd", []string{"schema$", "state$", "internal/files", "internal/retry"}},
	{"state", []string{"schema", "internal/failpoint", "internal/retry"}},
	{"engine/secret/sealed", []string{"schema$"}},
	{"engine/secret", []string{"schema$", "providers$", "internal/files"}},
	{"engine/diff", []string{"schema$", "engine/secret/sealed"}},
	{"engine/graph", nil},
	{"engine/remedy", nil},
	{"engine/plan", []string{"schema$", "providers$", "state$", "engine/diff", "engine/graph", "engine/remedy", "engine/secret/sealed"}},
	{"engine/survey", []string{"schema$", "providers$", "state$", "engine/diff", "engine/plan", "engine/secret/sealed"}},
	{"engine", []string{"schema$", "providers$", "state$", "engine", "internal/failpoint", "internal/retry"}},
	{"trust/trustpb", nil},
	{"trust/certs", []string{"internal/nearest", "internal/files", "internal/retry", "internal/tells"}},
	{"trust", []string{"schema$", "schema/signed", "state$", "internal/dsse", "internal/files"}},
	{"agent/task", []string{"internal/dsse"}},
	{"agent/ledger", []string{"internal/files"}},
	{"agent", []string{"schema$", "providers$", "providers/remote", "trust", "guard$", "internal/files", "internal/retry", "internal/reverse"}},
	{"guard", []string{"schema$", "providers$", "internal/files", "internal/retry"}},
	{"deploy", []string{"internal/files"}},
	{"site/outbox", []string{"schema$", "state$", "engine/drift", "engine/survey", "site$", "internal/files", "internal/retry"}},
	{"site/api", []string{"site/outbox", "schema$", "providers$", "state$", "engine", "trust", "site$", "internal"}},
	{"site", []string{"schema$", "providers", "state$", "engine", "internal/retry", "internal/reverse"}},
	{"cmd", []string{"schema", "providers", "state", "engine", "trust", "agent", "guard", "site", "deploy$", "internal/files", "internal/nearest", "internal/retry", "internal/reverse", "internal/carbidesim"}},
	{"e2e", []string{"schema", "providers", "state", "engine", "trust", "agent", "site", "cmd", "internal"}},
}

type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Imports,GoFiles", "./...")
	cmd.Dir = ".."
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ps []pkg
	for d := json.NewDecoder(out); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(ps) < 10 {
		t.Fatalf("only %d packages were found", len(ps))
	}
	return ps
}

func below(path, part string) bool { return path == part || strings.HasPrefix(path, part+"/") }

func TestImportsRunOneWay(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		i := slices.IndexFunc(layers, func(l struct {
			part string
			may  []string
		}) bool {
			return below(path, l.part)
		})
		if i < 0 {
			t.Errorf("%s stands in no layer: add it to the list, or move it", path)
			continue
		}
		for _, imp := range p.Imports {
			imp, ours := strings.CutPrefix(imp, module+"/")
			if !ours || below(imp, layers[i].part) {
				continue
			}
			if !slices.ContainsFunc(layers[i].may, func(m string) bool {
				exact, only := strings.CutSuffix(m, "$")
				return only && imp == exact || !only && below(imp, m)
			}) {
				t.Errorf("%s imports %s, against the arrow", path, imp)
			}
		}
		if path != "schema/kinds" && path != "schema/load" && slices.ContainsFunc(p.Imports, func(i string) bool { return strings.HasPrefix(i, "cuelang.org/") }) {
			t.Errorf("%s imports the CUE library; only schema/kinds and schema/load do", path)
		}
	}
}

// TestOnlyViewsNameCommands: a service can repeat what the engine says. What can be done about it has a name in package remedy.
func TestOnlyViewsNameCommands(t *testing.T) {
	command := regexp.MustCompile(`converge (apply|cancel|destroy|diff|drift|explain|force|freeze|get|history|hold|import|init|inventory|lock|plan|put|resume|rollback|runs|show|state|validate)|(^| )-[a-z]{3,}(-[a-z]+)*($|[ =])`)
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if !below(path, "engine") && !below(path, "state") && !below(path, "providers") {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, _ := strconv.Unquote(lit.Value); command.MatchString(text) {
						t.Errorf("%s: %s is for people at a command line", fset.Position(lit.Pos()), lit.Value)
					}
				}
				return true
			})
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		said := false
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil && strings.Contains(file.Doc.Text(), " ") && !strings.HasPrefix(file.Doc.Text(), "Code generated") {
				said = true
			}
		}
		if !said && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// A goroutine that ends while it is locked to its thread ends the thread too, and Pdeathsig is sent when the thread ends
// that started a process: whichever process of another test that is dies with it.
func TestNoThreadEnds(t *testing.T) {
	locks := regexp.MustCompile(`runtime\.LockOSThread\(\).*\n(.*)`)
	found := 0
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || filepath.Base(path) == "house_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range locks.FindAllSubmatch(text, -1) {
			found++
			if strings.TrimSpace(string(m[1])) != "defer runtime.UnlockOSThread()" {
				t.Errorf("%s locks a goroutine to its thread, and does not defer the unlocking at once: %s", path, m[0])
			}
		}
		return err
	})
	if err != nil || found < 3 {
		t.Errorf("%d places lock a goroutine to its thread (%v)", found, err)
	}
}

// TestEveryUnracedTestRuns finds the tests that ask whether the race detector is on, which it makes skip something: make test runs
// them without it too. It has to list them, because a whole package twice takes minutes.
func TestEveryUnracedTestRuns(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + ` := (.*)$`).FindSubmatch(makefile)
		if m == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return strings.ReplaceAll(string(m[1]), "$$", "$")
	}
	selected, folders := regexp.MustCompile(list("UNRACED_TESTS")), strings.Fields(list("UNRACED"))
	found := 0
	for _, top := range []string{"schema", "providers", "state", "engine", "internal"} {
		if !strings.Contains(list("RACED"), "./"+top+"/...") {
			t.Errorf("make test does not run all of %s with the race detector", top)
		}
		var files []string
		err := filepath.WalkDir("../"+top, func(path string, d os.DirEntry, err error) error {
			if d != nil && d.Name() == "norace_test.go" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			folder := filepath.Dir(file)
			for _, test := range askForRace(t, folder) {
				found++
				if at := "." + strings.TrimPrefix(filepath.ToSlash(folder), ".."); !slices.Contains(folders, at) || !selected.MatchString(test) {
					t.Errorf("%s in %s does less with the race detector, and UNRACED_TESTS of the Makefile does not select it", test, at)
				}
			}
		}
	}
	if found < 4 {
		t.Errorf("only %d tests were found that ask for the race detector", found)
	}
}

// askForRace returns the tests of a folder that use the constant of its norace_test.go, also in a function that they call.
func askForRace(t *testing.T, folder string) (tests []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	asking := map[string]bool{}
	var functions []*ast.FuncDecl
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				functions = append(functions, d)
			case *ast.GenDecl:
				if filepath.Base(path) == "norace_test.go" && d.Tok == token.CONST {
					asking[d.Specs[0].(*ast.ValueSpec).Names[0].Name] = true
				}
			}
		}
	}
	for again := true; again; {
		again = false
		for _, f := range functions {
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && asking[id.Name] && !asking[f.Name.Name] {
					asking[f.Name.Name], again = true, true
				}
				return true
			})
		}
	}
	for _, f := range functions {
		if asking[f.Name.Name] && strings.HasPrefix(f.Name.Name, "Test") {
			tests = append(tests, f.Name.Name)
		}
	}
	return tests
}
