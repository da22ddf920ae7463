package view

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A PlanLayout says how much of a plan is shown, and in which order.
type PlanLayout struct {
	Full    bool     // no value is cut
	Summary bool     // only numbers
	Group   Grouping // of the steps; for counts, the kinds of each scope when empty
}

// A Grouping is what steps are grouped by.
type Grouping string

// The groupings.
const (
	ByWave   Grouping = "wave" // the order in which they are carried out, as without a grouping
	ByScope  Grouping = "scope"
	ByKind   Grouping = "kind"
	ByAction Grouping = "action"
)

// Groupings lists all of them.
var Groupings = []string{string(ByWave), string(ByScope), string(ByKind), string(ByAction)}

// of names the group of a step.
func (g Grouping) of(s *plan.Step) string {
	switch g {
	case ByScope:
		return s.Ref.Scope
	case ByKind:
		return s.Ref.Kind
	case ByAction:
		sign, _ := symbol(s)
		return meaning(sign)
	}
	return fmt.Sprintf("Wave %d", s.Wave+1)
}

// A planText writes a plan for people.
type planText struct {
	Style
	PlanLayout
	kinds  schema.Kinds
	b      bytes.Buffer
	cuts   int          // how many values are not shown in full
	second map[int]bool // steps that end a replacement, whose cause was shown
}

// PlanText returns a plan as text: the steps with what changes, everything that was noticed, each thing once, and at the
// end, where a terminal shows it, the numbers.
func PlanText(p *plan.Plan, kinds schema.Kinds, s Style, l PlanLayout) string {
	t := planText{Style: s, PlanLayout: l, kinds: kinds}
	t.plan(p)
	return t.text()
}

// text returns what was written, with a note about what was cut.
func (t *planText) text() string {
	t.cut()
	return strings.TrimPrefix(t.b.String(), "\n")
}

// Summary returns the numbers of a plan in one line. A replacement is one to add and one to destroy, as Terraform counts.
func Summary(p *plan.Plan) string {
	if p.Empty() {
		return nothing(p)
	}
	c := p.Counts()
	what := "Plan"
	if p.Undoes != "" {
		what = rollback(p)
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
		text += " " + narrowed(n)
	}
	if n := len(p.Omitted); n > 0 {
		text += " Skipped: " + count(n, "resource") + "."
	}
	return text
}

// narrowed returns how much of the site a plan covers.
func narrowed(n *plan.Narrowed) string {
	text := fmt.Sprintf("Only %d of %s were considered", n.Resources, count(n.Of, "resource"))
	if n.Resources == n.Of {
		text = fmt.Sprintf("All %s were considered", count(n.Of, "resource"))
	}
	if n.Since > 0 {
		text += fmt.Sprintf(": those that differ from serial %d, which was applied last", n.Since)
	}
	return text + "."
}

// rollback returns the name of a plan that undoes a run.
func rollback(p *plan.Plan) string {
	text := "Rollback of run " + p.Undoes
	if p.Keeps > 0 {
		text += fmt.Sprintf(" to step %d", p.Keeps)
	}
	return text
}

// nothing returns why a plan has no steps.
func nothing(p *plan.Plan) string {
	unchanged := count(p.Unchanged, "resource")
	switch {
	case p.Undoes != "":
		return rollback(p) + ": nothing left to roll back."
	case len(p.Refusals) > 0:
		return "No steps: the plan is refused."
	case len(p.Unknown) > 0 && p.Unchanged == 0:
		return "The site could not be observed. Nothing is planned."
	case len(p.Unknown) > 0:
		return "No changes in what could be observed. Part of the site is unknown."
	case len(p.Omitted) > 0:
		return fmt.Sprintf("No changes to what the server supports: %s up to date, %d skipped.", unchanged, len(p.Omitted))
	case p.Narrowed != nil:
		return "No changes. " + narrowed(p.Narrowed)
	case p.Destroy:
		return "No changes. There is nothing recorded to destroy."
	}
	return fmt.Sprintf("No changes. The site matches the document: %s.", unchanged)
}

// cut notes that something is not shown in full, and how to show it.
func (t *planText) cut() {
	if t.cuts > 0 {
		t.line("")
		t.words(0, 0, span{text: fmt.Sprintf("… marks where %s cut. To see everything: -full", map[bool]string{true: "a value is", false: count(t.cuts, "value") + " are"}[t.cuts == 1]), color: dim})
		t.cuts = 0
	}
}

