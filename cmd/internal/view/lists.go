package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/rules"
	"converge.dev/converge/state"
)

func at(t time.Time) string { return t.UTC().Format(time.DateTime) }

// RunsText lists runs.
func RunsText(runs []state.Run, s Style) string {
	if len(runs) == 0 {
		return "No runs.\n"
	}
	rows := [][]string{{"RUN", "OPERATION", "STATUS", "STEPS", "STARTED", "TOOK", "BY"}}
	for _, r := range runs {
		rows = append(rows, []string{r.ID, r.Op, r.Stands(), fmt.Sprintf("%d/%d", r.Done, r.Steps), at(r.Started), lasted(r.Started, r.Ended), clean(r.By)})
	}
	return table(s, rows)
}

// lasted shows the time between two clock readings; the clock may have been set in between.
func lasted(from time.Time, to *time.Time) string {
	switch {
	case to == nil:
		return "-"
	case to.Before(from):
		return "unknown"
	}
	return took(to.Sub(from))
}

// RunText shows one run, and the state of each step where that is known.
func RunText(r state.Run, steps []engine.StepReport, undoable bool, s Style) string {
	rows := [][]string{{"Run", r.ID}, {"Operation", r.Op}, {"Status", r.Stands()}, {"Steps", stepsDone(r, steps)}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	add("Started", at(r.Started)+" UTC by "+clean(r.By))
	add("Approved by", clean(strings.Join(r.ApprovedBy, ", ")))
	if r.Ended != nil {
		after := ", after " + lasted(r.Started, r.Ended)
		if r.Ended.Before(r.Started) {
			after = "; the clock was set back during the run"
		}
		add("Ended", at(*r.Ended)+" UTC"+after)
	}
	if r.Serial > 0 {
		add("Document", fmt.Sprintf("serial %d", r.Serial))
	}
	add("Plan", r.Plan)
	add("On failure", r.OnFail)
	if !r.Failed.IsZero() {
		add("Failed", clean(r.Failed.String()))
	}
	add("Message", clean(r.Message))
	text := table(Style{}, rows)
	for _, left := range r.Remains {
		text += clean(left.String()) + " stays: it can never be deleted. It is no longer managed.\n"
	}
	if len(r.Partial) > 0 {
		text += "Not as expected:\n"
		for _, d := range r.Partial {
			text += "  " + clean(d) + "\n"
		}
	}
	if len(steps) > 0 {
		text += "\n" + stepsText(steps, s)
	}
	if settling := Settling(r, undoable); settling != "" && !slices.ContainsFunc(steps, underWay) {
		text += s.paint(yellow, settling)
	}
	return text
}

func stepsDone(r state.Run, steps []engine.StepReport) string {
	text := fmt.Sprintf("%d of %d done", r.Done, r.Steps)
	undone := 0
	for _, step := range steps {
		if step.Undo != nil && step.Undo.Result == engine.StepDone {
			undone++
		}
	}
	if undone > 0 {
		text += fmt.Sprintf(", %d reverted", undone)
	}
	return text
}

// underWay reports whether a process carries out a step.
func underWay(r engine.StepReport) bool {
	return r.Result == engine.StepRunning || r.Undo != nil && r.Undo.Result == engine.StepRunning
}

// stepsText lists the steps of a run in the order of its plan, counted from 1, and below what was undone, in the order in which that began.
func stepsText(steps []engine.StepReport, s Style) string {
	rows := [][]string{{"STEP", "RESULT", "ACTION", "STARTED", "TOOK", "RESOURCE"}}
	add := func(step engine.StepReport, action string, r engine.StepResult) {
		began := "-"
		if r.Began != nil {
			began = at(*r.Began)
		}
		duration := "-"
		if r.Ended != nil {
			duration = lasted(*r.Began, r.Ended)
		}
		on := clean(step.Ref.String())
		if r.Message != "" {
			on += ": " + clean(r.Message)
		}
		rows = append(rows, []string{fmt.Sprint(step.Step + 1), stepWords[r.Result], action, began, duration, on})
	}
	var undone []engine.StepReport
	for _, step := range steps {
		add(step, string(step.Action), step.StepResult)
		if step.Undo != nil {
			undone = append(undone, step)
		}
	}
	slices.SortStableFunc(undone, func(a, b engine.StepReport) int { return a.Undo.Began.Compare(*b.Undo.Began) })
	for _, step := range undone {
		add(step, "revert "+string(step.Action), *step.Undo)
	}
	return table(s, rows)
}

var stepWords = map[engine.StepState]string{
	engine.StepPending: "not started", engine.StepRunning: "running", engine.StepUnknown: "unknown",
	engine.StepDone: "done", engine.StepRefused: "failed", engine.StepPartial: "failed partway",
}

// RecordsText lists recorded resources, one ref per line.
func RecordsText(records []state.Record) string {
	var b strings.Builder
	for _, r := range records {
		b.WriteString(clean(r.Ref.String()) + "\n")
	}
	return b.String()
}

// RecordText shows one recorded resource.
func RecordText(r state.Record, k *schema.Kind, s Style) string {
	rows := [][]string{{"id", clean(r.ID)}, {"incarnation", fmt.Sprint(r.Incarnation)}}
	if r.Gone {
		rows = append(rows, []string{"gone", "true"})
	}
	if r.Protect {
		rows = append(rows, []string{"protect", "true"})
	}
	if r.OnRemove != "" {
		rows = append(rows, []string{"on_remove", string(r.OnRemove)})
	}
	for _, path := range r.Ignore {
		rows = append(rows, []string{"ignore", clean(path)})
	}
	rows = append(rows, []string{"run", fmt.Sprintf("%s (%s UTC)", r.Run, at(r.At))})
	for _, a := range r.After {
		rows = append(rows, []string{"after", clean(a.String())})
	}
	t := planText{Style: s, PlanLayout: PlanLayout{Full: true}, kinds: schema.Kinds{r.Ref.Kind: k}}
	t.b.WriteString(s.paint(bold, clean(r.Ref.String())) + "\n" + indent(table(Style{}, rows), "  "))
	t.head("As last applied")
	t.spec(same, r.Ref.Kind, r.Spec)
	if len(r.Rest) > 0 {
		t.head("Not set in the document, as converge left it")
		t.spec(same, r.Ref.Kind, r.Rest)
	}
	return t.b.String()
}

// MaskRecord returns a record without the values of secret fields.
func MaskRecord(r state.Record, k *schema.Kind) state.Record {
	r.Spec, _ = mask(k, r.Spec)
	r.Rest, _ = mask(k, r.Rest)
	return r
}

// A SiteSummary is what converge has stored about a site, in numbers.
type SiteSummary struct {
	Site     string          `json:"site"`
	Document *state.Head     `json:"document"`
	Kinds    map[string]int  `json:"resources"` // recorded resources by kind
	LastRun  *state.Run      `json:"last_run"`
	Holds    []state.Hold    `json:"holds"`
	Lock     *state.LockInfo `json:"lock"`
}

// SummaryText shows what converge has stored about a site.
func SummaryText(m SiteSummary, s Style) string {
	var b strings.Builder
	fmt.Fprintln(&b, s.paint(bold, "Site "+m.Site))
	if m.Document == nil {
		fmt.Fprintln(&b, "  document   none; write one with converge put or converge apply")
	} else {
		fmt.Fprintf(&b, "  document   serial %d, %s UTC by %s, %s\n", m.Document.Serial, at(m.Document.At), clean(m.Document.By), short(m.Document.Digest))
	}
	total := 0
	var kinds []string
	for k, n := range m.Kinds {
		total += n
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	fmt.Fprintf(&b, "  recorded   %s\n", count(total, "resource"))
	for _, k := range kinds {
		fmt.Fprintf(&b, "  %10d %s\n", m.Kinds[k], clean(k))
	}
	if r := m.LastRun; r != nil {
		fmt.Fprintf(&b, "  last run   %s: %s, %s UTC\n", r.ID, r.Stands(), at(r.Started))
	}
	for _, h := range m.Holds {
		fmt.Fprintf(&b, "  %s %s: %s\n", s.paint(yellow, "hold      "), clean(h.Scope), clean(h.Reason))
	}
	if m.Lock != nil {
		fmt.Fprintf(&b, "  lock       held by %s\n", holder(*m.Lock))
	}
	return b.String()
}

func short(digest string) string {
	if len(digest) > 12 {
		return digest[:12]
	}
	return digest
}

// HoldsText lists holds, and the freeze if there is one.
func HoldsText(holds []state.Hold, s Style) string {
	if len(holds) == 0 {
		return "Nothing is on hold.\n"
	}
	rows := [][]string{{"SCOPE", "SINCE", "BY", "REASON"}}
	for _, h := range holds {
		by := h.By
		if !h.ByHand() {
			by = strings.TrimSpace("run " + h.Run)
		}
		since := "-"
		if !h.At.IsZero() {
			since = at(h.At)
		}
		rows = append(rows, []string{clean(h.Scope), since, clean(by), clean(h.Reason)})
	}
	return table(s, rows)
}

// AuditsText lists forced actions.
func AuditsText(entries []state.Audit, s Style) string {
	if len(entries) == 0 {
		return "No forced actions.\n"
	}
	rows := [][]string{{"AT", "BY", "ACTION", "SCOPE", "REASON"}}
	for _, e := range entries {
		on := e.Scope
		if e.Lock != nil {
			if on = "the lock of " + e.Lock.Who; e.Lock.Who == "" {
				on = "a damaged lock"
			}
		}
		rows = append(rows, []string{at(e.At), clean(e.By), e.Action, clean(on), clean(e.Reason)})
	}
	return table(s, rows)
}

// LockText says who holds the lock of a site.
func LockText(path string, l *state.LockInfo) string {
	if l == nil {
		return "The site is not locked.\n"
	}
	rows := [][]string{
		{"ID:", l.ID}, {"Path:", path}, {"Operation:", clean(l.Operation)}, {"Who:", clean(l.Who)}, {"Version:", clean(l.Version)},
		{"Created:", at(l.Created) + " UTC"}, {"Epoch:", fmt.Sprint(l.Epoch)},
	}
	if l.PID != 0 {
		rows[3][1] += fmt.Sprintf(" (PID %d)", l.PID)
	}
	if l.Run != "" {
		rows = append(rows, []string{"Run:", l.Run})
	}
	if l.Info != "" {
		rows = append(rows, []string{"Info:", clean(l.Info)})
	}
	return "Lock Info:\n" + indent(table(Style{}, rows), "  ")
}

// KeeperText says which site agent keeps the site; nothing when none does.
func KeeperText(k *state.KeeperInfo) string {
	if k == nil {
		return ""
	}
	return fmt.Sprintf("The site is kept by the site agent of %s (PID %d), since %s UTC.\n", clean(k.Who), k.PID, at(k.Since))
}

// HistoryText lists revisions of the document.
func HistoryText(list []Revision, s Style) string {
	if len(list) == 0 {
		return "The site has no document yet.\n"
	}
	rows := [][]string{{"SERIAL", "REVISION", "DIGEST", "BYTES", "WRITTEN", "BY", "SIGNED"}}
	for _, r := range list {
		rows = append(rows, []string{fmt.Sprint(r.Serial), fmt.Sprint(r.Revision), short(r.Digest), fmt.Sprint(r.Size), at(r.At), clean(r.By), r.signed()})
	}
	return table(s, rows)
}

// A Revision is a revision of the document, with its number for compare-and-swap, and whose signature it has according to
// the currently trusted keys.
type Revision struct {
	state.Head
	Revision int64  `json:"revision"`
	Signer   string `json:"signer,omitempty"` // of a trusted signature
	Key      string `json:"key,omitempty"`    // the key that the signature matches, trusted or not
	Bad      string `json:"bad,omitempty"`    // what is wrong with the signature
}

func (r *Revision) signed() string {
	switch {
	case r.Bad != "":
		return "refused: " + clean(r.Bad)
	case r.Signer != "":
		return "by " + clean(r.Signer)
	case r.Key != "":
		return "with an untrusted key: " + clean(r.Key)
	}
	return "no"
}

// RulesText lists the rules that every document must keep.
func RulesText(all []rules.Rule, s Style) string {
	rows := [][]string{{"CODE", "RULE", "REQUIREMENT"}}
	for _, r := range all {
		rows = append(rows, []string{r.Code, r.Name, r.Doc})
	}
	return table(s, rows)
}

// KindsText lists the kinds of a schema.
func KindsText(kinds schema.Kinds, s Style) string {
	rows := [][]string{{"KIND", "SCOPE", "DESCRIPTION"}}
	for _, name := range kinds.Names() {
		k := kinds[name]
		where := "site"
		if k.Node {
			where = "node"
		}
		first, _, _ := strings.Cut(k.Doc, ". ")
		first = strings.TrimSuffix(strings.Join(strings.Fields(first), " "), ".")
		rows = append(rows, []string{name, where, cut(first, 80)})
	}
	return table(s, rows)
}
