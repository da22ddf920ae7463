package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/trust/certs"
)

// pulse is a service for operators. Its stream sends once for each beat.
type pulse struct {
	grpc_health_v1.UnimplementedHealthServer
	beats chan struct{}
}

func (pulse) Check(_ context.Context, q *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if q.Service == "panics" {
		panic("a bug with " + scrubed)
	}
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (p pulse) Watch(_ *grpc_health_v1.HealthCheckRequest, out grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	for {
		select {
		case <-p.beats:
		case <-out.Context().Done():
			return context.Cause(out.Context())
		}
		if err := out.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
			return err
		}
	}
}

// Who has the role operate may call, as long as they have it, and nobody else; by gRPC, and by nothing else.
func TestOperate(t *testing.T) {
	b := newBed(t)
	p := pulse{beats: make(chan struct{})}
	b.operate = func(r grpc.ServiceRegistrar) { grpc_health_v1.RegisterHealthServer(r, p) }
	b.roles = map[string][]certs.Role{"ada": {certs.Operate}, "eve": {certs.WriteDocument, certs.Approve, certs.Cancel, certs.Hold}}
	made, err := devcert.Ensure(t.TempDir(), "ada", "eve", "nobody")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(made.ServerCert, made.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(made.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.ServeTLS(ctx, l, b.Handler(), &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1", "h2"}}); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	as := func(name string) grpc_health_v1.HealthClient {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: name})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return grpc_health_v1.NewHealthClient(conn)
	}
	ada := as("ada")
	if _, err := ada.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"eve", "nobody"} {
		if _, err := as(name).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !strings.Contains(b.log.String(), "cn:eve") {
		t.Errorf("the log does not say who was refused:\n%s", &b.log)
	}
	if _, err := ada.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "panics"}); status.Code(err) != codes.Internal || strings.Contains(err.Error(), scrubed) {
		t.Errorf("a call that panics: %v", err)
	}
	if _, err := ada.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 3<<20)}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large message: %v", err)
	}

	patient, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := ada.Watch(patient, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p.beats <- struct{}{}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	delete(b.roles, "ada")
	b.mu.Unlock()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream of a client that has lost the role: %v", err)
	}
	if _, err := ada.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a client that has lost the role: %v", err)
	}

	// Who can speak HTTP/1.1 does, and finds what is there without operators.
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "eve"}}}
	defer client.CloseIdleConnections()
	for path, want := range map[string]int{"/v1/site": http.StatusOK, "/grpc.health.v1.Health/Check": http.StatusNotFound} {
		res, err := client.Get("https://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want || res.ProtoMajor != 1 {
			t.Errorf("%s: %s by %s, want %d", path, res.Status, res.Proto, want)
		}
	}
}
