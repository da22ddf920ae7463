package schema_test

import (
	"encoding/json"
	"fmt"
	"log"

	"converge.dev/converge/schema"
)

// A ref names a resource, a kind says what its spec means: which fields refer to others, and which orders mean nothing.
func Example() {
	ref, err := schema.ParseRef("gpu-01/ovs.port/vm-web")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ref.Kind, "on", ref.Scope, "is written at", ref.Path())

	port := schema.Kind{Name: "ovs.port", Node: true, Fields: []schema.Field{
		{Name: "bridge", Type: schema.String, Ref: "ovs.bridge"},
		{Name: "trunks", Type: schema.List, Set: true, Elem: &schema.Field{Type: schema.Int}},
	}}
	var wanted, seen schema.Object
	if err := json.Unmarshal([]byte(`{"bridge": "br-slice", "trunks": [20, 10]}`), &wanted); err != nil {
		log.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{"trunks": [10, 20], "bridge": "br-slice"}`), &seen); err != nil {
		log.Fatal(err)
	}
	port.Normalize(wanted)
	port.Normalize(seen)
	fmt.Println("the same:", wanted.Digest() == seen.Digest())

	port.ReplaceRefs(wanted, func(kind, name string) string {
		fmt.Println("refers to", kind, name)
		return name
	})
	// Output:
	// ovs.port on gpu-01 is written at nodes.gpu-01.ovs.port.vm-web
	// the same: true
	// refers to ovs.bridge br-slice
}
