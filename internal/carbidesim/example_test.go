package carbidesim_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers/carbide/forge"
)

// The test owns the clock: a segment is ready when the world's time has come, and no sooner.
func Example() {
	ctx := context.Background()
	world, err := carbidesim.New(carbidesim.Options{})
	if err != nil {
		panic(err)
	}
	defer world.Close()
	site := world.Stranger() // a client that bypasses the wire; NewServer puts the world on it

	vpc, err := site.CreateVpc(ctx, &forge.VpcCreationRequest{
		TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: "prod"},
	})
	if err != nil {
		panic(err)
	}
	segment, err := site.CreateNetworkSegment(ctx, &forge.NetworkSegmentCreationRequest{
		VpcId: vpc.Id, Name: "prod-a",
		Prefixes: []*forge.NetworkPrefix{{Prefix: "10.20.0.0/24", Gateway: proto.String("10.20.0.1")}},
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(segment.Status.TenantState)

	world.Advance(30 * time.Second)
	for _, o := range world.Objects() {
		if s, ok := o.Message.(*forge.NetworkSegment); ok {
			fmt.Println(s.Status.TenantState)
		}
	}
	// Output:
	// PROVISIONING
	// READY
}
