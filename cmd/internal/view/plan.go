package view

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A planText writes a plan for people.
type planText struct {
	Style
	kinds schema.Kinds
	b     strings.Builder
}

// PlanText gives a plan as text: a summary, the steps wave by wave with what changes, everything that was noticed, and
// the summary once more.
func PlanText(p *plan.Plan, kinds schema.Kinds, s Style) string {
	t := planText{Style: s, kinds: kinds}
	t.plan(p)
	return t.b.String()
}

// Summary gives the numbers of a plan in one line. A replacement is one to add and one to destroy, as Terraform counts.
func Summary(p *plan.Plan) string {
	if p.Empty() {
		return nothing(p)
	}
	c := p.Counts()
	what := "Plan"
	if p.Undoes != "" {
		what = "Rollback of run " + p.Undoes
	}
	text := fmt.Sprintf("%s: %d to add, %d to change, %d to destroy", what, c.Create, c.Update, c.Delete)
	for _, more := range []struct {
		n    int
		verb string
	}{{c.Adopt, "adopt"}, {c.Forget, "forget"}} {
		if more.n > 0 {
			text += fmt.Sprintf(", %d to %s", more.n, more.verb)
		}
	}
	if p.Undoes != "" {
		return text + "."
	}
	text += fmt.Sprintf("; %d unchanged.", p.Unchanged)
	if n := p.Narrowed; n != nil {
		text += fmt.Sprintf(" Only %d of %s were considered.", n.Resources, count(n.Of, "resource"))
	}
	if n := len(p.Omitted); n > 0 {
		text += " Left out: " + count(n, "resource") + "."
	}
	return text
}

// nothing says why a plan has no steps.
func nothing(p *plan.Plan) string {
	unchanged := count(p.Unchanged, "resource")
	switch {
	case p.Undoes != "":
		return "Rollback of run " + p.Undoes + ": nothing is left to undo."
	case len(p.Refusals) > 0:
		return "No plan: it is refused."
	case len(p.Unknown) > 0 && p.Unchanged == 0:
		return "The site could not be seen. Nothing is decided."
	case len(p.Unknown) > 0:
		return "No changes where the site could be seen. Some of it is unknown."
	case len(p.Omitted) > 0:
		return fmt.Sprintf("No changes to what the server supports: %s as declared, %d left out.", unchanged, len(p.Omitted))
	case p.Narrowed != nil:
		return fmt.Sprintf("No changes. Only %d of %s were considered.", p.Narrowed.Resources, count(p.Narrowed.Of, "resource"))
	case p.Destroy:
		return "No changes. Nothing is recorded that could be destroyed."
	}
	return fmt.Sprintf("No changes. The site is as the document says: %s.", unchanged)
}

func (t *planText) plan(p *plan.Plan) {
	t.line("%s  %s", t.paint(bold, Summary(p)), t.paint(dim, planOrigin(p)))
	t.steps(p)
	t.drift("Changed outside converge since the last run:", p.Drift)
	t.foreign(p.Unmanaged)
	t.places("Unknown, so that nothing is decided about it:", p.Unknown)
	t.places("Not supported by the server:", p.Unsupported)
	t.omitted(p.Omitted)
	t.externals(p.Externals)
	t.refusals(p.Refusals)
	if !p.Empty() {
		t.line("")
		t.line("%s", t.paint(bold, Summary(p)))
	}
	t.ends(p)
}

// ends says how the run may end, and what it takes to begin it.
func (t *planText) ends(p *plan.Plan) {
	late := len(p.Irreversible())
	if p.Empty() || len(p.Refusals) > 0 || late == 0 {
		return
	}
	before := "reverted when a step fails before the point of no return, "
	if p.NoReturn == 0 {
		before = ""
	}
	t.line("It ends applied, %sor partial when one fails after it.", before)
	t.line("What cannot be undone exactly (%s) needs an approval of this plan: yes to the question, or -approve=%s", count(late, "step"), p.Approval()[:plan.ShortApproval])
}

