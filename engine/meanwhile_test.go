package engine_test

import (
	"errors"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Between a step and its undoing another client changes the thing. Its change of what the step had changed is not overwritten; its
// other changes stay, whether or not the rest is undone. Either way the run does not claim that all is as before.
func TestUndoingBesideOthers(t *testing.T) {
	const before, after = `{"cidr":"10.0.0.0/24","size":1,"labels":{"env":"prod"}}`, `{"cidr":"10.0.0.0/24","size":2,"labels":{"env":"test"}}`
	labels := func(pairs ...string) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	spec := func(size int64, labels map[string]any) schema.Object {
		return schema.Object{"cidr": "10.0.0.0/24", "size": size, "labels": labels}
	}
	for name, c := range map[string]struct {
		after string
		edit  func(schema.Object)
		says  string // about the difference; empty: all is as before
		left  schema.Object
	}{
		"nobody": {after, func(schema.Object) {}, "", spec(1, labels("env", "prod"))},
		"a value that the step changed": {after, func(o schema.Object) { o["size"] = int64(7) },
			"another client changed size after the run did", spec(7, labels("env", "test"))},
		"a key that the step changed": {after, func(o schema.Object) { o["labels"] = labels("env", "mine") },
			"another client changed labels.env after the run did", spec(2, labels("env", "mine"))},
		"a key that the step changed, taken away": {after, func(o schema.Object) { o["labels"] = labels("of", "others") },
			"another client changed labels.env after the run did", spec(2, labels("of", "others"))},
		"what the step took away, made again": {`{"cidr":"10.0.0.0/24","labels":{"env":"test"}}`, func(o schema.Object) { o["size"] = int64(7) },
			"another client changed size after the run did", spec(7, labels("env", "test"))},
		"back to what it was":        {after, func(o schema.Object) { o["size"], o["labels"] = int64(1), labels("env", "prod") }, "", spec(1, labels("env", "prod"))},
		"one of two back":            {after, func(o schema.Object) { o["size"] = int64(1) }, "", spec(1, labels("env", "prod"))},
		"a key beside":               {after, func(o schema.Object) { o["labels"] = labels("env", "test", "of", "others") }, "labels.of", spec(1, labels("env", "prod", "of", "others"))},
		"a field beside":             {`{"cidr":"10.0.0.0/24","size":2,"labels":{"env":"prod"}}`, func(o schema.Object) { o["labels"] = labels("env", "mine") }, "labels.env", spec(1, labels("env", "mine"))},
		"a key, where none is there": {`{"cidr":"10.0.0.0/24","size":1}`, func(o schema.Object) { o["labels"] = labels("of", "others") }, "labels.of", spec(1, labels("env", "prod", "of", "others"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			s.Converge(t, s.Document(t, map[string]string{theNet.String(): before}))
			doc := s.Document(t, map[string]string{theNet.String(): c.after, "site/far.guard/g": `{"size":1}`})
			doc.Resources[0].After = []schema.Ref{theNet}
			id := plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil)
			var was schema.Object // as the step left it
			e := s.Engine(func(o *engine.Options) {
				o.Emit = func(ev event.Event) {
					if done, ok := ev.(event.StepDone); ok && !done.Undo && done.Step.Ref == theNet {
						thing := thingOf(t, s, theNet.Scope, theNet.Kind, id)
						was, thing.Spec = thing.Spec, thing.Spec.Clone()
						c.edit(thing.Spec)
						if err := s.World.Put(theNet.Scope, theNet.Kind, thing); err != nil {
							t.Error(err)
						}
					}
				}
			})
			defer e.Close()
			p := s.Plan(t, doc, plan.Options{})
			if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.guard/g", Class: providers.Invalid}); err != nil {
				t.Fatal(err)
			}
			res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if have := thingOf(t, s, theNet.Scope, theNet.Kind, id).Spec; !have.Equal(c.left) {
				t.Errorf("left as %v, want %v", have, c.left)
			}
			switch {
			case c.says == "":
				if res.Run.Status != state.RunReverted {
					t.Errorf("ended %s: %v", res.Run.Status, res.Differences)
				}
			case res.Run.Status != state.RunPartial || len(res.Differences) != 1 || !strings.Contains(res.Differences[0].Detail, c.says):
				t.Errorf("ended %s: %v, want partial with %q", res.Run.Status, res.Differences, c.says)
			case strings.HasPrefix(c.says, "another client changed"): // a rollback has the same result, and says so; what is taken back can be undone
				refused := new(engine.RefusedError)
				if _, err := e.Rollback(t.Context(), res.Run.ID, engine.ApplyOptions{}); !errors.As(err, &refused) || !strings.Contains(refused.Error(), c.says) {
					t.Errorf("a rollback: %v, want a refusal with %q", err, c.says)
				}
				thing := thingOf(t, s, theNet.Scope, theNet.Kind, id)
				thing.Spec = was
				if err := s.World.Put(theNet.Scope, theNet.Kind, thing); err != nil {
					t.Fatal(err)
				}
				if res, err := e.Resume(t.Context(), res.Run.ID, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
					t.Errorf("taken back: %s %v, want reverted", res.Run.Status, err)
				}
			}
		})
	}
}
