package load

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"

	"converge.dev/converge/schema"
)

// A Schema is the compiled CUE module: all kinds, and the checks that documents must pass. It may be used by several
// goroutines.
type Schema struct {
	kinds    map[string]*kind
	public   schema.Kinds
	head     *object  // of a document, without nodes and providers
	nodeName *check   // what a node may be called
	common   []string // the fields that every resource may carry, sorted

	files []*ast.File

	mu  sync.Mutex // guards what follows: a cue.Context is for one goroutine at a time
	ctx *cue.Context
	cue cue.Value // the whole package
}

// A kind is a schema.Kind with its checks.
type kind struct {
	schema.Kind
	name    *check    // the grammar of names
	body    *check    // what a resource must be
	opaque  []string  // what in the definition only CUE can judge; empty: body judges alone
	dynamic bool      // some of that depends on the values of fields
	value   cue.Value // the definition
}

// New compiles the embedded CUE module. An error names the file and the field that are wrong.
func New() (*Schema, error) { return NewFrom(schema.Files) }

// NewFrom compiles the CUE files */*.cue of a file system, which are one package.
func NewFrom(fsys fs.FS) (*Schema, error) {
	s := &Schema{ctx: cuecontext.New(), kinds: make(map[string]*kind), public: make(schema.Kinds)}
	if err := s.build(fsys); err != nil {
		return nil, fmt.Errorf("compile the schema: %w", err)
	}
	c := newCompiler(s)
	if err := s.compile(c); err != nil {
		return nil, fmt.Errorf("compile the schema: %w", err)
	}
	return s, nil
}

// build makes one CUE instance of all files, in the order of their names.
func (s *Schema) build(fsys fs.FS) error {
	names, err := fs.Glob(fsys, "*/*.cue")
	if err != nil {
		return err
	}
	inst := build.NewContext().NewInstance("", nil)
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(name, text, parser.ParseComments)
		if err != nil {
			return explainCUE(err)
		}
		if err := inst.AddSyntax(f); err != nil {
			return explainCUE(err)
		}
	}
	if err := inst.Complete(); err != nil {
		return explainCUE(err)
	}
	s.files = inst.Files
	s.cue = s.ctx.BuildInstance(inst)
	return explainCUE(s.cue.Err())
}

