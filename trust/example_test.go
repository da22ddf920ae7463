package trust_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
	"converge.dev/converge/trust"
)

// A site makes a token, and a node enrols with it.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	// The roots are made, sign the first trust document, and go where they are safe.
	roots := trust.NewRoots(3)
	site := schema.Site{Name: "fra1", ID: "0f0e0d0c-0b0a-4908-8706-050403020100"}
	authority, err := trust.Init(filepath.Join(dir, "site"), site, 2, roots, trust.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The site serves nodes.
	store := state.New(mem.New(mem.Options{}), "fra1")
	admission := trust.NewAdmission(store)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(authority.TLS(admission.Check, "localhost"))))
	trust.Serve(server, authority, store, slog.New(slog.DiscardHandler))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(listener)
	defer server.Stop()

	// An operator makes a token; the node has it from a file or its standard input.
	token, err := authority.CreateToken(ctx, store, "gpu-01", trust.TokenOptions{By: "ann@host"})
	if err != nil {
		fmt.Println(err)
		return
	}
	id, err := trust.Bootstrap(ctx, filepath.Join(dir, "node"), token, listener.Addr().String(), trust.IdentityOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(id.Node(), "of", id.Site().Name, id.Certificate().URIs[0])

	// Somebody else who has the token is refused, and the operator sees it.
	_, err = trust.Bootstrap(ctx, filepath.Join(dir, "thief"), token, listener.Addr().String(), trust.IdentityOptions{})
	fmt.Println("refused:", err != nil)
	nodes, err := trust.Nodes(ctx, store)
	fmt.Println(nodes[0].Name, nodes[0].Status(), err)
	// Output:
	// gpu-01 of fra1 spiffe://0f0e0d0c-0b0a-4908-8706-050403020100/node/gpu-01
	// refused: true
	// gpu-01 contested <nil>
}
