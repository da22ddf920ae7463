package load

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// TestIdentityIsBounded: serials end where JSON readers begin to round, and an id must not be trivial.
func TestIdentityIsBounded(t *testing.T) {
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	const id = "7d9f1c62-3a54-4b0e-9c86-2f1d8e5b7a30"
	for _, c := range []struct {
		id     string
		serial int64
		want   string // in the one error; empty: accepted
	}{
		{id, 0, ""}, {id, schema.MaxStated, ""}, {"00000000-0000-0000-0000-000000000001", 1, ""},
		{id, schema.MaxStated + 1, "site.serial"}, {id, math.MaxInt64, "site.serial"}, {id, -1, "site.serial"},
		{"00000000-0000-0000-0000-000000000000", 1, "not all zeros"},
	} {
		text := fmt.Sprintf(`{"apiVersion":"converge.dev/v1","site":{"name":"x","id":%q,"serial":%d}}`, c.id, c.serial)
		doc, ds := Document(t.Context(), s, Options{}, Source{Name: "a.json", Data: []byte(text)})
		switch {
		case c.want == "" && (doc == nil || doc.Site.Serial != c.serial):
			t.Errorf("%s: %v", text, ds)
		case c.want != "" && (doc != nil || len(ds) != 1 || !strings.Contains(ds[0].String(), c.want)):
			t.Errorf("%s: %v, want %q", text, ds, c.want)
		}
		t.Log(ds)
	}
}
