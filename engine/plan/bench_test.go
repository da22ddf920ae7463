package plan_test

import (
	"fmt"
	"reflect"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// converged returns the inputs of a plan for n resources that are as they should be: a net for every hundred hosts.
func converged(tb testing.TB, n int) plan.Input {
	s := enginetest.New()
	doc := &schema.Document{Site: schema.Site{Name: "bench", ID: enginetest.SiteID}}
	in := plan.Input{
		Kinds: s.Kinds, Document: doc,
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{}},
		Traits:   func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
	}
	add := func(kind, name string, spec, seen schema.Object, after ...schema.Ref) schema.Ref {
		ref := schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: name}
		id := plan.ExternalID(enginetest.SiteID, fake.SiteTraits(), ref, 1, nil)
		doc.Resources = append(doc.Resources, schema.Resource{Ref: ref, Spec: spec, After: after})
		in.Recorded = append(in.Recorded, state.Record{Ref: ref, ID: id, Incarnation: 1, Spec: spec.Clone(), After: after})
		at := schema.Place{Scope: ref.Scope, Kind: kind}
		in.Observed.Things[at] = append(in.Observed.Things[at], providers.Thing{
			ID: id, Name: name, Mark: providers.Mark{Site: enginetest.SiteID, Ref: ref, Incarnation: 1}, Version: "V1-T1", Spec: seen, Phase: providers.Ready,
		})
		return ref
	}
	labels := map[string]any{"env": "prod", "team": "blue", "cost": "42"}
	nets := max(1, n/100)
	for i := range n - nets {
		net := schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: fmt.Sprintf("net-%06d", i%nets)}
		spec := schema.Object{"labels": labels, "net": net.Name, "size": int64(i)}
		seen := spec.Clone()
		seen["net"] = plan.ExternalID(enginetest.SiteID, fake.SiteTraits(), net, 1, nil)
		add("far.host", fmt.Sprintf("host-%06d", i), spec, seen, net)
	}
	for i := range nets {
		spec := schema.Object{"cidr": fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), "labels": labels, "size": int64(i)}
		add("far.net", fmt.Sprintf("net-%06d", i), spec, spec.Clone())
	}
	return in
}

// BenchmarkNoOp plans where nothing is to be done, beside a floor: the three inputs matched by plain maps and compared.
func BenchmarkNoOp(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			in := converged(b, n)
			b.Run("by=plan", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					p, err := plan.Make(in)
					if err != nil || !p.Empty() || p.Unchanged != n {
						b.Fatal(err, len(p.Steps))
					}
				}
			})
			b.Run("by=floor", func(b *testing.B) {
				for b.Loop() {
					if got := unchanged(in); got != n {
						b.Fatal(got)
					}
				}
			})
		})
	}
}

// unchanged counts the resources that are recorded as they are written, and exist.
func unchanged(in plan.Input) (n int) {
	recorded := map[schema.Ref]*state.Record{}
	for i, r := range in.Recorded {
		recorded[r.Ref] = &in.Recorded[i]
	}
	there := map[string]bool{}
	for _, things := range in.Observed.Things {
		for _, t := range things {
			there[t.ID] = true
		}
	}
	for _, r := range in.Document.Resources {
		if was := recorded[r.Ref]; was != nil && there[was.ID] && reflect.DeepEqual(r.Spec, was.Spec) {
			n++
		}
	}
	return n
}

func BenchmarkOneChange(b *testing.B) {
	in := converged(b, 100_000)
	in.Document.Resources[17].Spec = schema.Object{"labels": map[string]any{"env": "test"}, "net": "net-000017", "size": int64(17)}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		p, err := plan.Make(in)
		if err != nil || len(p.Steps) != 1 {
			b.Fatal(err, len(p.Steps))
		}
	}
}

// BenchmarkPlanner makes one change after another in 100 000 resources, each planned and undone again.
func BenchmarkPlanner(b *testing.B) {
	in := converged(b, 100_000)
	was := in.Document.Resources[17]
	is := was
	is.Spec = schema.Object{"labels": map[string]any{"env": "test"}, "net": "net-000017", "size": int64(17)}
	p, _, err := plan.NewPlanner(in)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		r, steps := is, 1
		if n%2 == 1 {
			r, steps = was, 0
		}
		made, err := p.Plan(plan.Changes{ID: "next", Resources: map[schema.Ref]*schema.Resource{r.Ref: &r}})
		if err != nil || len(made.Steps) != steps || made.Unchanged != 100_000-steps {
			b.Fatal(err, len(made.Steps), made.Unchanged)
		}
	}
}
