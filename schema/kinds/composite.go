package kinds

import (
	"slices"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"
)

// object compiles the fields of a struct, except those to skip.
func (c *compiler) object(v cue.Value, skip func(name string) bool) *object {
	o := &object{open: v.Allows(cue.AnyString)}
	if c.lost && o.open {
		o.open = c.ellipsis(v)
	}
	it, err := v.Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil {
		c.misses(v, explainCUE(err).Error())
		return o
	}
	for it.Next() {
		sel, f := it.Selector(), it.Value()
		if sel.ConstraintType() == cue.PatternConstraint {
			o.patterns = append(o.patterns, keyed{key: c.names(sel, f), value: c.loosely(f)})
			continue
		}
		if skip != nil && skip(sel.Unquoted()) {
			continue
		}
		o.add(c.member(sel, it.FieldType(), f))
	}
	if len(o.patterns) > 0 && o.open && slices.ContainsFunc(o.patterns, func(p keyed) bool { return p.key.types == isString && len(p.key.tests) == 0 }) {
		o.open = false // [string]: X leaves no name for ...
	}
	for _, m := range o.members {
		if slices.ContainsFunc(o.patterns, func(p keyed) bool { return p.key.accepts(m.name) }) {
			c.misses(v, "the field "+m.name+", which a pattern also matches")
		}
	}
	return o
}

// loosely compiles a value that the library no longer knows to be closed.
func (c *compiler) loosely(v cue.Value) *check {
	defer func(lost bool) { c.lost = lost }(c.lost)
	c.lost = true
	return c.value(v)
}

// ellipsis reports whether a struct is declared open.
func (c *compiler) ellipsis(v cue.Value) bool {
	var parts []ast.Expr // of the conjunction, without calls
	ast.Walk(expression(v), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			return n.Op == token.AND
		case *ast.ParenExpr:
			return true
		case *ast.CallExpr:
		case ast.Expr:
			parts = append(parts, n)
		}
		return false
	}, nil)
	if len(parts) == 1 {
		switch x := parts[0].(type) {
		case *ast.Ident:
			return c.m.definition(x.Name).Allows(cue.AnyString)
		case *ast.StructLit:
			plain := !slices.ContainsFunc(x.Elts, func(d ast.Decl) bool { _, ok := d.(*ast.EmbedDecl); return ok })
			if plain {
				return slices.ContainsFunc(x.Elts, func(d ast.Decl) bool { _, ok := d.(*ast.Ellipsis); return ok })
			}
		}
	}
	c.misses(v, "a struct of several parts")
	return true
}

// names compiles what the names must be under which v may occur, for [NAME]: v.
func (c *compiler) names(sel cue.Selector, v cue.Value) *check {
	if f, ok := v.Source().(*ast.Field); ok {
		if l, ok := f.Label.(*ast.ListLit); ok && len(l.Elts) == 1 {
			if id, ok := l.Elts[0].(*ast.Ident); ok && c.m.definition(id.Name).Exists() { // the library loses the name
				return c.definition(id.Name)
			}
		}
	}
	return c.value(sel.Pattern())
}

func (c *compiler) member(sel cue.Selector, t cue.SelectorType, f cue.Value) *member {
	source, ok := f.Source().(*ast.Field)
	if !ok { // declared in several places
		return c.newMember(sel, t, f)
	}
	key, before := written{source, c.lost}, len(c.unknown)
	m := c.members[key]
	if m == nil {
		m = c.newMember(sel, t, f)
		if len(c.unknown) == before { // what was not understood must be recorded each time
			c.members[key] = m
		}
	}
	return m
}

func (c *compiler) newMember(sel cue.Selector, t cue.SelectorType, f cue.Value) *member {
	m := &member{name: sel.Unquoted(), doc: doc(f), check: c.value(f)}
	for _, a := range f.Attributes(cue.FieldAttr) {
		switch a.Name() {
		case "computed":
			m.computed = true
		case "secret":
			m.secret = true
		}
	}
	m.secret = m.secret || m.check.name == secretDefinition
	switch {
	case t.ConstraintType() == cue.RequiredConstraint:
		m.required = true
	case t.ConstraintType() == cue.OptionalConstraint:
	default:
		if d, ok := c.defaultOf(f); ok {
			m.filled, m.fill = true, d
		} else if m.check.types == isObject {
			m.filled, m.fill = true, map[string]any{} // filled in turn by the check
		} else {
			m.required = true
		}
	}
	return m
}

// defaultOf returns the value that a regular field has when a document leaves it out.
func (c *compiler) defaultOf(f cue.Value) (any, bool) {
	d, ok := f.Default()
	if !ok && !f.IsConcrete() || d.Validate(cue.Concrete(true)) != nil {
		return nil, false
	}
	if d.IncompleteKind() == cue.StructKind && !ok {
		return nil, false
	}
	v, err := decodeCUE(d)
	return v, err == nil
}

// list compiles the elements of a list and how many there must be.
func (c *compiler) list(v cue.Value) *list {
	l := &list{elem: &check{types: anything}}
	part, elem := elements(v)
	if !elem.Exists() {
		c.misses(v, "a list of fixed length")
		return l
	}
	if v.IncompleteKind() == cue.ListKind {
		l.elem = c.value(elem)
	} else {
		l.elem = c.loosely(elem)
	}
	// Required elements may have more constraints than the others.
	for length := c.value(part.Len()); l.min < maxNesting && !length.accepts(int64(l.min)); l.min++ {
		e := part.LookupPath(cue.MakePath(cue.Index(l.min)))
		if e.Subsume(elem) != nil || elem.Subsume(e) != nil {
			c.misses(v, "a list whose first elements differ")
		}
	}
	if l.min == maxNesting {
		c.misses(v, "a long list")
	}
	return l
}

// validators compiles the calls that a struct or list is unified with.
func (c *compiler) validators(v cue.Value) (tests []test) {
	v = c.m.dereference(v)
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxNesting {
		c.misses(v, "nested too deeply")
		return nil
	}
	op, args := v.Expr()
	switch op {
	case cue.AndOp:
		for _, a := range args {
			tests = append(tests, c.validators(a)...)
		}
	case cue.CallOp:
		return c.call(v, args)
	case cue.OrOp:
		c.misses(v, "a choice of structs or lists")
	case cue.NoOp:
	default:
		c.misses(v, "the expression "+text(v))
	}
	return tests
}
