package kinds

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// JSONSchema returns the JSON Schema (draft 2020-12) of a document. It accepts what the schema accepts, and may accept
// more, because constructs that JSON Schema cannot express are left out. Fields that only the far side sets are
// refused. Equal schemas result in equal text.
func (s *Schema) JSONSchema() ([]byte, error) {
	j := &jsonSchema{defs: make(map[string]any)}
	document := j.object(s.head)
	document["type"] = "object"
	document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	document["title"] = "A converge document"
	document["description"] = s.doc
	properties := document["properties"].(map[string]any)
	maps.Copy(properties, j.providers(s, false))
	node := map[string]any{"type": "object", "properties": j.providers(s, true), "additionalProperties": false}
	properties["nodes"] = j.keyed(s.nodeName, node, "The resources of each node, by node name.")
	document["$defs"] = j.defs
	b, err := json.MarshalIndent(document, "", "  ")
	return append(b, '\n'), err
}

// A jsonSchema writes checks as JSON Schema.
type jsonSchema struct {
	defs map[string]any // by name, without the #
}

// providers returns the kinds of the site or of nodes: provider, noun, name.
func (j *jsonSchema) providers(s *Schema, onNode bool) map[string]any {
	all := make(map[string]any)
	for _, name := range s.public.Names() {
		k := s.kinds[name]
		if k.Node != onNode {
			continue
		}
		provider, noun, _ := strings.Cut(name, ".")
		if all[provider] == nil {
			all[provider] = map[string]any{"type": "object", "properties": make(map[string]any), "additionalProperties": false}
		}
		nouns := all[provider].(map[string]any)["properties"].(map[string]any)
		body := map[string]any{"type": "object"}
		if len(k.opaque) == 0 {
			body = j.ref(k.body)
		}
		if k.external != nil && !k.isReference() {
			body = map[string]any{"anyOf": []any{body, j.ref(k.external)}}
		}
		nouns[noun] = j.keyed(k.name, body, cmp.Or(k.Doc, name))
	}
	return all
}

