package carbide_test

import (
	"fmt"
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/carbidesim"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// fill makes n marked VPCs with labels, and a segment in each.
func fill(t testing.TB, w *carbidesim.World, n int) {
	t.Helper()
	stranger := w.Stranger()
	for i := range n {
		name := fmt.Sprintf("vpc-%05d", i)
		mark := providers.Mark{Site: "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10", Ref: schema.Ref{Scope: "site", Kind: "carbide.vpc", Name: name}, Incarnation: 1}.String()
		env := "production"
		v, err := stranger.CreateVpc(t.Context(), &forge.VpcCreationRequest{
			Id: &forge.VpcId{Value: id("vpc", name)}, TenantOrganizationId: "acme",
			Metadata: &forge.Metadata{Name: name, Description: "number " + name, Labels: []*forge.Label{
				{Key: "env", Value: &env}, {Key: "owner", Value: &name}, {Key: providers.MarkKey, Value: &mark},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stranger.CreateNetworkSegment(t.Context(), &forge.NetworkSegmentCreationRequest{
			Id: &forge.NetworkSegmentId{Value: id("network_segment", name)}, Name: name, VpcId: v.Id,
			Prefixes: []*forge.NetworkPrefix{{Prefix: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	s := newSite(b, carbidesim.Options{})
	fill(b, s.World, 10_000)
	for _, noun := range []string{"vpc", "network_segment"} {
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
