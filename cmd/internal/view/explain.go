package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

// An Explanation says what a plan does about one resource, and why. It contains no secret values.
type Explanation struct {
	Address  string   `json:"address"`
	Decision string   `json:"decision"` // create, update, replace, delete, adopt, forget, unchanged, external, unknown, left_out, refused, unmanaged, not_considered or none
	Why      []string `json:"why"`      // in words

	Declared *Declared      `json:"declared,omitempty"` // absent when the document does not have it
	External *plan.External `json:"external,omitempty"` // for what the document only refers to: which thing that is
	Recorded *Remembered    `json:"recorded,omitempty"` // absent when nothing is recorded
	saved    bool           // by a saved plan, which does not have all records
	Drift    *drifted       `json:"drift,omitempty"`  // what was changed outside converge
	Remark   string         `json:"remark,omitempty"` // what is wrong with it all the same

	RefersTo   []Neighbour `json:"refers_to"`
	ReferredBy []Neighbour `json:"referred_by"`
	Outside    []string    `json:"outside,omitempty"` // what it refers to by external id

	Steps []ExplainedStep `json:"steps"`
	Waves int             `json:"waves"` // of the plan
}

// Declared is what the document says about a resource.
type Declared struct {
	Path string        `json:"path"` // in the document
	Spec schema.Object `json:"spec"`
}

// Remembered is what is recorded about a resource.
type Remembered struct {
	ID          string          `json:"id"`
	Incarnation int             `json:"incarnation"`
	Gone        bool            `json:"gone,omitempty"`
	Run         string          `json:"run"`
	At          time.Time       `json:"at"`
	Protect     bool            `json:"protect,omitempty"`
	OnRemove    schema.OnRemove `json:"on_remove,omitempty"`
}

type drifted struct {
	Missing  bool          `json:"missing,omitempty"`
	Failed   string        `json:"failed,omitempty"`
	Unmarked bool          `json:"unmarked,omitempty"`
	Changes  []diff.Change `json:"changes,omitempty"` // from what was left to what is observed
}

// A Neighbour is a resource that another refers to, and what the plan does about it.
type Neighbour struct {
	Address  string `json:"address"`
	Decision string `json:"decision"`
}

// An ExplainedStep is a step of the plan for the resource.
type ExplainedStep struct {
	Step       int           `json:"step"` // its number, from 1
	Action     plan.Action   `json:"action"`
	Reason     string        `json:"reason"`
	Wave       int           `json:"wave"` // from 1
	Needs      []string      `json:"needs"`
	NeededBy   []string      `json:"needed_by"`
	Changes    []diff.Change `json:"changes,omitempty"` // from what is observed to what the document says
	Disruption string        `json:"disruption,omitempty"`
	Undo       string        `json:"undo"`       // in words
	UndoClass  string        `json:"undo_class"` // R1 to R4
	Late       bool          `json:"late"`       // comes after the point of no return
	Chosen     []plan.Chosen `json:"chosen,omitempty"`
}

