package kinds

import (
	"fmt"
	"testing"

	"converge.dev/converge/schema"
)

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		if _, err := New(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNewFrom compiles the embedded CUE files, as New would without compiled*.go.
func BenchmarkNewFrom(b *testing.B) {
	for b.Loop() {
		if _, err := NewFrom(schema.Files); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck checks resources of each kind with our checks and with CUE; the time is that of one resource.
func BenchmarkCheck(b *testing.B) {
	s := newSchema(b)
	for _, name := range s.Kinds().Names() {
		k, g := s.kinds[name], newGenerator(seed(name))
		for _, n := range []int{1_000, 10_000} {
			specs := make([]schema.Object, 0, n)
			for len(specs) < n {
				if spec := g.resource(k); k.body.accepts(map[string]any(spec.Clone())) {
					specs = append(specs, spec)
				}
			}
			b.Run(fmt.Sprintf("kind=%s/n=%d/by=go", name, n), func(b *testing.B) {
				for b.Loop() {
					for _, spec := range specs {
						if found := s.CheckSpec(&k.Kind, spec); found != nil {
							b.Fatal(found)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/resource")
			})
			b.Run(fmt.Sprintf("kind=%s/n=%d/by=cue", name, n), func(b *testing.B) {
				for b.Loop() {
					for _, spec := range specs {
						if _, refused := s.ask(k, spec); refused != nil {
							b.Fatal(refused)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/resource")
			})
		}
	}
}
