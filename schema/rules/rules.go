package rules

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

	check func(*Site, *reporter)
}

// All lists all rules. Each takes at most O(n log n) for n resources.
func All() []Rule { return slices.Clone(rules) }

// rules is the one table of rules. Codes stay forever: a rule that goes leaves a gap.
var rules = slices.Concat(genericRules, carbideRules, carbideImageRules, carbideHardwareRules, ovsRules)

// A Problem is something in a document that breaks a rule.
type Problem struct {
	Rule    Rule
	Of      *Resource // nil: the document
	Path    []string  // below Of, where lists whose order means nothing are sorted
	Warning bool      // it may be meant so
	Detail  string    // full sentences
}

// Findings are what the rules found.
type Findings struct {
	Problems         []Problem // in the order of the rules
	Errors, Warnings int       // how many more there are
}

// Check lets all rules look at the site. Of each it makes at most so many problems; the others are only counted.
func (st *Site) Check(most int) Findings {
	var all Findings
	for _, r := range rules {
		r.check(st, &reporter{Findings: &all, rule: r, left: most})
	}
	return all
}

// A reporter takes what one rule finds.
type reporter struct {
	*Findings
	rule Rule
	left int // problems that are still made
}

// full reports whether what the rule still finds would only be counted. Rules ask before they make a costly message,
// and then call drop.
func (p *reporter) full() bool { return p.left <= 0 }

// drop counts what nobody is told.
func (p *reporter) drop(warning bool) {
	if warning {
		p.Warnings++
	} else {
		p.Errors++
	}
}

// report takes a problem with the value at path below r; no path is the resource itself.
func (p *reporter) report(r *Resource, path []string, format string, args ...any) {
	p.add(false, r, path, format, args...)
}

// warn takes something that may be meant so.
func (p *reporter) warn(r *Resource, path []string, format string, args ...any) {
	p.add(true, r, path, format, args...)
}

func (p *reporter) add(warning bool, r *Resource, path []string, format string, args ...any) {
	if p.full() {
		p.drop(warning)
		return
	}
	p.left--
	for i, a := range args {
		if text, ok := a.(string); ok {
			args[i] = message.Brief(text)
		}
	}
	// The path is the caller's, and a document may hold what a terminal would obey.
	p.Problems = append(p.Problems, Problem{p.rule, r, slices.Clone(path), warning, message.Printable(fmt.Sprintf(format, args...))})
}

// sound returns the resources of a kind whose fields can be trusted to have the kind's types.
func (st *Site) sound(kind string) func(yield func(*Resource) bool) {
	return func(yield func(*Resource) bool) {
		for _, r := range st.byKind[kind] {
			if r.sound && !yield(r) {
				return
			}
		}
	}
}

// target returns the resource that a field of r refers to; nil when the field or the resource is absent, or not sound.
func (st *Site) target(r *Resource, kind string, name any) *Resource {
	s, _ := name.(string)
	t := st.index[st.kinds.Target(r.Ref.Scope, kind, s)]
	if t == nil || !t.sound {
		return nil
	}
	return t
}

// firstWith remembers who was first with a value, so that the second can name the first.
type firstWith[K comparable] map[K]*Resource

// take returns who had the key before, or takes it for r and gives nil.
func (f firstWith[K]) take(key K, r *Resource) *Resource {
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
