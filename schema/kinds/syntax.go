package kinds

import (
	"fmt"
	"strings"

	"cuelang.org/go/cue/ast"
)

// A syntax knows the declarations of a package by name. It finds what evaluation hides: parts of a definition that
// depend on the values of fields.
type syntax struct {
	declared map[string][]ast.Node
	done     map[string][]string // by name: what was found, including below the names that it uses
}

func newSyntax(files []*ast.File) *syntax {
	s := &syntax{declared: make(map[string][]ast.Node), done: make(map[string][]string)}
	for _, f := range files {
		for _, d := range f.Decls {
			if f, ok := d.(*ast.Field); ok {
				if name, _, err := ast.LabelName(f.Label); err == nil {
					s.declared[name] = append(s.declared[name], f)
				}
			}
		}
	}
	return s
}

// dynamic lists what under n, and under the definitions that it uses, may depend on the values of fields. It knows
// the constructs that do not; all others are listed.
func (s *syntax) dynamic(n ast.Node) (found []string) {
	miss := func(n ast.Node, what string) {
		found = append(found, fmt.Sprintf("%s:%d: %s", n.Pos().Filename(), n.Pos().Line(), what))
	}
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			switch n.Label.(type) {
			case *ast.Ident, *ast.BasicLit: // a label does not use its name
				if n.Alias == nil {
					ast.Walk(n.Value, visit, nil)
					return false
				}
			case *ast.ListLit: // a pattern
			default:
				miss(n, "a computed label")
			}
		case *ast.SelectorExpr: // of a package: its name does not use a declaration
			if x, ok := n.X.(*ast.Ident); ok && isImport(x) {
				return false
			}
			miss(n, "a selector")
		case *ast.Ident:
			_, local := n.Scope.(*ast.StructLit)
			if local || n.Name == "self" || n.Name == "__self" {
				miss(n, "the field "+n.Name)
			} else {
				found = append(found, s.use(n.Name)...)
			}
		case *ast.StructLit, *ast.ListLit, *ast.EmbedDecl, *ast.Ellipsis, *ast.ParenExpr, *ast.CallExpr, *ast.UnaryExpr,
			*ast.BinaryExpr, *ast.BasicLit, *ast.Interpolation, *ast.BottomLit, *ast.Attribute, *ast.CommentGroup, *ast.Comment:
		default:
			miss(n, strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", n), "*ast.")))
			return false
		}
		return true
	}
	ast.Walk(n, visit, nil)
	return found
}

// isImport reports whether a name is that of an imported package.
func isImport(id *ast.Ident) bool {
	_, ok := id.Node.(*ast.ImportSpec)
	return ok
}

// use lists what is dynamic in the declarations of a name.
func (s *syntax) use(name string) []string {
	found, ok := s.done[name]
	if ok {
		return found
	}
	s.done[name] = nil // set while it is being examined
	for _, d := range s.declared[name] {
		found = append(found, s.dynamic(d)...)
	}
	s.done[name] = found
	return found
}
