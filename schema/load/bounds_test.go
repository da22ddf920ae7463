package load

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/internal/loadtest"
)

// TestInboxBounds checks that a document may be as large as the bounds of the inbox say, and not larger.
func TestInboxBounds(t *testing.T) {
	s := embedded(t)
	head := `{"apiVersion":"converge.dev/v1","site":{"name":"x","id":"` + loadtest.SiteID + `"},"carbide":{"tenant":{"aa":{}`
	tenants := func(n int) string {
		var b strings.Builder
		b.WriteString(head)
		for i := range n - 1 {
			fmt.Fprintf(&b, `,"t%d":{}`, i)
		}
		return b.String() + "}}}"
	}
	sized := func(n int) string { return head + strings.Repeat(" ", n-len(head)-3) + "}}}" }
	for name, c := range map[string]struct {
		text   string
		bounds Bounds
		want   string // in the output; empty: it is accepted
	}{
		"20 000 resources":            {tenants(20_000), InboxBounds, ""},
		"20 001 resources":            {tenants(20_001), InboxBounds, "more than 20000 resources"},
		"20 001 resources, elsewhere": {tenants(20_001), Bounds{}, ""},
		"1 MiB":                       {sized(1 << 20), InboxBounds, ""},
		"1 MiB and a byte":            {sized(1<<20 + 1), InboxBounds, "the limit is 1 MiB"},
		"1 MiB and a byte, elsewhere": {sized(1<<20 + 1), Bounds{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			doc, ds := Document(context.Background(), s, Options{Bounds: c.bounds}, Source{Name: "inbox.json", Data: []byte(c.text)})
			switch {
			case c.want == "" && doc == nil:
				t.Errorf("refused: %v", ds)
			case c.want != "" && (doc != nil || !strings.Contains(fmt.Sprint(ds), c.want)):
				t.Errorf("want %q, got %v", c.want, ds)
			}
		})
	}
}

func TestBoundsNeverLoosen(t *testing.T) {
	if got, want := (Bounds{Size: 2 * maxSize, Resources: 2 * maxResources}).orDefault(), (Bounds{maxSize, maxResources}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
