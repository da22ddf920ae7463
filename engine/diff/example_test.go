package diff_test

import (
	"fmt"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/schema"
)

// The tag differs, and a label that was applied once has left the document. The bridge is the wanted one, under its id on
// the far side; the document does not state the MTU.
func Example() {
	port := &schema.Kind{Name: "lab.port", Fields: []schema.Field{
		{Name: "bridge", Type: schema.String, Ref: "lab.bridge"},
		{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}},
		{Name: "mtu", Type: schema.Int},
		{Name: "tag", Type: schema.Int},
	}}
	want := schema.Object{"bridge": "blue", "tag": int64(10)}
	have := schema.Object{"bridge": "7c0e", "tag": int64(20), "mtu": int64(9000), "labels": map[string]any{"team": "web"}}
	recorded := schema.Object{"bridge": "blue", "tag": int64(10), "labels": map[string]any{"team": "web"}}
	names := func(_, id string) string {
		if id == "7c0e" {
			return "blue"
		}
		return id
	}

	for _, c := range diff.Compare(port, want, have, recorded, nil, names) {
		fmt.Println(c.Path, c.Before, "→", c.After)
	}
	// Output:
	// labels.team web → <nil>
	// tag 20 → 10
}
