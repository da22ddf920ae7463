package load

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/internal/loadtest"
	"converge.dev/converge/schema"
)

// BenchmarkRevise changes one VPC of a document, and its serial, beside a floor: the new text written and hashed.
func BenchmarkRevise(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			c, ds := NewCurrent(b.Context(), embedded(b), Source{Name: "site.json", Data: loadtest.Site(n)})
			if c == nil {
				b.Fatal(ds)
			}
			vpc := string(c.outline.find(schema.Ref{Scope: schema.ScopeSite, Kind: "carbide.vpc", Name: "vpc-7"}))
			serial := 1
			b.Run("by=revise", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					serial++
					edit := fmt.Sprintf(`{"site": {"name": "loadtest", "id": %q, "serial": %d}, "carbide": {"vpc": {"vpc-7": %s}}}`,
						loadtest.SiteID, serial, strings.Replace(vpc, "Training cluster", fmt.Sprint("Training cluster, take ", serial), 1))
					if rev, ds := c.Revise(b.Context(), Source{Name: "edit.json", Data: []byte(edit)}); rev == nil || len(rev.Resources) != 1 {
						b.Fatal(ds)
					}
				}
			})
			b.Run("by=floor", func(b *testing.B) {
				var sum [sha256.Size]byte
				for b.Loop() {
					text := append(make([]byte, 0, len(c.doc.JSON)), c.doc.JSON...)
					sum = sha256.Sum256(text)
				}
				_ = sum
			})
		})
	}
}