// ref returns the schema of a check: for a named one, a reference to its definition.
func (j *jsonSchema) ref(c *check) map[string]any {
	name := strings.TrimPrefix(c.name, "#")
	if name == "" {
		return j.check(c)
	}
	if j.defs[name] == nil {
		j.defs[name] = true // set while it is being written
		d := j.check(c)
		if c.doc != "" {
			d["description"] = c.doc
		}
		j.defs[name] = d
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

func (j *jsonSchema) check(c *check) map[string]any {
	m := make(map[string]any)
	if t := typeNames(c.types); len(t) == 1 {
		m["type"] = t[0]
	} else if c.types != anything {
		m["type"] = t
	}
	var all []any // what one set of keywords cannot express
	for _, t := range c.tests {
		words := j.test(t)
		if slices.ContainsFunc(slices.Collect(maps.Keys(words)), func(key string) bool { _, taken := m[key]; return taken }) || words["$ref"] != nil {
			all = append(all, words)
			continue
		}
		maps.Copy(m, words)
	}
	if len(all) > 0 {
		m["allOf"] = all
	}
	return m
}

// test returns one test as its own set of keywords.
func (j *jsonSchema) test(t test) map[string]any {
	switch t := t.(type) {
	case *check:
		return j.ref(t)
	case *enum:
		if len(t.values) == 1 {
			return map[string]any{"const": t.values[0]}
		}
		return map[string]any{"enum": t.values}
	case not:
		return map[string]any{"not": map[string]any{"const": t.value}}
	case bound:
		word := map[string]string{"<": "exclusiveMaximum", "<=": "maximum", ">": "exclusiveMinimum", ">=": "minimum"}[t.op]
		return map[string]any{word: t.limit}
	case *pattern:
		p := map[string]any{"pattern": t.text}
		if t.not {
			return map[string]any{"not": p}
		}
		return p
	case *size:
		word := map[string]string{"strings.MinRunes": "minLength", "strings.MaxRunes": "maxLength", "list.MinItems": "minItems",
			"list.MaxItems": "maxItems", "struct.MinFields": "minProperties", "struct.MaxFields": "maxProperties"}[t.of]
		return map[string]any{word: max(t.min, t.max)}
	case unique:
		return map[string]any{"uniqueItems": true}
	case *anyOf:
		var each []any
		for _, c := range t.checks {
			each = append(each, j.ref(c))
		}
		return map[string]any{"anyOf": each}
	case *object:
		return j.object(t)
	case *list:
		m := map[string]any{"items": j.ref(t.elem)}
		if t.min > 0 {
			m["minItems"] = t.min
		}
		return m
	}
	return nil
}

func (j *jsonSchema) object(o *object) map[string]any {
	properties := make(map[string]any)
	var required []string
	for _, m := range o.members {
		properties[m.name] = j.member(m)
		if m.required {
			required = append(required, m.name)
		}
	}
	words := map[string]any{"properties": properties, "additionalProperties": o.open}
	if required != nil {
		words["required"] = required
	}
	if len(o.patterns) == 1 && len(properties) == 0 && !o.open {
		delete(words, "properties")
		maps.Copy(words, j.names(o.patterns[0].key, j.ref(o.patterns[0].value)))
		return words
	}
	patterns := make(map[string]any)
	for _, p := range o.patterns {
		if re, rest := regexpOf(p.key); len(rest) == 0 {
			patterns[re] = j.ref(p.value)
		} else { // JSON Schema cannot express such names beside others
			words["additionalProperties"] = true
		}
	}
	if len(patterns) > 0 {
		words["patternProperties"] = patterns
	}
	return words
}

// keyed returns the schema of an object of things under names.
func (j *jsonSchema) keyed(name *check, thing map[string]any, description string) map[string]any {
	words := j.names(name, thing)
	words["type"], words["description"] = "object", description
	return words
}

// names returns what names must be, and what is under them. Patterns express both: propertyNames is used only for what
// is not a pattern, because fewer programs support it.
func (j *jsonSchema) names(name *check, thing map[string]any) map[string]any {
	re, rest := regexpOf(name)
	words := map[string]any{"patternProperties": map[string]any{re: thing}, "additionalProperties": false}
	if re == "" {
		words = map[string]any{"additionalProperties": thing}
	}
	if len(rest) == 0 {
		return words
	}
	if n, ok := rest[0].(not); ok && len(rest) == 1 && typeOf(n.value) == isString {
		words["properties"] = map[string]any{n.value.(string): false}
	} else {
		words["propertyNames"] = j.ref(name)
	}
	return words
}

// regexpOf returns the first pattern that a name must match, empty when there is none, and the remaining tests.
func regexpOf(key *check) (re string, rest []test) {
	for _, t := range flatten(key) {
		if p, ok := t.(*pattern); ok && !p.not && re == "" {
			re = p.text
		} else {
			rest = append(rest, t)
		}
	}
	return re, rest
}

func (j *jsonSchema) member(m *member) map[string]any {
	if m.computed {
		return map[string]any{"not": map[string]any{}, "readOnly": true, "description": m.doc}
	}
	words := j.ref(m.check)
	if m.doc != "" {
		words["description"] = m.doc
	}
	if m.filled && typeOf(m.fill) != isObject {
		words["default"] = m.fill
	}
	return words
}

func typeNames(t types) (names []string) {
	if t&(isInt|isFloat) == isInt|isFloat {
		names = append(names, "number")
		t &^= isInt | isFloat
	}
	for _, n := range []struct {
		t    types
		name string
	}{{isString, "string"}, {isInt, "integer"}, {isFloat, "number"}, {isBool, "boolean"}, {isNull, "null"}, {isList, "array"}, {isObject, "object"}} {
		if t&n.t != 0 {
			names = append(names, n.name)
		}
	}
	return names
}
