package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// DefaultMaxDestroy is the budget where none is set.
const DefaultMaxDestroy = "10%"

// OverBudget returns why a plan destroys more than it may, when live resources are recorded as existing. It considers only what
// the plan would do, so that a mistake in making the plan does not get past it.
func OverBudget(p *Plan, live int) []Refusal {
	return Over(p, live, p.MaxDestroy, AllowDestroy)
}

// AllowDestroy returns the remedy that allows a plan to destroy n things, where the document or the caller sets the limit.
func AllowDestroy(n int) remedy.Remedy {
	return remedy.Say("review the plan; if it is what you want, raise policy.max_destroy in the document, or allow it this once", remedy.Of(remedy.AllowDestroy, strconv.Itoa(n)))
}

// Over returns why a plan destroys more of the live recorded resources than a limit allows; nothing when the limit is empty.
// Allow returns how a higher limit is set.
func Over(p *Plan, live int, limit string, allow func(n int) remedy.Remedy) []Refusal {
	if limit == "" {
		return nil
	}
	count := p.deletes()
	allowed, err := Budget(limit, live)
	switch {
	case err != nil:
		return []Refusal{Refuse(schema.Ref{}, err.Error(), "correct the limit").breaking(RuleMaxDestroy)}
	case count > allowed:
		return []Refusal{{
			Rule: RuleMaxDestroy, Reason: fmt.Sprintf("it would destroy %d of %d recorded objects, but max_destroy (%s) allows %d", count, live, limit, allowed),
			Remedies: []remedy.Remedy{allow(count)},
		}}
	}
	return nil
}

// deletes counts the steps that delete something.
func (p *Plan) deletes() (n int) {
	for i := range p.Steps {
		if p.Steps[i].Action == Delete {
			n++
		}
	}
	return n
}

// Budget returns how many of live things may be destroyed: "3", or "10%" of them but at least one.
func Budget(limit string, live int) (int, error) {
	if p, ok := strings.CutSuffix(limit, "%"); ok {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 || n > 100 {
			return 0, fmt.Errorf("max_destroy is %q: want a number such as 3 or a percentage such as 10%%", limit)
		}
		return max(1, live*n/100), nil
	}
	n, err := strconv.Atoi(limit)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("max_destroy is %q: want a number such as 3 or a percentage such as 10%%", limit)
	}
	return n, nil
}

// fewRecorded is how many recorded things of a kind are too few to draw conclusions when most of them are gone.
const fewRecorded = 5

// goOn is the remedy for what is observed to be gone.
var goOn = []remedy.Action{{Verb: remedy.Drift}, {Verb: remedy.AllowMissing}}

// A tally counts what is recorded of a provider in a scope, and how much of that is observed.
type tally struct{ recorded, seen int }

func (t tally) add(it *item) tally {
	t.recorded++
	if it.there() {
		t.seen++
	}
	return t
}

