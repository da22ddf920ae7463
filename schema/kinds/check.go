package kinds

import (
	"cmp"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"cuelang.org/go/cue"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// types is a set of types of JSON values, as in a [schema.Object].
type types uint8

const (
	isNull types = 1 << iota
	isBool
	isInt
	isFloat
	isString
	isList
	isObject

	anything = isNull | isBool | isInt | isFloat | isString | isList | isObject
)

func typeOf(v any) types {
	switch v.(type) {
	case nil:
		return isNull
	case bool:
		return isBool
	case int64:
		return isInt
	case float64:
		return isFloat
	case string:
		return isString
	case []any:
		return isList
	case map[string]any:
		return isObject
	}
	return 0
}

func typesOf(k cue.Kind) (t types) {
	for _, m := range []struct {
		kind cue.Kind
		t    types
	}{{cue.NullKind, isNull}, {cue.BoolKind, isBool}, {cue.IntKind, isInt}, {cue.FloatKind, isFloat},
		{cue.StringKind, isString}, {cue.ListKind, isList}, {cue.StructKind, isObject}} {
		if k&m.kind != 0 {
			t |= m.t
		}
	}
	return t
}

// A check says what a value must be: of one of some types, and accepted by all tests.
type check struct {
	name  string // of the definition that it was compiled from; empty when that has no name
	doc   string // of that definition
	types types
	tests []test
}

// A test accepts or refuses a value of the type that it applies to; it accepts values of other types. An object fills in
// defaults.
type test interface {
	accepts(v any) bool
}

func (c *check) accepts(v any) bool {
	if c.types&typeOf(v) == 0 {
		return false
	}
	for _, t := range c.tests {
		if !t.accepts(v) {
			return false
		}
	}
	return true
}

// object returns the test of the fields; nil when the check has none.
func (c *check) object() *object {
	for _, t := range c.tests {
		if o, ok := t.(*object); ok {
			return o
		}
	}
	return nil
}

// flatten lists the tests of a check and of the checks within it.
func flatten(c *check) (tests []test) {
	for _, t := range c.tests {
		if part, ok := t.(*check); ok {
			tests = append(tests, flatten(part)...)
		} else {
			tests = append(tests, t)
		}
	}
	return tests
}

// An enum lists the constants that a value may be.
type enum struct{ values []any }

func (e *enum) accepts(v any) bool {
	switch v.(type) {
	case []any, map[string]any:
		return false
	}
	return slices.Contains(e.values, v)
}

// A not is a constant that a value may not be.
type not struct{ value any }

func (n not) accepts(v any) bool {
	return typeOf(v)&(isList|isObject) != 0 || v != n.value
}

// A bound limits numbers from one side.
type bound struct {
	op    string // as CUE writes it
	limit any    // int64 or float64
}

func (b bound) accepts(v any) bool {
	if typeOf(v)&(isInt|isFloat) == 0 {
		return true
	}
	switch n := compareNumbers(v, b.limit); b.op {
	case "<":
		return n < 0
	case "<=":
		return n <= 0
	case ">":
		return n > 0
	default:
		return n >= 0
	}
}

// A pattern is what a text must, or must not, match.
type pattern struct {
	text string // a regular expression
	not  bool
	once sync.Once
	re   *regexp.Regexp // compiled when first needed
}

func (p *pattern) regexp() *regexp.Regexp {
	p.once.Do(func() { p.re = regexp.MustCompile(p.text) })
	return p.re
}

func (p *pattern) accepts(v any) bool {
	s, ok := v.(string)
	return !ok || p.regexp().MatchString(s) != p.not
}

// A size limits the number of characters of a text, elements of a list, or fields of a struct.
type size struct {
	of       string // the function in CUE
	min, max int    // max is negative when there is no maximum
}

func (s *size) accepts(v any) bool {
	n := 0
	switch v := v.(type) {
	case string:
		n = utf8.RuneCountInString(v)
	case []any:
		n = len(v)
	case map[string]any:
		n = len(v)
	default:
		return true
	}
	return n >= s.min && (s.max < 0 || n <= s.max)
}

// unique refuses lists that contain a value twice.
type unique struct{}

func (unique) accepts(v any) bool {
	l, _ := v.([]any)
	return repeated(l) < 0
}

// jsonText is the text of a list or an object, distinct from a string value.
type jsonText string

// repeated returns the index of the first element that repeats an earlier one, or -1.
func repeated(l []any) int {
	seen := make(map[any]bool, len(l))
	for i, e := range l {
		if typeOf(e)&(isList|isObject) != 0 {
			e = jsonText(canonical.Append(nil, e))
		}
		if seen[e] {
			return i
		}
		seen[e] = true
	}
	return -1
}

// An anyOf accepts what any of its checks accepts.
type anyOf struct{ checks []*check }

func (a *anyOf) accepts(v any) bool {
	return slices.ContainsFunc(a.checks, func(c *check) bool { return c.accepts(v) })
}

// A list says what its elements must be, and how many there must be at least.
type list struct {
	elem *check
	min  int
}

func (l *list) accepts(v any) bool {
	elems, ok := v.([]any)
	if !ok {
		return true
	}
	if len(elems) < l.min {
		return false
	}
	for _, e := range elems {
		if !l.elem.accepts(e) {
			return false
		}
	}
	return true
}

// An object says what the fields of a struct must be.
type object struct {
	members  []*member // sorted by name
	patterns []keyed
	open     bool // other fields are allowed
}

// A member is a field of an object.
type member struct {
	name     string
	doc      string
	check    *check
	required bool
	computed bool // refused in a document
	secret   bool // its value must not be shown
	filled   bool // an absent field becomes fill
	fill     any
}

// A keyed says what the values under names that match a pattern must be.
type keyed struct{ key, value *check }

func (o *object) add(m *member) {
	o.members = append(o.members, m)
	slices.SortFunc(o.members, func(a, b *member) int { return strings.Compare(a.name, b.name) })
}

// field returns the field with a name; nil when there is none.
func (o *object) field(name string) *member {
	i, ok := slices.BinarySearchFunc(o.members, name, func(m *member, n string) int { return strings.Compare(m.name, n) })
	if !ok {
		return nil
	}
	return o.members[i]
}

func (o *object) accepts(v any) bool {
	fields, ok := v.(map[string]any)
	if !ok {
		return true
	}
	for name, e := range fields {
		m := o.field(name)
		if m == nil {
			if !o.acceptsFree(name, e) {
				return false
			}
		} else if m.computed || !m.check.accepts(e) {
			return false
		}
	}
	for _, m := range o.members {
		if !m.required && !m.filled {
			continue
		}
		if _, ok := fields[m.name]; ok {
			continue
		}
		if m.required {
			return false
		}
		fill := schema.Clone(m.fill)
		if !m.check.accepts(fill) {
			return false
		}
		fields[m.name] = fill
	}
	return true
}

// acceptsFree tests a field whose name the definition does not declare.
func (o *object) acceptsFree(name string, v any) bool {
	known := o.open
	for _, p := range o.patterns {
		if p.key.accepts(name) {
			if known = true; !p.value.accepts(v) {
				return false
			}
		}
	}
	return known
}

// compareNumbers compares int64 and float64.
func compareNumbers(a, b any) int {
	x, xInt := a.(int64)
	y, yInt := b.(int64)
	if xInt && yInt {
		return cmp.Compare(x, y)
	}
	return number(a).Cmp(number(b))
}

// number converts an int64 or float64 without loss.
func number(v any) *big.Float {
	if n, ok := v.(int64); ok {
		return new(big.Float).SetInt64(n)
	}
	return big.NewFloat(v.(float64))
}

// names lists the fields.
func (o *object) names() (names []string) {
	for _, m := range o.members {
		names = append(names, m.name)
	}
	return names
}

// writable lists the fields that a document may have.
func (o *object) writable() []string {
	return slices.DeleteFunc(o.names(), func(name string) bool { return o.field(name).computed })
}
