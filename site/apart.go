package site

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A refs is a set of resources, which are left out of a plan. They are never handed on as patterns: a name may contain what has a meaning there.
type refs = map[schema.Ref]bool

func union(a, b refs) refs {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// rest reports whether a plan has a step that is about none of some resources.
func rest(p *plan.Plan, out refs) bool {
	return slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return !out[s.Ref] })
}

// without leaves nodes and providers of the site out for a while that could be observed and then did not answer. It reports whether
// there were any.
func (a *Agent) without(unknown []plan.Unknown) bool {
	for _, u := range unknown {
		n := providers.Need{Scope: u.Scope}
		if u.Scope == schema.ScopeSite {
			n.Provider = schema.Ref{Kind: u.Kind}.Provider()
		}
		a.silent[n] = a.o.Now().Add(leftOut)
	}
	return len(unknown) > 0
}

// absent lists the resources of the nodes and providers that a plan would change and that are left out, names one of these, and says how
// long it is until the first is no longer left out.
func (a *Agent) absent(doc *schema.Document, p *plan.Plan) (out refs, who string, first time.Duration) {
	out = refs{}
	var names []string
	for n, until := range a.silent {
		of := func(r schema.Ref) bool { return r.Scope == n.Scope && (n.Provider == "" || r.Provider() == n.Provider) }
		rest := until.Sub(a.o.Now())
		switch {
		case rest <= 0:
			delete(a.silent, n)
		case slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return of(s.Ref) }):
			name := "node " + n.Scope
			if n.Provider != "" {
				name = "provider " + n.Provider + " of the site"
			}
			names = append(names, name)
			if first == 0 || rest < first {
				first = rest
			}
			for i := range p.Steps {
				if ref := p.Steps[i].Ref; of(ref) {
					out[ref] = true
				}
			}
			for i := range doc.Resources {
				if ref := doc.Resources[i].Ref; of(ref) {
					out[ref] = true
				}
			}
		}
	}
	if len(names) > 0 {
		who = slices.Min(names)
	}
	return out, who, first
}

// heldBy lists the resources of a plan that are held, or whose nodes are; none for what holds the whole site, or the document.
func heldBy(p *plan.Plan, holds []state.Hold) refs {
	on := map[string]bool{}
	for _, h := range holds {
		on[h.Scope] = h.Scope != schema.ScopeSite
	}
	held := refs{}
	for i := range p.Steps {
		ref := p.Steps[i].Ref
		if on[ref.Scope] || on[ref.String()] {
			held[ref] = true
		}
	}
	return held
}

// mode returns the mode in which a resource is kept: that of the document, or its own if that is the more careful one.
func (a *Agent) mode(doc *schema.Document, ref schema.Ref) Mode {
	own := slices.Index(Modes, a.o.Mode)
	if wanted := slices.Index(Modes, Mode(doc.Policy.Mode(ref))); wanted >= 0 {
		return Modes[min(own, wanted)]
	}
	return a.o.Mode
}

// observed lists the resources of a plan about which nothing may be done, when there are others.
func (a *Agent) observed(doc *schema.Document, p *plan.Plan) refs {
	apart := refs{}
	if a.o.Mode == Observe { // all
		return apart
	}
	for i := range p.Steps {
		if ref := p.Steps[i].Ref; a.mode(doc, ref) == Observe {
			apart[ref] = true
		}
	}
	return apart
}

// left lists the resources whose steps are left to a person, and says why the first one is.
func (a *Agent) left(doc *schema.Document, p *plan.Plan) (leave refs, why string) {
	leave = refs{}
	for i := range p.Steps {
		s := &p.Steps[i]
		reason := ""
		switch {
		case !s.Undo.Reversible():
			reason = fmt.Sprintf("%s %s cannot be undone exactly: %s", s.Action, s.Ref, s.Undo.Meaning())
		case s.Disruption != "" && s.Disruption != schema.Live:
			reason = fmt.Sprintf("%s %s interrupts: %s", s.Action, s.Ref, s.Disruption)
		case a.mode(doc, s.Ref) == Approve:
			reason = fmt.Sprintf("%s %s needs approval", s.Action, s.Ref)
		default:
			continue
		}
		leave[s.Ref], why = true, cmp.Or(why, reason)
	}
	return leave, why
}

// allowed fails when a plan has a step that the modes do not allow. What they do not allow has been left out of the plan before; this is the
// last look at what came of that.
func (a *Agent) allowed(doc *schema.Document, p *plan.Plan, approved bool) error {
	for i := range p.Steps {
		s := &p.Steps[i]
		if mode := a.mode(doc, s.Ref); mode == Observe || mode == Approve && !approved {
			return fmt.Errorf("%s %s is not allowed in mode %s: nothing was applied, and the site is looked at again", s.Action, s.Ref, mode)
		}
	}
	return nil
}
