package rules

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/message"
)

// policyRules are about policy.reconcile and policy.approvals.
var policyRules = []Rule{
	{"CV1185", "policy-reconcile", "Rule of policy.reconcile is about nothing", "A kind in policy.reconcile must exist, and a scope must have a resource in the document", checks{reconciled{}}},
	{"CV1186", "policy-approvals", "Approvals cannot be reached", "policy.approvals.count must be at most the number of people in policy.approvals.by", checks{together{nil, checkApprovals}}},
}

// reconciled checks the rules of policy.reconcile. Which scopes there are may change with every revision.
type reconciled struct{}

func (c reconciled) again(st *Site, _ *Touched, p *reporter) { c.whole(st, p) }

func (reconciled) whole(st *Site, p *reporter) {
	rules, _ := st.policy["reconcile"].([]any)
	for i, v := range rules {
		at := []string{"policy", "reconcile", strconv.Itoa(i)}
		for j, kind := range stringsOf(objectOf(v)["kinds"]) {
			path := append(slices.Clone(at), "kinds", strconv.Itoa(j))
			switch {
			case !strings.Contains(kind, "*") && st.kinds[kind] == nil:
				p.report(nil, path, "%s", message.Unknown("kind", kind, st.kinds.Names()))
			case !slices.ContainsFunc(st.kinds.Names(), func(name string) bool { return alike(kind, name) }):
				p.report(nil, path, "No kind is like %s. Write PROVIDER.*, a part of a name, or the name of a kind: converge schema lists them.", message.Value(kind))
			}
		}
		for j, scope := range stringsOf(objectOf(v)["scopes"]) {
			if path := append(slices.Clone(at), "scopes", strconv.Itoa(j)); !strings.Contains(scope, "*") && scope != schema.ScopeSite && !st.inhabited(scope) {
				p.report(nil, path, "%s A pattern, such as gpu-*, may also name nodes that are not in the document.", message.Unknown("node with resources", scope, st.scopes()))
			}
		}
	}
}

// alike reports whether a name matches a pattern.
func alike(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// inhabited reports whether a scope has resources.
func (st *Site) inhabited(scope string) bool {
	first := schema.Ref{Scope: scope}
	i, _ := slices.BinarySearchFunc(st.Resources, first, func(r *Resource, ref schema.Ref) int { return r.Ref.Compare(ref) })
	return i < len(st.Resources) && st.Resources[i].Ref.Scope == scope
}

// scopes lists the scopes that have resources, and the site.
func (st *Site) scopes() []string {
	names := []string{schema.ScopeSite}
	for _, r := range st.Resources {
		if r.Ref.Scope != names[len(names)-1] {
			names = append(names, r.Ref.Scope)
		}
	}
	return names
}

// checkApprovals counts people as the site agent does: one that is named at two machines is one.
func checkApprovals(st *Site, p *reporter) {
	approvals := objectOf(st.policy["approvals"])
	by := stringsOf(approvals["by"])
	people := map[string]bool{}
	for _, who := range by {
		people[schema.Person(who)] = true
	}
	if count, ok := approvals["count"].(int64); ok && len(by) > 0 && count > int64(len(people)) {
		p.report(nil, []string{"policy", "approvals", "count"}, "%d people have to approve a plan, but policy.approvals.by names %d. Name more, or lower the count.", count, len(people))
	}
}
