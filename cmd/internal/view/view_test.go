package view_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with testdata/NAME.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got); run with -update if that is meant:\n%s", path, d)
	}
}

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func ref(s string) schema.Ref {
	r, err := schema.ParseRef(s)
	if err != nil {
		panic(err)
	}
	return r
}

// kinds includes a kind with a secret.
var kinds = schema.Kinds{
	"carbide.vpc": {Name: "carbide.vpc", Doc: "A VPC is a routing domain. It has more to say.", Fields: []schema.Field{
		{Name: "allocated_vni", Type: schema.Int, Computed: true},
		{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}},
		{Name: "tenant", Type: schema.String, Immutable: true},
	}},
	"docker.container": {Name: "docker.container", Node: true, Doc: "A container.", Fields: []schema.Field{
		{Name: "env", Type: schema.List, Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{
			{Name: "name", Type: schema.String}, {Name: "value", Type: schema.String, Secret: true},
		}}},
		{Name: "image", Type: schema.String},
		{Name: "password", Type: schema.Struct, Secret: true},
		{Name: "tokens", Type: schema.Map, Elem: &schema.Field{Type: schema.String, Secret: true}},
	}},
}

// samplePlan has one of everything.
func samplePlan() *plan.Plan {
	secret := schema.Object{
		"image": "nginx", "password": map[string]any{"from": "env:SECRET-A"}, "tokens": map[string]any{"a": "SECRET-B"},
		"env": []any{map[string]any{"name": "A", "value": "SECRET-C"}},
	}
	steps := []plan.Step{
		{Ref: ref("site/carbide.vpc/new"), Action: plan.Create, Reason: "declared, but does not exist yet", Undo: providers.Exact, ExternalID: "id-new",
			After: schema.Object{"tenant": "acme", "labels": map[string]any{"env": "prod"}}},
		{Ref: ref("gpu-01/docker.container/web"), Action: plan.Create, Reason: "declared, but does not exist yet", Undo: providers.Exact, After: secret},
		{Ref: ref("gpu-01/docker.container/db"), Action: plan.Update, Reason: "the document changed", Undo: providers.Restart, Disruption: "restart", Needs: []int{1},
			Changes: []diff.Change{{Path: "image", Before: "pg:16", After: "pg:17", Disruption: "restart"}, {Path: "password", Secret: true, Before: "SECRET-D", After: "SECRET-E"},
				{Path: "env[A]", After: map[string]any{"name": "A", "value": "SECRET-F"}}, {Path: "env[B].value", Before: "SECRET-G"},
				{Path: "env[C].name", Before: "C", After: "D"}, {Path: "tokens.x.y", Before: "SECRET-H"}, {Path: "tokens", After: map[string]any{"a": "SECRET-I"}}},
			Before: schema.Object{"image": "pg:16"}, After: schema.Object{"image": "pg:17"}},
		{Ref: ref("site/carbide.vpc/there"), Action: plan.Adopt, Reason: "already exists and matches the document", Undo: providers.Exact, ExternalID: "id-there",
			Before: schema.Object{"tenant": "acme"}, After: schema.Object{"tenant": "acme"}},
		{Ref: ref("site/carbide.vpc/left"), Action: plan.Forget, Reason: "no longer declared; on_remove is forget: the object stays", Undo: providers.Exact,
			Before: schema.Object{"tenant": "acme"}},
		{Ref: ref("site/carbide.vpc/prod"), Action: plan.Delete, Replace: true, Reason: "tenant cannot be changed in place", Undo: providers.Replace, Wave: 1,
			Before: schema.Object{"tenant": "acme"}},
		{Ref: ref("site/carbide.vpc/old"), Action: plan.Delete, Reason: "no longer declared", Undo: providers.NoUndo, Wave: 1, Before: schema.Object{"tenant": "acme"}},
		{Ref: ref("site/carbide.vpc/prod"), Action: plan.Create, Replace: true, Reason: "tenant cannot be changed in place", Undo: providers.Exact, Wave: 2, Needs: []int{5},
			Changes: []diff.Change{{Path: "tenant", Before: "acme", After: "apex", Replaces: true}, {Path: "labels.env", After: "prod"}},
			After:   schema.Object{"tenant": "apex", "labels": map[string]any{"env": "prod"}}},
	}
	for i := range steps {
		steps[i].ID = i
	}
	return &plan.Plan{
		Format: plan.Format, Site: schema.Site{Name: "fra1", ID: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e", Serial: 42}, Digest: "d0c", Revision: 7,
		Steps: steps, NoReturn: 5, Unchanged: 12,
		Drift: []plan.Drift{
			{Ref: ref("gpu-01/docker.container/db"), Changes: []diff.Change{{Path: "image", Before: "pg:16", After: "pg:15"}}},
			{Ref: ref("site/carbide.vpc/lost"), Missing: true},
			{Ref: ref("site/carbide.vpc/sick"), Failed: "no route \x1b[31m to host"},
		},
		Unmanaged: []plan.Unmanaged{
			{Scope: "site", Kind: "carbide.vpc", ID: "a"}, {Scope: "site", Kind: "carbide.vpc", ID: "b"},
			{Scope: "site", Kind: "carbide.vpc", ID: "c", Name: "stray", Stray: true},
		},
		Unknown:  []plan.Unknown{{Scope: "gpu-02", Kind: "ovs.bridge", Error: "connection refused"}},
		Refusals: []plan.Refusal{{Ref: ref("site/carbide.vpc/kept"), Reason: "it is protected", Remedies: []remedy.Remedy{remedy.Say("declare it again")}}, {Reason: "it would destroy too much", Remedies: []remedy.Remedy{remedy.Say("look twice")}}},
	}
}

func noSecrets(t *testing.T, text string) {
	t.Helper()
	if i := strings.Index(text, "SECRET"); i >= 0 {
		t.Errorf("a secret is shown: …%s…", text[max(0, i-40):min(len(text), i+20)])
	}
	if strings.Contains(text, "\x1b[31m to host") {
		t.Error("text from outside reaches the terminal as it is")
	}
}

func TestPlanText(t *testing.T) {
	text := view.PlanText(samplePlan(), kinds, view.Style{}, view.PlanLayout{})
	noSecrets(t, text)
	golden(t, "plan.txt", text)
	colored := view.PlanText(samplePlan(), kinds, view.Style{Color: true}, view.PlanLayout{})
	noSecrets(t, colored)
	golden(t, "plan-color.txt", colored)
}

// Nested values are shown in place, with what identifies them, and of unchanged ones only their number.
func TestNestedChanges(t *testing.T) {
	port := func(n int) map[string]any { return map[string]any{"start": n, "end": n} }
	rule := func(id, action string) map[string]any {
		return map[string]any{"id": id, "action": action, "ports": port(22), "token": "SECRET-" + id}
	}
	rules := &schema.Field{Type: schema.Struct, Fields: []schema.Field{
		{Name: "action", Type: schema.String}, {Name: "id", Type: schema.String}, {Name: "ports", Type: schema.Struct}, {Name: "token", Type: schema.String, Secret: true},
	}}
	text := &schema.Field{Type: schema.String}
	k := schema.Kinds{"carbide.vpc": {Name: "carbide.vpc", Fields: []schema.Field{
		{Name: "labels", Type: schema.Map, Elem: text},
		{Name: "prefixes", Type: schema.List, Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{{Name: "gateway", Type: schema.String}, {Name: "prefix", Type: schema.String}}}},
		{Name: "rules", Type: schema.List, Key: "id", Elem: rules},
		{Name: "script", Type: schema.String},
		{Name: "zones", Type: schema.List, Set: true, Elem: text},
	}}}
	before := schema.Object{
		"labels": map[string]any{"a.b/c": "x", "stays": "y"}, "prefixes": []any{map[string]any{"prefix": "10.0.0.0/8", "gateway": "10.0.0.1"}},
		"rules": []any{rule("a", "permit"), rule("b", "permit"), rule("c", "permit"), rule("d", "permit")},
	}
	after := schema.Object{
		"labels": map[string]any{"a.b/c": "z", "stays": "y"}, "prefixes": []any{map[string]any{"prefix": "10.0.0.0/8", "gateway": "10.0.0.2"}},
		"rules": []any{rule("a", "deny"), rule("c", "permit"), rule("d", "permit"), rule("e", "permit")},
	}
	long := strings.Repeat("0123456789", 30)
	p := &plan.Plan{Site: schema.Site{Name: "fra1"}, NoReturn: 2, Steps: []plan.Step{
		{Ref: ref("site/carbide.vpc/v"), Action: plan.Update, Reason: "the document changed", Undo: providers.Exact, Disruption: "traffic", Before: before, After: after, Changes: []diff.Change{
			{Path: "labels.a.b/c", Before: "x", After: "z"},
			{Path: "prefixes[0].gateway", Before: "10.0.0.1", After: "10.0.0.2"},
			{Path: "rules[a].action", Before: "permit", After: "deny"}, {Path: "rules[b]", Before: rule("b", "permit"), Disruption: "traffic"}, {Path: "rules[e]", After: rule("e", "permit"), Disruption: "traffic"},
			{Path: "script", Disruption: schema.NeedsRestart, Before: "one\ntwo\nthree\nfour\nfive\nsix\n", After: "one\ntwo\nthree\nfour\n5\nsix\n"},
			{Path: "zones", Before: []any{"x", "y", "z"}, After: []any{"z", "x", "w"}},
		}},
		{ID: 1, Ref: ref("site/carbide.vpc/w"), Action: plan.Create, Reason: "declared, but does not exist yet", Undo: providers.Exact, After: schema.Object{
			"script": strings.Repeat("line\n", 99), "labels": map[string]any{"escape": "\x1b[31m", "long": long, "words": strings.Repeat("word ", 30)}, "zones": []any{},
		}},
	}}
	cut := view.PlanText(p, k, view.Style{}, view.PlanLayout{})
	noSecrets(t, cut)
	golden(t, "nested.txt", cut)
	if strings.Contains(cut, long) || !strings.Contains(cut, "-full") {
		t.Error("a long value is not cut, or it is not said how to see it")
	}
	full := view.PlanText(p, k, view.Style{}, view.PlanLayout{Full: true})
	noSecrets(t, full)
	if !strings.Contains(full, long) || strings.Count(full, "line\n") != 99 || strings.ContainsAny(full, "…\x1b") {
		t.Errorf("something is cut:\n%s", full)
	}
	for _, width := range []int{60, 80, 100, 200} {
		for line := range strings.Lines(view.PlanText(p, k, view.Style{Width: width}, view.PlanLayout{})) {
			if n := len([]rune(line)) - 1; n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
	}
}

// A plan of 10 000 changes is summarized in numbers on one screen, whatever is wrong with it.
func TestSummaryOfALargePlan(t *testing.T) {
	p := samplePlan()
	p.Steps = nil
	actions := []plan.Action{plan.Create, plan.Update, plan.Delete, plan.Adopt, plan.Forget}
	for i := range 10_000 {
		s := plan.Step{ID: i, Ref: ref(fmt.Sprintf("gpu-%03d/ovs.port/p%d", i%500, i)), Action: actions[i/3%len(actions)], Disruption: "link", Undo: providers.Exact}
		if i%3 == 0 {
			s.Ref = ref(fmt.Sprintf("site/carbide.kind%d/r%d", i%19, i))
		}
		p.Steps = append(p.Steps, s)
	}
	p.NoReturn, p.Refusals, p.Unmanaged = len(p.Steps), nil, nil
	text := view.PlanText(p, kinds, view.Style{}, view.PlanLayout{Summary: true})
	if n := strings.Count(text, "\n"); n > 24 {
		t.Errorf("%d lines", n)
	}
	golden(t, "summary.txt", text)
	for _, g := range view.Groupings {
		text := view.PlanText(p, kinds, view.Style{}, view.PlanLayout{Summary: true, Group: view.Grouping(g)})
		if n := strings.Count(text, "\n"); n > 24 || !strings.Contains(text, strings.ToUpper(g)) {
			t.Errorf("by %s: %d lines:\n%s", g, n, text)
		}
	}
}

// With both outputs on one terminal the reasons why a plan cannot be applied are shown once; standard error alone has them too.
func TestReasonsAreToldOnce(t *testing.T) {
	p := samplePlan()
	for _, together := range []bool{true, false} {
		for _, err := range []error{&engine.RefusedError{Refusals: p.Refusals}, &engine.UnknownError{Unknown: p.Unknown}} {
			var out, errs bytes.Buffer
			h := view.NewHuman(view.Options{Out: &out, Err: &errs, Kinds: kinds, Together: together})
			h.Event(event.Observing{Scope: "gpu-02", Kind: "ovs.bridge"})
			h.Event(event.Observed{Scope: "gpu-02", Kind: "ovs.bridge", Err: errors.New("connection refused")})
			h.Plan(p)
			h.Error(err)
			h.Close()
			for _, reason := range []string{"it is protected", "connection refused"} {
				if !strings.Contains(out.String(), reason) {
					t.Errorf("the plan does not say: %s", reason)
				}
				if strings.Contains(errs.String(), reason) && together {
					t.Errorf("%q is told twice:\n%s", reason, errs.String())
				}
			}
			if !together && !strings.Contains(errs.String(), "connection refused") {
				t.Errorf("nothing is said where only errors are read:\n%s", errs.String())
			}
		}
	}
}

func TestPlanDocument(t *testing.T) {
	text, err := view.Indent(view.PlanDocument(samplePlan(), view.PlanOrigin{Digest: "abc", At: start, Converge: "1.0.0", Kinds: kinds}))
	if err != nil {
		t.Fatal(err)
	}
	noSecrets(t, text)
	golden(t, "plan.json", text)
}

// Unchanged resources are listed when they are known: those that the document declares and the plan does not mention.
func TestPlanDocumentUnchanged(t *testing.T) {
	secret := schema.Object{"image": "nginx", "password": map[string]any{"from": "env:SECRET-A"}}
	declared := []schema.Resource{
		{Ref: ref("gpu-01/docker.container/quiet"), Spec: secret}, {Ref: ref("gpu-02/ovs.bridge/unseen")}, {Ref: ref("site/carbide.vpc/kept")},
		{Ref: ref("site/carbide.vpc/left-out")}, {Ref: ref("site/carbide.vpc/new")}, {Ref: ref("site/carbide.vpc/still"), Spec: schema.Object{"tenant": "acme"}},
		{Ref: ref("site/carbide.vpc/strayed"), Spec: schema.Object{"tenant": "acme"}},
	}
	p := &plan.Plan{
		Unchanged: 3, Omitted: []plan.Omission{{Ref: ref("site/carbide.vpc/left-out"), Reason: "r"}}, Unknown: []plan.Unknown{{Scope: "gpu-02", Kind: "ovs.bridge", Error: "e"}},
		Refusals: []plan.Refusal{{Ref: ref("site/carbide.vpc/kept"), Reason: "it is protected", Remedies: []remedy.Remedy{remedy.Say("r")}}, {Rule: plan.RuleMaxDestroy, Reason: "too much", Remedies: []remedy.Remedy{remedy.Say("r")}}},
		Steps: []plan.Step{
			{Ref: ref("site/carbide.vpc/new"), Action: plan.Create, After: schema.Object{"tenant": "acme"}},
			{Ref: ref("site/carbide.vpc/strayed"), Action: plan.Delete, Stray: true},
		},
	}
	type listed struct {
		Address string
		Change  struct {
			Actions       []string
			Before, After schema.Object
		}
	}
	var got struct {
		Changes []listed `json:"resource_changes"`
		Checks  []struct {
			Address struct {
				ToDisplay string `json:"to_display"`
			}
			Status string
		}
		Converge struct {
			Listed bool `json:"unchanged_listed"`
		}
	}
	read := func() {
		t.Helper()
		text, err := view.Indent(view.PlanDocument(p, view.PlanOrigin{Kinds: kinds, Declared: declared}))
		if err != nil {
			t.Fatal(err)
		}
		noSecrets(t, text)
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
	}
	read()
	var noOps []string
	for _, c := range got.Changes {
		if c.Change.Actions[0] == "no-op" {
			noOps = append(noOps, c.Address)
			if c.Change.After == nil || cmp.Diff(c.Change.Before, c.Change.After) != "" {
				t.Errorf("%s does not change from %v to %v", c.Address, c.Change.Before, c.Change.After)
			}
		}
	}
	if d := cmp.Diff([]string{"gpu-01/docker.container/quiet", "site/carbide.vpc/still"}, noOps); d != "" || !got.Converge.Listed {
		t.Errorf("listed: %v, as unchanged: %s", got.Converge.Listed, d)
	}
	status := map[string]string{}
	for _, c := range got.Checks {
		status[c.Address.ToDisplay] = c.Status
	}
	want := map[string]string{
		"check.max_destroy": "fail", "check.mass_disappearance": "pass", "check.same_site": "pass", "check.serial": "pass", "check.refusals": "pass",
		"check.observed": "unknown", "check.supported": "fail", "check.outside_changes": "pass", "check.reversible": "fail", "site/carbide.vpc/kept": "fail",
	}
	if d := cmp.Diff(want, status); d != "" {
		t.Errorf("checks (-want +got):\n%s", d)
	}
	p.Unchanged++ // it counts one that cannot be named
	if read(); got.Converge.Listed || len(got.Changes) != len(p.Steps) {
		t.Errorf("what is unchanged is guessed: %v", got.Changes)
	}
}

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		plan plan.Plan
		want string
	}{
		{plan.Plan{Unchanged: 1}, "No changes. The site matches the document: 1 resource."},
		{plan.Plan{Destroy: true}, "No changes. There is nothing recorded to destroy."},
		{plan.Plan{Unknown: []plan.Unknown{{}}}, "The site could not be observed. Nothing is planned."},
		{plan.Plan{Unchanged: 2, Omitted: []plan.Omission{{}}}, "No changes to what the server supports: 2 resources up to date, 1 skipped."},
		{plan.Plan{Unchanged: 2, Narrowed: &plan.Narrowed{Resources: 2, Of: 9}}, "No changes. Only 2 of 9 resources were considered."},
		{plan.Plan{Undoes: "R1"}, "Rollback of run R1: nothing left to roll back."},
		{plan.Plan{Undoes: "R1", Keeps: 2}, "Rollback of run R1 to step 2: nothing left to roll back."},
		{plan.Plan{Unchanged: 1, Unknown: []plan.Unknown{{}}}, "No changes in what could be observed. Part of the site is unknown."},
		{plan.Plan{Refusals: []plan.Refusal{{}}}, "No steps: the plan is refused."},
		{*samplePlan(), "Plan: 3 to add, 1 to change, 2 to destroy, 1 to adopt, 1 to forget; 12 unchanged."},
	} {
		if got := view.Summary(&c.plan); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// A story is a sequence of events such as the engine sends.
func story(end state.RunStatus) []event.Event {
	p := samplePlan()
	run := state.Run{ID: "20261120-120000.000-abcdef", Op: "apply", Status: state.RunOpen, Steps: len(p.Steps), Started: start, Serial: 42, Plan: "abc"}
	web, db := &p.Steps[1], &p.Steps[2]
	es := []event.Event{
		event.Observing{Scope: "site", Kind: "carbide.vpc"},
		event.Observing{Scope: "gpu-02", Kind: "ovs.bridge"},
		event.Observing{Scope: "gpu-02", Kind: "ovs.bridge", Elapsed: 10 * time.Second, More: 1},
		event.Observed{Scope: "site", Kind: "carbide.vpc", Things: 3, Took: 12 * time.Millisecond},
		event.Observed{Scope: "gpu-02", Kind: "ovs.bridge", Err: errors.New("connection refused")},
		event.LockWait{Holder: state.LockInfo{ID: "l", Who: "ci@runner", PID: 7, Operation: "apply", Created: start, Info: "step 3"}},
		event.RunStarted{Run: run, Plan: p, Done: 1},
		event.StepStarted{Step: web},
		event.StepStarted{Step: db},
		event.StepProgress{Step: web, Phase: event.Waiting, Detail: "pulling the image"},
		event.StepProgress{Step: web, Phase: event.Waiting, Detail: "pulling the image"},
		event.StepProgress{Step: db, Phase: event.Retrying, Attempt: 2, Detail: "busy"},
		event.StepProgress{Step: web, Phase: event.Acting, Elapsed: 10 * time.Second},
		event.StepDone{Step: web, ID: "c0ffee", Took: 12300 * time.Millisecond},
	}
	run.Status = end
	switch end {
	case state.RunApplied:
		run.Done = len(p.Steps)
		return append(es,
			event.StepDone{Step: db, Took: 90 * time.Second},
			event.PointOfNoReturn{Steps: 3},
			event.Verified{Things: 2},
			event.RunEnded{Run: run, Took: 2 * time.Minute})
	case state.RunOpen:
		run.Done, run.Message, run.Failed = 2, "stopped: out of memory", db.Ref
		ds := []event.Difference{{Ref: db.Ref, Detail: "update was not started"}}
		return append(es, event.Interrupted{InFlight: 1}, event.RunEnded{Run: run, Differences: ds, Undoable: true, Took: time.Minute})
	}
	if end == state.RunRolledBack { // by its own command
		run.Done, run.Kept = len(p.Steps), 2
		return []event.Event{
			event.RunStarted{Run: run, Plan: p, Done: run.Done},
			event.RevertStarted{Steps: 1, Keep: run.Kept},
			event.StepStarted{Step: db, Undo: true},
			event.StepDone{Step: db, Undo: true, Took: time.Second},
			event.Verified{Undo: true, Things: 1},
			event.RunEnded{Run: run, Asked: true, Took: time.Minute, Holds: []state.Hold{{Scope: "serial:42", Reason: "why"}}},
		}
	}
	cause := fmt.Errorf("after 5 attempts: %w", &providers.Error{Op: "update", Ref: db.Ref, Class: providers.Unknown, Err: errors.New("out of memory")})
	run.Message, run.Failed = cause.Error(), db.Ref
	es = append(es,
		event.StepFailed{Step: db, Class: providers.Unknown, Err: cause, Effect: true, Took: 3 * time.Second},
		event.RevertStarted{Cause: cause, Steps: 1},
		event.StepStarted{Step: web, Undo: true})
	if end == state.RunReverted {
		return append(es,
			event.StepProgress{Step: web, Undo: true, Phase: event.Acting, Elapsed: 10 * time.Second},
			event.StepDone{Step: web, Undo: true, Took: time.Second},
			event.Verified{Undo: true, Things: 2, Recreated: []schema.Ref{db.Ref}},
			event.RunEnded{Run: run, Took: time.Minute})
	}
	ds := []event.Difference{{Ref: web.Ref, Detail: "it was created and still exists"}}
	return append(es,
		event.StepFailed{Step: web, Undo: true, Class: providers.Denied, Err: errors.New("not allowed"), Took: time.Second},
		event.Verified{Undo: true, Things: 2, Differences: ds},
		event.RunEnded{Run: run, Differences: ds, Undoable: true, Took: time.Minute})
}

var ends = []state.RunStatus{state.RunApplied, state.RunReverted, state.RunRolledBack, state.RunPartial, state.RunOpen}

func TestHumanInAPipe(t *testing.T) {
	for _, end := range ends {
		t.Run(string(end), func(t *testing.T) {
			var out, progress bytes.Buffer
			h := view.NewHuman(view.Options{Out: &out, Err: &progress, Kinds: kinds, Now: func() time.Time { return start }})
			for _, e := range story(end) {
				h.Event(e)
			}
			h.Warn("something is odd")
			h.Note("this is next")
			h.Close()
			golden(t, "pipe-"+string(end)+".txt", "stdout:\n"+out.String()+"\nstderr:\n"+progress.String())
		})
	}
}

func TestQuietShowsOnlyResults(t *testing.T) {
	var out, progress bytes.Buffer
	h := view.NewHuman(view.Options{Out: &out, Err: &progress, Quiet: true})
	for _, e := range story(state.RunApplied) {
		h.Event(e)
	}
	h.Note("this is next")
	h.Close()
	if progress.Len() > 0 || !strings.Contains(out.String(), "Apply complete!") {
		t.Errorf("stderr %q, stdout %q", progress.String(), out.String())
	}
}

// A terminal shows what is running below everything else, redraws it as time passes, and is clean at the end.
func TestHumanOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var screen bytes.Buffer
		h := view.NewHuman(view.Options{Out: &screen, Err: &screen, Live: func() int { return 60 }})
		p := samplePlan()
		h.Event(event.Observing{Scope: "site", Kind: "carbide.vpc"})
		h.Event(event.Observing{Scope: "gpu-01", Kind: "docker.container"})
		h.Event(event.Observed{Scope: "site", Kind: "carbide.vpc"})
		h.Event(event.Observed{Scope: "gpu-01", Kind: "docker.container"})
		h.Event(event.RunStarted{Run: state.Run{ID: "R"}, Plan: p})
		for i := range 3 {
			h.Event(event.StepStarted{Step: &p.Steps[i]})
		}
		h.Event(event.StepProgress{Step: &p.Steps[0], Phase: event.Waiting, Detail: strings.Repeat("long ", 20)})
		time.Sleep(3100 * time.Millisecond)
		for i := range 3 {
			h.Event(event.StepDone{Step: &p.Steps[i], Took: 3100 * time.Millisecond})
		}
		h.Close()
		golden(t, "terminal.txt", render(t, screen.String()))
	})
}

