package engine_test

import (
	"context"
	"fmt"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// BenchmarkApply creates n hosts in one net, each step journaled in the embedded etcd with fsync. The world is in memory,
// so the time per step is what the engine and the journal cost.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			resources := map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/8"}`}
			for i := range n - 1 {
				resources[fmt.Sprintf("site/far.host/h%05d", i)] = fmt.Sprintf(`{"net":"n","size":%d,"labels":{"env":"prod","team":"blue"}}`, i)
			}
			for range b.N {
				b.StopTimer()
				kv, err := etcd.Open(context.Background(), etcd.Options{Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				s := enginetest.New()
				s.Store = state.New(kv, "test")
				p := s.Plan(b, s.Document(b, resources), plan.Options{})
				b.StartTimer()
				res, err := s.Apply(p, engine.ApplyOptions{})
				b.StopTimer()
				if err != nil || res.Run.Status != state.RunApplied {
					b.Fatal(res.Run.Status, err)
				}
				kv.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/step")
		})
	}
}
