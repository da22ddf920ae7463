package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// tampering is a site, a plan file that was saved for it, and what no edit of that file may bring about.
type tampering struct {
	*enginetest.Site
	doc     *schema.Document
	key     []byte
	file    []byte     // as it was saved
	said    []byte     // its content: the plan, and its document
	plan    *plan.Plan // the same
	deletes int        // things that it destroys, and the most that may be destroyed

	before string // the world
	calls  int    // that changed it
	runs   int

	deleted int // things that were deleted before
}

// tampered creates a site whose plan creates, changes and replaces things, adopts one, and deletes what does not come
// back. Beside these there are a protected thing, an undeclared one, and one of another site.
func tampered(t *testing.T) *tampering {
	s := &tampering{Site: enginetest.New()}
	put := func(kind, id string, mark providers.Mark) {
		if err := s.World.Put(schema.ScopeSite, kind, providers.Thing{ID: id, Name: id, Mark: mark, Spec: schema.Object{"size": int64(7)}, Phase: providers.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	const protected = `{"size":5,"lifecycle":{"protect":true}}`
	s.Converge(t, s.Document(t, with(map[string]string{"site/far.guard/kept": protected})))
	put("far.guard", "nobodys", providers.Mark{})
	put("far.guard", "another", providers.Mark{Site: "another", Ref: schema.Ref{Scope: "site", Kind: "far.guard", Name: "web"}, Incarnation: 1})
	wanted := map[string]string{
		"site/far.guard/kept": protected,
		"site/far.guard/web":  `{"size":2}`,
		"site/far.guard/new":  `{"size":1}`,
		"site/far.host/a2":    `{"net":"a","guard":"new","size":1}`,
		"site/far.host/c1":    `{"net":"c"}`,
		"site/far.net/c":      `{"cidr":"10.0.2.0/24"}`,
		"site/far.host/b1":    "",
		"n1/near.port/p0":     `{"bridge":"br0","tag":20}`,
		"n1/near.port/p1":     "",
	}
	s.doc = s.Document(t, with(wanted))
	s.plan = s.Plan(t, s.doc, plan.Options{})
	for i := range s.plan.Steps {
		if s.plan.Steps[i].Action == plan.Delete {
			s.deletes++
		}
	}
	e := s.engine()
	defer e.Close()
	var err error
	if s.file, _, err = e.SavePlan(t.Context(), s.plan); err != nil {
		t.Fatal(err)
	}
	if s.key, err = s.Store.PlanKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.said = enginetest.Members(t, s.plan)
	s.before, s.calls, s.runs, s.deleted = s.World.Dump(), s.changes(), len(s.history(t)), s.World.Count("delete")
	return s
}

func (s *tampering) engine() *engine.Engine {
	return s.Engine(func(o *engine.Options) { o.MaxDestroy = fmt.Sprint(s.deletes) })
}

// changes counts the calls that were to change the world.
func (s *tampering) changes() int {
	return s.World.Count("create") + s.World.Count("update") + s.World.Count("delete")
}

func (s *tampering) history(t *testing.T) []state.Run {
	runs, err := s.Store.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

// apply applies a file like the command.
func (s *tampering) apply(ctx context.Context, file []byte, approve func(*plan.Plan) string) (*plan.Plan, engine.Result, error) {
	f, err := plan.DecodeFile(file)
	if err != nil {
		return nil, engine.Result{}, err
	}
	e := s.engine()
	defer e.Close()
	if err := e.VerifyFile(ctx, f); err != nil {
		return f.Plan, engine.Result{}, err
	}
	res, err := e.Apply(ctx, f.Plan, engine.ApplyOptions{Approve: approve(f.Plan)})
	return f.Plan, res, err
}

// untouched fails unless nothing was done: no call, no run, no other document.
func (s *tampering) untouched(t *testing.T, what string) {
	t.Helper()
	if now := s.World.Dump(); now != s.before || s.changes() != s.calls {
		t.Fatalf("%s: it was refused, and the world changed\nbefore %s\nafter %s", what, s.before, now)
	}
	if head, err := s.Store.Head(t.Context()); err != nil || head.Digest == s.doc.Digest || len(s.history(t)) != s.runs {
		t.Fatalf("%s: it was refused, and the store changed: %v", what, err)
	}
}

// edit changes the steps or the head of a plan, or its document, as JSON; numbers stay as they are.
func edit(t testing.TB, said []byte, change func(p map[string]any, steps []map[string]any)) []byte {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(slices.Concat([]byte("{"), said, []byte("}"))))
	d.UseNumber()
	var file struct {
		Plan             map[string]any
		Document         json.RawMessage
		Drift, Unmanaged json.RawMessage
	}
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	p := file.Plan
	if len(file.Document) > 0 {
		p["document"] = file.Document // its digest is that of its bytes
	}
	change(p, stepsOf(p))
	members := []any{"document", p["document"], "drift", file.Drift, "unmanaged", file.Unmanaged}
	delete(p, "document")
	edited := slices.Concat([]byte(`"plan":`), ordered(t, p))
	for i := 0; i < len(members); i += 2 {
		if v, raw := members[i+1].(json.RawMessage); members[i+1] != nil && (!raw || len(v) > 0) {
			edited = fmt.Appendf(edited, `,"%s":%s`, members[i], compact(t, members[i+1]))
		}
	}
	return edited
}

func stepsOf(p map[string]any) []map[string]any {
	list, _ := p["steps"].([]any)
	steps := make([]map[string]any, len(list))
	for i := range list {
		steps[i], _ = list[i].(map[string]any)
	}
	return steps
}

// ordered writes an edited plan as Encode would, with names in its order, so that only the edit can be refused. A plan that
// does not fit the types is written in any order.
func ordered(t testing.TB, p map[string]any) []byte {
	t.Helper()
	edited := compact(t, p)
	var typed plan.Plan
	if err := json.Unmarshal(edited, &typed); err != nil {
		return edited
	}
	again, err := typed.Encode()
	if err != nil || len(again.Data) != len(edited) { // an edit that the types do not show
		return edited
	}
	return again.Data
}

func compact(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

func number(v any) int {
	n, _ := v.(json.Number)
	i, _ := n.Int64()
	return int(i)
}

// What a plan file claims about itself is determined again before anything is done, even when its proof holds. Each case is one lie.
func TestTamperedPlan(t *testing.T) {
	s := tampered(t)
	find := func(steps []map[string]any, action, ref string) map[string]any {
		for _, step := range steps {
			if step["action"] == action && strings.HasPrefix(step["ref"].(string), ref) {
				return step
			}
		}
		t.Fatalf("the plan has no %s %s:\n%s", action, ref, enginetest.Text(s.plan))
		return nil
	}
	document := func(p map[string]any, change func(map[string]any)) {
		var doc map[string]any
		if err := json.Unmarshal(p["document"].(json.RawMessage), &doc); err != nil {
			t.Fatal(err)
		}
		change(doc)
		b, _ := json.Marshal(doc)
		sum := sha256.Sum256(b)
		p["document"], p["document_digest"] = json.RawMessage(b), hex.EncodeToString(sum[:])
	}
	for _, c := range []struct {
		name, says string
		change     func(p map[string]any, steps []map[string]any)
	}{
		{"a step needs itself", "need one another", func(_ map[string]any, steps []map[string]any) { steps[0]["needs"] = []int{0} }},
		{"two steps need one another", "need one another", func(_ map[string]any, steps []map[string]any) {
			steps[0]["needs"], steps[1]["needs"] = []int{1}, []int{0}
		}},
		{"no steps under another name", "unknown object member", func(p map[string]any, _ []map[string]any) { p["STEPS"] = []any{} }},
		{"an unknown action", "unknown action", func(_ map[string]any, steps []map[string]any) { steps[0]["action"] = "explode" }},
		{"an unknown class", "unknown undo class", func(_ map[string]any, steps []map[string]any) { steps[0]["undo"] = "R0" }},
		{"a milder class", "reverting the delete means R3", func(p map[string]any, steps []map[string]any) { // all of it, waves and order too
			for _, step := range steps {
				step["undo"] = "R1"
			}
			reorder(t, p)
		}},
		{"a class from before an upgrade", "reverting the update means R1", func(p map[string]any, steps []map[string]any) {
			find(steps, "update", "n1/near.port/p0")["undo"] = "R2"
		}},
		{"a step for which nothing waits", "does not wait for", func(p map[string]any, steps []map[string]any) {
			delete(find(steps, "create", "site/far.host/c1"), "needs")
			reorder(t, p)
		}},
		{"another id", "the wrong id for it", func(_ map[string]any, steps []map[string]any) {
			step := find(steps, "create", "site/far.guard/new")
			step["external_id"] = "another"
			step["record"].(map[string]any)["id"] = "another"
		}},
		{"an incarnation again", "already existed", func(_ map[string]any, steps []map[string]any) {
			step := find(steps, "create", "site/far.guard/new")
			step["prior"] = map[string]any{"ref": step["ref"], "id": "", "incarnation": 1, "gone": true, "spec": nil, "run": "r", "at": "2026-01-01T00:00:00Z"}
		}},
		{"another wait", "waits", func(_ map[string]any, steps []map[string]any) { steps[0]["within"] = 3600e9 }},
		{"what cannot be deleted", "can be deleted", func(_ map[string]any, steps []map[string]any) {
			find(steps, "create", "site/far.guard/new")["leaves"] = true
		}},
		{"a choice that was none", "not for the planner to choose", func(_ map[string]any, steps []map[string]any) {
			find(steps, "create", "site/far.guard/new")["chosen"] = []any{map[string]any{"field": "size", "kind": "far.nothing", "id": "x", "why": ""}}
		}},
		{"an unknown kind", "no provider serves it", func(p map[string]any, steps []map[string]any) {
			step := find(steps, "create", "site/far.guard/new")
			step["ref"], step["record"].(map[string]any)["ref"] = "site/far.nothing/new", "site/far.nothing/new"
			reorder(t, p)
		}},
		{"no limit", "that was not requested", func(p map[string]any, _ []map[string]any) { delete(p, "max_destroy") }},
		{"another limit", "its document says", func(p map[string]any, _ []map[string]any) { p["max_destroy"] = "99%" }},
		{"a limit of the document", "max_destroy (1) allows 1", func(p map[string]any, _ []map[string]any) {
			p["max_destroy"] = "1"
			document(p, func(doc map[string]any) { doc["policy"] = map[string]any{"max_destroy": "1"} })
		}},
		{"another document", "document_digest", func(p map[string]any, _ []map[string]any) {
			p["document"] = json.RawMessage(`{"site":{"name":"test","id":"` + enginetest.SiteID + `"},"policy":{"max_destroy":"100%"}}`)
		}},
		{"another site's document", "but its document is for site", func(p map[string]any, _ []map[string]any) {
			document(p, func(doc map[string]any) { doc["site"].(map[string]any)["name"] = "another" })
		}},
		{"another site", "the records of test belong to the site with the id", func(p map[string]any, steps []map[string]any) {
			const id = "6a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"
			p["site"].(map[string]any)["id"] = id
			document(p, func(doc map[string]any) { doc["site"].(map[string]any)["id"] = id })
			for _, step := range steps {
				if mark, ok := step["mark"].(map[string]any); ok {
					for name := range mark {
						if mark[name] == enginetest.SiteID {
							mark[name] = id
						}
					}
				}
			}
		}},
		{"somebody else's mark", "carries the mark of site another", func(_ map[string]any, steps []map[string]any) {
			for _, step := range steps {
				if mark, ok := step["mark"].(map[string]any); ok {
					for name := range mark {
						if mark[name] == enginetest.SiteID {
							mark[name] = "another"
						}
					}
				}
			}
		}},
		{"an earlier point of no return", "wrong side", func(p map[string]any, _ []map[string]any) { p["no_return"] = 0 }},
		{"a later point of no return", "wrong side", func(p map[string]any, steps []map[string]any) { p["no_return"] = len(steps) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, res, err := s.apply(t.Context(), plan.Seal(edit(t, s.said, c.change), s.key), (*plan.Plan).Approval)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the run is %s, the error %v; want one that says %q", res.Run.Status, err, c.says)
			}
			s.untouched(t, c.name)
		})
	}
	t.Run("deletes what is protected", func(t *testing.T) {
		all := s.Plan(t, s.Document(t, map[string]string{}), plan.Options{Destroy: true, Target: []string{"site/far.guard/web", "site/far.host/*"}, Unlimited: true})
		text := enginetest.Members(t, all)
		records, err := s.Store.Records(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(records, func(r state.Record) bool { return r.Ref.Name == "kept" })
		text = edit(t, text, func(p map[string]any, steps []map[string]any) {
			step := find(steps, "delete", "site/far.guard/web")
			rec := records[i]
			spec := map[string]any{"size": 5}
			step["ref"], step["external_id"], step["incarnation"], step["prior"], step["before"] = rec.Ref.String(), rec.ID, rec.Incarnation, rec, spec
			step["record"] = map[string]any{"ref": rec.Ref.String(), "id": "", "incarnation": rec.Incarnation, "gone": true, "spec": nil, "run": "", "at": "0001-01-01T00:00:00Z"}
			delete(step, "mark")
			p["steps"] = []any{step}
			delete(p, "refusals")
			reorder(t, p)
		})
		_, _, err = s.apply(t.Context(), plan.Seal(text, s.key), (*plan.Plan).Approval)
		if err == nil || !strings.Contains(err.Error(), "protected from deletion") {
			t.Errorf("the error is %v", err)
		}
		s.untouched(t, "protected")
	})
	t.Run("as it was", func(t *testing.T) {
		_, res, err := s.apply(t.Context(), s.file, (*plan.Plan).Approval)
		if err != nil || res.Run.Status != state.RunApplied {
			t.Fatalf("the run is %s: %v %v", res.Run.Status, res.Differences, err)
		}
	})
}

// reorder renumbers the steps and makes waves, order and the point of no return agree with the steps, like an attacker who
// knows how plans are made.
func reorder(t testing.TB, p map[string]any) {
	t.Helper()
	steps := stepsOf(p)
	now := map[int]int{}
	for i, step := range steps {
		now[number(step["id"])] = i
	}
	needs := make([][]int, len(steps))
	late, wave := make([]bool, len(steps)), make([]int, len(steps))
	for i, step := range steps {
		list, _ := step["needs"].([]any)
		for _, n := range list {
			if j, ok := now[number(n)]; ok {
				needs[i] = append(needs[i], j)
			}
		}
		late[i] = step["undo"] != "R1" && step["undo"] != "R2"
	}
	for range steps {
		for i := range steps {
			for _, n := range needs[i] {
				late[i] = late[i] || late[n]
			}
		}
	}
	for range steps {
		for i := range steps {
			for _, n := range needs[i] {
				if late[n] == late[i] {
					wave[i] = min(max(wave[i], wave[n]+1), len(steps))
				}
			}
		}
	}
	first := 0
	for i := range steps {
		if !late[i] {
			first = max(first, wave[i]+1)
		}
	}
	order := make([]int, len(steps))
	var nodes []string
	for i := range steps {
		if order[i] = i; late[i] {
			wave[i] += first
		}
		if ref, err := schema.ParseRef(fmt.Sprint(steps[i]["ref"])); err == nil && ref.Scope != schema.ScopeSite {
			nodes = append(nodes, ref.Scope)
		}
	}
	refOf := func(i int) (r schema.Ref) { r, _ = schema.ParseRef(fmt.Sprint(steps[i]["ref"])); return r }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(wave[a], wave[b]), refOf(a).Compare(refOf(b))) })
	at := make([]int, len(steps))
	list := make([]any, len(steps))
	noReturn := len(steps)
	stages := plan.Stages(nodes)
	for to, from := range order {
		at[from], list[to] = to, steps[from]
		if late[from] {
			noReturn = min(noReturn, to)
		}
	}
	for i, step := range steps {
		step["id"], step["wave"] = at[i], wave[i]
		delete(step, "stage")
		if stage := stages[refOf(i).Scope]; stage > 0 {
			step["stage"] = stage
		}
		delete(step, "needs")
		var to []int
		for _, n := range needs[i] {
			to = append(to, at[n])
		}
		if slices.Sort(to); len(to) > 0 {
			step["needs"] = to
		}
	}
	p["steps"], p["no_return"] = list, noReturn
}