// ExplainRef explains what a plan does about a resource. The document may be nil, for a plan that has none; records are
// what is recorded, when that is known. Ok is false when the resource is unknown; then known lists those that exist.
func ExplainRef(ref schema.Ref, p *plan.Plan, doc *schema.Document, records []state.Record, kinds schema.Kinds) (e *Explanation, known []string, ok bool) {
	x := explaining{plan: p, doc: doc, records: records, kinds: kinds}
	e = &Explanation{Address: ref.String(), Decision: x.decision(ref), RefersTo: []Neighbour{}, ReferredBy: []Neighbour{}, Steps: []ExplainedStep{}, saved: x.records == nil}
	declared, recorded := x.declared(ref), x.recorded(ref)
	if declared == nil && recorded == nil && e.Decision == "none" {
		return nil, x.known(), false
	}
	if declared != nil {
		spec, _ := mask(kinds[ref.Kind], declared.Spec)
		e.Declared = &Declared{Path: pathOf(ref), Spec: spec}
		for _, o := range declared.Outside {
			e.Outside = append(e.Outside, o.String())
		}
	}
	if i := x.external(ref); i >= 0 {
		e.External = &p.Externals[i]
	}
	if recorded != nil {
		e.Recorded = &Remembered{
			ID: recorded.ID, Incarnation: recorded.Incarnation, Gone: recorded.Gone, Run: recorded.Run, At: recorded.At,
			Protect: recorded.Protect, OnRemove: recorded.OnRemove,
		}
	}
	for _, d := range p.Drift {
		if d.Ref == ref {
			e.Drift = &drifted{Missing: d.Missing, Failed: d.Failed, Unmarked: d.Unmarked, Changes: x.shown(ref, d.Changes)}
		}
	}
	for _, r := range p.Remarks {
		if r.Ref == ref {
			e.Remark = r.Detail
		}
	}
	for _, r := range x.after(ref) {
		e.RefersTo = append(e.RefersTo, Neighbour{r.String(), x.decision(r)})
	}
	for _, r := range x.all() {
		if slices.Contains(x.after(r), ref) {
			e.ReferredBy = append(e.ReferredBy, Neighbour{r.String(), x.decision(r)})
		}
	}
	for i := range p.Steps {
		e.Waves = max(e.Waves, p.Steps[i].Wave+1)
		if p.Steps[i].Ref == ref {
			e.Steps = append(e.Steps, x.step(i))
		}
	}
	e.Why = x.why(ref, e)
	return e, nil, true
}

// pathOf returns the path of a resource in the document.
func pathOf(r schema.Ref) string {
	path := r.Kind + "." + r.Name
	if r.Scope != schema.ScopeSite {
		path = "nodes." + r.Scope + "." + path
	}
	return path
}

// explaining is what an explanation is made from.
type explaining struct {
	plan    *plan.Plan
	doc     *schema.Document
	records []state.Record
	kinds   schema.Kinds
}

func (x *explaining) declared(ref schema.Ref) *schema.Resource {
	if x.doc == nil {
		return nil
	}
	for i := range x.doc.Resources {
		if x.doc.Resources[i].Ref == ref {
			return &x.doc.Resources[i]
		}
	}
	return nil
}

func (x *explaining) recorded(ref schema.Ref) *state.Record {
	for i := range x.records {
		if x.records[i].Ref == ref {
			return &x.records[i]
		}
	}
	for i := range x.plan.Steps { // a saved plan contains the records that it needs
		if s := &x.plan.Steps[i]; s.Ref == ref && s.Prior != nil {
			return s.Prior
		}
	}
	return nil
}

// external returns the index of what the document only refers to; -1 when it is not external.
func (x *explaining) external(ref schema.Ref) int {
	return slices.IndexFunc(x.plan.Externals, func(e plan.External) bool { return e.Ref == ref })
}

// after returns what a resource refers to: according to the document, or else to its record.
func (x *explaining) after(ref schema.Ref) []schema.Ref {
	if d := x.declared(ref); d != nil {
		return d.After
	}
	if r := x.recorded(ref); r != nil && !r.Gone {
		return r.After
	}
	return nil
}

// all returns what is declared or recorded or has a step, sorted.
func (x *explaining) all() []schema.Ref {
	var refs []schema.Ref
	if x.doc != nil {
		for i := range x.doc.Resources {
			refs = append(refs, x.doc.Resources[i].Ref)
		}
	}
	for i := range x.records {
		if !x.records[i].Gone {
			refs = append(refs, x.records[i].Ref)
		}
	}
	for i := range x.plan.Steps {
		refs = append(refs, x.plan.Steps[i].Ref)
	}
	slices.SortFunc(refs, schema.Ref.Compare)
	return slices.Compact(refs)
}

// known lists what can be explained.
func (x *explaining) known() (names []string) {
	for _, r := range x.all() {
		names = append(names, r.String())
	}
	for _, f := range x.plan.Unmanaged {
		names = append(names, f.Scope+"/"+f.Kind+"/"+f.Name)
	}
	return names
}

