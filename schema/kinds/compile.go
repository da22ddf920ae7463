package kinds

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
)

// A compiler turns CUE values into checks. It records and leaves out what it does not understand: the check then requires
// less than CUE does, and the kind is left to CUE.
type compiler struct {
	m       *module
	named   map[string]*check   // by definition: each is compiled once and shared
	opaque  map[string][]string // by definition: what was not understood in it
	unknown []string            // what was not understood in the current value
	members map[written]*member // fields that several structs embed are compiled once
	syntax  *syntax
	depth   int
	lost    bool // the library has lost track of which structs are closed; all of ours are, except those with "..."
}

// A written is a field as written in a source, and whether the library has lost track of what is closed.
type written struct {
	field *ast.Field
	lost  bool
}

func newCompiler(m *module) *compiler {
	return &compiler{m: m, named: make(map[string]*check), members: make(map[written]*member), opaque: make(map[string][]string), syntax: newSyntax(m.files)}
}

// basics are the names of CUE's types that limit nothing but the type.
var basics = map[string]types{"string": isString, "int": isInt, "bool": isBool, "number": isInt | isFloat, "_": anything}

// kind compiles the definition v of a kind and records what in it only CUE can check.
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

// misses records a construct of v that was not understood.
func (c *compiler) misses(v cue.Value, what string) {
	c.unknown = append(c.unknown, fmt.Sprintf("%s: %s", file(v), what))
}

// value compiles any value. A value that is only the name of a definition compiles to the check of that definition.
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
	// A definition that refers to itself finds this entry while it is compiled.
	c.named[name], c.opaque[name] = &check{types: anything}, []string{fmt.Sprintf("%s: %s refers to itself", file(d), name)}
	done := c.inline(d)
	if done.name == "" {
		done.name, done.doc = name, doc(d)
	}
	c.named[name], c.opaque[name] = done, c.unknown
	c.unknown, c.lost = append(outer, c.unknown...), lost
	return done
}

const maxNesting = 64 // nested expressions; more means a cycle

func (c *compiler) inline(v cue.Value) *check {
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxNesting {
		c.misses(v, "nested too deeply")
		return &check{types: anything}
	}
	switch k := kindOf(v); k {
	case cue.StructKind:
		if v.IncompleteKind() == cue.BottomKind { // perhaps a minimum number of fields: the struct is there, but no longer closed
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

// scalar compiles a value that is neither a struct nor a list, or may be of several types.
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
	if op == cue.NoOp && v.Source() == nil && basics[fmt.Sprint(v)] == t { // created by the library itself
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

// either compiles a disjunction: to an enumeration when all terms are constants.
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
		if nested&inner != 0 || inner != 0 && part.name == "" { // CUE must then decide which of them is meant, and may find that it cannot
			c.misses(v, "a choice of structs or lists")
		}
		nested |= inner
		e.checks = append(e.checks, part)
	}
	return e
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

// constant returns the Go value of a constant; a struct{}{} when v is not one.
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
