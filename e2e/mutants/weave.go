package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// variable in the environment of a test names the bug that is switched on.
const variable = "SEEDED_BUG"

// weave puts all mutants that change only bodies of functions into one build, and each of the others into its own.
func weave(mutants []*mutant) (together *build, alone []*build, err error) {
	together = &build{files: map[string][]byte{}}
	woven := map[string]*source{} // by file
	for _, m := range mutants {
		var pieces []*piece
		fits := true
		for _, file := range slices.Sorted(maps.Keys(m.files)) {
			if woven[file] == nil {
				b, err := os.ReadFile(file)
				if err != nil {
					return nil, nil, err
				}
				if woven[file], err = parse(file, b); err != nil {
					return nil, nil, err
				}
			}
			changed, err := parse(file, m.files[file])
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", m.patch, err)
			}
			found, ok := woven[file].differ(changed, m.name)
			pieces, fits = append(pieces, found...), fits && ok
		}
		if !fits {
			alone = append(alone, &build{mutants: []*mutant{m}, files: m.files})
			continue
		}
		for _, p := range pieces {
			p.of.pieces = append(p.of.pieces, p)
		}
		together.mutants = append(together.mutants, m)
	}
	for file, s := range woven {
		if len(s.pieces) == 0 {
			continue
		}
		together.files[file] = s.woven()
		together.files[filepath.Join(filepath.Dir(file), "seeded_bug.go")] = []byte(
			"package " + s.tree.Name.Name + "\n\nimport \"os\"\n\nvar seededBug = os.Getenv(\"" + variable + "\")\n")
	}
	return together, alone, nil
}

// A source is a file, and the pieces that mutants put into it.
type source struct {
	text   []byte
	set    *token.FileSet
	tree   *ast.File
	funcs  map[string]*ast.FuncDecl // by receiver and name
	pieces []*piece
}

// A piece is a function as a mutant has it.
type piece struct {
	of      *source
	key     string
	mutant  string
	text    string
	imports []string // that the file lacks
}

func parse(file string, text []byte) (*source, error) {
	s := &source{text: text, set: token.NewFileSet(), funcs: map[string]*ast.FuncDecl{}}
	var err error
	if s.tree, err = parser.ParseFile(s.set, file, text, parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	for _, d := range s.tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			s.funcs[s.key(f)] = f
		}
	}
	return s, nil
}

func (s *source) key(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	return s.cut(f.Recv.List[0].Type) + "." + f.Name.Name
}

func (s *source) offset(p token.Pos) int { return s.set.Position(p).Offset }

func (s *source) cut(n ast.Node) string {
	return string(s.text[s.offset(n.Pos()):s.offset(n.End())])
}

// rest returns what a file contains besides the bodies of its functions and its imports.
func (s *source) rest() string {
	var b strings.Builder
	for _, d := range s.tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				b.WriteString(s.cut(d.Recv))
			}
			b.WriteString(d.Name.Name + s.cut(d.Type))
		case *ast.GenDecl:
			if d.Tok != token.IMPORT {
				b.WriteString(s.cut(d))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *source) imports() (all []string) {
	for _, i := range s.tree.Imports {
		all = append(all, s.cut(i))
	}
	return all
}

// differ returns the functions whose bodies differ in changed. It reports whether nothing else does.
func (s *source) differ(changed *source, name string) (pieces []*piece, ok bool) {
	if s.rest() != changed.rest() {
		return nil, false
	}
	had := s.imports()
	for key, f := range s.funcs {
		is := changed.funcs[key]
		if f.Body == nil || s.cut(f.Body) == changed.cut(is.Body) {
			continue
		}
		if f.Name.Name == "init" && f.Recv == nil {
			return nil, false
		}
		p := &piece{of: s, key: key, mutant: name, text: changed.rename(is, name)}
		for _, i := range changed.imports() {
			if !slices.Contains(had, i) {
				p.imports = append(p.imports, i)
			}
		}
		pieces = append(pieces, p)
	}
	return pieces, true
}

// renamed returns the name of a mutant's function.
func renamed(function, mutant string) string {
	return function + "__" + strings.ReplaceAll(mutant, "-", "_")
}

// rename returns a function under its name as a mutant's.
func (s *source) rename(f *ast.FuncDecl, mutant string) string {
	from, name, to := s.offset(f.Pos()), s.offset(f.Name.Pos()), s.offset(f.End())
	return string(s.text[from:name]) + renamed(f.Name.Name, mutant) + string(s.text[name+len(f.Name.Name):to])
}

// An insertion is a text, and what it replaces.
type insertion struct {
	from, to int
	text     string
}

// woven returns the file with all pieces in it: each function begins by checking whether a mutant replaces it.
func (s *source) woven() []byte {
	var ins []insertion
	var imports []string
	stand := map[string][]*piece{} // for the function
	for _, p := range s.pieces {
		stand[p.key] = append(stand[p.key], p)
		imports = append(imports, p.imports...)
	}
	slices.Sort(imports)
	for _, i := range slices.Compact(imports) {
		end := s.offset(s.tree.Name.End())
		ins = append(ins, insertion{end, end, "; import " + i})
	}
	for key, pieces := range stand {
		f := s.funcs[key]
		named, receiver, args := s.arguments(f)
		ins = append(ins, named...)
		var b strings.Builder
		b.WriteString(" switch seededBug {")
		for _, p := range pieces {
			call := renamed(f.Name.Name, p.mutant) + "(" + args + ")"
			if f.Recv != nil {
				call = receiver + "." + call
			}
			if f.Type.Results != nil {
				fmt.Fprintf(&b, " case %q: return %s;", p.mutant, call)
			} else {
				fmt.Fprintf(&b, " case %q: %s; return;", p.mutant, call)
			}
		}
		b.WriteString(" };")
		at := s.offset(f.Body.Lbrace) + 1
		ins = append(ins, insertion{at, at, b.String()})
	}
	slices.SortStableFunc(ins, func(a, b insertion) int { return cmp.Compare(a.from, b.from) })
	var out bytes.Buffer
	done := 0
	for _, i := range ins {
		out.Write(s.text[done:i.from])
		out.WriteString(i.text)
		done = i.to
	}
	out.Write(s.text[done:])
	for _, p := range s.pieces {
		out.WriteString("\n" + p.text + "\n")
	}
	return out.Bytes()
}

// arguments returns a function's receiver, the arguments that pass its parameters on, and names for those without one.
func (s *source) arguments(f *ast.FuncDecl) (named []insertion, receiver, args string) {
	names := func(field *ast.Field) (all []string) {
		name := func() string { return fmt.Sprintf("unnamed%d__", len(named)) }
		if len(field.Names) == 0 {
			at := s.offset(field.Type.Pos())
			all = append(all, name())
			named = append(named, insertion{at, at, all[0] + " "})
		}
		for _, id := range field.Names {
			if id.Name != "_" {
				all = append(all, id.Name)
				continue
			}
			all = append(all, name())
			named = append(named, insertion{s.offset(id.Pos()), s.offset(id.End()), all[len(all)-1]})
		}
		return all
	}
	if f.Recv != nil {
		receiver = names(f.Recv.List[0])[0]
	}
	var all []string
	for _, field := range f.Type.Params.List {
		all = append(all, names(field)...)
		if _, more := field.Type.(*ast.Ellipsis); more {
			all[len(all)-1] += "..."
		}
	}
	return named, receiver, strings.Join(all, ", ")
}
