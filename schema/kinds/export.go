package kinds

import (
	"cmp"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/token"
)

// CUE returns the whole schema as one self-contained file: `cue vet -d '#Document' FILE document.json` checks a document
// as converge does, except for fields that only the far side sets and for rules on the whole site. Equal schemas result
// in equal files.
func (s *Schema) CUE() ([]byte, error) {
	m, err := s.module()
	if err != nil {
		return nil, err
	}
	all := &ast.File{Filename: "converge.cue"}
	var specs []*ast.ImportSpec
	var decls []ast.Decl
	files := slices.Clone(m.files)
	slices.SortStableFunc(files, func(a, b *ast.File) int { // core first: it says what the package is
		return cmp.Compare(outsideCore(a), outsideCore(b))
	})
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.Package:
				if len(all.Decls) == 0 {
					all.Decls = append(all.Decls, d)
				}
			case *ast.ImportDecl:
				specs = append(specs, d.Specs...)
			default:
				decls = append(decls, d)
			}
		}
	}
	slices.SortFunc(specs, func(a, b *ast.ImportSpec) int { return strings.Compare(importText(a), importText(b)) })
	specs = slices.CompactFunc(specs, func(a, b *ast.ImportSpec) bool { return importText(a) == importText(b) })
	if len(specs) > 0 {
		for _, s := range specs {
			ast.SetRelPos(s, token.Newline)
		}
		all.Decls = append(all.Decls, &ast.ImportDecl{Lparen: token.Blank.Pos(), Specs: specs, Rparen: token.Newline.Pos()})
	}
	all.Decls = append(all.Decls, decls...)
	return format.Node(all)
}

func importText(s *ast.ImportSpec) string {
	if s.Name != nil {
		return s.Path.Value + " " + s.Name.Name
	}
	return s.Path.Value
}

func outsideCore(f *ast.File) int {
	if strings.HasPrefix(f.Filename, "core/") {
		return 0
	}
	return 1
}
