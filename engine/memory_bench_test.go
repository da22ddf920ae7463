package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// large returns a site with n resources, half of them on nodes with 50 each, that is as its document says, and an engine on it whose
// clock is now.
func large(b *testing.B, n int, now *time.Time) (*enginetest.Site, *engine.Engine, *schema.Document) {
	s := enginetest.New()
	said := map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/8"}`}
	needs := []providers.Need{{Scope: schema.ScopeSite, Provider: "far"}}
	for node := range n / 100 {
		scope := fmt.Sprintf("gpu-%04d", node)
		needs = append(needs, providers.Need{Scope: scope, Provider: "near"})
		for i := range 10 {
			said[fmt.Sprintf("%s/near.bridge/br%d", scope, i)] = fmt.Sprintf(`{"mode":"secure","size":%d,"labels":{"env":"prod","team":"blue"}}`, i)
			for j := range 4 {
				said[fmt.Sprintf("%s/near.port/p%d-%d", scope, i, j)] = fmt.Sprintf(`{"bridge":"br%d","tag":%d,"labels":{"env":"prod","team":"blue"}}`, i, j)
			}
		}
		for i := range 50 {
			said[fmt.Sprintf("site/far.host/h%04d-%d", node, i)] = fmt.Sprintf(`{"net":"n","size":%d,"labels":{"env":"prod","team":"blue"}}`, i)
		}
	}
	doc := s.Document(b, said)
	e := s.Engine(func(o *engine.Options) {
		o.Now = func() time.Time { return *now }
		o.Open = func(_ context.Context, _ schema.Site, asked []providers.Need) (*providers.Set, error) {
			var open []*providers.Provider
			for _, n := range asked {
				open = append(open, s.World.Provider(n.Provider, n.Scope))
			}
			return providers.NewSet(open...)
		}
	})
	p, err := e.Plan(b.Context(), doc, plan.Options{})
	if err != nil || len(p.Steps) != len(doc.Resources) {
		b.Fatal(err)
	}
	ids := map[schema.Ref]string{}
	var ops []state.Op
	for i := range p.Steps { // as a run of the plan leaves them
		step := &p.Steps[i]
		ids[step.Ref] = step.ExternalID
		spec := step.After.Clone()
		s.Kinds[step.Ref.Kind].ReplaceRefs(spec, func(kind, name string) string { return ids[s.Kinds.Target(step.Ref.Scope, kind, name)] })
		th := providers.Thing{ID: step.ExternalID, Name: step.Ref.Name, Mark: providers.Mark{Site: enginetest.SiteID, Ref: step.Ref, Incarnation: 1}, Spec: spec, Phase: providers.Ready}
		if err := s.World.Put(step.Ref.Scope, step.Ref.Kind, th); err != nil {
			b.Fatal(err)
		}
		r := *step.Record
		r.Run = "before"
		ops = append(ops, s.Store.RecordOp(r))
	}
	for some := range slices.Chunk(ops, 100) {
		if _, err := s.KV.Commit(b.Context(), nil, some); err != nil {
			b.Fatal(err)
		}
	}
	return s, e, doc
}

// BenchmarkMemory takes a change to its plan: from what a provider reports, and from another document; and looks at everything again
// when nothing has changed.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			now := time.Now()
			s, e, doc := large(b, n, &now)
			defer e.Close()
			m := e.Remember(engine.Remembering{Silent: time.Minute, Sweep: time.Hour})
			look := func(b *testing.B, doc *schema.Document, steps int) {
				err := m.Look(b.Context(), doc)
				if err == nil {
					_, err = m.Drift(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
				p, err := m.Plan(b.Context(), plan.Options{})
				if err != nil || len(p.Steps) != steps {
					b.Fatalf("%v: %s", err, enginetest.Text(p))
				}
			}
			b.Run("at=first", func(b *testing.B) {
				for b.Loop() {
					m = e.Remember(engine.Remembering{Silent: time.Minute, Sweep: time.Hour})
					look(b, doc, 0)
				}
			})
			b.Run("at=event", func(b *testing.B) {
				b.ReportAllocs()
				ref := schema.Ref{Scope: "gpu-0003", Kind: "near.bridge", Name: "br7"}
				spec, _ := s.World.Spec(ref.Scope, ref.Kind, ref.Name)
				put := func(mode string, steps int) {
					spec = spec.Clone()
					spec["mode"] = mode
					th := providers.Thing{ID: ref.Name, Name: ref.Name, Mark: providers.Mark{Site: enginetest.SiteID, Ref: ref, Incarnation: 1}, Spec: spec, Phase: providers.Ready}
					if err := s.World.Put(ref.Scope, ref.Kind, th); err != nil {
						b.Fatal(err)
					}
					m.Changed([]engine.Changed{{Place: ref.Place(), IDs: []string{ref.Name}}})
					look(b, doc, steps)
				}
				for i := 0; b.Loop(); i++ {
					put([]string{"standalone", "secure"}[i%2], 1-i%2)
				}
				put("secure", 0)
			})
			b.Run("at=document", func(b *testing.B) {
				b.ReportAllocs()
				other := *doc
				other.Resources = slices.Clone(doc.Resources)
				r := &other.Resources[len(other.Resources)/2]
				r.Spec = r.Spec.Clone()
				r.Spec["labels"] = map[string]any{"env": "test"}
				for i := 0; b.Loop(); i++ {
					look(b, []*schema.Document{&other, doc}[i%2], 1-i%2)
				}
				look(b, doc, 0)
			})
			b.Run("at=sweep", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(2 * time.Hour)
					look(b, doc, 0)
				}
			})
		})
	}
}
