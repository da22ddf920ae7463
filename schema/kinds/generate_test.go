package kinds

import (
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"converge.dev/converge/schema"
)

// A generator makes values that checks accept, and spoils them. Equal seeds result in equal values.
type generator struct {
	*rand.Rand
	all   bool // leave nothing out
	texts map[*regexp.Regexp]*rapid.Generator[string]
}

func newGenerator(seed uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 7)), texts: make(map[*regexp.Regexp]*rapid.Generator[string])}
}

func pick[T any](g *generator, all []T) T { return all[g.IntN(len(all))] }

// resource returns a resource of a kind as a document could state it.
func (g *generator) resource(k *kind) schema.Object {
	return g.value(k.body).(map[string]any)
}

// value returns a value that c most probably accepts.
func (g *generator) value(c *check) any {
	var v any
	for range 30 {
		if v = g.try(c); c.accepts(schema.Clone(v)) {
			return v
		}
	}
	return v
}

func (g *generator) try(c *check) any {
	tests := flatten(c)
	for _, t := range tests {
		switch t := t.(type) {
		case *enum:
			return pick(g, t.values)
		case *anyOf:
			return g.value(pick(g, t.checks))
		case *object:
			return g.object(t)
		case *list:
			return g.list(t, tests)
		}
	}
	var all []types
	for t := isNull; t <= isObject; t <<= 1 {
		if c.types&t != 0 {
			all = append(all, t)
		}
	}
	switch pick(g, all) {
	case isBool:
		return g.IntN(2) == 0
	case isInt:
		return g.int(tests)
	case isFloat:
		return g.Float64() * 100
	case isString:
		return g.text(tests)
	case isList:
		return []any{}
	case isObject:
		return map[string]any{}
	}
	return nil
}

// int returns a number at or near one of the bounds, or a small one.
func (g *generator) int(tests []test) any {
	n := int64(g.IntN(10))
	for _, t := range tests {
		if b, ok := t.(bound); ok && g.IntN(2) == 0 {
			if limit, ok := b.limit.(int64); ok {
				n = limit + int64(g.IntN(3)-1)
			}
		}
	}
	return n
}

func (g *generator) text(tests []test) any {
	length := 1 + g.IntN(8)
	for _, t := range tests {
		switch t := t.(type) {
		case *pattern:
			if !t.not {
				return g.match(t.regexp())
			}
		case *size:
			if length = t.min + g.IntN(3); t.max >= 0 {
				length = max(t.max-g.IntN(3), 0)
			}
		}
	}
	return strings.Repeat(pick(g, []string{"a", "Z", "é", " "}), length)
}

func (g *generator) match(re *regexp.Regexp) string {
	if g.texts[re] == nil {
		g.texts[re] = rapid.StringMatching(re.String())
	}
	text := g.texts[re].Example(int(g.Uint32()))
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return 'a'
		}
		return r
	}, text)
	if g.all && re.MatchString(plain) {
		return plain
	}
	return text
}

func (g *generator) object(o *object) map[string]any {
	fields := make(map[string]any)
	for _, m := range o.members {
		if !m.computed && (m.required || g.all || g.IntN(2) == 0) {
			fields[m.name] = g.value(m.check)
		}
	}
	for _, p := range o.patterns {
		for range g.some() {
			if name, ok := g.value(p.key).(string); ok {
				fields[name] = g.value(p.value)
			}
		}
	}
	return fields
}

// some returns how many elements to make.
func (g *generator) some() int {
	if g.all {
		return 1
	}
	return g.IntN(3)
}

func (g *generator) list(l *list, tests []test) []any {
	elems := []any{}
	for range g.some() {
		elems = append(elems, g.value(l.elem))
	}
	for _, t := range tests {
		if s, ok := t.(*size); ok {
			for len(elems) < s.min {
				elems = append(elems, g.value(l.elem))
			}
		}
	}
	for len(elems) < l.min {
		elems = append(elems, g.value(l.elem))
	}
	return elems
}

// odd are values that most fields refuse, of every type. Whole floats are not among them: an Object has none.
var odd = []any{
	nil, true, int64(-1), int64(1), int64(1 << 40), -0.25, 1e30, "", "a b", "::1", strings.Repeat("é", 300),
	[]any{}, []any{nil}, []any{int64(1), int64(1)}, map[string]any{}, map[string]any{"a": "b"},
}

func (g *generator) odd() any { return schema.Clone(pick(g, odd)) }

// whole returns a resource that uses all fields, every list and every map.
func (g *generator) whole(k *kind) schema.Object {
	g.all = true
	defer func() { g.all = false }()
	return g.resource(k)
}

