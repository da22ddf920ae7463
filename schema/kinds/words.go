package kinds

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema/internal/message"
)

// want returns what a check accepts, in words that follow "Want ".
func (c *check) want() string {
	p := wants(c)
	switch {
	case len(p.enum) > 0:
		return choice(p.enum)
	case p.definition != "" && c.doc != "":
		return p.definition
	case p.definition != "":
		return strings.Join(append([]string{p.definition}, p.rest...), ", ")
	}
	words := []string{nouns(c.types)}
	for _, w := range []string{p.numbers(), p.sizes()} {
		if w != "" {
			words = append(words, w)
		}
	}
	if len(p.patterns) > 0 && p.sizes() != "" {
		words[len(words)-1] += ","
	}
	if rest := slices.Concat(p.patterns, p.rest); len(rest) > 0 {
		words = append(words, strings.Join(rest, ", "))
	}
	return strings.Join(words, " ")
}

// parts are the requirements of the tests of a check, grouped by sort.
type parts struct {
	definition string // description of the definition, when that says more than its tests
	enum       []any
	low, high  *bound
	least      *size
	most       *size
	patterns   []string
	rest       []string
}

func wants(c *check) (p parts) {
	for _, t := range c.tests {
		switch t := t.(type) {
		case *check:
			q := wants(t)
			if p.definition == "" {
				p.definition = q.definition
			}
			p.enum, p.patterns, p.rest = append(p.enum, q.enum...), append(p.patterns, q.patterns...), append(p.rest, q.rest...)
			p.limit(q.low)
			p.limit(q.high)
			p.size(q.least)
			p.size(q.most)
		case *enum:
			p.enum = append(p.enum, t.values...)
		case bound:
			p.limit(&t)
		case not:
			p.rest = append(p.rest, "other than "+message.Value(t.value))
		case *pattern:
			p.definition = c.sentence()
			p.patterns = append(p.patterns, t.want())
		case *size:
			p.size(t)
		case unique:
			p.rest = append(p.rest, "without duplicates")
		case *anyOf:
			p.definition = c.sentence()
			var each []string
			for _, a := range t.checks {
				each = append(each, a.want())
			}
			if p.definition == "" {
				p.definition = strings.Join(each, ", or ")
			}
		case *list:
			if t.min > 0 {
				p.size(&size{of: "list.MinItems", min: t.min, max: -1})
			}
		}
	}
	if p.definition != "" && c.doc != "" {
		p.definition = c.sentence()
	}
	return p
}

// limit keeps the tighter bound of each side.
func (p *parts) limit(b *bound) {
	if b == nil {
		return
	}
	side, tighter := &p.high, -1
	if b.op == ">" || b.op == ">=" {
		side, tighter = &p.low, 1
	}
	if *side == nil || compareNumbers(b.limit, (*side).limit) == tighter {
		*side = b
	}
}

// size keeps the tighter limit of each side.
func (p *parts) size(s *size) {
	switch {
	case s == nil:
	case s.max >= 0 && (p.most == nil || s.max < p.most.max):
		p.most = s
	case s.max < 0 && (p.least == nil || s.min > p.least.min):
		p.least = s
	}
}

// sizes returns the range of sizes; empty when there is none.
func (p *parts) sizes() string {
	switch {
	case p.least != nil && p.most != nil:
		return fmt.Sprintf("of %d to %s", p.least.min, count(p.most.max, p.most.unit()))
	case p.least != nil:
		return "of " + p.least.want()
	case p.most != nil:
		return "of " + p.most.want()
	}
	return ""
}

// numbers returns the range of numbers; empty when there is none.
func (p *parts) numbers() string {
	low, high := "", ""
	if p.low != nil {
		low = message.Value(p.low.limit)
		if p.low.op == ">" {
			low = "above " + low
		}
	}
	if p.high != nil {
		high = message.Value(p.high.limit)
		if p.high.op == "<" {
			high = "below " + high
		}
	}
	switch {
	case low != "" && high != "" && p.low.op == ">=" && p.high.op == "<=":
		return "from " + low + " to " + high
	case low != "" && high != "":
		return low + " and " + high
	case low != "" && p.low.op == ">=":
		return "of at least " + low
	case high != "" && p.high.op == "<=":
		return "of at most " + high
	}
	return low + high
}

// sentence returns the first sentence of a definition's comment, in the form that follows "Want ".
func (c *check) sentence() string {
	text, _, _ := strings.Cut(c.doc, ". ")
	text = strings.TrimSuffix(text, ".")
	first, size := utf8.DecodeRuneInString(text)
	if next, _ := utf8.DecodeRuneInString(text[size:]); size > 0 && !unicode.IsUpper(next) {
		text = string(unicode.ToLower(first)) + text[size:]
	}
	return text
}

func (p *pattern) want() string {
	words, ok := spelled(p.text)
	switch {
	case p.not:
		return "that does not match " + p.text
	case !ok:
		return "that matches " + p.text
	}
	return words
}

func (s *size) unit() string {
	switch s.of {
	case "strings.MinRunes", "strings.MaxRunes":
		return "character"
	case "list.MinItems", "list.MaxItems":
		return "element"
	}
	return "field"
}

func (s *size) want() string {
	if s.max >= 0 {
		return "at most " + count(s.max, s.unit())
	}
	return "at least " + count(s.min, s.unit())
}

// count returns a number with its unit.
func count(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

func lengthOf(v any) int {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v)
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

// nouns names a set of types.
func nouns(t types) string {
	if t == anything {
		return "any value"
	}
	var names []string
	for _, n := range []struct {
		t    types
		name string
	}{{isString, "text"}, {isInt | isFloat, "a number"}, {isInt, "a whole number"}, {isFloat, "a fraction"}, {isBool, "true or false"},
		{isList, "a list"}, {isObject, "an object"}, {isNull, "null"}} {
		if t&n.t == n.t {
			names = append(names, n.name)
			t &^= n.t
		}
	}
	return strings.Join(names, " or ")
}

// choice returns constants as "a", "b" or "c".
func choice(values []any) string {
	shown := make([]string, len(values))
	for i, v := range values {
		shown[i] = message.Value(v)
	}
	if len(shown) == 1 {
		return shown[0]
	}
	return strings.Join(shown[:len(shown)-1], ", ") + " or " + shown[len(shown)-1]
}

func textsOf(values []any) (texts []string) {
	for _, v := range values {
		if s, ok := v.(string); ok {
			texts = append(texts, s)
		}
	}
	return texts
}

// didYouMean continues a sentence of an error with the name that was probably meant.
func didYouMean(name string, names []string) string {
	if s, ok := nearest.Name(name, names); ok {
		return fmt.Sprintf("; did you mean %s?", s)
	}
	return ""
}

// stop ends a sentence.
func stop(s string) string {
	if strings.HasSuffix(s, ".") || strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}