func (t *planText) plan(p *plan.Plan) {
	if t.Summary {
		t.totals(p)
	} else {
		t.steps(p)
		t.drift("Changed outside converge since the last run:", p.Drift)
	}
	t.remarks(p.Remarks)
	t.unmanaged(p.Unmanaged, "Created for this site by converge, but neither declared nor recorded (declare them to adopt them, or remove them by hand):")
	t.places("Unknown, so nothing is planned for it:", p.Unknown)
	t.places("Not supported by the server:", p.Unsupported)
	t.omitted(p.Omitted)
	t.externals(p.Externals)
	t.refusals(p.Refusals)
	t.cut()
	t.line("")
	t.words(0, 2, span{text: Summary(p), color: bold}, span{text: "  " + strings.ReplaceAll(planOrigin(p), " ", stuck), color: dim})
	t.ends(p)
}

// ends writes how the run may end, and what it takes to begin it.
func (t *planText) ends(p *plan.Plan) {
	late := len(p.Irreversible())
	if p.Empty() || len(p.Refusals) > 0 || late == 0 {
		return
	}
	t.words(0, 0, span{text: "The run ends applied. If a step fails, it ends reverted, or partial if something that cannot be undone exactly was already done."})
	how := "approval of this plan: answer yes when asked, or use "
	if p.Passing {
		how += "-approve. The plan's digest is known once it is saved with -out=FILE: the store has no key for the site's secrets yet"
	} else {
		how += "-approve=" + p.Approval()[:plan.ShortApproval]
	}
	t.words(0, 0, span{text: fmt.Sprintf("%s cannot be undone exactly. This requires %s", count(late, "step"), how)})
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

// Authorship returns who signed a document and who put it into the store; empty for one whose files the command named.
func Authorship(a schema.Author) string {
	switch {
	case a.Own:
		return ""
	case a.Signer != "":
		return "signed by " + a.Signer
	case a.Key != "":
		return "signed with an untrusted key, put by " + a.By
	case a.By != "":
		return "unsigned, put by " + a.By
	}
	return ""
}

func (t *planText) line(format string, args ...any) {
	t.b.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// words writes text, broken at blanks: the first line begins in column at, all others in column hang.
func (t *planText) words(at, hang int, spans ...span) {
	t.b.WriteString(strings.Repeat(" ", at) + t.flow(at, hang, spans) + "\n")
}

// item writes something with a mark before it, such as a thing that was noticed.
func (t *planText) item(color, sign string, spans ...span) {
	t.b.WriteString(t.paint(color, fmt.Sprintf("%4s", sign)) + " " + t.flow(5, margin, spans) + "\n")
}

func (t *planText) head(format string, args ...any) {
	t.line("")
	t.words(0, 0, span{text: fmt.Sprintf(format, args...), color: bold})
}

// symbol returns the sign of a step and its colour.
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
	{"=", "adopt: manage the existing object"}, {".", "forget: the object stays"},
}

// meaning returns what a sign stands for.
func meaning(sign string) string {
	for _, m := range meanings {
		if m.sign == sign {
			return m.meaning
		}
	}
	return sign
}

func (t *planText) steps(p *plan.Plan) {
	if p.Empty() {
		return
	}
	t.second = map[int]bool{}
	first := map[schema.Ref]bool{}
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Replace && !s.Stray {
			t.second[i] = first[s.Ref]
			first[s.Ref] = true
		}
	}
	shared := t.legend(p)
	width := 0
	order := make([]*plan.Step, len(p.Steps))
	for i := range p.Steps {
		order[i] = &p.Steps[i]
		width = max(width, utf8.RuneCountInString(p.Steps[i].Ref.String()))
	}
	width = min(width, 60)
	sizes := map[string]string{}
	if t.Group != "" && t.Group != ByWave {
		slices.SortStableFunc(order, func(a, b *plan.Step) int { return strings.Compare(t.Group.of(a), t.Group.of(b)) })
		n := map[string]int{}
		for _, s := range order {
			n[t.Group.of(s)]++
			sizes[t.Group.of(s)] = "  " + count(n[t.Group.of(s)], "step")
		}
	}
	group, alike := "", false
	for i, s := range order {
		if len(order) > p.NoReturn && s == &p.Steps[p.NoReturn] && (t.Group == "" || t.Group == ByWave) {
			alike = t.noReturn(p.Irreversible())
		}
		if g := t.Group.of(s); i == 0 || g != group {
			group = g
			t.line("")
			t.words(0, 0, span{text: clean(g), color: bold}, span{text: sizes[g], color: dim})
		}
		t.step(s, width, s.ID >= p.NoReturn, alike, shared)
	}
}