// render does what a terminal does with the text, and returns every picture at which it stood still for a redraw.
func render(t *testing.T, text string) string {
	t.Helper()
	var pictures []string
	var lines []string
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			var up int
			if _, err := fmt.Sscanf(rest, "%dA", &up); err != nil {
				t.Fatalf("not an escape sequence that a redraw needs: %q", rest[:min(10, len(rest))])
			}
			picture := strings.Join(lines, "\n")
			if n := len(pictures); n == 0 || pictures[n-1] != picture {
				pictures = append(pictures, picture)
			}
			if up > len(lines) {
				t.Fatalf("%d lines up, but there are only %d", up, len(lines))
			}
			lines = lines[:len(lines)-up]
			_, text, _ = strings.Cut(rest, "\x1b[J")
			continue
		}
		line, rest, _ := strings.Cut(text, "\n")
		if n := len([]rune(line)); n >= 60 && strings.HasPrefix(line, "  ") {
			t.Errorf("a drawn line of %d characters does not fit: %q", n, line)
		}
		lines, text = append(lines, line), rest
	}
	return strings.Join(append(pictures, strings.Join(lines, "\n")), "\n────\n") + "\n"
}

func TestJSON(t *testing.T) {
	for _, end := range ends {
		t.Run(string(end), func(t *testing.T) {
			var out, other bytes.Buffer
			j := view.NewJSON(view.Options{Out: &out, Err: &other, Kinds: kinds, Version: "1.0.0", Now: func() time.Time { return start }})
			j.Plan(samplePlan())
			for _, e := range story(end) {
				j.Event(e)
			}
			j.Warn("something is odd")
			j.Note("this is next")
			j.Error(&view.Problem{What: "it did not work", Where: "here", Fix: "do this", Ref: ref("site/carbide.vpc/prod")})
			j.Close()
			j.Note("nothing is shown after the end")
			noSecrets(t, out.String())
			if other.Len() > 0 {
				t.Errorf("on standard error: %s", other.String())
			}
			for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
				var v map[string]any
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Fatalf("line %d: %v: %s", i, err, line)
				}
				if v["@module"] != "converge.ui" || (i == 0) != (v["type"] == "version") {
					t.Errorf("line %d: %s", i, line)
				}
			}
			golden(t, "lines-"+string(end)+".jsonl", out.String())
		})
	}
}

