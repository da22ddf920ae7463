package carbidesim

import (
	"fmt"
	"net/netip"
	"testing"

	"converge.dev/converge/providers/carbide/forge"
)

// BenchmarkList10000 reads a site of 10 000 segments as a client does: all ids, then 100 objects per call.
func BenchmarkList10000(b *testing.B) {
	const size, page = 10_000, 100
	w, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	stranger := w.Stranger()
	v := ok(stranger.CreateVpc(ctx, &forge.VpcCreationRequest{TenantOrganizationId: "acme"}))
	at := netip.MustParseAddr("10.0.0.0")
	for n := range size {
		a := at.As4()
		a[1], a[2] = byte(n>>8), byte(n)
		ok(stranger.CreateNetworkSegment(ctx, &forge.NetworkSegmentCreationRequest{
			Name: fmt.Sprint("segment-", n), VpcId: v.Id,
			Prefixes: []*forge.NetworkPrefix{{Prefix: netip.PrefixFrom(netip.AddrFrom4(a), 24).String()}},
		}))
	}
	client := forge.NewForgeClient(dial(b, w))
	b.ReportAllocs()
	for b.Loop() {
		ids := ok(client.FindNetworkSegmentIds(ctx, &forge.NetworkSegmentSearchFilter{})).NetworkSegmentsIds
		got := 0
		for from := 0; from < len(ids); from += page {
			r := ok(client.FindNetworkSegmentsByIds(ctx, &forge.NetworkSegmentsByIdsRequest{NetworkSegmentsIds: ids[from:min(from+page, len(ids))]}))
			got += len(r.NetworkSegments)
		}
		if got != size {
			b.Fatalf("%d segments", got)
		}
	}
}
