package load

import (
	"fmt"
	"slices"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/message"
)

// A Rule is something that every document must keep and that only a look at the whole site can tell.
type Rule struct {
	Code    string `json:"code"` // stable
	Name    string `json:"name"`
	Summary string `json:"summary"` // of its diagnostics: what is wrong
	Doc     string `json:"doc"`     // one line: what must be so

	check func(*site, *reporter)
}

// Rules lists all rules by code. Each takes at most O(n log n) for n resources.
func Rules() []Rule { return slices.Clone(rules) }

// rules is the one table of rules. Codes stay forever: a rule that goes leaves a gap.
var rules = slices.Concat(genericRules, carbideRules, carbideImageRules, carbideHardwareRules, ovsRules)

// A reporter takes what one rule finds.
type reporter struct {
	*findings
	rule  Rule
	found int
}

// full reports whether what the rule still finds would only be counted. Rules ask before they make a costly message,
// and then call drop.
func (p *reporter) full() bool { return p.found >= maxDiagnostics }

// report takes a problem with the value at path below r; no path is the resource itself.
func (p *reporter) report(r *resource, path []string, format string, args ...any) {
	p.reportAs(Error, r, path, format, args...)
}

// warn takes something that may be meant so.
func (p *reporter) warn(r *resource, path []string, format string, args ...any) {
	p.reportAs(Warning, r, path, format, args...)
}

func (p *reporter) reportAs(severity Severity, r *resource, path []string, format string, args ...any) {
	if p.full() {
		p.drop(severity)
		return
	}
	p.found++
	for i, a := range args {
		if text, ok := a.(string); ok {
			args[i] = message.Brief(text)
		}
	}
	p.add(problem{
		path:     slices.Concat(r.path, r.written(path)),
		severity: severity,
		code:     p.rule.Code,
		summary:  p.rule.Summary,
		detail:   message.Printable(fmt.Sprintf(format, args...)), // a document may hold what a terminal would obey
	})
}

// sound gives the resources of a kind whose fields can be trusted to have the kind's types.
func (st *site) sound(kind string) func(yield func(*resource) bool) {
	return func(yield func(*resource) bool) {
		for _, r := range st.byKind[kind] {
			if r.sound && !yield(r) {
				return
			}
		}
	}
}

// target gives the resource that a field of r refers to; nil when the field or the resource is absent, or not sound.
func (st *site) target(r *resource, kind string, name any) *resource {
	s, _ := name.(string)
	t := st.index[st.refTarget(r, kind, s)]
	if t == nil || !t.sound {
		return nil
	}
	return t
}

// The functions ...Of read a field of a spec, or a value, as one type; they give zero for what is absent or of another.

func textOf(m map[string]any, name string) string {
	s, _ := m[name].(string)
	return s
}

func intOf(m map[string]any, name string) int64 {
	n, _ := m[name].(int64)
	return n
}

func boolOf(m map[string]any, name string) bool {
	b, _ := m[name].(bool)
	return b
}

func objectOf(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func listOf(m map[string]any, name string) []any {
	l, _ := m[name].([]any)
	return l
}

// firstWith remembers who was first with a value, so that the second can name the first.
type firstWith[K comparable] map[K]*resource

// take gives who had the key before, or takes it for r and gives nil.
func (f firstWith[K]) take(key K, r *resource) *resource {
	if first := f[key]; first != nil {
		return first
	}
	f[key] = r
	return nil
}

// scopeNoun says where a scope is, for messages.
func scopeNoun(scope string) string {
	if scope == schema.ScopeSite {
		return "the site"
	}
	return "node " + scope
}
