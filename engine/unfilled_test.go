package engine_test

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A mute far side omits some fields of some things of a kind.
type mute struct {
	providers.Kind
	fields []string
	of     func(name string) bool
}

func (m mute) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(m.Get).List(ctx)
}

func (m mute) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	things, err := providertest.Of(m.Kind)(ctx, ids)
	for i, t := range things {
		if m.of(t.Name) {
			things[i].Spec = maps.Clone(t.Spec)
			for _, f := range m.fields {
				delete(things[i].Spec, f)
			}
			things[i].Unfilled = m.fields
		}
	}
	return things, err
}

func (m mute) engine(s *enginetest.Site, kind string) *engine.Engine {
	return s.Engine(func(o *engine.Options) {
		open := o.Open
		o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			set, err := open(ctx, site, needs)
			set.Wrap(func(_ string, k providers.Served) providers.Kind {
				if k.Name != kind {
					return k.Kind
				}
				return mute{k.Kind, m.fields, m.of}
			})
			return set, err
		}
	})
}

// What a far side omits is unknown: no change, no replacement, no drift, and what is changed in the document is sent.
func TestUnfilledIsUnknown(t *testing.T) {
	s := enginetest.New()
	doc := s.Document(t, base)
	s.Converge(t, doc)
	all := func(string) bool { return true }
	e := mute{fields: []string{"bridge", "tag"}, of: all}.engine(s, "near.port")
	defer e.Close()
	p, err := e.Plan(t.Context(), doc, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Steps) > 0 || len(p.Drift) > 0 || len(p.Unsupported) > 0 {
		t.Errorf("steps %v, drift %v, unsupported %v", p.Steps, p.Drift, p.Unsupported)
	}
	r, err := e.Drift(t.Context(), doc.Site)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Drifted) > 0 {
		t.Errorf("drift: %+v", r.Drifted)
	}
	moved := s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":12}`}))
	if p, err = e.Plan(t.Context(), moved, plan.Options{}); err != nil {
		t.Fatal(err)
	}
	if len(p.Steps) != 1 || p.Steps[0].Action != plan.Update {
		t.Fatalf("a change of the document makes the steps %v", p.Steps)
	}
	if r, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()}); err != nil || r.Run.Status != state.RunApplied {
		t.Fatalf("%s %s: %v", r.Run.Status, r.Run.Message, err)
	}
	if port := thingOf(t, s, "n1", "near.port", "p0"); port.Spec["tag"] != int64(12) {
		t.Errorf("the tag is %v", port.Spec["tag"])
	}
}

// A field that no look ever shows, such as what a volume was copied from, is as it was recorded: another value in the document replaces the
// thing, and one that was not recorded is taken to be as the document says. One that stays when it leaves the document replaces nothing.
func TestNeverFilled(t *testing.T) {
	all := func(string) bool { return true }
	const bridge, second = "n1/near.bridge/br1", `{"mode":"secure","size":1}`
	port := func(spec string) map[string]string {
		return with(map[string]string{bridge: second, "n1/near.port/p0": spec})
	}
	for name, c := range map[string]struct {
		before, after string
		kept          bool
		action        plan.Action // of the first step; empty: there is none
	}{
		"the same":                   {before: `{"bridge":"br0","tag":10}`, after: `{"bridge":"br0","tag":10}`},
		"another":                    {before: `{"bridge":"br0","tag":10}`, after: `{"bridge":"br1","tag":10}`, action: plan.Delete},
		"stated now":                 {before: `{"tag":10}`, after: `{"bridge":"br1","tag":10}`, action: plan.Adopt},
		"no longer stated":           {before: `{"bridge":"br0","tag":10}`, after: `{"tag":10}`, action: plan.Delete},
		"no longer stated, and kept": {before: `{"bridge":"br0","tag":10}`, after: `{"tag":10}`, kept: true, action: plan.Adopt},
		"adopted":                    {after: `{"bridge":"br1","tag":10,"lifecycle":{"adopt":"match"}}`, action: plan.Update},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			s.Kinds["near.port"].Field("bridge").Kept = c.kept
			e := mute{fields: []string{"bridge"}, of: all}.engine(s, "near.port")
			defer e.Close()
			propose := func(doc map[string]string) (*schema.Document, *plan.Plan) {
				d := s.Document(t, doc)
				p, err := e.Plan(t.Context(), d, plan.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return d, p
			}
			apply := func(doc map[string]string) {
				d, p := propose(doc)
				if r, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()}); err != nil || r.Run.Status != state.RunApplied {
					t.Fatalf("%s %s: %v", r.Run.Status, r.Run.Message, err)
				}
				again, err := e.Plan(t.Context(), d, plan.Options{})
				if err != nil || len(again.Steps)+len(again.Drift) > 0 {
					t.Errorf("afterwards: steps %v, drift %v, %v", again.Steps, again.Drift, err)
				}
			}
			if c.before == "" {
				if err := s.World.Put("n1", "near.port", providers.Thing{ID: "p0", Name: "p0", Spec: schema.Object{"bridge": "br0", "tag": int64(10)}, Phase: providers.Ready}); err != nil {
					t.Fatal(err)
				}
				apply(with(map[string]string{bridge: second, "n1/near.port/p0": ""}))
			} else {
				apply(port(c.before))
			}
			_, p := propose(port(c.after))
			var action plan.Action
			if len(p.Steps) > 0 {
				action = p.Steps[0].Action
			}
			if action != c.action {
				t.Errorf("the steps are %v", p.Steps)
			}
			if c.before != "" { // the far side of this test would notice what an adopted thing was made with
				apply(port(c.after))
			}
		})
	}
}

// A kind whose required field is omitted in every existing thing cannot be managed; where some things have it, those that lack it
// are unknown only in that field.
func TestRequiredFieldThatNobodyTells(t *testing.T) {
	s := enginetest.New()
	doc := s.Document(t, base)
	s.Converge(t, doc)
	const at, field = "far.net", "cidr"
	s.Kinds[at].Field(field).Required = true
	count := 0
	for _, c := range []struct {
		of  func(string) bool
		bad bool
	}{
		{func(string) bool { return true }, true},
		{func(string) bool { count++; return count%2 == 0 }, false},
	} {
		e := mute{fields: []string{field}, of: c.of}.engine(s, at)
		p, err := e.Plan(t.Context(), doc, plan.Options{})
		e.Close()
		if err != nil {
			t.Fatal(err)
		}
		// Things of it are recorded: this may as well be a wrong server.
		said := slices.ContainsFunc(p.Unknown, func(u plan.Unknown) bool { return u.Kind == at && strings.Contains(u.Error, "does not report cidr") })
		if said != c.bad || len(p.Steps) > 0 {
			t.Errorf("%s without %s: unknown %v, steps %v", at, field, p.Unknown, p.Steps)
		}
	}
}
