package view

import (
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

// uiVersion is the version of the JSON lines. Its first number grows when a reader could misread a line.
const uiVersion = "1.0"

// A JSON view writes one JSON object per line to standard output, with the envelope and types of Terraform's JSON UI:
//
//	version, log, diagnostic, refresh_start|complete|errored,
//	planned_change, resource_drift, change_summary,
//	apply_start|progress|complete|errored
//
// and those of converge:
//
//	rollback_start|progress|complete|errored   steps that are undone
//	lock_wait                                  who holds the lock
//	step_phase                                 what a step waits for
//	checkpoint                                 run, no_return, interrupted, revert, verified
//	run_summary                                how a run ended
type JSON struct {
	o     Options
	mu    sync.Mutex
	plan  *plan.Plan
	ended bool
}

// NewJSON returns a view for programs; its first line names the version.
func NewJSON(o Options) *JSON {
	j := &JSON{o: o}
	j.line("info", "version", "converge "+o.Version, fields{"converge": o.Version, "ui": uiVersion})
	return j
}

type fields map[string]any

// line writes one line. Fields are those of its type.
func (j *JSON) line(level, kind, message string, f fields) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.ended {
		writeLine(j.o.Out, j.o.now(), level, kind, message, f)
	}
}

func writeLine(w io.Writer, now time.Time, level, kind, message string, f fields) {
	line := fields{
		"@level": level, "@message": message, "@module": "converge.ui", "@timestamp": now.UTC().Format(time.RFC3339Nano), "type": kind,
	}
	for k, v := range f {
		line[k] = v
	}
	b, err := json.Marshal(line)
	if err != nil { // all fields are JSON values
		b, _ = json.Marshal(fields{"@level": "error", "@module": "converge.ui", "type": "log", "@message": "could not encode a line: " + err.Error()})
	}
	_, _ = w.Write(append(b, '\n')) // the writer records its own error
}

// Close implements [View].
func (j *JSON) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
}

// Note implements [View].
func (j *JSON) Note(text string) { j.line("info", "log", strings.TrimSpace(text), nil) }

// Warn implements [View].
func (j *JSON) Warn(text string) {
	j.line("warn", "diagnostic", "Warning: "+text, fields{"diagnostic": fields{"severity": "warning", "summary": text, "detail": ""}})
}

// Error implements [View].
func (j *JSON) Error(err error) {
	p := Explain(err)
	j.line("error", "diagnostic", "Error: "+p.What, fields{"diagnostic": problemFields(p)})
}

func problemFields(p *Problem) fields {
	d := fields{"severity": "error", "summary": p.What, "detail": p.Detail()}
	if !p.Ref.IsZero() {
		d["address"] = p.Ref
	}
	return d
}

// Diagnostics implements [View].
func (j *JSON) Diagnostics(ds load.Diagnostics) {
	for _, d := range load.NewReport(ds).Diagnostics {
		level, word := "error", "Error: "
		if d.Severity == load.Warning {
			level, word = "warn", "Warning: "
		}
		j.line(level, "diagnostic", word+d.Summary, fields{"diagnostic": d})
	}
}

// resource identifies a resource as Terraform does.
func resource(r schema.Ref) fields {
	return fields{
		"addr": r, "module": "", "resource": r, "implied_provider": r.Provider(), "resource_type": r.Kind, "resource_name": r.Name,
		"resource_key": nil,
	}
}

// uiAction returns Terraform's word for what a step does.
func uiAction(s *plan.Step) string {
	switch {
	case s.Replace:
		return "replace"
	case s.Action == plan.Adopt:
		return "import"
	case s.Action == plan.Forget:
		return "remove"
	}
	return string(s.Action)
}