// suspect refuses what looks like somebody else's mistake: a document without resources, a place where most of what was made
// is gone, and a provider in a scope, or a site, where all of it is. An empty answer from the wrong server looks exactly like
// that. A provider's only thing may well be gone where the server is known to be the same.
func (m *maker) suspect() {
	recorded, seen := map[schema.Place]int{}, map[schema.Place]int{}
	of, site := map[schema.Place]tally{}, tally{} // by provider, and in total
	live := 0
	for at, n := range m.rest.recorded { // and all of it exists
		provider := schema.Place{Scope: at.Scope, Kind: schema.Ref{Kind: at.Kind}.Provider()}
		recorded[at], seen[at] = n, n
		of[provider] = tally{of[provider].recorded + n, of[provider].seen + n}
		site = tally{site.recorded + n, site.seen + n}
		live += n
	}
	for _, it := range m.items {
		if it.record == nil {
			continue
		}
		live++
		at := it.ref.Place()
		provider := schema.Place{Scope: it.ref.Scope, Kind: it.ref.Provider()}
		if !it.unknown {
			recorded[at]++
			of[provider] = of[provider].add(it)
			site = site.add(it)
		}
		if it.there() {
			seen[at]++
		}
	}
	if len(m.desired)+m.rest.resources == 0 && (m.in.Part == nil || m.in.Part.Declared == 0) && live > 0 && !m.in.Options.Destroy && !m.in.Options.Sweep {
		m.disappeared(fmt.Sprintf("the document has no resources, but %d are recorded", live),
			"correct the document, or destroy all of them explicitly", remedy.Action{Verb: remedy.Destroy})
	}
	if m.in.Options.AllowMissing {
		return
	}
	for at, n := range recorded {
		if n >= fewRecorded && seen[at]*2 <= n {
			m.disappeared(fmt.Sprintf("%d of %d recorded objects of kind %s in scope %s no longer exist", n-seen[at], n, at.Kind, at.Scope),
				"make sure that the provider reaches the right server, and review the drift; if they are really gone, continue without them", goOn...)
		}
	}
	gone := func(t tally, of string) bool {
		if t.recorded == 0 || t.seen > 0 {
			return false
		}
		reason, all := fmt.Sprintf("all %d recorded objects of %s are gone", t.recorded, of), "they are"
		if t.recorded == 1 {
			reason, all = "the only recorded object of "+of+" is gone", "it is"
		}
		m.disappeared(reason, "make sure that converge reaches the right server, and review the drift; if "+all+" really gone, continue", goOn...)
		return true
	}
	told := false
	for at, t := range of {
		if t.recorded > 1 || !m.same(at) {
			told = gone(t, at.Kind+" in scope "+at.Scope) || told
		}
	}
	if !told && (site.recorded > 1 || site.recorded == live) {
		gone(site, "the site")
	}
	slices.SortFunc(m.plan.Refusals, func(a, b Refusal) int {
		if c := a.Ref.Compare(b.Ref); c != 0 {
			return c
		}
		return strings.Compare(a.Reason, b.Reason)
	})
}

// same reports whether the server of a provider in a scope identifies itself as the one on which the recorded things were made.
func (m *maker) same(at schema.Place) bool {
	return slices.ContainsFunc(m.in.Known, func(k state.Server) bool {
		return k.Scope == at.Scope && k.Provider == at.Kind && slices.ContainsFunc(m.in.Servers, func(s state.Server) bool {
			return s.Scope == k.Scope && s.Provider == k.Provider && s.Identity == k.Identity
		})
	})
}

// sweep removes the strays that certainly belong to nobody: incarnations of a resource that were given up before the
// recorded one. Their ids are never used again, so nothing else can have them. Other strays are left for people to judge.
func (m *maker) sweep() {
	born := map[schema.Ref]int{}
	for i := range m.in.Recorded {
		r := &m.in.Recorded[i]
		if born[r.Ref] = r.Incarnation; r.Gone {
			born[r.Ref]++ // the recorded incarnation itself was given up
		}
	}
	for at, things := range m.in.Observed.Things {
		traits, served := m.served(at)
		for i := range things {
			t := &things[i]
			given := served && traits.UsedOnce() && t.Mark.Site == m.plan.Site.ID && t.Phase != providers.Deleting && t.Mark.Incarnation < born[t.Mark.Ref]
			if !given || t.Mark.Ref.Kind != at.Kind || m.leftToOthers(t) {
				continue
			}
			it := &item{ref: t.Mark.Ref, kind: m.in.Kinds[at.Kind], traits: traits, thing: t, born: t.Mark.Incarnation}
			s := m.step(it, Delete, fmt.Sprintf("incarnation %d was abandoned, but still exists", t.Mark.Incarnation))
			s.Stray, s.Record = true, s.Prior
			s.Within = traits.GoneWithin
			m.plan.Steps = append(m.plan.Steps, s)
		}
	}
	slices.SortFunc(m.plan.Steps, func(a, b Step) int {
		if c := a.Ref.Compare(b.Ref); c != 0 {
			return c
		}
		return a.Incarnation - b.Incarnation
	})
}

// Stages assigns nodes to stages, so that a mistake hits one node before it hits all: 1 for the first node, 2 for a tenth
// of them, 3 for the rest. Nodes are in the order of their names.
func Stages(nodes []string) map[string]int {
	nodes = slices.Compact(slices.Sorted(slices.Values(nodes)))
	stages := make(map[string]int, len(nodes))
	for i, n := range nodes {
		switch {
		case i == 0:
			stages[n] = 1
		case i <= (len(nodes)+9)/10:
			stages[n] = 2
		default:
			stages[n] = 3
		}
	}
	return stages
}
