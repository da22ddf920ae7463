package carbide_test

import (
	"testing"

	"converge.dev/converge/internal/carbidesim"
)

func BenchmarkObserve(b *testing.B) {
	s := newSite(b, carbidesim.Options{})
	for _, noun := range []string{"vpc", "network_segment"} {
		plant(b, s.World, noun, 10_000)
		b.Run(noun+"/10000", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				things, err := s.kind(noun).Observe(b.Context(), nil)
				if err != nil || len(things) != 10_000 {
					b.Fatal(len(things), err)
				}
			}
		})
	}
}