// Plan implements [View].
func (j *JSON) Plan(p *plan.Plan) {
	for _, d := range p.Drift {
		action := "update"
		if d.Missing {
			action = "delete"
		}
		j.line("info", "resource_drift", d.Ref.String()+": Drift detected ("+action+")", fields{"change": fields{"resource": resource(d.Ref), "action": action}})
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Replace && s.Action == plan.Delete {
			continue // its other half reports both
		}
		change := fields{"resource": resource(s.Ref), "action": uiAction(s), "undo": s.Undo, "late": i >= p.NoReturn}
		if (s.Action == plan.Delete || s.Action == plan.Forget) && p.Undoes == "" {
			change["reason"] = "delete_because_no_resource_config"
		}
		j.line("info", "planned_change", s.Ref.String()+": Plan to "+uiAction(s), fields{"change": change})
	}
	for _, u := range p.Unknown {
		at := u.Scope + "/" + u.Kind
		j.line("warn", "diagnostic", "Warning: "+at+" is unknown", fields{"diagnostic": fields{
			"severity": "warning", "summary": at + " is unknown", "detail": u.Error, "address": at + "/*",
		}})
	}
	for _, u := range p.Unsupported {
		at := u.Scope + "/" + u.Kind
		j.line("warn", "diagnostic", "Warning: "+at+" is not supported by the server", fields{"diagnostic": fields{
			"severity": "warning", "summary": at + " is not supported by the server", "detail": u.Error, "address": at + "/*",
		}})
	}
	for _, o := range p.Omitted {
		j.line("warn", "diagnostic", "Warning: "+o.Ref.String()+" is skipped", fields{"diagnostic": fields{
			"severity": "warning", "summary": o.Ref.String() + " is skipped", "detail": o.Reason, "address": o.Ref,
		}})
	}
	for _, r := range p.Remarks {
		j.line("warn", "diagnostic", "Warning: "+r.Ref.String()+" needs attention", fields{"diagnostic": fields{
			"severity": "warning", "summary": r.Ref.String() + " needs attention", "detail": r.Detail, "address": r.Ref,
		}})
	}
	for _, x := range p.Externals {
		if x.Unchecked != "" {
			j.line("warn", "diagnostic", "Warning: "+x.Ref.String()+" is not checked", fields{"diagnostic": fields{
				"severity": "warning", "summary": x.Ref.String() + " is not checked", "detail": x.Unchecked, "address": x.Ref,
			}})
		}
	}
	for _, r := range p.Refusals {
		d := fields{"severity": "error", "summary": "Refused: " + r.Reason, "detail": Advice(r.Remedies)}
		if !r.Ref.IsZero() {
			d["address"] = r.Ref
		}
		j.line("error", "diagnostic", "Error: Refused: "+r.Reason, fields{"diagnostic": d})
	}
	operation := "plan"
	if p.Undoes != "" {
		operation = "rollback"
	}
	f := fields{"changes": changes(p.Counts(), operation)}
	if p.Narrowed != nil {
		f["narrowed"] = p.Narrowed
	}
	if steps := p.Irreversible(); len(steps) > 0 && p.Undoes == "" && !p.Passing {
		f["approval"] = p.Approval()
	}
	if p.Keeps > 0 {
		f["kept"] = p.Keeps
	}
	j.line("info", "change_summary", Summary(p), f)
}

// changes returns the numbers of a summary with Terraform's meaning: a replacement adds one and removes one.
func changes(c plan.Counts, operation string) fields {
	return fields{
		"add": c.Create, "change": c.Update, "remove": c.Delete, "import": c.Adopt,
		"replace": c.Replace, "forget": c.Forget, "operation": operation,
	}
}

// Event implements [View].
func (j *JSON) Event(e event.Event) {
	switch e := e.(type) {
	case event.Observing:
		at := schema.Ref{Scope: e.Scope, Kind: e.Kind, Name: "*"}
		if e.Elapsed > 0 {
			j.line("info", "refresh_progress", at.String()+": Still refreshing ["+e.Elapsed.Round(time.Second).String()+" elapsed]", fields{"hook": fields{"resource": resource(at), "elapsed_seconds": seconds(e.Elapsed), "more": e.More}})
			return
		}
		j.line("info", "refresh_start", at.String()+": Refreshing state...", fields{"hook": fields{"resource": resource(at)}})
	case event.Observed:
		j.observed(e)
	case event.LockWait:
		j.line("info", "lock_wait", "Waiting for the site lock, held by "+e.Holder.Who, fields{"lock": e.Holder})
	case event.RunStarted:
		j.plan = e.Plan
		j.line("info", "checkpoint", "Run "+e.Run.ID, fields{"checkpoint": fields{"name": "run", "run": e.Run.ID, "steps": len(e.Plan.Steps), "done": e.Done}})
	case event.StepStarted:
		j.step("info", "start", e.Step, e.Undo, verbsOf(e.Step, e.Undo).doing+"...", nil)
	case event.StepProgress:
		j.progress(e)
	case event.StepDone:
		f := fields{"elapsed_seconds": seconds(e.Took)}
		if e.ID != "" {
			f["id_key"], f["id_value"] = "id", e.ID
		}
		j.step("info", "complete", e.Step, e.Undo, verbsOf(e.Step, e.Undo).done+" after "+took(e.Took), f)
	case event.StepFailed:
		j.step("error", "errored", e.Step, e.Undo, verbsOf(e.Step, e.Undo).noun+" failed: "+message(e.Err), fields{
			"elapsed_seconds": seconds(e.Took), "class": e.Class, "error": message(e.Err), "effect": e.Effect,
		})
	case event.ConfirmWait:
		j.line("warn", "confirm_wait", "Confirm the run within "+e.Within.Round(time.Second).String()+", or it is rolled back", fields{"run": e.Run, "within_seconds": seconds(e.Within)})
	case event.Confirmed:
		j.line("info", "checkpoint", "Confirmed by "+e.By, fields{"checkpoint": fields{"name": "confirmed", "by": e.By}})
	case event.PointOfNoReturn:
		j.line("warn", "checkpoint", "Point of no return: "+count(e.Steps, "step")+" to go", fields{"checkpoint": fields{"name": "no_return", "steps": e.Steps}})
	case event.Interrupted:
		checkpoint := fields{"name": "interrupted", "in_flight": e.InFlight}
		if e.By != "" {
			checkpoint["by"] = e.By
		}
		j.line("warn", "checkpoint", "Gracefully shutting down...", fields{"checkpoint": checkpoint})
	case event.RevertStarted:
		if e.Steps == 0 {
			return
		}
		checkpoint := fields{"name": "revert", "steps": e.Steps, "cause": message(e.Cause)}
		if e.Keep > 0 {
			checkpoint["kept"] = e.Keep
		}
		j.line("warn", "checkpoint", revertText(e), fields{"checkpoint": checkpoint})
	case event.Verified:
		if e.Things == 0 && len(e.Differences) == 0 {
			return
		}
		j.line("info", "checkpoint", "Verified "+count(e.Things, "object")+": "+differences(e), fields{"checkpoint": fields{"name": "verified", "undo": e.Undo, "things": e.Things, "differences": list(e.Differences), "remains": list(e.Remains), "recreated": list(e.Recreated)}})
	case event.RunEnded:
		j.summary(e)
	}
}

