package load

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/token"
)

// A compiler turns CUE values into checks. What it does not understand it notes and leaves out: the check then asks for
// less than CUE does, and the kind is left to CUE.
type compiler struct {
	m       *module
	named   map[string]*check   // by definition: each is compiled once and shared
	opaque  map[string][]string // by definition: what was not understood in it
	unknown []string            // what was not understood in the value at hand
	members map[written]*member // fields that several structs embed are compiled once
	syntax  *syntax
	depth   int
	lost    bool // the library has lost track of which structs are closed; all of ours are, but for those with "..."
}

// A written is a field as it stands in a source, and whether the library has lost track of what is closed.
type written struct {
	field *ast.Field
	lost  bool
}

func newCompiler(m *module) *compiler {
	return &compiler{m: m, named: make(map[string]*check), members: make(map[written]*member), opaque: make(map[string][]string), syntax: newSyntax(m.files)}
}

// basics are the names of CUE's types that limit nothing but the type.
var basics = map[string]types{"string": isString, "int": isInt, "bool": isBool, "number": isInt | isFloat, "_": anything}

// kind compiles the definition v of a kind and tells what in it only CUE can judge.
func (c *compiler) kind(k *kind, v cue.Value) {
	c.unknown, c.lost = nil, !v.IsClosedRecursively()
	if n := v.Source(); n == nil {
		c.misses(v, "a definition in several places")
		k.dynamic = true
	} else {
		c.unknown = append(c.unknown, c.syntax.dynamic(n)...)
		k.dynamic = len(c.unknown) > 0
	}
	k.body = c.value(v)
	k.opaque = slices.Compact(slices.Sorted(slices.Values(c.unknown)))
}

// misses notes a construct of v that was not understood.
func (c *compiler) misses(v cue.Value, what string) {
	c.unknown = append(c.unknown, fmt.Sprintf("%s: %s", file(v), what))
}

// value compiles any value. A value that is nothing but the name of a definition gives the check of that definition.
func (c *compiler) value(v cue.Value) *check {
	name, ok := c.m.named(v)
	if !ok {
		return c.inline(v)
	}
	return c.definition(name)
}

// definition compiles a definition of the package, once.
func (c *compiler) definition(name string) *check {
	if done, ok := c.named[name]; ok {
		c.unknown = append(c.unknown, c.opaque[name]...)
		return done
	}
	d := c.m.definition(name)
	outer, lost := c.unknown, c.lost
	c.unknown, c.lost = nil, false
	// A definition that refers to itself finds this while it is compiled.
	c.named[name], c.opaque[name] = &check{types: anything}, []string{fmt.Sprintf("%s: %s refers to itself", file(d), name)}
	done := c.inline(d)
	if done.name == "" {
		done.name, done.doc = name, doc(d)
	}
	c.named[name], c.opaque[name] = done, c.unknown
	c.unknown, c.lost = append(outer, c.unknown...), lost
	return done
}

const maxNesting = 64 // expressions within each other; more is a circle

func (c *compiler) inline(v cue.Value) *check {
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxNesting {
		c.misses(v, "nested too deep")
		return &check{types: anything}
	}
	switch k := kindOf(v); k {
	case cue.StructKind:
		if v.IncompleteKind() == cue.BottomKind { // a least number of fields, perhaps: the struct is there, but is no longer closed
			defer func(lost bool) { c.lost = lost }(c.lost)
			c.lost = true
		}
		return &check{types: isObject, tests: append([]test{c.object(v, nil)}, c.validators(v)...)}
	case cue.ListKind:
		return &check{types: isList, tests: append([]test{c.list(v)}, c.validators(v)...)}
	default:
		return c.scalar(v, typesOf(k))
	}
}

// kindOf gives what v may be, also when that depends on values that are not there yet.
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

