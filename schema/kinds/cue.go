package kinds

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/format"

	"converge.dev/converge/schema"
)

// definition returns a definition of the package.
func (m *module) definition(name string) cue.Value {
	return m.cue.LookupPath(cue.MakePath(cue.Def(name)))
}

// dereference returns the definition that v names, when v is only a name; v otherwise.
func (m *module) dereference(v cue.Value) cue.Value {
	if name, ok := m.named(v); ok {
		return m.definition(name)
	}
	return v
}

// named returns the name of the definition of the package that v refers to, when v is only a name.
func (m *module) named(v cue.Value) (string, bool) {
	id, ok := expression(v).(*ast.Ident)
	if !ok || !strings.HasPrefix(id.Name, "#") || !m.definition(id.Name).Exists() {
		return "", false
	}
	return id.Name, true
}

// expression returns the source of v; nil when it has none or several.
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

// fieldsOf lists the fields of a struct, including optional ones, sorted by name.
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

// file returns the position of v in its source, as FILE:LINE.
func file(v cue.Value) string {
	p := v.Pos()
	if !p.IsValid() {
		return "schema"
	}
	return fmt.Sprintf("%s:%d", p.Filename(), p.Line())
}

// explainCUE combines all errors within a CUE error into one, each with its position.
func explainCUE(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s", strings.TrimSpace(errors.Details(err, &errors.Config{ToSlash: true})))
}

// decodeCUE returns the JSON value of a concrete CUE value.
func decodeCUE(v cue.Value) (any, error) {
	b, err := v.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var o schema.Object
	if err := o.UnmarshalJSON(slices.Concat([]byte(`{"v":`), b, []byte("}"))); err != nil {
		return nil, err
	}
	return o["v"], nil
}

// text returns the source of v on one line.
func text(v cue.Value) string {
	var n ast.Node
	switch x := expression(v).(type) {
	case *ast.Ident:
		return x.Name
	case nil:
		n = v.Syntax(cue.Raw())
	default:
		n = x
	}
	b, err := format.Node(n)
	if err != nil {
		return fmt.Sprint(v)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

// doc returns the comment above a field or definition, without the line breaks inside a paragraph.
func doc(v cue.Value) string {
	var groups []string
	for _, g := range v.Doc() {
		if t := strings.TrimSpace(g.Text()); t != "" && !slices.Contains(groups, t) {
			groups = append(groups, t)
		}
	}
	return strings.Join(strings.Fields(strings.Join(groups, " ")), " ")
}

// kindOf returns what v may be, even when that depends on values that are not there yet.
func kindOf(v cue.Value) cue.Kind {
	k := v.IncompleteKind()
	if k != cue.BottomKind || v.Validate() != nil {
		return k
	}
	k = cue.TopKind
	if op, args := v.Expr(); op == cue.AndOp {
		for _, a := range args {
			k &= kindOf(a)
		}
		return k
	}
	if it, err := v.Fields(cue.Optional(true)); err == nil && it.Next() {
		return cue.StructKind
	}
	return k
}

// elements returns the list that v is or has among its parts, and what its elements beyond the required ones must be. A
// minimum number of elements hides the list until there are enough; the list is then one of the parts.
func elements(v cue.Value) (part, elem cue.Value) {
	any := cue.MakePath(cue.AnyIndex)
	if v.IncompleteKind() == cue.ListKind {
		return v, v.LookupPath(any)
	}
	_, args := v.Expr()
	for _, a := range args {
		e := a.LookupPath(any)
		if a.IncompleteKind() != cue.ListKind || !e.Exists() {
			continue
		}
		if elem.Exists() {
			return v, cue.Value{}
		}
		part, elem = a, e
	}
	return part, elem
}