// legend explains the signs. A reason that all steps of a sign share is shown there, once, and returned.
func (t *planText) legend(p *plan.Plan) (shared map[string]string) {
	counts := map[string]int{}
	shared = map[string]string{}
	for i := range p.Steps {
		sign, _ := symbol(&p.Steps[i])
		why := t.reason(&p.Steps[i])
		if counts[sign]++; counts[sign] == 1 {
			shared[sign] = why
		} else if shared[sign] != why {
			shared[sign] = ""
		}
	}
	var legend []span
	for _, m := range meanings {
		if counts[m.sign] == 0 {
			continue
		}
		plain := p.Destroy && m.sign == "-" // the reason is obvious
		if counts[m.sign] == 1 && !plain {
			delete(shared, m.sign)
		}
		text := strings.ReplaceAll(m.sign+" "+m.meaning, " ", stuck)
		if why := shared[m.sign]; why != "" && !plain {
			text += " (" + why + ")"
		}
		if len(legend) > 0 {
			text = "   " + text
		}
		legend = append(legend, span{text: text, color: dim})
	}
	t.words(0, 2, legend...)
	return shared
}

// noReturn separates what can be undone from what comes after it. Late are those of the steps below that cannot be undone
// exactly; the others need them. When undoing means the same for all of them, that is shown here, once.
func (t *planText) noReturn(late []*plan.Step) (alike bool) {
	alike = !slices.ContainsFunc(late, func(s *plan.Step) bool { return s.Undo != late[0].Undo })
	t.line("")
	t.words(0, 5, span{text: fmt.Sprintf("──── point of no return: %s below cannot be undone exactly ────", count(len(late), "step")), color: red})
	if alike {
		t.words(5, 5, span{text: "[on revert: " + late[0].Undo.Meaning() + "]", color: dim})
	}
	return alike
}

// reason writes why a step is there, and what it interrupts. The cause of a replacement is shown with its first half.
func (t *planText) reason(s *plan.Step) string {
	reason := clean(s.Reason)
	told := t.second[s.ID]
	switch {
	case !s.Replace:
	case s.Stray:
		reason = "the old object is removed once nothing refers to it"
	case s.Action == plan.Delete && told:
		reason = "removed"
	case s.Action == plan.Delete:
		reason = "removed first: " + reason
	case s.Action == plan.Create && told:
		reason = "recreated"
	case s.Action == plan.Create:
		reason = "recreated: " + reason
	}
	if s.Replace && s.Disruption != "" && s.Disruption != schema.NeedsRestart { // otherwise each change says so
		reason += ", " + disrupts(s.Disruption)
	}
	return reason
}

// disrupts says what a change of a class means for what is there.
func disrupts(class string) string {
	if class == schema.NeedsRestart {
		return "needs a restart"
	}
	return "interrupts " + clean(class)
}

func (t *planText) step(s *plan.Step, width int, late, alike bool, shared map[string]string) {
	sign, color := symbol(s)
	reason := t.reason(s)
	if shared[sign] == reason {
		reason = ""
	}
	switch {
	case s.Leaves:
		reason += "  [can never be deleted: a revert forgets it, and the object stays]"
	case alike && !s.Undo.Reversible():
	case late || s.Undo == providers.Restart:
		reason += "  [on revert: " + s.Undo.Meaning() + "]"
	}
	reason = strings.TrimSpace(reason)
	ref := clean(s.Ref.String())
	lead := t.paint(color, fmt.Sprintf("%4s", sign)) + " "
	switch {
	case reason == "":
		t.line("%s%s", lead, ref)
	case 5+max(width, utf8.RuneCountInString(ref))+2+utf8.RuneCountInString(reason) <= t.width():
		t.line("%s%s  %s", lead, pad(ref, width), t.paint(dim, reason))
	default:
		t.line("%s%s", lead, ref)
		t.words(margin, margin, span{text: reason, color: dim})
	}
	switch {
	case s.Replace && s.Action == plan.Delete, s.Action == plan.Adopt, s.Action == plan.Forget: // nothing is lost
	case s.Action == plan.Create && !s.Replace:
		t.spec(added, s.Ref.Kind, s.After)
	case s.Action == plan.Delete:
		t.spec(removed, s.Ref.Kind, s.Before)
	default:
		t.changes(s.Ref.Kind, s.Changes, s.Before, s.After, s.Replace)
	}
	for _, c := range s.Chosen {
		t.words(margin+2, margin+2, span{text: fmt.Sprintf("%s was chosen: %s", clean(c.Field), clean(c.Why)), color: dim})
	}
}

