package rules

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/message"
)

// A Rule is a requirement on every document that can only be checked on the whole site.
type Rule struct {
	Code    string `json:"code"` // stable
	Name    string `json:"name"`
	Summary string `json:"summary"` // of its diagnostics: what is wrong
	Doc     string `json:"doc"`     // one line: what must be so

	checks checks
}

type checks []check

// All lists all rules. Each takes at most O(n log n) for n resources.
func All() []Rule { return slices.Clone(rules) }

// rules is the only table of rules. Codes stay forever: a removed rule leaves a gap.
var rules = slices.Concat(genericRules, carbideRules, carbideImageRules, carbideHardwareRules, ovsRules, ovsTunnelRules, libvirtRules, nodeRules, policyRules)

// A Problem is a violation of a rule in a document.
type Problem struct {
	Rule    Rule
	Of      *Resource // nil: the document
	Path    []string  // within Of, where lists whose order does not matter are sorted
	Warning bool      // it may be intended
	Detail  string    // full sentences
}

// Findings are the results of the rules.
type Findings struct {
	Problems         []Problem // in the order of the rules
	Errors, Warnings int       // number of further ones
}

// Check applies all rules to the site, several at the same time. It reports at most the given number of problems per rule; the
// others are only counted.
func (st *Site) Check(most int) Findings {
	return st.apply(most, func(c check, p *reporter) { c.whole(st, p) })
}

// apply makes all checks of all rules.
func (st *Site) apply(most int, do func(c check, p *reporter)) (all Findings) {
	found := make([]Findings, len(rules))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(rules)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(rules); i = int(next.Add(1)) - 1 {
				p := &reporter{Findings: &found[i], rule: rules[i], left: most}
				for _, c := range rules[i].checks {
					do(c, p)
				}
			}
		})
	}
	wg.Wait()
	for _, f := range found {
		all.Problems = append(all.Problems, f.Problems...)
		all.Errors, all.Warnings = all.Errors+f.Errors, all.Warnings+f.Warnings
	}
	return all
}

// A reporter collects what one rule finds.
type reporter struct {
	*Findings
	rule Rule
	left int // problems that are still reported
}

// full reports whether further problems of the rule would only be counted. Rules check it before they make a costly message,
// and then call drop.
func (p *reporter) full() bool { return p.left <= 0 }

// drop counts a problem that is not reported.
func (p *reporter) drop(warning bool) {
	if warning {
		p.Warnings++
	} else {
		p.Errors++
	}
}

// report adds a problem with the value at path within r; an empty path is the resource itself.
func (p *reporter) report(r *Resource, path []string, format string, args ...any) {
	p.add(false, r, path, format, args...)
}

// warn adds a problem that may be intended.
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
	// The path belongs to the caller, and a document may contain control characters that a terminal would obey.
	p.Problems = append(p.Problems, Problem{p.rule, r, slices.Clone(path), warning, message.Printable(fmt.Sprintf(format, args...))})
}

// ofKinds returns the resources of the kinds for which of holds, of all kinds when it is nil.
func (st *Site) ofKinds(of func(*schema.Kind) bool) func(yield func(*Resource) bool) {
	return func(yield func(*Resource) bool) {
		for _, name := range st.kinds.Names() {
			if of != nil && !of(st.kinds[name]) {
				continue
			}
			for _, r := range st.byKind[name] {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// sound returns the resources of a kind whose fields are known to have the kind's types.
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

// scopeNoun returns a scope in words, for messages.
func scopeNoun(scope string) string {
	if scope == schema.ScopeSite {
		return "the site"
	}
	return "node " + scope
}
