package engine_test

import (
	"errors"
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

// What a run that ended partial, or is open, left is continued, or undone, only while nothing has happened to it since.
func TestUnfinishedRunOverWhatHappenedSince(t *testing.T) {
	type doc = map[string]string
	const a, b, keep = "site/far.net/a", "site/far.host/b", "site/far.guard/keep"
	one := doc{keep: `{"size":1}`}
	made := doc{keep: `{"size":2}`, a: `{"cidr":"10.0.0.0/24"}`, b: `{"net":"a"}`}
	protected := doc{keep: `{"size":1}`, a: `{"cidr":"10.0.0.0/24","lifecycle":{"protect":true,"on_remove":"refuse"}}`}
	invalid := func(op, ref string, times int) fake.Fault {
		return fake.Fault{Op: op, Ref: ref, Class: providers.Invalid, Times: times}
	}
	undone := []fake.Fault{invalid("create", b, 1), invalid("delete", a, 1)} // of b, and a stays
	apply1 := func(d doc) func(*testing.T, *enginetest.Site) {
		return func(t *testing.T, s *enginetest.Site) { s.Converge(t, s.Document(t, d)) }
	}
	released := func(then func(*testing.T, *enginetest.Site)) func(*testing.T, *enginetest.Site) {
		return func(t *testing.T, s *enginetest.Site) { s.Release(t); then(t, s) }
	}
	resized := func(name string) func(*testing.T, *enginetest.Site) {
		return func(t *testing.T, s *enginetest.Site) {
			ref, err := schema.ParseRef(name)
			if err != nil {
				t.Fatal(err)
			}
			th := thingOf(t, s, ref.Scope, ref.Kind, plan.ExternalID(enginetest.SiteID, providers.Traits{}, ref, 1, nil))
			th.Spec = th.Spec.Clone()
			th.Spec["size"] = int64(7)
			if err := s.World.Put(ref.Scope, ref.Kind, th); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothing := func(*testing.T, *enginetest.Site) {}
	for name, c := range map[string]struct {
		first, last      doc
		faults           []fake.Fault
		policy           apply.OnFailure
		end              state.RunStatus
		since            func(*testing.T, *enginetest.Site)
		resume, rollback string // their error; empty: they are carried out
	}{
		"partial, its undo failed, nothing since":          {one, made, undone, "", state.RunPartial, nothing, "", ""},
		"the same, let go":                                 {one, made, undone, "", state.RunPartial, released(nothing), "", ""},
		"the same, and taken over by a later run":          {one, made, undone, "", state.RunPartial, released(apply1(protected)), "has changed it since", "has changed it since"},
		"the same, and a later run that wants it as it is": {one, made, undone, "", state.RunPartial, released(apply1(made)), "has been carried out since", "refers to it"},
		"partial, a delete failed, and it is declared again": {doc{keep: `{"size":1}`, a: `{"cidr":"10.0.0.0/24"}`}, one, []fake.Fault{invalid("delete", a, 1)}, apply.Continue,
			state.RunPartial, released(apply1(protected)), "has changed it since", ""},
		"the same, as before": {doc{keep: `{"size":1}`, a: `{"cidr":"10.0.0.0/24"}`}, one, []fake.Fault{invalid("delete", a, 1)}, apply.Continue,
			state.RunPartial, released(apply1(doc{keep: `{"size":5}`, a: `{"cidr":"10.0.0.0/24"}`})), "since", ""},
		"open, what it did changed by hand":    {one, made, undone[:1], apply.Stop, state.RunOpen, resized(keep), "", "another client has changed size since"},
		"open, what it made changed by hand":   {one, made, undone[:1], apply.Stop, state.RunOpen, resized(a), "", "another client has changed size since"},
		"partial, what it did changed by hand": {one, made, undone[:1], apply.Continue, state.RunPartial, resized(keep), "", "another client has changed size since"},
	} {
		for _, resume := range []bool{true, false} {
			op := map[bool]string{true: "resume", false: "rollback"}[resume]
			t.Run(name+"/"+op, func(t *testing.T) {
				s, ctx := enginetest.New(), t.Context()
				s.Converge(t, s.Document(t, c.first))
				for _, f := range c.faults {
					if err := s.World.Fail(f); err != nil {
						t.Fatal(err)
					}
				}
				p := s.Plan(t, s.Document(t, c.last), plan.Options{})
				res, err := s.Apply(p, engine.ApplyOptions{Approve: p.Approval(), OnFailure: c.policy})
				if err != nil || res.Run.Status != c.end {
					t.Fatal(res.Run.Status, res.Run.Message, err)
				}
				run := res.Run.ID
				c.since(t, s)
				before := s.World.Dump()
				e := s.Engine(nil)
				defer e.Close()
				says := c.rollback
				if resume {
					says = c.resume
					_, err = e.Resume(ctx, run, engine.ApplyOptions{})
				} else {
					_, err = e.Rollback(ctx, run, engine.ApplyOptions{})
					if _, lerr := e.Undoing(ctx, run, 0); says != "" && (lerr == nil || err == nil || lerr.Error() != err.Error()) {
						t.Errorf("the preview says %v, the rollback %v", lerr, err)
					}
				}
				var refused *engine.RefusedError
				switch {
				case says == "" && err != nil:
					t.Errorf("refused: %v", err)
				case says == "":
				case !errors.As(err, &refused) || !strings.Contains(err.Error(), says):
					t.Errorf("%v, want that %s", err, says)
				case s.World.Dump() != before:
					t.Errorf("the world was changed:\n%s\nto\n%s", before, s.World.Dump())
				}
			})
		}
	}
}