// decision returns in one word what the plan does about a resource.
func (x *explaining) decision(ref schema.Ref) string {
	p := x.plan
	var action plan.Action
	for i := range p.Steps {
		if p.Steps[i].Ref != ref || p.Steps[i].Stray && !p.Steps[i].Replace {
			continue
		}
		if p.Steps[i].Replace {
			return "replace"
		}
		action = p.Steps[i].Action
	}
	d, r := x.declared(ref), x.recorded(ref)
	switch {
	case action != "":
		return string(action)
	case slices.ContainsFunc(p.Refusals, func(r plan.Refusal) bool { return r.Ref == ref }):
		return "refused"
	case slices.ContainsFunc(p.Omitted, func(o plan.Omission) bool { return o.Ref == ref }):
		return "left_out"
	case (d != nil || r != nil) && slices.ContainsFunc(p.Unknown, func(u plan.Unknown) bool { return u.Scope == ref.Scope && u.Kind == ref.Kind }):
		return "unknown"
	case x.external(ref) >= 0:
		return "external"
	case d != nil && p.Narrowed != nil:
		return "not_considered"
	case d != nil:
		return "unchanged"
	case slices.ContainsFunc(p.Unmanaged, func(f plan.Unmanaged) bool {
		return f.Scope == ref.Scope && f.Kind == ref.Kind && (f.Name == ref.Name || f.ID == ref.Name)
	}):
		return "unmanaged"
	}
	return "none"
}

// why returns the reasons for what the plan does about a resource.
func (x *explaining) why(ref schema.Ref, e *Explanation) []string {
	why := []string{}
	for i := range e.Steps {
		if reason := e.Steps[i].Reason; !slices.Contains(why, reason) {
			why = append(why, reason)
		}
	}
	for _, r := range x.plan.Refusals {
		switch {
		case r.Ref == ref:
			why = append(why, r.Reason+": "+Advice(r.Remedies))
		case r.Ref.IsZero() && len(e.Steps) > 0:
			why = append(why, "the plan as a whole is refused: "+r.Reason+": "+Advice(r.Remedies))
		}
	}
	for _, o := range x.plan.Omitted {
		if o.Ref == ref {
			why = append(why, o.Reason)
		}
	}
	for _, u := range x.plan.Unknown {
		if e.Decision == "unknown" && u.Scope == ref.Scope && u.Kind == ref.Kind {
			why = append(why, "nothing is planned for it, because it could not be observed: "+u.Error)
		}
	}
	switch e.Decision {
	case "unchanged":
		why = append(why, "it matches the document")
	case "external":
		why = append(why, "the document only refers to it: it is managed by others, and converge never creates, changes, destroys or records it")
	case "unmanaged":
		why = append(why, "it exists, but no document declares it: it is left unchanged. converge import -discover writes existing objects as a document")
	case "not_considered":
		why = append(why, x.beside())
	case "none":
		why = append(why, "the document does not declare it, and it no longer exists: it was destroyed by converge")
	}
	return why
}

// beside says why the plan decides nothing about a resource.
func (x *explaining) beside() string {
	if serial := x.plan.Narrowed.Since; serial > 0 {
		return fmt.Sprintf("the plan covers only what differs from serial %d, which was applied last, and what has to change with it: "+
			"this resource does not differ, and was not considered further", serial)
	}
	return "the plan covers only part of the site (-target or -exclude): either it does not cover this resource, or this resource matches the document"
}

func (x *explaining) shown(ref schema.Ref, changes []diff.Change) []diff.Change {
	shown := make([]diff.Change, len(changes))
	for i, c := range changes {
		shown[i] = conceal(x.kinds[ref.Kind], c)
	}
	return shown
}