func (j *JSON) observed(e event.Observed) {
	at := schema.Ref{Scope: e.Scope, Kind: e.Kind, Name: "*"}
	hook := fields{"resource": resource(at), "elapsed_seconds": seconds(e.Took), "things": e.Things}
	if e.Err != nil {
		hook["error"] = e.Err.Error()
		j.line("warn", "refresh_errored", at.String()+": could not be observed: "+e.Err.Error(), fields{"hook": hook})
		return
	}
	j.line("info", "refresh_complete", at.String()+": Refresh complete", fields{"hook": hook})
}

func (j *JSON) step(level, what string, s *plan.Step, undo bool, message string, hook fields) {
	if hook == nil {
		hook = fields{}
	}
	hook["resource"], hook["action"], hook["step"] = resource(s.Ref), uiAction(s), s.ID
	if s.Replace { // its halves are reported one by one
		hook["action"] = string(s.Action)
	}
	kind := "apply_"
	if undo {
		kind = "rollback_"
	}
	j.line(level, kind+what, s.Ref.String()+": "+message, fields{"hook": hook})
}

func (j *JSON) progress(e event.StepProgress) {
	if e.Phase == event.Acting {
		j.step("info", "progress", e.Step, e.Undo, "Still "+verbsOf(e.Step, e.Undo).doing+"...", fields{"elapsed_seconds": seconds(e.Elapsed)})
		return
	}
	j.line("info", "step_phase", e.Step.Ref.String()+": "+phaseText(e), fields{"hook": fields{
		"resource": resource(e.Step.Ref), "action": uiAction(e.Step), "step": e.Step.ID, "undo": e.Undo, "phase": e.Phase, "detail": e.Detail,
		"attempt": e.Attempt, "elapsed_seconds": seconds(e.Elapsed),
	}})
}

func (j *JSON) summary(e event.RunEnded) {
	level := "error"
	text := operation(e) + " ended: " + e.Run.Stands()
	op := e.Run.Op
	if e.Asked {
		op = "rollback"
		if e.Run.Status == state.RunReverted || e.Run.Status == state.RunRolledBack {
			level, text = "info", "Run "+e.Run.ID+" was "+e.Run.Stands()
		}
	}
	if e.Run.Status == state.RunApplied {
		level = "info"
		var c plan.Counts
		if j.plan != nil {
			c = j.plan.Counts()
		}
		text = operation(e) + " complete! Resources: " + counted(c)
		j.line("info", "change_summary", text, fields{"changes": changes(c, op)})
	}
	run := fields{
		"id": e.Run.ID, "operation": op, "status": e.Run.Status, "steps": e.Run.Steps, "done": e.Run.Done, "plan": e.Run.Plan,
		"serial": e.Run.Serial, "message": e.Run.Message, "differences": list(e.Differences), "holds": list(e.Holds), "elapsed_seconds": seconds(e.Took),
	}
	if j.plan != nil && len(j.plan.Omitted) > 0 {
		run["omitted"] = j.plan.Omitted
	}
	if e.Run.Status == state.RunRolledBack {
		run["kept"] = e.Run.Kept
	}
	if !e.Run.Failed.IsZero() {
		run["failed"] = e.Run.Failed
	}
	j.line(level, "run_summary", text, fields{"run": run})
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// Indent returns a value as JSON for people, with a newline at the end.
func Indent(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.String(), err
}

// A Document is the view of a command that prints a single JSON value: progress goes to standard error as text, and an
// error takes the place of the value on standard output, as one JSON line.
type Document struct{ *Human }

// Error implements [View].
func (d Document) Error(err error) {
	p := Explain(err)
	d.write("error", "Error: "+p.What, problemFields(p))
}

// Diagnostics implements [View].
func (d Document) Diagnostics(ds load.Diagnostics) {
	for i, r := range load.NewReport(ds).Diagnostics {
		if r.Severity == load.Warning {
			d.Human.Diagnostics(ds[i : i+1])
			continue
		}
		d.write("error", "Error: "+r.Summary, r)
	}
}

func (d Document) write(level, message string, diagnostic any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.erase()
	writeLine(d.o.Out, d.o.now(), level, "diagnostic", message, fields{"diagnostic": diagnostic})
}
