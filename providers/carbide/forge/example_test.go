package forge_test

import (
	"fmt"

	"converge.dev/converge/providers/carbide/forge"
)

// A request that both generations of the service understand has its name in two places.
func Example() {
	request := &forge.VpcCreationRequest{Metadata: &forge.Metadata{Name: "prod"}}
	forge.SetLegacyName(request, request.Metadata.Name)
	fmt.Println(request.Metadata.Name, forge.LegacyName(request))
	// Output: prod prod
}
