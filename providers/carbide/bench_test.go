package carbide_test

import (
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/providers"
)

func BenchmarkList(b *testing.B) {
	s := newSite(b, carbidesim.Options{})
	for _, noun := range []string{"vpc", "network_segment"} {
		carbidetest.Plant(b, s.World, noun, 10_000)
		b.Run(noun+"/10000", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				things, err := providers.Collect(s.kind(noun).List(b.Context()))
				if err != nil || len(things) != 10_000 {
					b.Fatal(len(things), err)
				}
			}
		})
	}
}
