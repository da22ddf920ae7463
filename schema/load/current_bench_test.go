package load

import (
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/internal/loadtest"
	"converge.dev/converge/schema"
)

// BenchmarkRevise changes one VPC of 100 000 resources, and the serial of the document.
func BenchmarkRevise(b *testing.B) {
	c, ds := NewCurrent(b.Context(), embedded(b), Source{Name: "site.json", Data: loadtest.Site(100_000)})
	if c == nil {
		b.Fatal(ds)
	}
	vpc := c.outline.find(schema.Ref{Scope: schema.ScopeSite, Kind: "carbide.vpc", Name: "vpc-7"})
	b.ReportAllocs()
	for n := 2; b.Loop(); n++ {
		edit := fmt.Sprintf(`{"site": {"name": "loadtest", "id": %q, "serial": %d}, "carbide": {"vpc": {"vpc-7": %s}}}`,
			loadtest.SiteID, n, strings.Replace(string(vpc), "Training cluster", fmt.Sprint("Training cluster, take ", n), 1))
		if rev, ds := c.Revise(b.Context(), Source{Name: "edit.json", Data: []byte(edit)}); rev == nil {
			b.Fatal(ds)
		}
	}
}
