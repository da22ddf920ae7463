package engine_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// S1: a delete whose undo creates the same thing again, under the same id, is not forgotten while it may still arrive.
func TestLateDeleteOfWhatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		traits := fake.NodeTraits()
		traits.ID, traits.Delete, traits.UndoDelete, traits.EffectWithin = "", providers.Blind, providers.Exact, gridLate
		s.World.Traits = map[string]providers.Traits{gridHost.Kind: traits, "far.guard": fake.NodeTraits()}
		s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1}`}))
		before := s.World.Dump()
		time.Sleep(time.Second) // so that the next run is the newer one
		if err := s.World.Fail(fake.Fault{Op: "delete", Ref: gridHost.String(), Effect: fake.EffectLate, Delay: fake.Duration(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`}))
		undoneForGood(t, s, before)
	})
}

// undoneForGood undoes the last run, and fails unless the world is as before it when all late effects have come.
func undoneForGood(t *testing.T, s *enginetest.Site, before string) {
	t.Helper()
	e := s.Engine(nil)
	defer e.Close()
	if res, err := e.Rollback(context.Background(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	time.Sleep(gridLate)
	if err := s.World.Land(); err != nil {
		t.Fatal(err)
	}
	if is := s.World.Dump(); is != before {
		t.Errorf("a late call changed what was brought back:\n%s", is)
	}
}

// S1: what was partly created by a call of unknown outcome is neither completed nor undone while the rest may still come. Then
// it is completed by a change, in the same step, unless the far side refuses that.
func TestMadeInPart(t *testing.T) {
	for name, c := range map[string]struct {
		fault *fake.Fault // of the update
		want  state.RunStatus
	}{
		"completed": {nil, state.RunApplied},
		"refused":   {&fake.Fault{Op: "update", Ref: gridHost.String(), Class: providers.Invalid, Effect: fake.EffectBefore}, state.RunReverted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := enginetest.New()
				traits := fake.NodeTraits()
				traits.ID, traits.EffectWithin = "", gridLate
				s.World.Traits = map[string]providers.Traits{gridHost.Kind: traits}
				faults := []fake.Fault{{Op: "create", Ref: gridHost.String(), Class: providers.Unknown, Effect: fake.EffectAfter}}
				if c.fault != nil {
					faults = append(faults, *c.fault)
				}
				for _, f := range faults {
					if err := s.World.Fail(f); err != nil {
						t.Fatal(err)
					}
				}
				var made time.Time
				s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
					switch {
					case op == "create" && at == fake.After:
						made = time.Now()
						th := providers.Thing{ID: c.ID, Name: c.Ref.Name, Mark: c.Mark, Spec: c.Want.Clone()}
						delete(th.Spec, "size")
						if err := s.World.Put(gridHost.Scope, gridHost.Kind, th); err != nil {
							t.Error(err)
						}
					case op != "observe" && at == fake.Before && !made.IsZero() && time.Since(made) < gridLate:
						t.Errorf("%s is called %s after the create", op, time.Since(made))
					}
				}
				doc := s.Document(t, map[string]string{gridHost.String(): `{"size":2}`})
				res, err := s.Apply(s.Plan(t, doc, plan.Options{}), engine.ApplyOptions{})
				if err != nil || res.Run.Status != c.want || made.IsZero() {
					t.Fatal(res.Run.Status, made, err)
				}
				if c.want == state.RunApplied {
					if p := s.Plan(t, doc, plan.Options{}); !p.Empty() {
						t.Errorf("a second plan has %d steps", len(p.Steps))
					}
				}
			})
		})
	}
}

// S1: seeing the requested result of an update does not prove that the call arrived, where the far side brings it about by itself.
func TestBroughtAboutByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		traits := fake.NodeTraits()
		traits.Update, traits.EffectWithin, traits.SelfChanging = providers.Blind, gridLate, []string{"size"}
		s.World.Traits = map[string]providers.Traits{gridHost.Kind: traits, "far.guard": fake.NodeTraits()}
		s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1}`}))
		before := s.World.Dump()
		time.Sleep(time.Second) // so that the next run is the newer one
		if err := s.World.Fail(fake.Fault{Op: "update", Ref: gridHost.String(), Times: 1, Effect: fake.EffectLate, Delay: fake.Duration(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		once := false
		s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
			if op == "update" && at == fake.Before && !once {
				once = true
				if err := s.World.Put(gridHost.Scope, gridHost.Kind, providers.Thing{ID: c.ID, Name: c.Ref.Name, Mark: c.Mark, Spec: c.Want.Clone()}); err != nil {
					t.Error(err)
				}
			}
		}
		s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":2}`}))
		undoneForGood(t, s, before)
	})
}

// What changes by itself, and is not stated, is requested by each try as it is then: how it was when the plan was made is no request.
func TestNotStatedIsNotRequestedAgain(t *testing.T) {
	s := enginetest.New()
	net := schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: "n"}
	traits := fake.NodeTraits()
	traits.Update, traits.SelfChanging = providers.Blind, []string{"size"}
	s.World.Traits = map[string]providers.Traits{net.Kind: traits, "far.guard": fake.NodeTraits()}
	seen := func(size int64, labels map[string]any) {
		served := s.World.Provider("far", net.Scope).Kinds
		k := served[slices.IndexFunc(served, func(k providers.Served) bool { return k.Name == net.Kind })].Kind
		things, err := providers.Collect(k.List(t.Context()))
		if err != nil || len(things) != 1 {
			t.Fatal(things, err)
		}
		th := things[0]
		th.Spec["size"], th.Spec["labels"] = size, labels
		if err := s.World.Put(net.Scope, net.Kind, th); err != nil {
			t.Fatal(err)
		}
	}
	s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`, net.String(): `{"labels":{"a":"1","b":"1"}}`}))
	seen(7, map[string]any{"a": "1", "b": "1"}) // it changes by itself
	doc := s.Document(t, map[string]string{gridKeep: `{}`, net.String(): `{"labels":{"a":"2","b":"2"}}`})
	p := s.Plan(t, doc, plan.Options{})
	if err := s.World.Fail(fake.Fault{Op: "update", Ref: net.String(), Times: 1, Class: providers.Unknown, Effect: fake.EffectBefore}); err != nil {
		t.Fatal(err)
	}
	var requested []any
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		if op != "update" || at != fake.Before {
			return
		}
		if requested = append(requested, c.Want["size"]); len(requested) == 1 {
			seen(8, map[string]any{"a": "2", "b": "1"}) // the first call does a part, and that changes it
		}
	}
	res, err := s.Apply(p, engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res.Run.Status, res.Run.Message, err)
	}
	if want := []any{int64(7), int64(8)}; !slices.Equal(requested, want) {
		t.Errorf("it requests %v, want %v", requested, want)
	}
	s.World.Hook = nil
	// A delete requests nothing.
	s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`, net.String(): `{"cidr":"10.0.0.0/16"}`}))
	s.Converge(t, s.Document(t, map[string]string{gridKeep: `{}`}))
}
