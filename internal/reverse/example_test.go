package reverse_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"converge.dev/converge/internal/reverse"
)

func Example() {
	ca := newAuthority() // the certificates of both sides come from it
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}

	// The site listens, and calls each node that comes.
	done := make(chan struct{})
	site := reverse.Listen(l, reverse.Options{TLS: ca.site(), Node: func(node *reverse.Conn) {
		defer close(done)
		answer, err := grpc_health_v1.NewHealthClient(node).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		fmt.Println(node.State().PeerCertificates[0].Subject.CommonName, answer.GetStatus(), err)
	}})
	defer site.Close()

	// The node dials, and serves.
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		dial := func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}
		_ = reverse.Keep(ctx, "gpu-01", dial, ca.client("gpu-01"), func(o ...grpc.ServerOption) *grpc.Server {
			s := grpc.NewServer(o...)
			grpc_health_v1.RegisterHealthServer(s, health.NewServer())
			return s
		}, slog.New(slog.DiscardHandler))
	}()
	<-done
	// Output: gpu-01 SERVING <nil>
}
