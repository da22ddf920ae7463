package view

import (
	"fmt"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

// DriftText shows how a site differs from what was applied last.
func DriftText(r *drift.Report, kinds schema.Kinds, s Style, l PlanLayout) string {
	t := planText{Style: s, PlanLayout: l, kinds: kinds}
	var drifted, unstated []plan.Drift
	for _, d := range r.Unstated {
		unstated = append(unstated, plan.Drift{Ref: d.Ref, Changes: d.Changes})
	}
	for _, d := range r.Drifted {
		drifted = append(drifted, plan.Drift{Ref: d.Ref, Missing: d.Missing, Failed: d.Failed, TakenBy: d.TakenBy, Unmarked: d.Unmarked, Remade: d.Remade, Renamed: d.Renamed, Changes: d.Changes})
	}
	changed := map[schema.Ref]bool{} // of which there may be more than one thing to say
	for _, d := range drifted {
		changed[d.Ref] = true
	}
	them := "them"
	if r.Recorded == 1 {
		them = "it"
	}
	summary := fmt.Sprintf("No drift: %s as converge left %s.", count(r.Recorded, "resource"), them)
	switch {
	case r.Marked != nil && r.Clean():
		summary = fmt.Sprintf("No known drift: %s still present.", count(r.Recorded, "resource"))
	case !r.Complete && len(drifted)+len(unstated) == 0:
		summary = "No drift in what could be observed. Part of the site is unknown."
	case len(drifted)+len(r.Strays) > 0:
		summary = fmt.Sprintf("Drift: %d of %s changed outside converge", len(changed), count(r.Recorded, "resource"))
		if len(r.Strays) > 0 {
			summary += fmt.Sprintf(", %s", count(len(r.Strays), "stray"))
		}
		if len(unstated) > 0 {
			summary += fmt.Sprintf(", and fields not set in the document on %d", len(unstated))
		}
		summary += "."
	case len(unstated) > 0:
		summary = fmt.Sprintf("Drift: fields not set in the document changed outside converge on %d of %s.", len(unstated), count(r.Recorded, "resource"))
	}
	t.words(0, 0, span{text: summary, color: bold})
	if m := r.Marked; m != nil {
		t.words(0, 0, span{text: fmt.Sprintf("Known only by their ownership marks since state rebuild at %s UTC (only their absence can be detected): %s.", at(m.Since), count(m.Resources, "resource"))})
	}
	t.drift("Changed outside converge since the last run:", drifted)
	t.drift("Also changed since, not managed (no plan reverts it; set the value in the document, or change it back in the remote system):", unstated)
	t.remarks(r.Remarks)
	if len(r.Begun) > 0 {
		t.head("Skipped, because an open run has started on them and must finish them (run: converge resume):")
		for _, ref := range r.Begun {
			t.item(yellow, "~", span{text: clean(ref.String())})
		}
	}
	t.unmanaged(append(append([]plan.Unmanaged{}, r.Unmanaged...), r.Strays...),
		"Created for this site by converge, but not recorded (a plan adopts those that the document declares; remove the others by hand):")
	t.places("Unknown, so drift cannot be determined:", r.Unknown)
	return t.text()
}

// MaskDrift returns a report without the values of secret fields.
func MaskDrift(r *drift.Report, kinds schema.Kinds) *drift.Report {
	out := *r
	out.Drifted, out.Unstated = maskItems(r.Drifted, kinds), maskItems(r.Unstated, kinds)
	return &out
}

func maskItems(items []drift.Item, kinds schema.Kinds) []drift.Item {
	out := make([]drift.Item, len(items))
	for i, d := range items {
		d.Changes = concealAll(kinds[d.Ref.Kind], d.Changes)
		out[i] = d
	}
	return out
}

func concealAll(k *schema.Kind, cs []diff.Change) []diff.Change {
	out := make([]diff.Change, len(cs))
	for i, c := range cs {
		out[i] = conceal(k, c)
	}
	return out
}

// A DocumentDiff says how two documents differ, resource by resource.
type DocumentDiff struct {
	From    string         `json:"from"`
	To      string         `json:"to"`
	Changed []ResourceDiff `json:"changes"`
}

// A ResourceDiff is one resource that differs.
type ResourceDiff struct {
	Ref       schema.Ref    `json:"ref"`
	Action    plan.Action   `json:"action"` // create: only in the second; delete: only in the first; update: in both
	Changes   []diff.Change `json:"changes,omitempty"`
	Lifecycle bool          `json:"lifecycle,omitempty"` // its lifecycle differs
}

// Compare compares two documents. Secrets are masked.
func Compare(kinds schema.Kinds, from, to *schema.Document, fromName, toName string) DocumentDiff {
	d := DocumentDiff{From: fromName, To: toName, Changed: []ResourceDiff{}}
	same := func(_, id string) string { return id }
	a, b := from.Resources, to.Resources
	for len(a) > 0 || len(b) > 0 {
		c := 0
		switch {
		case len(a) == 0:
			c = 1
		case len(b) == 0:
			c = -1
		default:
			c = a[0].Ref.Compare(b[0].Ref)
		}
		switch {
		case c < 0:
			d.Changed = append(d.Changed, ResourceDiff{Ref: a[0].Ref, Action: plan.Delete})
		case c > 0:
			d.Changed = append(d.Changed, ResourceDiff{Ref: b[0].Ref, Action: plan.Create})
		default:
			k := kinds[a[0].Ref.Kind]
			changes := concealAll(k, diff.Compare(k, b[0].Spec, a[0].Spec, a[0].Spec, nil, same))
			lifecycle := fmt.Sprint(a[0].Lifecycle, a[0].Timeouts, a[0].After) != fmt.Sprint(b[0].Lifecycle, b[0].Timeouts, b[0].After)
			if len(changes) > 0 || lifecycle {
				d.Changed = append(d.Changed, ResourceDiff{Ref: a[0].Ref, Action: plan.Update, Changes: changes, Lifecycle: lifecycle && len(changes) == 0})
			}
		}
		if c <= 0 {
			a = a[1:]
		}
		if c >= 0 {
			b = b[1:]
		}
	}
	return d
}

// DiffText shows how two documents differ.
func DiffText(d DocumentDiff, kinds schema.Kinds, s Style, l PlanLayout) string {
	t := planText{Style: s, PlanLayout: l, kinds: kinds}
	if len(d.Changed) == 0 {
		t.line("No differences between %s and %s.", clean(d.From), clean(d.To))
		return t.b.String()
	}
	t.line("%s", t.paint(bold, fmt.Sprintf("From %s to %s: %s.", clean(d.From), clean(d.To), count(len(d.Changed), "difference"))))
	for _, r := range d.Changed {
		sign, color := symbol(&plan.Step{Action: r.Action})
		note := ""
		if r.Lifecycle {
			note = "  lifecycle, timeouts or depends_on"
		}
		t.line("%s %s%s", t.paint(color, fmt.Sprintf("%4s", sign)), clean(r.Ref.String()), note)
		t.changes(r.Ref.Kind, r.Changes, nil, nil, true)
	}
	return t.text()
}