// compile reads the definitions #Document, #Resource, #Site and #Node, and the kinds that the last two hold.
func (s *Schema) compile(c *compiler) error {
	var errs []error
	for _, name := range []string{"#Document", "#Resource", "#Site", "#Node"} {
		if v := s.definition(name); v.Err() != nil {
			errs = append(errs, explainCUE(v.Err()))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	for sel := range fieldsOf(s.definition("#Resource")) {
		s.common = append(s.common, sel.Unquoted())
	}
	providers := make(map[string]bool)
	for _, label := range []string{"Site", "Node"} {
		errs = append(errs, s.collect(c, label, providers))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.unknown = nil
	document := s.definition("#Document")
	s.head = c.object(document, func(name string) bool { return name == "nodes" || providers[name] })
	nodes, err := document.LookupPath(cue.MakePath(cue.Str("nodes").Optional())).Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil || !nodes.Next() || nodes.Selector().ConstraintType() != cue.PatternConstraint {
		return errors.New("#Document: want nodes?: [NAME]: #Node")
	}
	s.nodeName = c.names(nodes.Selector(), nodes.Value())
	if c.unknown != nil {
		return fmt.Errorf("#Document: only CUE can judge %s", strings.Join(c.unknown, ", "))
	}
	for _, k := range s.kinds {
		s.public[k.Name] = &k.Kind
	}
	return s.checkRefs()
}

// collect finds the kinds under #Site or #Node: PROVIDER?: NOUN?: [NAME]: KIND.
func (s *Schema) collect(c *compiler, label string, providers map[string]bool) error {
	var errs []error
	for provider, v := range fieldsOf(s.definition("#" + label)) {
		providers[provider.Unquoted()] = true
		for noun, v := range fieldsOf(v) {
			name := provider.Unquoted() + "." + noun.Unquoted()
			if s.kinds[name] != nil {
				errs = append(errs, fmt.Errorf("%s: kind %s is both on the site and on nodes", file(v), name))
				continue
			}
			k := &kind{}
			k.Name, k.Node = name, label == "Node"
			s.kinds[name] = k
			errs = append(errs, s.read(c, k, v))
		}
	}
	return errors.Join(errs...)
}

// read fills in one kind from the map of its resources.
func (s *Schema) read(c *compiler, k *kind, v cue.Value) error {
	members, err := v.Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil || !members.Next() || members.Selector().ConstraintType() != cue.PatternConstraint {
		return fmt.Errorf("%s: kind %s: want [NAME]: DEFINITION", file(v), k.Name)
	}
	c.unknown = nil
	k.value, k.name = members.Value(), c.names(members.Selector(), members.Value())
	if c.unknown != nil {
		return fmt.Errorf("%s: kind %s: in the names only CUE can judge %s", file(v), k.Name, strings.Join(c.unknown, ", "))
	}
	if members.Next() {
		return fmt.Errorf("%s: kind %s: more than one grammar of names", file(v), k.Name)
	}
	if d, ok := s.dereference(k.value); ok {
		k.value = d
	}
	c.kind(k)
	for _, name := range s.common {
		if o := k.body.object(); o == nil || o.fields[name] == nil {
			return fmt.Errorf("%s: kind %s does not embed #Resource", file(k.value), k.Name)
		}
	}
	k.Doc = doc(k.value)
	k.Fields, err = s.fields(k.value, k.Name, s.common)
	return err
}

// checkRefs makes sure that whatever a field refers to is there.
func (s *Schema) checkRefs() error {
	var errs []error
	for _, name := range s.public.Names() {
		k := s.kinds[name]
		walkFields(k.Fields, k.Name, func(path string, f *schema.Field) {
			if f.Ref != "" && s.kinds[f.Ref] == nil {
				errs = append(errs, fmt.Errorf("%s: %s: @ref(%s): there is no kind %s%s", file(k.value), path, f.Ref, f.Ref, didYouMean(f.Ref, s.public.Names())))
			}
		})
	}
	return errors.Join(errs...)
}

// walkFields visits fields and all below them, with their paths.
func walkFields(fields []schema.Field, path string, visit func(path string, f *schema.Field)) {
	for i := range fields {
		f := &fields[i]
		for p := path + "." + f.Name; f != nil; f, p = f.Elem, p+"[]" {
			visit(p, f)
			walkFields(f.Fields, p, visit)
		}
	}
}

// Kinds gives all kinds by name. They are shared: change nothing in them.
func (s *Schema) Kinds() schema.Kinds { return s.public }

// definition gives a definition of the package.
func (s *Schema) definition(name string) cue.Value {
	return s.cue.LookupPath(cue.MakePath(cue.Def(name)))
}

// dereference gives what v is when it is nothing but the name of a definition of the package.
func (s *Schema) dereference(v cue.Value) (cue.Value, bool) {
	name, ok := s.named(v)
	if !ok {
		return v, false
	}
	return s.definition(name), true
}

// named gives the name of the definition of the package that v is, when it is nothing else.
func (s *Schema) named(v cue.Value) (string, bool) {
	id, ok := expression(v).(*ast.Ident)
	if !ok || !strings.HasPrefix(id.Name, "#") || !s.definition(id.Name).Exists() {
		return "", false
	}
	return id.Name, true
}

// expression gives the source of v, nil when it has none or several.
func expression(v cue.Value) ast.Expr {
	var x ast.Expr
	switch n := v.Source().(type) {
	case *ast.Field:
		x = n.Value
	case ast.Expr:
		x = n
	}
	for {
		p, ok := x.(*ast.ParenExpr)
		if !ok {
			return x
		}
		x = p.X
	}
}

// fieldsOf lists the fields of a struct, optional ones too, sorted by name.
func fieldsOf(v cue.Value) iter.Seq2[cue.Selector, cue.Value] {
	type field struct {
		sel cue.Selector
		v   cue.Value
	}
	var fields []field
	it, err := v.Fields(cue.Optional(true))
	for err == nil && it.Next() {
		fields = append(fields, field{it.Selector(), it.Value()})
	}
	slices.SortFunc(fields, func(a, b field) int { return cmp.Compare(a.sel.Unquoted(), b.sel.Unquoted()) })
	return func(yield func(cue.Selector, cue.Value) bool) {
		for _, f := range fields {
			if !yield(f.sel, f.v) {
				return
			}
		}
	}
}

// file gives the place where v is written, as FILE:LINE.
func file(v cue.Value) string {
	p := v.Pos()
	if !p.IsValid() {
		return "schema"
	}
	return fmt.Sprintf("%s:%d", p.Filename(), p.Line())
}
