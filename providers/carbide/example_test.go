package carbide_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

func Example() {
	// A simulated site, in plain text on this machine.
	world, err := carbidesim.New(carbidesim.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server, err := carbidesim.NewServer(world, carbidesim.ServerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()

	ctx := context.Background()
	p, err := carbide.Open(ctx, carbide.Options{Address: listener.Addr().String(), TLS: carbide.TLS{Mode: carbide.Off}})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	site, err := providers.NewSet(p)
	if err != nil {
		log.Fatal(err)
	}
	vpc, _, _ := site.Find(schema.ScopeSite, "carbide.vpc")
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "carbide.vpc", Name: "prod"}
	err = vpc.Kind.Create(ctx, providers.Call{
		Ref: ref, ID: "5a2f0000-0000-4000-8000-000000000001",
		Mark: providers.Mark{Site: "5a2f0000-0000-4000-8000-000000000000", Ref: ref, Incarnation: 1},
		Want: schema.Object{"tenant": "acme", "labels": map[string]any{"env": "prod"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	things, err := providers.Collect(vpc.Kind.List(ctx))
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range things {
		fmt.Println(t.Name, t.Phase, t.Spec["labels"], t.Mark.Ref)
	}
	// Output: prod ready map[env:prod] site/carbide.vpc/prod
}
