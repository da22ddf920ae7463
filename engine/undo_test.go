package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// What is shown before a rollback is what the rollback does, in its order, and showing it changes nothing.
func TestUndoingShowsWhatRollbackDoes(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Converge(t, s.Document(t, twelve))
	applied := s.World.Dump()
	e := s.Engine(nil)
	defer e.Close()
	inverse, err := e.Undoing(context.Background(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if s.World.Dump() != applied {
		t.Fatal("looking changed the world")
	}
	did, undoes := map[schema.Ref]plan.Action{}, map[schema.Ref]plan.Action{}
	for i := range p.Steps {
		did[p.Steps[i].Ref] = p.Steps[i].Inverse()
	}
	for i := range inverse.Steps {
		st := &inverse.Steps[i]
		undoes[st.Ref] = st.Action
		if st.ID != i || slices.ContainsFunc(st.Needs, func(n int) bool { return n >= i }) {
			t.Errorf("step %d has the number %d and needs %v", i, st.ID, st.Needs)
		}
		for j := range p.Steps { // what was done after it is undone before it
			if later := &p.Steps[j]; slices.ContainsFunc(later.Needs, func(n int) bool { return p.Steps[n].Ref == st.Ref }) {
				if k := slices.IndexFunc(inverse.Steps, func(o plan.Step) bool { return o.Ref == later.Ref }); k > i {
					t.Errorf("%s is undone after %s", later.Ref, st.Ref)
				}
			}
		}
	}
	if len(did) == 0 || len(did) != len(undoes) {
		t.Fatalf("done %v, to be undone %v", did, undoes)
	}
	for ref, action := range did {
		if undoes[ref] != action {
			t.Errorf("%s: %s, want %s", ref, undoes[ref], action)
		}
	}
	if res, err := e.Rollback(context.Background(), "", engine.ApplyOptions{Approve: inverse.Approval()}); err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	if _, err := e.Undoing(context.Background(), inverse.Undoes, 0); err == nil {
		t.Error("a run that is reverted could be undone")
	}
}

// A run that continued since its undo was shown is not undone.
func TestRollbackOfMoreThanWasShown(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.host/b1", Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{OnFailure: apply.Stop}); err != nil || res.Run.Status != state.RunOpen {
		t.Fatal(res, err)
	}
	e := s.Engine(nil)
	defer e.Close()
	inverse, err := e.Undoing(context.Background(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := e.Resume(context.Background(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res, err)
	}
	applied := s.World.Dump()
	var stale *engine.StaleError
	if _, err := e.Rollback(context.Background(), inverse.Undoes, engine.ApplyOptions{Approve: inverse.Approval()}); !errors.As(err, &stale) {
		t.Fatalf("it was undone: %v", err)
	}
	if s.World.Dump() != applied {
		t.Error("the world was changed")
	}
}

// What the far side does not support is left out only with explicit permission.
func TestOmittedNeedsAllowPartial(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/24"}`, "site/far.host/h": `{"net":"n"}`, "site/far.guard/g": `{}`})
	if err := s.World.Fail(fake.Fault{Op: "observe", Ref: "far.net", Times: -1, Class: providers.Unsupported}); err != nil {
		t.Fatal(err)
	}
	p := s.Plan(t, d, plan.Options{})
	var unknown *engine.UnknownError
	if _, err := s.Apply(p, engine.ApplyOptions{}); !errors.As(err, &unknown) || len(unknown.Omitted) != 2 {
		t.Fatalf("%v", err)
	}
	if runs, err := s.Store.Runs(context.Background()); err != nil || len(runs) != 0 {
		t.Fatal(runs, err)
	}
	if res, err := s.Apply(p, engine.ApplyOptions{AllowPartial: true}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res, err)
	}
}

// A run is not undone over what happened since it ended: another run, a change of the site, or a new reference to what would be
// deleted. Showing the undo reports the same, and changes nothing. What does not affect it prevents nothing.
func TestRollbackOverWhatHappenedSince(t *testing.T) {
	ctx := context.Background()
	docs := []map[string]string{
		{"site/far.net/n": `{"cidr":"10.0.0.0/24","size":1}`, "site/far.guard/g": `{"size":1}`},
		{"site/far.net/n": `{"cidr":"10.0.0.0/24","size":2}`, "site/far.guard/g": `{"size":1}`},
		{"site/far.net/n": `{"cidr":"10.0.0.0/24","size":3}`, "site/far.guard/g": `{"size":1}`},
		{"site/far.net/n": `{"cidr":"10.0.0.0/24","size":1}`, "site/far.guard/g": `{"size":1}`, "site/far.host/h": `{"net":"n"}`},
		{"site/far.net/n": `{"cidr":"10.0.0.0/24","size":3}`},
		{"site/far.net/n": `{"cidr":"10.0.0.0/24","size":3}`, "site/far.guard/g": `{"size":1}`, "site/far.net/other": `{"cidr":"10.0.1.0/24"}`},
		{"site/far.net/n": `{"external": true}`, "site/far.guard/g": `{"size":1}`},
		{"site/far.net/n": `{"cidr":"10.0.0.0/24","size":1,"lifecycle":{"protect":true}}`, "site/far.guard/g": `{"size":1}`},
		{"site/far.guard/g": `{"size":1}`, "n1/near.bridge/b": `{"size":1}`},
		{"site/far.guard/g": `{"size":1}`},
	}
	edit := func(ref string, change func(*providers.Thing)) func(*testing.T, *enginetest.Site) {
		return func(t *testing.T, s *enginetest.Site) {
			r, _ := schema.ParseRef(ref)
			id := plan.ExternalID(enginetest.SiteID, providers.Traits{}, r, 1, nil)
			thing := thingOf(t, s, r.Scope, r.Kind, id)
			thing.Spec = thing.Spec.Clone()
			var err error
			if change == nil {
				err = s.World.Remove(r.Scope, r.Kind, id)
			} else {
				change(&thing)
				err = s.World.Put(r.Scope, r.Kind, thing)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	apply := func(docs ...map[string]string) func(*testing.T, *enginetest.Site) {
		return func(t *testing.T, s *enginetest.Site) {
			for _, d := range docs {
				s.Converge(t, s.Document(t, d))
			}
		}
	}
	taken := edit("site/far.net/n", func(t *providers.Thing) { t.Mark.Site = "22222222-2222-4222-8222-222222222222" })
	handed := []map[string]string{docs[0], docs[6]}
	nothing := func(*testing.T, *enginetest.Site) {}
	labelled := edit("site/far.net/n", func(t *providers.Thing) { t.Spec["labels"] = map[string]any{"env": "mine"} })
	resized := edit("site/far.net/n", func(t *providers.Thing) { t.Spec["size"] = int64(7) })
	for name, c := range map[string]struct {
		done  []map[string]string // the last of these is undone
		since func(*testing.T, *enginetest.Site)
		says  string // empty: it is undone; RUN: the newest run
	}{
		"changed by a later run, undoing the change":   {docs[:2], apply(docs[2]), "has changed it since"},
		"changed by a later run, undoing the creation": {docs[:1], apply(docs[1]), "has changed it since"},
		"ignored by a later run": {docs[:2], apply(map[string]string{
			"site/far.net/n": `{"cidr":"10.0.0.0/24","size":2,"lifecycle":{"ignore":["labels"]}}`, "site/far.guard/g": `{"size":1}`}), "has changed it since"},
		"removed by a later run":                  {docs[:1], apply(docs[4]), "has changed it since"},
		"changed there and back":                  {docs[:1], apply(docs[1], docs[0]), ""},
		"a later run that changed something else": {docs[:3], apply(docs[5]), ""},
		"referred to by what a later run made":    {docs[:1], apply(docs[3]), "site/far.host/h, left by run RUN, refers to it"},
		"referred to by a stranger's thing": {docs[:1], func(t *testing.T, s *enginetest.Site) {
			rec, err := s.Store.Record(ctx, schema.Ref{Scope: "site", Kind: "far.net", Name: "n"})
			if err != nil {
				t.Fatal(err)
			}
			theirs := providers.Thing{ID: "theirs", Name: "theirs", Spec: schema.Object{"net": rec.ID}, Phase: providers.Ready}
			if err := s.World.Put("site", "far.host", theirs); err != nil {
				t.Fatal(err)
			}
		}, "the unmanaged far.host theirs (id theirs) refers to it"},
		"changed by hand, undoing the change": {docs[:2], edit("site/far.net/n", func(t *providers.Thing) { t.Spec["size"] = int64(7) }), "another client has changed size since"},
		"changed by hand, undoing the creation": {docs[:1], edit("site/far.net/n", func(t *providers.Thing) { t.Spec["size"] = int64(7) }),
			"another client has changed size since"},
		"changed by hand where the document states nothing": {docs[:1], edit("site/far.net/n", func(t *providers.Thing) {
			t.Spec["labels"] = map[string]any{"env": "mine"}
		}), "another client has changed labels.env since"},
		"deleted by hand, undoing the change":            {docs[:2], edit("site/far.net/n", nil), "it is gone"},
		"deleted by hand, undoing the creation":          {docs[:1], edit("site/far.net/n", nil), ""},
		"taken by another site, undoing the creation":    {docs[:1], taken, "marked as site/far.net/n of site 22222222"},
		"taken by another site, undoing the change":      {docs[:2], taken, "marked as site/far.net/n of site 22222222"},
		"taken by another site, undoing that it is left": {handed, taken, "marked as site/far.net/n of site 22222222"},
		"taken by another site, undoing what is kept in mind": {
			[]map[string]string{docs[0], docs[7]}, taken, "marked as site/far.net/n of site 22222222"},
		"left to others":               {handed, nothing, ""},
		"left to others, who change":   {handed, resized, "another client has changed size since"},
		"left to others, who add":      {handed, labelled, "another client has changed labels.env since"},
		"left to others, who delete":   {handed, edit("site/far.net/n", nil), "it is gone"},
		"kept in mind, and gone since": {[]map[string]string{docs[0], docs[7]}, edit("site/far.net/n", nil), "it is gone"},
		"made again by another": {docs[8:], func(t *testing.T, s *enginetest.Site) {
			if err := s.World.Put("n1", "near.bridge", providers.Thing{ID: "b", Name: "b", Spec: schema.Object{}, Phase: providers.Ready}); err != nil {
				t.Fatal(err)
			}
		}, "an unmanaged near.bridge with its id (b) exists again"},
		"recorded under another name": {docs[:1], func(t *testing.T, s *enginetest.Site) {
			rec, err := s.Store.Record(ctx, theNet)
			if err != nil {
				t.Fatal(err)
			}
			forget := s.Store.ForgetOp(rec.Ref)
			rec.Move(schema.Ref{Scope: "site", Kind: "far.net", Name: "renamed"})
			if _, err := s.Store.Commit(ctx, nil, []state.Op{forget, s.Store.RecordOp(rec)}); err != nil {
				t.Fatal(err)
			}
		}, "it is now recorded as site/far.net/renamed: rename it back, or write a document"},
		"recorded anew": {docs[:1], func(t *testing.T, s *enginetest.Site) {
			rec, err := s.Store.Record(ctx, theNet)
			if err != nil {
				t.Fatal(err)
			}
			rec.Run, rec.Spec = "", schema.Object{}
			if _, err := s.Store.Commit(ctx, nil, []state.Op{s.Store.RecordOp(rec)}); err != nil {
				t.Fatal(err)
			}
		}, "its record has since been rebuilt from its mark alone: write a document"},
		"taken out of the records": {docs[:1], func(t *testing.T, s *enginetest.Site) {
			forget := s.Store.ForgetOp(schema.Ref{Scope: "site", Kind: "far.net", Name: "n"})
			if _, err := s.Store.Commit(ctx, nil, []state.Op{forget}); err != nil {
				t.Fatal(err)
			}
		}, "it is no longer recorded"},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			apply(c.done...)(t, s)
			runs, err := s.Store.Runs(ctx)
			if err != nil {
				t.Fatal(err)
			}
			c.since(t, s)
			newest, err := s.Store.Runs(ctx)
			if err != nil {
				t.Fatal(err)
			}
			says := strings.ReplaceAll(c.says, "RUN", newest[0].ID)
			before := s.World.Dump()
			e := s.Engine(nil)
			defer e.Close()
			var refused *engine.RefusedError
			_, looking := e.Undoing(ctx, runs[0].ID, 0)
			if s.World.Dump() != before {
				t.Error("looking changed the world")
			}
			res, undoing := e.Rollback(ctx, runs[0].ID, engine.ApplyOptions{})
			if c.says == "" {
				if looking != nil || undoing != nil || res.Run.Status != state.RunReverted {
					t.Errorf("looking: %v; undoing: %s, %v", looking, res.Run.Status, undoing)
				}
				return
			}
			for op, err := range map[string]error{"looking": looking, "undoing": undoing} {
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v", op, err)
				}
			}
			if s.World.Dump() != before {
				t.Error("the world was changed")
			}
		})
	}
}

// What undoing one resource costs does not grow with the number of those that are undone, nor with what refers to what.
func TestUndoingIsLinear(t *testing.T) {
	per := func(n int) float64 {
		s, doc := enginetest.New(), map[string]string{}
		for i := range n {
			doc[fmt.Sprintf("site/far.net/n%05d", i)] = `{}`
			doc[fmt.Sprintf("site/far.subnet/s%05d", i)] = fmt.Sprintf(`{"net":"n%05d"}`, i)
		}
		s.Converge(t, s.Document(t, doc))
		e := s.Engine(nil)
		defer e.Close()
		runs, err := s.Store.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := e.Undoing(t.Context(), runs[0].ID, 0)
		runtime.ReadMemStats(&after)
		if err != nil || len(p.Steps) != 2*n || len(p.Refusals) > 0 {
			t.Fatalf("%d steps, %v: %v", len(p.Steps), p.Refusals, err)
		}
		return float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	}
	per(10) // for what is created once
	if few, many := per(50), per(500); many > 1.2*few {
		t.Errorf("one of 500 costs %.0f bytes, of 50 %.0f", many, few)
	}
}