// step explains one step of the plan.
func (x *explaining) step(i int) ExplainedStep {
	s := &x.plan.Steps[i]
	e := ExplainedStep{
		Step: i + 1, Action: s.Action, Reason: s.Reason, Wave: s.Wave + 1, Needs: []string{}, NeededBy: []string{}, Changes: x.shown(s.Ref, s.Changes),
		Disruption: s.Disruption, Undo: undone(s), UndoClass: string(s.Undo), Late: i >= x.plan.NoReturn, Chosen: s.Chosen,
	}
	name := func(n int) string { return string(x.plan.Steps[n].Action) + " " + x.plan.Steps[n].Ref.String() }
	for _, n := range s.Needs {
		e.Needs = append(e.Needs, name(n))
	}
	for n := range x.plan.Steps {
		if slices.Contains(x.plan.Steps[n].Needs, i) {
			e.NeededBy = append(e.NeededBy, name(n))
		}
	}
	return e
}

// undone returns in words what undoing a step does and restores.
func undone(s *plan.Step) string {
	if s.Undo == providers.NoUndo {
		return "it cannot be undone: " + s.Undo.Meaning()
	}
	does := map[plan.Action]string{
		plan.Delete: "it is deleted", plan.Update: "it is changed back", plan.Create: "it is recreated",
		plan.Adopt: "it is recorded again", plan.Forget: "it is removed from state; the object stays as it is",
	}[s.Inverse()]
	switch {
	case s.Leaves:
		return "it can never be deleted: it is removed from state, and the object stays"
	case s.Undo == providers.Exact && s.Action != plan.Update && s.Action != plan.Delete:
		return does
	}
	return does + ": " + s.Undo.Meaning()
}

// decided maps decisions to words.
var decided = map[string]string{
	"create": "will be created", "update": "will be changed in place", "replace": "will be replaced", "delete": "will be destroyed",
	"adopt": "will be adopted", "forget": "will be forgotten", "unchanged": "no change", "external": "external", "unknown": "unknown", "left_out": "skipped",
	"refused": "refused", "unmanaged": "unmanaged", "not_considered": "not considered", "none": "does not exist",
}

// ExplainText shows an explanation to people.
func ExplainText(e *Explanation, s Style) string {
	t := planText{Style: s, PlanLayout: PlanLayout{Full: true}}
	t.line("%s: %s", t.paint(bold, clean(e.Address)), decided[e.Decision])
	for _, w := range e.Why {
		t.line("  %s", clean(w))
	}
	t.head("Document")
	switch {
	case e.Declared == nil:
		t.line("  does not declare it")
	default:
		t.line("  declares it at %s", clean(e.Declared.Path))
		t.spec(same, "", e.Declared.Spec) // in which secrets are already hidden
	}
	t.head("Recorded")
	switch r := e.Recorded; {
	case r == nil && e.External != nil:
		t.line("  nothing: external resources are not recorded")
	case r == nil && e.saved:
		t.line("  not known: a saved plan contains only the records of the resources that it acts on")
	case r == nil:
		t.line("  nothing: converge neither created nor adopted it")
	case r.Gone:
		t.line("  destroyed by run %s at %s UTC; id %s is not reused", clean(r.Run), at(r.At), clean(r.ID))
	default:
		t.line("  id %s, created %s, last changed by run %s at %s UTC", clean(r.ID), times(r.Incarnation), clean(r.Run), at(r.At))
		if r.Protect {
			t.line("  protected: no plan deletes or replaces it")
		}
		if r.OnRemove != "" && r.OnRemove != schema.Delete {
			t.line("  when removed from the document: %s", r.OnRemove)
		}
	}
	t.observed(e)
	t.neighbours("Refers to", e.RefersTo)
	for i, o := range e.Outside {
		if i == 0 && len(e.RefersTo) == 0 {
			t.head("Refers to")
		}
		t.line("  %s  by its external id: no document declares it", clean(o))
	}
	t.neighbours("Referred to by", e.ReferredBy)
	for i := range e.Steps {
		t.explained(&e.Steps[i], e.Waves)
	}
	return t.b.String()
}