// variants calls yield with v changed in one place, for every place in it and many changes. What it passes shares
// values with v.
func (g *generator) variants(c *check, v any, yield func(any)) {
	for _, o := range odd {
		yield(o)
	}
	for _, t := range flatten(c) {
		switch t := t.(type) {
		case *enum:
			for _, e := range t.values {
				yield(e)
			}
		case *anyOf:
			for _, part := range t.checks {
				yield(g.value(part))
			}
		case bound:
			if n, ok := t.limit.(int64); ok {
				yield(n - 1)
				yield(n)
				yield(n + 1)
			}
		case *pattern:
			if text, ok := v.(string); ok {
				for range 4 {
					yield(g.misspell(text))
				}
			}
			yield(g.match(t.regexp()))
		case *size:
			yield(strings.Repeat("a", max(t.min, t.max)))
			yield(strings.Repeat("a", max(t.min, t.max)+1))
			yield(strings.Repeat("a", max(t.min-1, 0)))
		case *object:
			if fields, ok := v.(map[string]any); ok {
				g.objectVariants(t, fields, yield)
			}
		case *list:
			elems, ok := v.([]any)
			if !ok || len(elems) == 0 {
				continue
			}
			yield(append(slices.Clone(elems), elems[0]))
			yield(append(slices.Clone(elems[:len(elems)-1]), elems[0])) // twice, but not too many
			yield(append(slices.Clone(elems), g.value(t.elem)))
			g.variants(t.elem, elems[0], func(e any) {
				changed := slices.Clone(elems)
				changed[0] = e
				yield(changed)
			})
		}
	}
}

func (g *generator) objectVariants(o *object, fields map[string]any, yield func(any)) {
	with := func(name string, v any) {
		changed := maps.Clone(fields)
		changed[name] = v
		yield(changed)
	}
	with("unheard_of", "x")
	for _, m := range o.members {
		v, ok := fields[m.name]
		if !ok {
			with(m.name, g.value(m.check))
			continue
		}
		changed := maps.Clone(fields)
		delete(changed, m.name)
		yield(changed)
		g.variants(m.check, v, func(e any) { with(m.name, e) })
	}
	for _, p := range o.patterns {
		for _, o := range odd {
			if name, ok := o.(string); ok {
				with(name, g.value(p.value))
			}
		}
		for _, name := range sortedNames(fields) {
			if o.field(name) == nil {
				with(g.misspell(name), fields[name])
				g.variants(p.value, fields[name], func(e any) { with(name, e) })
				break
			}
		}
	}
}

// spoil changes something somewhere in a resource: mostly so that it is refused.
func (g *generator) spoil(spec map[string]any) {
	g.spoilBelow(spec, 4)
}

func (g *generator) spoilBelow(v any, depth int) (changed any) {
	switch v := v.(type) {
	case map[string]any:
		names := sortedNames(v)
		switch n := g.IntN(10); {
		case len(names) == 0 || n == 0:
			v[pick(g, []string{"x", "name", "type", "from", "state", "Name", "", "a b", "é", strings.Repeat("k", 300)})] = g.odd()
		case n == 1:
			delete(v, pick(g, names))
		case n == 2:
			name := pick(g, names)
			v[g.misspell(name)] = v[name]
			delete(v, name)
		case depth == 0 || n == 3:
			v[pick(g, names)] = g.odd()
		default:
			name := pick(g, names)
			v[name] = g.spoilBelow(v[name], depth-1)
		}
		return v
	case []any:
		switch n := g.IntN(8); {
		case n == 0 || len(v) == 0:
			return append(v, g.odd())
		case n == 1:
			return v[1:]
		case n == 2:
			return append(v, schema.Clone(pick(g, v)))
		case n == 3:
			return g.odd()
		default:
			i := g.IntN(len(v))
			v[i] = g.spoilBelow(v[i], depth-1)
			return v
		}
	case string:
		if g.IntN(3) > 0 {
			return g.misspell(v)
		}
	case int64:
		if g.IntN(3) > 0 {
			return pick(g, []any{v + 1, v - 1, -v, v * 1000, float64(v) + 0.5})
		}
	}
	return g.odd()
}

// misspell changes a character of a text.
func (g *generator) misspell(s string) string {
	r := []rune(s)
	i := 0
	if len(r) > 0 {
		i = g.IntN(len(r))
	}
	odd := pick(g, []rune("aZ0-_.:/ é\n"))
	switch g.IntN(4) {
	case 0:
		return string(slices.Insert(r, i, odd))
	case 1:
		return s + string(odd)
	case 2:
		if len(r) > 0 {
			return string(slices.Delete(r, i, i+1))
		}
	case 3:
		return strings.ToUpper(s)
	}
	return string(odd) + s
}

func sortedNames(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
