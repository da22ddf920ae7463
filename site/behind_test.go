package site_test

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
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// behindMost is how much longer a plan may take when its nodes are behind agents.
const behindMost = 1.3

// BenchmarkBehind measures by turns what it costs to observe nodes, and to plan with nothing to do, when their providers are in this
// process and when they are behind agents, which are in a process of their own, over TLS. Both serve the same: 20 nodes with 100 things
// each. "ratio" is the median of the ratios of the rounds. What the fake world lists is in memory already, which is as fast as a far side
// can be.
func BenchmarkBehind(b *testing.B) {
	const nodes, each, rounds = 20, 100, 60
	near, far := enginetest.New(), enginetest.New()
	keys := newKeys(b)
	f := openFront(b, far, keys, "127.0.0.1:0")
	defer f.close()
	told := enlist(b, far, keys, f, nodes)
	told.Empty = true
	agents := startCrowd(b, told)
	agents.heard(b, "enrolled")
	agents.order(b, "go")
	f.all(b, nodes)
	defer agents.stop(b)
	worlds := map[string]*fake.World{}
	resources := map[string]string{}
	var needs []providers.Need
	for i := range nodes {
		node := nameOf(i)
		worlds[node] = fake.New(near.Kinds)
		needs = append(needs, providers.Need{Scope: node, Provider: "near"})
		for k := range each {
			resources[fmt.Sprintf("%s/near.bridge/br-%04d", node, k)] = fmt.Sprintf(`{"size": %d, "mode": "a mode of the bridge", "labels": {"env": "prod", "rack": "r%d", "owner": "tenant-%d"}}`, k, i, k%7)
		}
	}
	inside := func(_ context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
		var ps []*providers.Provider
		for _, n := range needs {
			ps = append(ps, worlds[n.Scope].Provider(n.Provider, n.Scope))
		}
		return providers.NewSet(ps...)
	}
	behind := func(ctx context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
		return f.nodes.Open(ctx, needs)
	}
	doc := near.Document(b, resources)
	type way struct {
		engine *engine.Engine
		open   func(context.Context, schema.Site, []providers.Need) (*providers.Set, error)
	}
	var ways []way
	for _, w := range []struct {
		site *enginetest.Site
		open func(context.Context, schema.Site, []providers.Need) (*providers.Set, error)
	}{{near, inside}, {far, behind}} {
		e := w.site.Engine(func(o *engine.Options) { o.Open = w.open })
		defer e.Close()
		ways = append(ways, way{e, w.open})
	}
	planned := func(w way, apply bool) time.Duration {
		begin := time.Now()
		p, err := w.engine.Plan(b.Context(), doc, plan.Options{})
		took := time.Since(begin)
		if err != nil {
			b.Fatal(err)
		}
		if apply {
			if _, err := w.engine.Apply(b.Context(), p, engine.ApplyOptions{}); err != nil {
				b.Fatal(err)
			}
		} else if !p.Empty() || p.Unchanged != nodes*each {
			b.Fatalf("%d steps, %d unchanged", len(p.Steps), p.Unchanged)
		}
		return took
	}
	for _, w := range ways {
		planned(w, true)
	}
	observed := func(w way, _ bool) time.Duration {
		set, err := w.open(b.Context(), schema.Site{}, needs)
		if err != nil {
			b.Fatal(err)
		}
		defer set.Close()
		begin, seen := time.Now(), 0
		for _, n := range needs {
			served, _, ok := set.Find(n.Scope, "near.bridge")
			if !ok {
				b.Fatal(set.Failure(n.Scope, n.Provider))
			}
			things, err := providers.Collect(served.Kind.List(b.Context()))
			if err != nil {
				b.Fatal(err)
			}
			seen += len(things)
		}
		if seen != nodes*each {
			b.Fatalf("%d things", seen)
		}
		return time.Since(begin)
	}
	for name, measure := range map[string]func(way, bool) time.Duration{"plan": planned, "observe": observed} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var inner, outer, ratios []float64
				for range rounds {
					in, out := measure(ways[0], false).Seconds(), measure(ways[1], false).Seconds()
					inner, outer, ratios = append(inner, in), append(outer, out), append(ratios, out/in)
				}
				median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
				ratio := median(ratios)
				b.Logf("%s: %.1f ms in process, %.1f ms behind agents, ratio %.2f", name, median(inner)*1e3, median(outer)*1e3, ratio)
				b.ReportMetric(ratio, "ratio")
				if name == "plan" && ratio > behindMost {
					b.Errorf("a plan takes %.2f times as long when its nodes are behind agents, more than %.1f", ratio, behindMost)
				}
			}
		})
	}
}
