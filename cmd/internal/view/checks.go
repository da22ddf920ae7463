package view

import (
	"cmp"
	"slices"
	"strings"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

// A check is a result in the form of Terraform's "checks".
type check struct {
	Address   checkAddress    `json:"address"`
	Status    checkStatus     `json:"status"`
	Instances []checkInstance `json:"instances"`
}

type checkAddress struct {
	Kind      string `json:"kind"` // check: of the whole plan; resource: of one
	Mode      string `json:"mode,omitempty"`
	Type      string `json:"type,omitempty"`
	Name      string `json:"name"`
	ToDisplay string `json:"to_display"`
}

type checkInstance struct {
	Address struct {
		ToDisplay string `json:"to_display"`
	} `json:"address"`
	Status   checkStatus    `json:"status"`
	Problems []checkProblem `json:"problems,omitempty"`
}

type checkProblem struct {
	Message string `json:"message"`
}

type checkStatus string

const (
	checkPass    checkStatus = "pass"
	checkFail    checkStatus = "fail"
	checkUnknown checkStatus = "unknown" // a part of the site could not be observed
)

// checksOf returns what was checked when the plan was made. Checks of the whole plan are always there, in this order; one
// of a resource is there when the plan is refused because of it. A plan with refusals cannot be applied; drift and what
// cannot be undone are reported, but do not by themselves keep a plan from being applied.
func checksOf(p *plan.Plan) []check {
	byRule := map[plan.Rule][]string{}
	byRef := map[schema.Ref][]string{}
	for _, r := range p.Refusals {
		if text := r.Reason + ": " + Advice(r.Remedies); r.Ref.IsZero() {
			byRule[r.Rule] = append(byRule[r.Rule], text)
		} else {
			byRef[r.Ref] = append(byRef[r.Ref], text)
		}
	}
	var unseen, left, drift, late []string
	for _, u := range p.Unknown {
		unseen = append(unseen, u.Scope+"/"+u.Kind+": "+u.Error)
	}
	for _, o := range p.Omitted {
		left = append(left, o.Ref.String()+": "+o.Reason)
	}
	for i := range p.Drift {
		drift = append(drift, p.Drift[i].Ref.String()+": "+driftedHow(&p.Drift[i]))
	}
	for _, s := range p.Irreversible() {
		late = append(late, string(s.Action)+" "+s.Ref.String()+": "+s.Undo.Meaning())
	}
	checks := []check{
		checkOf("max_destroy", checkFail, byRule[plan.RuleMaxDestroy]),
		checkOf("mass_disappearance", checkFail, byRule[plan.RuleDisappearance]),
		checkOf("same_site", checkFail, byRule[plan.RuleSameSite]),
		checkOf("serial", checkFail, byRule[plan.RuleSerial]),
		checkOf("refusals", checkFail, byRule[""]),
		checkOf("observed", checkUnknown, unseen),
		checkOf("supported", checkFail, left),
		checkOf("outside_changes", checkFail, drift),
		checkOf("reversible", checkFail, late),
	}
	refs := make([]schema.Ref, 0, len(byRef))
	for r := range byRef {
		refs = append(refs, r)
	}
	slices.SortFunc(refs, schema.Ref.Compare)
	for _, r := range refs {
		c := checkOf(r.Name, checkFail, byRef[r])
		c.Address = checkAddress{Kind: "resource", Mode: "managed", Type: r.Kind, Name: r.Name, ToDisplay: r.String()}
		c.Instances[0].Address.ToDisplay = r.String()
		checks = append(checks, c)
	}
	return checks
}

// checkOf returns a check, which passes when there are no problems.
func checkOf(name string, otherwise checkStatus, problems []string) check {
	c := check{Address: checkAddress{Kind: "check", Name: name, ToDisplay: "check." + name}, Status: checkPass, Instances: make([]checkInstance, 1)}
	at := &c.Instances[0]
	at.Address.ToDisplay = c.Address.ToDisplay
	if len(problems) > 0 {
		c.Status = otherwise
	}
	for _, text := range problems {
		at.Problems = append(at.Problems, checkProblem{text})
	}
	at.Status = c.Status
	return c
}

// driftedHow returns how a resource was changed outside, without values.
func driftedHow(d *plan.Drift) string {
	if d.Missing {
		return "it no longer exists"
	}
	if d.Failed != "" {
		return "it has failed: " + d.Failed
	}
	if d.Renamed != "" {
		return "it was renamed to " + d.Renamed + " outside converge"
	}
	if d.Remade {
		return "it was deleted and created again outside converge"
	}
	if d.Unmarked {
		return "its ownership mark was removed outside converge"
	}
	var paths []string
	for _, c := range d.Changes {
		paths = append(paths, c.Path)
	}
	for _, c := range d.Unstated {
		paths = append(paths, c.Path)
	}
	return cmp.Or(strings.Join(paths, ", "), "it") + " changed outside converge"
}