var sampleDiagnostics = load.Diagnostics{
	{Severity: load.Error, Code: "CV1001", Summary: "Unknown field", Detail: "There is no field \"tenannt\".\nDid you mean \"tenant\"?", Path: "carbide.vpc.prod.tenannt",
		Range: &load.Range{Filename: "site.cue", Start: load.Pos{Line: 12, Column: 2, Byte: 100}, End: load.Pos{Line: 12, Column: 9, Byte: 107}}, Snippet: "\ttenannt: \"acme\""},
	{Severity: load.Warning, Code: "CV1100", Summary: "Probably not meant", Path: "carbide.vpc.prod"},
	{Severity: load.Error, Code: "CV1102", Summary: "Too large", Detail: "It is too large.",
		Range: &load.Range{Filename: "big.json", Start: load.Pos{Line: 1, Column: 5000, Byte: 4999}, End: load.Pos{Line: 1, Column: 5004, Byte: 5003}}, Snippet: "…true, \"rest\": 1"},
}

func TestDiagnostics(t *testing.T) {
	golden(t, "diagnostics.txt", view.DiagnosticsText(sampleDiagnostics, view.Style{}))
	if got := view.DiagnosticsSummary(sampleDiagnostics); got != "2 errors, 1 warning" {
		t.Errorf("summary %q", got)
	}
	var out, other bytes.Buffer
	d := view.Document{Human: view.NewHuman(view.Options{Out: &out, Err: &other, Now: func() time.Time { return start }})}
	d.Diagnostics(sampleDiagnostics)
	d.Error(errors.New("it did not work"))
	d.Close()
	golden(t, "document.jsonl", out.String())
	if !strings.Contains(other.String(), "Probably not meant") || strings.Contains(other.String(), "Unknown field") {
		t.Errorf("standard error has %s", other.String())
	}
}

