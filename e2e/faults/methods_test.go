package faults

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/providers/carbide/forge"
)

// changing reports whether a method of the service changes something.
func changing(method string) bool {
	for _, verb := range []string{"Find", "Get", "Search", "List", "Version"} {
		if strings.HasPrefix(method, verb) {
			return false
		}
	}
	return true
}

// called lists the methods that the source of the provider calls: those that change something, and those that read.
func called(t *testing.T) (changes, reads []string) {
	t.Helper()
	served := map[string]bool{}
	for _, m := range forge.Forge_ServiceDesc.Methods {
		served[m.MethodName] = true
	}
	sources, err := filepath.Glob("../../providers/carbide/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatal("no source of the provider: ", err)
	}
	found := map[string]bool{}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && served[s.Sel.Name] {
				found[s.Sel.Name] = true
			}
			return true
		})
	}
	for _, m := range slices.Sorted(maps.Keys(found)) {
		if changing(m) {
			changes = append(changes, m)
		} else if m != "Version" {
			reads = append(reads, m)
		}
	}
	return changes, reads
}
