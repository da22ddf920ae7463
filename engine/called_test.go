package engine_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A call or its reply is lost, and another client changes the thing before the call is made again, by the same process or by the
// next one. That change is not overwritten, neither forward nor by undoing.
func TestCalledAgainBesideOthers(t *testing.T) {
	const before, after = `{"cidr":"10.0.0.0/24","size":1,"labels":{"env":"prod"}}`, `{"cidr":"10.0.0.0/24","size":2,"labels":{"env":"test"}}`
	edits := map[string]struct {
		edit func(schema.Object)
		says string
	}{
		"a value": {func(o schema.Object) { o["size"] = int64(7) }, "size"},
		"a key":   {func(o schema.Object) { o["labels"] = map[string]any{"env": "mine"} }, "labels.env"},
		"a key beside": {func(o schema.Object) {
			o["labels"] = map[string]any{"env": o["labels"].(map[string]any)["env"], "of": "others"}
		}, "labels.of"},
	}
	for _, undo := range []bool{false, true} {
		for _, effect := range []fake.Effect{fake.EffectBefore, fake.EffectAfter} {
			for _, dies := range []bool{false, true} {
				for name, c := range edits {
					t.Run(fmt.Sprintf("undo %t/effect %s/dies %t/%s", undo, effect, dies, name), func(t *testing.T) {
						s := enginetest.New()
						s.Converge(t, s.Document(t, map[string]string{theNet.String(): before}))
						doc := s.Document(t, map[string]string{theNet.String(): after, "site/far.guard/g": `{"size":1}`})
						doc.Resources[0].After = []schema.Ref{theNet}
						p := s.Plan(t, doc, plan.Options{})
						id := plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil)
						e, kv, died := dying(s, 0, false)
						defer e.Close()
						fail := func(f fake.Fault) {
							if err := s.World.Fail(f); err != nil {
								t.Error(err)
							}
						}
						fail(fake.Fault{Op: "create", Ref: "site/far.guard/g", Class: providers.Invalid})
						calls, lost := 0, map[bool]int{false: 1, true: 2}[undo]
						s.World.Hook = func(op string, at fake.Moment, call providers.Call) {
							if op != "update" {
								return
							}
							if at == fake.Before {
								calls++
							}
							switch {
							case calls != lost:
							case at == fake.Before:
								fail(fake.Fault{Op: "update", Ref: theNet.String(), Class: providers.Unknown, Effect: effect, Times: 1})
							default:
								thing := thingOf(t, s, theNet.Scope, theNet.Kind, id)
								thing.Spec = thing.Spec.Clone()
								c.edit(thing.Spec)
								if err := s.World.Put(theNet.Scope, theNet.Kind, thing); err != nil {
									t.Error(err)
								}
								died.Store(dies)
							}
						}
						res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
						if dies {
							kv.Lapse()
							runs, _ := s.Store.Runs(t.Context())
							e := s.Engine(nil)
							defer e.Close()
							res, err = e.Resume(t.Context(), runs[0].ID, engine.ApplyOptions{})
						}
						if err != nil {
							t.Fatal(err)
						}
						have := thingOf(t, s, theNet.Scope, theNet.Kind, id).Spec
						theirs := have.Clone()
						if c.edit(theirs); !have.Equal(theirs) {
							t.Errorf("left as %v: %s is written over", have, c.says)
						}
						if res.Run.Status != state.RunPartial || len(res.Differences) != 1 || !strings.Contains(res.Differences[0].Detail, c.says) {
							t.Errorf("ended %s: %v, want partial with %s", res.Run.Status, res.Differences, c.says)
						}
					})
				}
			}
		}
	}
}