func planOrigin(p *plan.Plan) string {
	site := "site " + p.Site.Name
	if p.Site.Serial > 0 {
		site += fmt.Sprintf(", serial %d", p.Site.Serial)
	}
	if by := Authorship(p.Author); by != "" {
		site += ", " + by
	}
	return site
}

// Authorship says who signed a document and who put it into the store; empty for one whose files the command named.
func Authorship(a schema.Author) string {
	switch {
	case a.Own:
		return ""
	case a.Signer != "":
		return "signed by " + a.Signer
	case a.Key != "":
		return "signed with a key that is not trusted, put by " + a.By
	case a.By != "":
		return "unsigned, put by " + a.By
	}
	return ""
}

func (t *planText) line(format string, args ...any) {
	t.b.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

func (t *planText) head(format string, args ...any) {
	t.line("")
	t.line("%s", t.paint(bold, fmt.Sprintf(format, args...)))
}

// symbol gives the sign of a step and its colour.
func symbol(s *plan.Step) (sign, color string) {
	switch {
	case s.Replace:
		return "-/+", purple
	case s.Action == plan.Create:
		return "+", green
	case s.Action == plan.Update:
		return "~", yellow
	case s.Action == plan.Delete:
		return "-", red
	case s.Action == plan.Adopt:
		return "=", cyan
	}
	return ".", dim
}

var meanings = []struct{ sign, meaning string }{
	{"+", "create"}, {"~", "change in place"}, {"-/+", "replace"}, {"-", "destroy"},
	{"=", "adopt: take over what is there"}, {".", "forget: leave what is there"},
}

func (t *planText) steps(p *plan.Plan) {
	if p.Empty() {
		return
	}
	used := map[string]bool{}
	width := 0
	for i := range p.Steps {
		sign, _ := symbol(&p.Steps[i])
		used[sign] = true
		width = max(width, utf8.RuneCountInString(p.Steps[i].Ref.String()))
	}
	width = min(width, 60)
	var legend []string
	for _, m := range meanings {
		if used[m.sign] {
			legend = append(legend, m.sign+" "+m.meaning)
		}
	}
	t.line("%s", t.paint(dim, strings.Join(legend, "   ")))
	wave := -1
	for i := range p.Steps {
		s := &p.Steps[i]
		if i == p.NoReturn {
			t.noReturn(len(p.Irreversible()))
		}
		if s.Wave != wave {
			wave = s.Wave
			t.head("Wave %d", wave+1)
		}
		t.step(s, width, i >= p.NoReturn)
	}
}

// noReturn separates what can be undone from what comes after it. N is how many of those steps cannot be undone exactly; the
// others need them.
func (t *planText) noReturn(n int) {
	t.line("")
	t.line("%s", t.paint(red, fmt.Sprintf("──── point of no return: %s below cannot be undone exactly ────", count(n, "step"))))
}

// undoing says in words what undoing a step brings back.
func undoing(r providers.Revert) string {
	switch r {
	case providers.Exact:
		return "can be undone exactly"
	case providers.Restart:
		return "can be undone; what was running is lost"
	case providers.Replace:
		return "undone only by an equivalent with a new identity"
	}
	return "cannot be undone"
}

func (t *planText) step(s *plan.Step, width int, late bool) {
	sign, color := symbol(s)
	reason := clean(s.Reason)
	if s.Replace && s.Action == plan.Delete {
		reason = "removed first: " + reason
		if s.Stray {
			reason = "the old one is removed when nothing refers to it any more"
		}
	}
	if s.Replace && s.Action == plan.Create {
		reason = "made anew: " + reason
	}
	if s.Disruption != "" {
		reason += ", interrupts " + clean(s.Disruption)
	}
	switch {
	case s.Leaves:
		reason += "  [can never be deleted: an undo forgets it, and it stays]"
	case late || s.Undo == providers.Restart:
		reason += "  [" + undoing(s.Undo) + "]"
	}
	t.line("%s %s  %s", t.paint(color, fmt.Sprintf("%4s", sign)), pad(clean(s.Ref.String()), width), t.paint(dim, reason))
	switch {
	case s.Action == plan.Create && !s.Replace:
		t.fields(s)
	case s.Action == plan.Create || s.Action == plan.Update:
		t.changes(s.Ref.Kind, s.Changes, s.Replace)
	}
	for _, c := range s.Chosen {
		t.line("         %s", t.paint(dim, fmt.Sprintf("%s was chosen: %s", clean(c.Field), clean(c.Why))))
	}
}

// fields shows what a new thing will be.
func (t *planText) fields(s *plan.Step) {
	spec, _ := mask(t.kinds[s.Ref.Kind], s.After)
	names := make([]string, 0, len(spec))
	width := 0
	for n := range spec {
		names = append(names, n)
		width = max(width, utf8.RuneCountInString(n))
	}
	slices.Sort(names)
	for _, n := range names {
		t.line("       %s  %s", pad(clean(n), width), t.paint(green, value(spec[n])))
	}
}

// changes shows paths with their values before and after, in columns.
func (t *planText) changes(kind string, changes []diff.Change, replace bool) {
	paths, olds := 0, 0
	shown := make([]diff.Change, len(changes))
	for i, c := range changes {
		shown[i] = conceal(t.kinds[kind], c)
		paths = max(paths, utf8.RuneCountInString(c.Path))
		if !shown[i].Secret {
			olds = max(olds, utf8.RuneCountInString(value(shown[i].Before)))
		}
	}
	paths, olds = min(paths, 48), min(olds, 40)
	for _, c := range shown {
		text := "       " + pad(clean(c.Path), paths) + "  "
		if c.Secret {
			text += "(sensitive value)"
		} else {
			text += pad(value(c.Before), olds) + " → " + t.paint(green, value(c.After))
		}
		if c.Replaces && replace {
			text += t.paint(red, "  # forces replacement")
		}
		t.line("%s", text)
	}
}

func (t *planText) drift(head string, drift []plan.Drift) {
	if len(drift) == 0 {
		return
	}
	t.head("%s", head)
	for _, d := range drift {
		switch {
		case d.Missing:
			t.line("%s %s  is gone", t.paint(red, "   -"), clean(d.Ref.String()))
		case d.Failed != "":
			t.line("%s %s  has failed: %s", t.paint(red, "   !"), clean(d.Ref.String()), clean(d.Failed))
		default:
			t.line("%s %s", t.paint(yellow, "   ~"), clean(d.Ref.String()))
		}
		t.changes(d.Ref.Kind, d.Changes, false)
	}
}

// foreign counts what nobody declared, by scope and kind. Strays are named: they are ours, and lost.
func (t *planText) foreign(things []plan.Foreign) {
	type place struct{ scope, kind string }
	var places []place
	counts := map[place]int{}
	var strays []plan.Foreign
	for _, f := range things {
		if f.Stray {
			strays = append(strays, f)
			continue
		}
		at := place{f.Scope, f.Kind}
		if counts[at]++; counts[at] == 1 {
			places = append(places, at)
		}
	}
	if len(places) > 0 {
		t.head("Not managed here, and left alone:")
		for _, at := range places {
			t.line("     %d × %s/%s", counts[at], clean(at.scope), clean(at.kind))
		}
	}
	if len(strays) > 0 {
		t.head("Made for this site by converge, but neither declared nor recorded (declare them to adopt them, or remove them by hand):")
		for _, f := range strays {
			t.line("     %s/%s/%s  id %s", clean(f.Scope), clean(f.Kind), clean(f.Name), clean(f.ID))
		}
	}
}

func (t *planText) refusals(rs []plan.Refusal) {
	if len(rs) == 0 {
		return
	}
	t.head("Refused. This plan cannot be applied:")
	for _, r := range rs {
		on := ""
		if !r.Ref.IsZero() {
			on = clean(r.Ref.String()) + ": "
		}
		t.line("%s %s%s", t.paint(red, "   ✗"), on, clean(r.Reason))
		t.line("     %s", clean(r.Remedy))
	}
}