// spec shows what a new thing will be, or what a deleted one was.
func (t *planText) spec(m mark, kind string, spec schema.Object) {
	in := slot{depth: -1}
	if k := t.kinds[kind]; k != nil {
		in.field = &schema.Field{Type: schema.Struct, Fields: k.Fields}
	}
	shown, _ := mask(t.kinds[kind], spec)
	for _, s := range in.of(shown, "") {
		t.whole(func() { t.lay(m, s, keyOf(s.field), shown[s.name]) })
	}
}

// changes shows what differs, at its place in the document. Before and after are the whole specs, where they are known.
func (t *planText) changes(kind string, changes []diff.Change, before, after schema.Object, replace bool) {
	k := t.kinds[kind]
	was, _ := mask(k, before)
	is, _ := mask(k, after)
	for _, b := range tree(k, concealAll(k, changes)) {
		t.whole(func() { t.branches([]*branch{b}, "", map[string]any(was), map[string]any(is), replace) })
	}
}

func (t *planText) drift(head string, drift []plan.Drift) {
	if len(drift) == 0 {
		return
	}
	t.head("%s", head)
	for _, d := range drift {
		ref := span{text: clean(d.Ref.String())}
		switch {
		case d.Missing:
			t.item(red, "-", ref, span{text: "  is gone"})
		case d.Failed != "":
			t.item(red, "!", ref, span{text: "  has failed: " + clean(d.Failed)})
		case !d.TakenBy.IsZero():
			t.item(red, "!", ref, span{text: clean(fmt.Sprintf("  is now marked as %s of site %s", d.TakenBy.Ref, d.TakenBy.Site))})
		case d.Renamed != "":
			t.item(red, "!", ref, span{text: clean("  was renamed to " + d.Renamed)})
		case d.Remade:
			t.item(red, "!", ref, span{text: "  was deleted and created again"})
		case d.Unmarked:
			t.item(yellow, "~", ref, span{text: "  has lost its ownership mark"})
		default:
			t.item(yellow, "~", ref)
		}
		t.changes(d.Ref.Kind, d.Changes, nil, nil, false)
	}
}

// remarks lists what is wrong although nothing differs.
func (t *planText) remarks(remarks []plan.Remark) {
	if len(remarks) == 0 {
		return
	}
	t.head("Needs attention:")
	for _, r := range remarks {
		t.item(yellow, "!", span{text: clean(r.Ref.String())}, span{text: ": " + clean(r.Detail)})
	}
}

// unmanaged counts unmanaged things, by kind. Strays are named: they are ours, but lost.
func (t *planText) unmanaged(things []plan.Unmanaged, stray string) {
	counts := map[string]int{}
	scopes := map[string]map[string]bool{}
	var strays []plan.Unmanaged
	for _, f := range things {
		if f.Stray {
			strays = append(strays, f)
			continue
		}
		if counts[f.Kind]++; scopes[f.Kind] == nil {
			scopes[f.Kind] = map[string]bool{}
		}
		scopes[f.Kind][f.Scope] = true
	}
	if len(counts) > 0 {
		var parts []string
		for _, kind := range slices.Sorted(maps.Keys(counts)) {
			text := fmt.Sprintf("%d %s", counts[kind], clean(kind))
			if in := slices.Collect(maps.Keys(scopes[kind])); len(in) > 1 {
				text += fmt.Sprintf(" in %d scopes", len(in))
			} else if in[0] != schema.ScopeSite {
				text += " on " + clean(in[0])
			}
			parts = append(parts, text)
		}
		t.line("")
		t.words(0, 2, span{text: "Unmanaged, left unchanged: ", color: bold}, span{text: strings.Join(parts, ", ")})
	}
	if len(strays) > 0 {
		t.head("%s", stray)
		for i, f := range strays {
			if t.more(i, len(strays)) {
				break
			}
			t.item("", "", span{text: fmt.Sprintf("%s/%s/%s  id %s", clean(f.Scope), clean(f.Kind), clean(f.Name), clean(f.ID))})
		}
	}
}

func (t *planText) refusals(rs []plan.Refusal) {
	if len(rs) == 0 {
		return
	}
	t.head("Refused. This plan cannot be applied:")
	for i, r := range rs {
		if t.more(i, len(rs)) {
			break
		}
		on := ""
		if !r.Ref.IsZero() {
			on = clean(r.Ref.String()) + ": "
		}
		t.item(red, "✗", span{text: on + clean(r.Reason)})
		t.words(margin, margin, span{text: clean(Advice(r.Remedies)), color: dim})
	}
}

// more reports whether item i of a list of n is one too many for a summary, and then writes how many there are.
func (t *planText) more(i, n int) bool {
	const most = 3
	if !t.Summary || i < most {
		return false
	}
	t.item("", "", span{text: fmt.Sprintf("and %d more", n-most), color: dim})
	return true
}