// Between a thing's creation and its removal by an undo, another client changes it, takes it over, or renames it. It is then not
// removed, nor is that change overwritten when it is unknown whether the creation was completed.
func TestMadeBesideOthers(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*providers.Thing)
		says string
	}{
		"a value":      {func(o *providers.Thing) { o.Spec["size"] = int64(7) }, "size"},
		"a key beside": {func(o *providers.Thing) { o.Spec["labels"] = map[string]any{"env": "test", "of": "others"} }, "labels.of"},
		"a field more": {func(o *providers.Thing) { o.Spec["labels"] = map[string]any{"of": "others"} }, "labels.of"},
		"its mark":     {func(o *providers.Thing) { o.Mark = providers.Mark{} }, "its ownership mark"},
		"its name":     {func(o *providers.Thing) { o.Name = "theirs" }, "name"},
	} {
		for _, lost := range []bool{false, true} {
			if lost && name != "a value" { // what others added to a thing just created does not prevent its use
				continue
			}
			for _, dies := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/lost %t/dies %t", name, lost, dies), func(t *testing.T) {
					s := enginetest.New()
					spec := `{"cidr":"10.0.0.0/24","size":2,"labels":{"env":"test"}}`
					if name == "a field more" {
						spec = `{"cidr":"10.0.0.0/24","size":2}`
					}
					doc := s.Document(t, map[string]string{theNet.String(): spec, "site/far.guard/g": `{"size":1}`})
					doc.Resources[0].After = []schema.Ref{theNet}
					p := s.Plan(t, doc, plan.Options{})
					e, kv, died := dying(s, 0, false)
					defer e.Close()
					faults := []fake.Fault{{Op: "create", Ref: "site/far.guard/g", Class: providers.Invalid, Times: -1}}
					if lost {
						faults = append(faults, fake.Fault{Op: "create", Ref: theNet.String(), Class: providers.Unknown, Effect: fake.EffectAfter})
					}
					for _, f := range faults {
						if err := s.World.Fail(f); err != nil {
							t.Fatal(err)
						}
					}
					id := plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil)
					when := map[bool]string{true: theNet.String(), false: "site/far.guard/g"}[lost]
					s.World.Hook = func(op string, at fake.Moment, call providers.Call) {
						if op != "create" || at != fake.After || call.Ref.String() != when || died.Load() {
							return
						}
						thing := thingOf(t, s, theNet.Scope, theNet.Kind, id)
						thing.Spec = thing.Spec.Clone()
						c.edit(&thing)
						if err := s.World.Put(theNet.Scope, theNet.Kind, thing); err != nil {
							t.Error(err)
						}
						died.Store(dies)
					}
					res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
					if dies {
						kv.Lapse()
						runs, _ := s.Store.Runs(t.Context())
						e := s.Engine(nil)
						defer e.Close()
						res, err = e.Resume(t.Context(), runs[0].ID, engine.ApplyOptions{})
					}
					if err != nil {
						t.Fatal(err)
					}
					have := thingOf(t, s, theNet.Scope, theNet.Kind, id)
					theirs := have
					theirs.Spec = have.Spec.Clone()
					if c.edit(&theirs); !reflect.DeepEqual(have, theirs) {
						t.Errorf("left as %v: %s is written over", have, c.says)
					}
					if res.Run.Status != state.RunPartial || len(res.Differences) != 1 || !strings.Contains(res.Differences[0].Detail, c.says) {
						t.Errorf("ended %s: %v, want partial with %s", res.Run.Status, res.Differences, c.says)
					}
				})
			}
		}
	}
}

// A call that deletes is lost, and another client changes the thing before the call is made again: it is then not deleted.
func TestDeletedBesideOthers(t *testing.T) {
	for name, edit := range map[string]func(schema.Object){
		"size":      func(o schema.Object) { o["size"] = int64(7) },
		"labels.of": func(o schema.Object) { o["labels"] = map[string]any{"env": "prod", "of": "others"} },
		"":          func(schema.Object) {},
	} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/dies %t", name, dies), func(t *testing.T) {
				s := enginetest.New()
				s.Converge(t, s.Document(t, map[string]string{theNet.String(): `{"cidr":"10.0.0.0/24","size":1,"labels":{"env":"prod"}}`, "site/far.guard/g": `{}`}))
				id := plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil)
				p := s.Plan(t, s.Document(t, map[string]string{"site/far.guard/g": `{}`}), plan.Options{Unlimited: true})
				if err := s.World.Fail(fake.Fault{Op: "delete", Ref: theNet.String(), Class: providers.Unknown, Effect: fake.EffectBefore}); err != nil {
					t.Fatal(err)
				}
				e, kv, died := dying(s, 0, false)
				defer e.Close()
				calls := 0
				s.World.Hook = func(op string, at fake.Moment, call providers.Call) {
					if op != "delete" || at != fake.After {
						return
					}
					if calls++; calls > 1 {
						return
					}
					thing := thingOf(t, s, theNet.Scope, theNet.Kind, id)
					thing.Spec = thing.Spec.Clone()
					edit(thing.Spec)
					if err := s.World.Put(theNet.Scope, theNet.Kind, thing); err != nil {
						t.Error(err)
					}
					died.Store(dies)
				}
				o := engine.ApplyOptions{Approve: p.Approval()}
				res, err := e.Apply(t.Context(), p, o)
				if dies {
					kv.Lapse()
					runs, _ := s.Store.Runs(t.Context())
					e := s.Engine(nil)
					defer e.Close()
					res, err = e.Resume(t.Context(), runs[0].ID, o)
				}
				switch {
				case err != nil:
					t.Fatal(err)
				case name == "":
					if res.Run.Status != state.RunApplied {
						t.Errorf("nobody changed anything, and it ended %s: %v", res.Run.Status, res.Differences)
					}
				case calls > 1:
					t.Errorf("it was deleted after all; ended %s", res.Run.Status)
				case res.Run.Status != state.RunPartial || len(res.Differences) != 1 || !strings.Contains(res.Differences[0].Detail, name):
					t.Errorf("ended %s: %v, want partial with %s", res.Run.Status, res.Differences, name)
				}
			})
		}
	}
}