// Every error that the engine knows is explained in its own way.
func TestErrors(t *testing.T) {
	info := state.LockInfo{ID: "8b1f", Who: "ci@runner", PID: 7, Operation: "apply", Version: "1.0.0", Created: time.Now().Add(-time.Minute)}
	var b strings.Builder
	for _, err := range []error{
		errors.New("plain\nwith a second line"),
		fmt.Errorf("apply: %w", &state.ConflictError{Head: state.Head{Serial: 4, Revision: 9, By: "me", At: start}, Wanted: "serial 3 is not higher"}),
		&etcd.NoAnswerError{Dir: ".converge", PID: 7, Since: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Command: "converge apply"},
		&engine.StaleError{Reasons: []event.Difference{{Ref: ref("site/carbide.vpc/prod"), Detail: "it is gone"}, {Detail: "the document was replaced"}}},
		&engine.SpentError{Run: "R"},
		&engine.RefusedError{Refusals: samplePlan().Refusals},
		&engine.HeldError{Open: "R"},
		&engine.HeldError{Open: "R", Undoable: []string{"R"}},
		&engine.HeldError{Holds: []state.Hold{{Scope: "site", Reason: "broken fan"}}},
		&engine.UnknownError{Unknown: samplePlan().Unknown},
		fmt.Errorf("run R was %w; 3 of 4 steps are done", engine.ErrInterrupted),
		fmt.Errorf("commit: %w", state.ErrFenced),
	} {
		b.WriteString(view.Explain(err).Text(view.Style{}) + "\n")
	}
	golden(t, "errors.txt", b.String())
	text := view.Explain(&state.LockedError{Path: "/converge/fra1", Info: info}).Text(view.Style{})
	for _, want := range []string{"Lock Info:", "ci@runner", "force-unlock 8b1f"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestDrift(t *testing.T) {
	r := &drift.Report{Site: schema.Site{Name: "fra1"}, At: start, Complete: true, Recorded: 5, Drifted: []drift.Item{
		{Ref: ref("site/carbide.vpc/lost"), Missing: true},
		{Ref: ref("gpu-01/docker.container/db"), Changes: []diff.Change{{Path: "password", Before: "SECRET", After: "SECRET", Secret: true}, {Path: "image", Before: "a", After: "b"}}},
		{Ref: ref("gpu-01/docker.container/remade"), Remade: true}, {Ref: ref("gpu-01/docker.container/unmarked"), Unmarked: true}, {Ref: ref("gpu-01/docker.container/unmarked"), Failed: "it has crashed"},
	}, Remarks: []plan.Remark{{Ref: ref("gpu-01/docker.container/web"), Detail: "it runs with an older image"}}, Unstated: []drift.Item{
		{Ref: ref("site/carbide.vpc/prod"), Changes: []diff.Change{{Path: "description", After: "a stranger's"}}},
	}, Strays: samplePlan().Unmanaged[2:], Unmanaged: samplePlan().Unmanaged[:2]}
	text := view.DriftText(r, kinds, view.Style{}, view.PlanLayout{})
	clean := view.DriftText(&drift.Report{Complete: true, Recorded: 1}, kinds, view.Style{}, view.PlanLayout{})
	unstated := view.DriftText(&drift.Report{Complete: true, Recorded: 3, Unstated: r.Unstated}, kinds, view.Style{}, view.PlanLayout{})
	begun := view.DriftText(&drift.Report{Complete: true, Recorded: 3, Begun: []schema.Ref{ref("site/carbide.vpc/prod")}}, kinds, view.Style{}, view.PlanLayout{})
	blind := view.DriftText(&drift.Report{Unknown: samplePlan().Unknown}, kinds, view.Style{}, view.PlanLayout{})
	masked, err := view.Indent(view.MaskDrift(r, kinds))
	if err != nil {
		t.Fatal(err)
	}
	noSecrets(t, text+masked)
	golden(t, "drift.txt", text+"────\n"+clean+"────\n"+unstated+"────\n"+begun+"────\n"+blind)
}

func TestCompare(t *testing.T) {
	a := &schema.Document{Resources: []schema.Resource{
		{Ref: ref("site/carbide.vpc/a"), Spec: schema.Object{"tenant": "acme"}},
		{Ref: ref("site/carbide.vpc/b"), Spec: schema.Object{"tenant": "acme", "labels": map[string]any{"x": "1"}}},
		{Ref: ref("site/carbide.vpc/c"), Spec: schema.Object{"tenant": "acme"}},
		{Ref: ref("gpu-01/docker.container/s"), Spec: schema.Object{"password": map[string]any{"from": "SECRET-1"}}},
	}}
	b := &schema.Document{Resources: []schema.Resource{
		{Ref: ref("site/carbide.vpc/b"), Spec: schema.Object{"tenant": "apex"}},
		{Ref: ref("site/carbide.vpc/c"), Spec: schema.Object{"tenant": "acme"}, Lifecycle: schema.Lifecycle{Protect: true}},
		{Ref: ref("site/carbide.vpc/d"), Spec: schema.Object{"tenant": "acme"}},
		{Ref: ref("gpu-01/docker.container/s"), Spec: schema.Object{"password": map[string]any{"from": "SECRET-2"}}},
	}}
	d := view.Compare(kinds, a, b, "serial 1", "serial 2")
	text := view.DiffText(d, kinds, view.Style{}, view.PlanLayout{})
	noSecrets(t, text)
	golden(t, "diff.txt", text+view.DiffText(view.Compare(kinds, a, a, "x", "y"), kinds, view.Style{}, view.PlanLayout{}))
}

func TestGraph(t *testing.T) {
	doc := &schema.Document{Resources: []schema.Resource{
		{Ref: ref("site/carbide.tenant/a")}, {Ref: ref("site/carbide.vpc/b"), After: []schema.Ref{ref("site/carbide.tenant/a")}},
	}}
	g := view.PlanGraph(samplePlan())
	golden(t, "graph.txt", view.DocumentGraph(doc).DOT()+g.DOT()+g.Mermaid())
}

func TestLists(t *testing.T) {
	ended := start.Add(90 * time.Second)
	runs := []state.Run{
		{ID: "R2", Op: "apply", Status: state.RunPartial, Steps: 4, Done: 2, Started: start, By: "me@here", Failed: ref("site/carbide.vpc/a"), Message: "not today", Partial: []string{"site/carbide.vpc/a: create failed"}},
		{ID: "R1", Op: "destroy", Status: state.RunApplied, Steps: 1, Done: 1, Started: start, Ended: &ended, By: "me@here", ApprovedBy: []string{"ada@lab", "grace@https"}, Serial: 4, Plan: "abc"},
	}
	runs = append(runs, state.Run{ID: "R0", Op: "apply", Status: state.RunApplied, Steps: 1, Done: 1, Started: ended, Ended: &start, By: "me@here"},
		state.Run{ID: "R3", Op: "apply", Status: state.RunRolledBack, Steps: 5, Done: 5, Kept: 3, Started: start, Ended: &ended, By: "me@here"})
	result := func(state engine.StepState, from, took time.Duration, message string) engine.StepResult {
		began, over := start.Add(from), start.Add(from+took)
		return engine.StepResult{Result: state, Began: &began, Ended: &over, Message: message}
	}
	undo := []engine.StepResult{result(engine.StepDone, 3*time.Second, -time.Hour, ""), result(engine.StepDone, 2*time.Second, time.Second, "")}
	unknown := result(engine.StepUnknown, 0, 0, "")
	unknown.Ended = nil
	steps := []engine.StepReport{
		{Action: plan.Create, Ref: ref("site/carbide.vpc/b"), StepResult: result(engine.StepDone, 0, 12*time.Millisecond, ""), Undo: &undo[0]},
		{Action: plan.Update, Ref: ref("site/carbide.vpc/c"), StepResult: result(engine.StepPartial, 0, time.Minute, "half of it \x1b[31m"), Undo: &undo[1]},
		{Action: plan.Create, Ref: ref("site/carbide.vpc/a"), StepResult: result(engine.StepRefused, time.Second, time.Millisecond, "not today")},
		{Action: plan.Delete, Ref: ref("site/carbide.vpc/e"), StepResult: unknown},
		{Action: plan.Create, Ref: ref("site/carbide.vpc/d"), StepResult: engine.StepResult{Result: engine.StepPending}},
	}
	for i := range steps {
		steps[i].Step = i
	}
	rec := state.Record{Ref: ref("gpu-01/docker.container/web"), ID: "c0ffee", Incarnation: 2, Spec: schema.Object{"image": "nginx", "password": map[string]any{"from": "SECRET"}}, Run: "R1", At: start, Protect: true, After: []schema.Ref{ref("site/carbide.vpc/a")}}
	holds := []state.Hold{{Scope: "site", Reason: "broken fan", At: start, Run: "R2"}}
	lock := &state.LockInfo{ID: "8b1f", Operation: "apply", Who: "ci@runner", PID: 7, Version: "1.0.0", Created: start, Epoch: 3, Run: "R2", Info: "step 3"}
	head := state.Head{Serial: 4, Digest: "0123456789abcdef", Size: 100, By: "me@here", At: start, Revision: 9}
	summary := view.SiteSummary{Site: "fra1", Document: &head, Kinds: map[string]int{"carbide.vpc": 2}, LastRun: &runs[0], Holds: holds, Lock: lock}
	text := strings.Join([]string{
		view.RunsText(runs, view.Style{}), view.RunText(runs[0], steps, true, view.Style{}), view.RunText(runs[1], nil, true, view.Style{}), view.RunText(runs[2], nil, false, view.Style{}), view.RunText(runs[3], nil, true, view.Style{}),
		view.RecordText(rec, kinds["docker.container"], view.Style{}), view.HoldsText(holds, view.Style{}), view.LockText("/converge/fra1", lock),
		view.HistoryText([]view.Revision{{Head: head, Revision: 9}, {Head: head, Signer: "cloud"}, {Head: head, Key: "ed25519:AA"}, {Head: head, Bad: "no \x1b[31m"}}, view.Style{}), view.SummaryText(summary, view.Style{}), view.SummaryText(view.SiteSummary{Site: "new"}, view.Style{}),
		view.KindsText(kinds, view.Style{}),
	}, "────\n")
	document, err := view.Indent(view.StateDocument([]state.Record{rec}, kinds, summary))
	if err != nil {
		t.Fatal(err)
	}
	noSecrets(t, text+document)
	golden(t, "lists.txt", text+"────\n"+document)
}