// scalar compiles what is neither a struct nor a list, or may be several things.
func (c *compiler) scalar(v cue.Value, t types) *check {
	if t == 0 {
		c.misses(v, "no value is allowed")
	}
	if v.IsConcrete() {
		return &check{types: t, tests: []test{&enum{values: []any{c.constant(v)}}}}
	}
	if id, ok := expression(v).(*ast.Ident); ok && basics[strings.TrimPrefix(id.Name, "__")] == t {
		return &check{types: t}
	}
	op, args := v.Expr()
	if op == cue.NoOp && v.Source() == nil && basics[fmt.Sprint(v)] == t { // made by the library itself
		return &check{types: t}
	}
	switch op {
	case cue.AndOp:
		all := &check{types: t}
		for _, a := range args {
			part := c.value(a)
			if part.name == "" {
				all.tests = append(all.tests, part.tests...)
			} else {
				all.tests = append(all.tests, part)
			}
		}
		return all
	case cue.OrOp:
		return &check{types: t, tests: []test{c.either(v, args)}}
	case cue.NoOp: // a disjunction that the library has simplified to one of its terms
		if len(args) == 1 && expression(args[0]) != expression(v) {
			return c.value(args[0])
		}
	case cue.CallOp:
		return &check{types: t, tests: c.call(v, args)}
	case cue.LessThanOp, cue.LessThanEqualOp, cue.GreaterThanOp, cue.GreaterThanEqualOp:
		if n := c.constant(args[0]); typeOf(n)&(isInt|isFloat) != 0 {
			return &check{types: t, tests: []test{bound{op.String(), n}}}
		}
	case cue.NotEqualOp:
		if n := c.constant(args[0]); typeOf(n)&(isInt|isFloat) == 0 { // 1 and 1.0 are equal in CUE
			return &check{types: t, tests: []test{not{n}}}
		}
	case cue.RegexMatchOp, cue.NotRegexMatchOp:
		text, ok := c.constant(args[0]).(string)
		if _, err := regexp.Compile(text); ok && err == nil {
			return &check{types: t, tests: []test{&pattern{text: text, not: op == cue.NotRegexMatchOp}}}
		}
	}
	c.misses(v, "the expression "+text(v))
	return &check{types: t}
}

// either compiles a disjunction: an enumeration when all are constants.
func (c *compiler) either(v cue.Value, args []cue.Value) test {
	all := &enum{}
	for _, a := range args {
		if a.IsConcrete() && a.IncompleteKind()&(cue.StructKind|cue.ListKind) == 0 {
			all.values = append(all.values, c.constant(a))
		}
	}
	if len(all.values) == len(args) {
		return all
	}
	e, nested := &anyOf{}, types(0)
	for _, a := range args {
		part := c.value(a)
		inner := part.types & (isObject | isList)
		if nested&inner != 0 || inner != 0 && part.name == "" { // CUE must then tell which of them is meant, and may find that it cannot
			c.misses(v, "a choice of structs or lists")
		}
		nested |= inner
		e.checks = append(e.checks, part)
	}
	return e
}

// object compiles the fields of a struct, all but those to skip.
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
			c.misses(v, "the field "+m.name+", which a pattern matches too")
		}
	}
	return o
}

// loosely compiles a value of which the library no longer knows that it is closed.
func (c *compiler) loosely(v cue.Value) *check {
	defer func(lost bool) { c.lost = lost }(c.lost)
	c.lost = true
	return c.value(v)
}

// ellipsis reports whether a struct says that it is open.
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

// names compiles what the names must be under which v may stand, for [NAME]: v.
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
		if len(c.unknown) == before { // what was not understood must be noted each time
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

// defaultOf gives the value of a regular field that a document leaves out.
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
	// Elements that must be there may ask for more than the others do.
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

// elements gives the list that v is or has among its parts, and what its elements must be beyond those that must be
// there. A least number of elements hides the list until there are as many; the list is one of the parts then.
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

// validators compiles the calls that a struct or list is unified with.
func (c *compiler) validators(v cue.Value) (tests []test) {
	v = c.m.dereference(v)
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxNesting {
		c.misses(v, "nested too deep")
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

// call compiles a call of a builtin function that validates.
func (c *compiler) call(v cue.Value, args []cue.Value) []test {
	name := text(args[0])
	if len(args) == 2 {
		if n, ok := c.constant(args[1]).(int64); ok && n >= 0 {
			switch name {
			case "strings.MinRunes", "list.MinItems", "struct.MinFields":
				return []test{&size{of: name, min: int(n), max: -1}}
			case "strings.MaxRunes", "list.MaxItems", "struct.MaxFields":
				return []test{&size{of: name, max: int(n)}}
			}
		}
	}
	if name == "list.UniqueItems" && len(args) == 1 {
		return []test{unique{}}
	}
	c.misses(v, "the call "+text(v))
	return nil
}

// constant gives the Go value of a constant; a struct{}{} when v is not one.
func (c *compiler) constant(v cue.Value) any {
	if !v.IsConcrete() || v.IncompleteKind()&(cue.StructKind|cue.ListKind|cue.BytesKind) != 0 {
		c.misses(v, "the expression "+text(v))
		return struct{}{}
	}
	x, err := decodeCUE(v)
	if err != nil {
		c.misses(v, "the constant "+text(v))
		return struct{}{}
	}
	return x
}

// text gives the source of v on one line.
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

// doc gives the comment above a field or definition, without the line breaks inside a paragraph.
func doc(v cue.Value) string {
	var groups []string
	for _, g := range v.Doc() {
		if t := strings.TrimSpace(g.Text()); t != "" && !slices.Contains(groups, t) {
			groups = append(groups, t)
		}
	}
	return strings.Join(strings.Fields(strings.Join(groups, " ")), " ")
}