// An update of rules takes two calls of the far side, and between them each new rule stands beside the old one, under its own key.
// A call that broke off there is made again; what others have made of the rules meanwhile is not overwritten.
func TestCalledAgainHalfway(t *testing.T) {
	guard := schema.Ref{Scope: "site", Kind: "far.guard", Name: "g"}
	rule := func(id, from string) map[string]any { return map[string]any{"id": id, "from": from} }
	for _, undo := range []bool{false, true} {
		for name, c := range map[string]struct {
			there []any
			says  string
		}{
			"both stand":        {[]any{rule("a", "old"), rule("a.next", "new")}, ""},
			"both, undone":      {[]any{rule("a", "new"), rule("a.next", "old")}, ""},
			"another rule":      {[]any{rule("a", "old"), rule("b", "theirs")}, "rules[b]"},
			"another beside it": {[]any{rule("a", "old"), rule("a.next", "new"), rule("b", "theirs")}, "rules[b]"},
			"changed":           {[]any{rule("a", "theirs"), rule("a.next", "new")}, "rules[a].from"},
		} {
			t.Run(fmt.Sprintf("undo %t/%s", undo, name), func(t *testing.T) {
				s := enginetest.New()
				of := schema.Field{Type: schema.Struct, Fields: []schema.Field{{Name: "from", Type: schema.String}, {Name: "id", Type: schema.String}}}
				k := s.Kinds[guard.Kind]
				k.Fields = slices.Insert(k.Fields, 1, schema.Field{Name: "rules", Type: schema.List, Key: "id", Elem: &of})
				traits := fake.SiteTraits()
				traits.Overlap = []string{"rules"}
				s.World.Traits = map[string]providers.Traits{guard.Kind: traits}
				s.Converge(t, s.Document(t, map[string]string{guard.String(): `{"rules":[{"id":"a","from":"old"}]}`}))
				doc := s.Document(t, map[string]string{guard.String(): `{"rules":[{"id":"a","from":"new"}]}`, theNet.String(): `{"cidr":"10.0.0.0/24"}`})
				for i := range doc.Resources {
					if doc.Resources[i].Ref == theNet {
						doc.Resources[i].After = []schema.Ref{guard}
					}
				}
				p := s.Plan(t, doc, plan.Options{})
				id := plan.ExternalID(enginetest.SiteID, traits, guard, 1, nil)
				fail := func(f fake.Fault) {
					if err := s.World.Fail(f); err != nil {
						t.Error(err)
					}
				}
				if undo {
					fail(fake.Fault{Op: "create", Ref: theNet.String(), Class: providers.Invalid})
				}
				calls, lost := 0, map[bool]int{false: 1, true: 2}[undo]
				s.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
					switch {
					case op != "update":
					case at == fake.Before:
						if calls++; calls == lost {
							fail(fake.Fault{Op: "update", Ref: guard.String(), Class: providers.Unknown, Effect: fake.EffectBefore, Times: 1})
						}
					case calls == lost:
						thing := thingOf(t, s, guard.Scope, guard.Kind, id)
						thing.Spec = schema.Object{"rules": c.there}
						if err := s.World.Put(guard.Scope, guard.Kind, thing); err != nil {
							t.Error(err)
						}
					}
				}
				res, err := s.Apply(p, engine.ApplyOptions{})
				if err != nil {
					t.Fatal(err)
				}
				have := thingOf(t, s, guard.Scope, guard.Kind, id).Spec
				want, end := schema.Object{"rules": []any{rule("a", map[bool]string{false: "new", true: "old"}[undo])}}, map[bool]state.RunStatus{false: state.RunApplied, true: state.RunReverted}[undo]
				if c.says != "" {
					want, end = schema.Object{"rules": c.there}, state.RunPartial
				}
				if res.Run.Status != end || !have.Equal(want) {
					t.Errorf("ended %s with %v, want %s with %v: %s", res.Run.Status, have, end, want, res.Run.Message)
				}
				if c.says != "" && (len(res.Differences) != 1 || !strings.Contains(res.Differences[0].Detail, c.says)) {
					t.Errorf("it says %v, want %s", res.Differences, c.says)
				}
			})
		}
	}
}
