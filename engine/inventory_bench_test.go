package engine_test

import (
	"fmt"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// BenchmarkInventory records the inventory of a site in which nothing has changed, with store and world in memory.
func BenchmarkInventory(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := enginetest.New()
			for i := range n {
				t := providers.Thing{ID: fmt.Sprint(i), Name: fmt.Sprint("n", i), Spec: schema.Object{"size": int64(i)}, Phase: providers.Ready}
				if err := s.World.Put(schema.ScopeSite, "far.guard", t); err != nil {
					b.Fatal(err)
				}
			}
			take := func() {
				e := s.Engine(func(o *engine.Options) { o.Shown = func(i survey.Item) survey.Item { return i } })
				defer e.Close()
				inv, err := e.Inventory(b.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}, []providers.Need{{Scope: schema.ScopeSite, Provider: "far"}}, 0)
				if err != nil || len(inv.Items) != n {
					b.Fatalf("%v, %d items", err, len(inv.Items))
				}
			}
			take()
			for b.Loop() {
				take()
			}
		})
	}
}
