package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
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

	"converge.dev/converge/internal/torture"
)

const module = "converge.dev/converge"

// starters are the packages that may start a process, each with the reason.
var starters = map[string]string{
	"cmd/internal/command": "runs the node agents of a rehearsed site; the program is itself, argv is words of its own, an address and paths made of node numbers",
	"providers/ovs":        "asks ovs-vswitchd for flows, which OVSDB does not have; argv is options, a socket and cookies, and flows are the input",
	"schema/load":          "evaluates documents in a child with limits; argv is the program itself",
	"state/etcd":           "has a data file checked where a page that is damaged ends no more than a child; the program is itself",
}

// shells are programs that make commands from text.
var shells = regexp.MustCompile(`^(.*/)?(sh|bash|dash|ash|zsh|ksh|csh|fish|busybox|env|xargs|eval|sudo|su|ssh|python3?|perl|awk|cmd\.exe|powershell)$`)

// xml matches a text that is a part of XML: a tag, a comment, a declaration.
var xml = regexp.MustCompile(`<(/?[A-Za-z][A-Za-z0-9:_-]*(\s+[A-Za-z:_-]+\s*=[^>]*)?\s*/?>|!--|\?xml|!\[CDATA\[)`)

// stdin is the name of standard input where a file is named; it is not XML.
const stdin = "<stdin>"

// A scan goes through the source of the module that ends up in programs.
type scan struct {
	t        *testing.T
	packages int
	calls    int // of functions that start processes or concatenate texts
	problems []string
}

func (s *scan) complain(pos token.Position, format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf("%s: %s", pos, fmt.Sprintf(format, args...)))
}

// file checks one file of a package.
func (s *scan) file(path string, fset *token.FileSet, f *ast.File) {
	imports := map[string]string{}
	for _, i := range f.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		name := filepath.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = p
		switch p {
		case "text/template", "html/template":
			s.complain(fset.Position(i.Pos()), "imports %s: texts are put together by typed encoders", p)
		case "plugin", "unsafe", "C":
			if p != "unsafe" {
				s.complain(fset.Position(i.Pos()), "imports %s", p)
			}
		case "os/exec":
			if starters[path] == "" {
				s.complain(fset.Position(i.Pos()), "imports os/exec: what is outside is reached through its interface; if there is a reason, say it in the list of this test")
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch p := imports[x.Name]; {
			case p == "os/exec" && (sel.Sel.Name == "Command" || sel.Sel.Name == "CommandContext"),
				p == "syscall" && slices.Contains([]string{"Exec", "ForkExec", "StartProcess"}, sel.Sel.Name),
				p == "golang.org/x/sys/unix" && sel.Sel.Name == "Exec",
				p == "os" && sel.Sel.Name == "StartProcess":
				s.calls++
				if p != "os/exec" {
					s.complain(fset.Position(n.Pos()), "starts a process past os/exec")
				}
				for _, a := range n.Args {
					if text, ok := literal(a); ok && shells.MatchString(text) {
						s.complain(fset.Position(n.Pos()), "starts %s, which makes commands of text", text)
					}
					if text, ok := literal(a); ok && text == "-c" {
						s.complain(fset.Position(n.Pos()), "gives a program a command as text")
					}
				}
			case p == "fmt" || p == "strings" || p == "bytes":
				s.calls++
			}
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(n.Value); err == nil && text != stdin && xml.MatchString(text) {
				s.complain(fset.Position(n.Pos()), "writes XML as text: %.60q; encoding/xml and libvirtxml know how to", text)
			}
		}
		return true
	})
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// TestTortureNoShellNoXML reads the source of everything that ends up in a program: no shell is started, no process but those
// in the list, and no XML is built from text.
func TestTortureNoShellNoXML(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles", "./cmd/...")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &scan{t: t}
	used := map[string]bool{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir   string
			GoFiles, CgoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		path, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if !ours {
			continue
		}
		if len(p.CgoFiles) > 0 {
			t.Errorf("%s uses cgo", path)
		}
		s.packages++
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range f.Imports {
				used[path+" "+i.Path.Value] = true
			}
			s.file(path, fset, f)
		}
	}
	for _, p := range s.problems {
		t.Error(p)
	}
	for path := range starters {
		if !used[path+` "os/exec"`] {
			t.Errorf("%s starts no process any more: take it from the list", path)
		}
	}
	if s.packages < 20 || s.calls < 300 {
		t.Errorf("only %d packages and %d calls were seen", s.packages, s.calls)
	}
	torture.Report(t, "J", "%d packages and %d calls read: no shell, no XML from text", s.packages, s.calls)
}

// TestScanFinds shows the scan what it must find.
func TestScanFinds(t *testing.T) {
	for _, c := range []struct{ path, source, want string }{
		{"providers/x", `import "os/exec"; func f() { exec.Command("ip", "link") }`, "imports os/exec"},
		{"schema/load", `import "os/exec"; func f() { exec.Command("/bin/sh", "x") }`, "makes commands of text"},
		{"schema/load", `import e "os/exec"; func f() { e.CommandContext(nil, "bash") }`, "makes commands of text"},
		{"schema/load", `import "os/exec"; func f(s string) { exec.Command(s, "-c", s) }`, "a command as text"},
		{"providers/x", `import "syscall"; func f() { syscall.Exec("x", nil, nil) }`, "past os/exec"},
		{"providers/x", `import "os"; func f() { os.StartProcess("x", nil, nil) }`, "past os/exec"},
		{"providers/x", `import "text/template"`, "imports text/template"},
		{"providers/x", `import "fmt"; func f(s string) { fmt.Sprintf("<name>%s</name>", s) }`, "XML as text"},
		{"providers/x", "func f(s string) string { return `<domain type='kvm'>` + s }", "XML as text"},
		{"providers/x", `func f(s string) string { return "<!--" + s }`, "XML as text"},
		{"providers/x", `func f() string { return "<stdin>" }`, ""},
		{"providers/x", `func f() string { return "<x>" }`, "XML as text"},
		{"providers/x", `func f() string { return "a < b > c" }`, ""},
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "x.go", "package x\n"+c.source, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &scan{t: t}
		s.file(c.path, fset, f)
		got := strings.Join(s.problems, "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.source, got, c.want)
		}
	}
}