func times(n int) string {
	if n <= 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func (t *planText) observed(e *Explanation) {
	t.head("Observed")
	var changes []diff.Change
	for i := range e.Steps {
		if e.Steps[i].Action != plan.Delete || len(e.Steps) == 1 {
			changes = append(changes, e.Steps[i].Changes...)
		}
	}
	switch {
	case e.External != nil && e.External.Unchecked != "":
		t.line("  not observed: %s; its id according to the document is %s", clean(e.External.Unchecked), clean(e.External.ID))
	case e.External != nil:
		t.line("  exists, with id %s", clean(e.External.ID))
	case e.Decision == "create":
		t.line("  does not exist")
	case e.Decision == "not_considered":
		t.line("  not included in the plan")
	case e.Decision == "unknown", e.Decision == "left_out":
		t.line("  unknown")
	case e.Decision == "delete", e.Decision == "unmanaged", e.Decision == "forget":
		t.line("  exists")
	case e.Decision == "none":
		t.line("  does not exist")
	case len(changes) > 0:
		t.line("  differs from the document (observed value first):")
		t.changes("", changes, nil, nil, true)
	case e.Declared != nil && e.Decision != "refused":
		t.line("  matches the document")
	default:
		t.line("  no known differences")
	}
	if e.Remark != "" {
		t.line("  needs attention: %s", clean(e.Remark))
	}
	if d := e.Drift; d != nil {
		switch {
		case d.Missing:
			t.line("  removed outside converge since the last run")
		case d.Failed != "":
			t.line("  failed: %s", clean(d.Failed))
		case d.Unmarked:
			t.line("  lost its ownership mark since the last run")
		default:
			t.line("  changed outside converge since the last run:")
		}
		t.changes("", d.Changes, nil, nil, false)
	}
}

func (t *planText) neighbours(head string, list []Neighbour) {
	if len(list) == 0 {
		return
	}
	t.head("%s", head)
	width := 0
	for _, n := range list {
		width = max(width, len(clean(n.Address)))
	}
	for _, n := range list {
		t.line("  %s  %s", pad(clean(n.Address), min(width, 60)), t.paint(dim, decided[n.Decision]))
	}
}

func (t *planText) explained(e *ExplainedStep, waves int) {
	t.head("Step %d: %s, in wave %d of %d", e.Step, e.Action, e.Wave, waves)
	for i, n := range e.Needs {
		t.line("  %s %s", pad(map[bool]string{true: "waits for"}[i == 0], 16), clean(n))
	}
	for i, n := range e.NeededBy {
		t.line("  %s %s", pad(map[bool]string{true: "blocks"}[i == 0], 16), clean(n))
	}
	if e.Late {
		t.line("  comes after the point of no return: all steps before it finish first, and the plan needs an approval")
	}
	for _, c := range e.Chosen {
		t.line("  %s was chosen: %s", clean(c.Field), clean(c.Why))
	}
	if e.Disruption != "" {
		t.line("  %s", disrupts(e.Disruption))
	}
	t.line("  on revert: %s", e.Undo)
}

// A CodeExplanation says what a code of diagnostics, an exit status or a class of undo means.
type CodeExplanation struct {
	Code    string           `json:"code"`
	Name    string           `json:"name,omitempty"`
	Summary string           `json:"summary"`
	Doc     string           `json:"doc,omitempty"`
	Example *load.Diagnostic `json:"example,omitempty"` // of a wrong document
}

// CodeText shows to people what a code means.
func CodeText(e CodeExplanation, s Style) string {
	var b strings.Builder
	b.WriteString(s.paint(bold, e.Code+": "+e.Summary))
	if e.Name != "" {
		b.WriteString(s.paint(dim, "  rule "+e.Name))
	}
	b.WriteString("\n")
	if e.Doc != "" {
		b.WriteString(wrapped(e.Doc, 96))
	}
	if e.Example != nil {
		b.WriteString("\nFor example:\n\n")
		diagnosticText(&b, *e.Example, s)
	}
	return b.String()
}

// wrapped breaks text into lines of at most width characters.
func wrapped(text string, width int) string {
	var b strings.Builder
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		b.WriteString(line + "\n")
	}
	return b.String()
}
