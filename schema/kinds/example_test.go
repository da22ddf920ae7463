package kinds_test

import (
	"fmt"
	"log"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// A kind defines the fields of its resources, and a schema reports what is wrong with one.
func Example() {
	s, err := kinds.New()
	if err != nil {
		log.Fatal(err)
	}
	vpc := s.Kinds()["carbide.vpc"]
	fmt.Println("tenant refers to", vpc.Field("tenant").Ref)

	for _, p := range s.CheckSpec(vpc, schema.Object{"tennant": "acme", "vni": int64(0)}) {
		fmt.Println(p.Code, p.Path, p.Summary)
	}
	// Output:
	// tenant refers to carbide.tenant
	// CV1002 [tenant] Required field is missing
	// CV1001 [tennant] Unknown field
	// CV1004 [vni] Number is out of range
}
