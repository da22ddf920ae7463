package providertest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire"
)

// Pipe returns a provider as seen from another process: everything that goes in and out of it is encoded, see package wire.
// Closing it closes p.
func Pipe(t testing.TB, p *providers.Provider) *providers.Provider {
	t.Helper()
	pipe, server := bufconn.Listen(1<<20), grpc.NewServer()
	if err := wire.Serve(server, slog.New(slog.DiscardHandler), p); err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(pipe) }()
	conn, err := grpc.NewClient("passthrough:pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	ps, err := wire.Connect(t.Context(), conn, wire.NewMemory(func(string) bool { return true }))
	if err != nil {
		t.Fatal(err)
	}
	ps[0].Close = func() error {
		err := conn.Close()
		server.Stop()
		return errors.Join(err, p.Close())
	}
	return ps[0]
}
