package carbidesim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/providers/carbide/forge"
)

// listen serves a world on a port of this machine and returns its address.
func listen(t *testing.T, w *World, o ServerOptions) string {
	t.Helper()
	s, err := NewServer(w, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func connect(t *testing.T, address string, c credentials.TransportCredentials) forge.ForgeClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return forge.NewForgeClient(conn)
}

// trust returns the client's side of TLS: the CA, and a certificate if there is one.
func trust(t *testing.T, f devcert.Files, withCertificate bool) credentials.TransportCredentials {
	t.Helper()
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AppendCertsFromPEM(pem)
	if withCertificate {
		pair, err := tls.LoadX509KeyPair(f.ClientCert, f.ClientKey)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(c)
}

func world(t *testing.T) *World {
	t.Helper()
	w, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func certificatesIn(t *testing.T, dir string) devcert.Files {
	t.Helper()
	f, err := devcert.Ensure(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func code(c forge.ForgeClient) codes.Code {
	return status.Code(failed(c.FindVpcIds(ctx, &forge.VpcSearchFilter{})))
}

func TestTransportModes(t *testing.T) {
	f := certificatesIn(t, t.TempDir())
	stranger := certificatesIn(t, t.TempDir()) // of another CA
	mixed := f
	mixed.ClientCert, mixed.ClientKey = stranger.ClientCert, stranger.ClientKey
	expired, err := devcert.Made(t.TempDir(), time.Now().AddDate(0, 0, -60))
	if err != nil {
		t.Fatal(err)
	}
	named, err := devcert.Ensure(t.TempDir(), "elsewhere.example")
	if err != nil {
		t.Fatal(err)
	}
	late := f
	late.ClientCert, late.ClientKey = expired.ClientCert, expired.ClientKey
	w := world(t)
	plain := listen(t, w, ServerOptions{})
	old := listen(t, w, ServerOptions{CertFile: expired.ServerCert, KeyFile: expired.ServerKey})
	elsewhere := listen(t, w, ServerOptions{CertFile: named.ServerCert, KeyFile: named.ServerKey})
	expiring := listen(t, w, ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey, ClientCA: expired.CA, Mutual: true})
	tlsOnly := listen(t, w, ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey})
	optional := listen(t, w, ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey, ClientCA: f.CA})
	mutual := listen(t, w, ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey, ClientCA: f.CA, Mutual: true})
	for _, c := range []struct {
		name        string
		address     string
		credentials credentials.TransportCredentials
		want        codes.Code
	}{
		{"plaintext", plain, insecure.NewCredentials(), codes.OK},
		{"TLS to plaintext", plain, trust(t, f, false), codes.Unavailable},
		{"TLS", tlsOnly, trust(t, f, false), codes.OK},
		{"plaintext to TLS", tlsOnly, insecure.NewCredentials(), codes.Unavailable},
		{"TLS, other CA", tlsOnly, trust(t, stranger, false), codes.Unavailable},
		{"TLS, expired", old, trust(t, expired, false), codes.Unavailable},
		{"TLS, for another name", elsewhere, trust(t, named, false), codes.Unavailable},
		{"optional certificate, none", optional, trust(t, f, false), codes.OK},
		{"optional certificate, given", optional, trust(t, f, true), codes.OK},
		{"optional certificate, of another CA", optional, trust(t, mixed, true), codes.Unavailable},
		{"mutual TLS", mutual, trust(t, f, true), codes.OK},
		{"mutual TLS without certificate", mutual, trust(t, f, false), codes.Unavailable},
		{"mutual TLS, expired", expiring, trust(t, late, true), codes.Unavailable},
		{"mutual TLS, of another CA", mutual, trust(t, mixed, true), codes.Unavailable},
	} {
		if got := code(connect(t, c.address, c.credentials)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRolesOverTheWire(t *testing.T) {
	f := certificatesIn(t, t.TempDir())
	serve := func(r Roles) string {
		return listen(t, world(t), ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey, ClientCA: f.CA, Roles: r})
	}
	create := func(c forge.ForgeClient) error { return failed(c.CreateVpc(ctx, &forge.VpcCreationRequest{})) }
	version := func(c forge.ForgeClient) error { return failed(c.Version(ctx, &forge.VersionRequest{})) }
	agent, admin, nobody := serve(DefaultRoles), serve(Roles{devcert.ClientURI: ForgeAdminCLI}), serve(Roles{})
	for _, c := range []struct {
		name string
		err  error
		want codes.Code
	}{
		{"agent creates", create(connect(t, agent, trust(t, f, true))), codes.OK},
		{"administrator may not create", create(connect(t, admin, trust(t, f, true))), codes.PermissionDenied},
		{"administrator may list", failed(connect(t, admin, trust(t, f, true)).FindVpcIds(ctx, &forge.VpcSearchFilter{})), codes.OK},
		{"unknown URI", create(connect(t, nobody, trust(t, f, true))), codes.PermissionDenied},
		{"anonymous", create(connect(t, agent, trust(t, f, false))), codes.PermissionDenied},
		{"anonymous asks for the version", version(connect(t, agent, trust(t, f, false))), codes.OK},
	} {
		if status.Code(c.err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, c.err, c.want)
		}
	}
}

// The service refuses a role with HTTP 403, before gRPC begins. We refuse it with what a client makes of that, which
// continues with what else is missing from the response.
func TestForbiddenIsWhatAClientMakesOfHTTP403(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	real := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusForbidden)
	})}
	real.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = real.Serve(l) }()
	t.Cleanup(func() { real.Close() })
	list := func(c forge.ForgeClient) error { return failed(c.FindVpcIds(ctx, &forge.VpcSearchFilter{})) }
	want := list(connect(t, l.Addr().String(), insecure.NewCredentials()))
	got := list(connect(t, listen(t, world(t), ServerOptions{Roles: Roles{}}), insecure.NewCredentials()))
	if status.Code(want) != codes.PermissionDenied || !strings.HasPrefix(want.Error(), got.Error()) {
		t.Errorf("we say\n%v\na client of a server with 403 says\n%v", got, want)
	}
}

func TestCertificatesAreReadAgain(t *testing.T) {
	dir, old := t.TempDir(), t.TempDir()
	f := certificatesIn(t, dir)
	address := listen(t, world(t), ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey, ClientCA: f.CA, Mutual: true})
	if got := code(connect(t, address, trust(t, f, true))); got != codes.OK {
		t.Fatal(got)
	}
	oldTrust := trust(t, f, true)

	// Half of a new pair is not used.
	other := certificatesIn(t, old)
	move := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	move(other.ServerKey, f.ServerKey)
	if got := code(connect(t, address, oldTrust)); got != codes.OK {
		t.Errorf("with half a pair: %s", got)
	}
	move(other.ServerCert, f.ServerCert)
	move(other.CA, f.CA)
	if got := code(connect(t, address, trust(t, other, true))); got != codes.OK {
		t.Errorf("with the new certificates: %s", got)
	}
	if got := code(connect(t, address, oldTrust)); got != codes.Unavailable {
		t.Errorf("with the old ones: %s", got)
	}
}

func TestServerNeedsItsFiles(t *testing.T) {
	f := certificatesIn(t, t.TempDir())
	for name, o := range map[string]ServerOptions{
		"no certificate":      {CertFile: filepath.Join(t.TempDir(), "none"), KeyFile: f.ServerKey},
		"key of another":      {CertFile: f.ServerCert, KeyFile: f.ClientKey},
		"mutual without a CA": {CertFile: f.ServerCert, KeyFile: f.ServerKey, Mutual: true},
		"CA that is a key":    {CertFile: f.ServerCert, KeyFile: f.ServerKey, ClientCA: f.ServerKey},
		"socket in no place":  {Control: filepath.Join(t.TempDir(), "none", "control")},
	} {
		if _, err := NewServer(world(t), o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A cut closes the real connection: other calls in progress on it end too, and the next call reconnects.
func TestCutClosesTheConnection(t *testing.T) {
	f := certificatesIn(t, t.TempDir())
	w := world(t)
	address := listen(t, w, ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey})
	client := connect(t, address, trust(t, f, false))
	for _, fault := range []Fault{{Method: "FindVpcIds", Effect: Hang}, {Method: "CreateVpc", Effect: Cut}} {
		if err := w.Inject(fault); err != nil {
			t.Fatal(err)
		}
	}
	other := make(chan error)
	go func() { other <- failed(client.FindVpcIds(context.Background(), &forge.VpcSearchFilter{})) }()
	for w.Calls()["FindVpcIds"] == 0 {
		ok(client.Version(ctx, &forge.VersionRequest{}))
	}
	if err := failed(client.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(1))})); status.Code(err) != codes.Unavailable {
		t.Errorf("cut call: %v", err)
	}
	if err := <-other; status.Code(err) != codes.Unavailable {
		t.Errorf("other call on the connection: %v", err)
	}
	got := ok(client.FindVpcIds(ctx, &forge.VpcSearchFilter{}, grpc.WaitForReady(true)))
	if len(got.VpcIds) != 1 || !strings.HasSuffix(got.VpcIds[0].Value, "01") {
		t.Errorf("after the cut: %v", got)
	}
}

// Concurrent calls are counted as such, successive ones are not.
func TestCallsAtOnce(t *testing.T) {
	w := world(t)
	var came sync.WaitGroup
	var hold atomic.Bool
	address := listen(t, w, ServerOptions{Arrived: func(context.Context, string) {
		if hold.Load() {
			came.Done()
			came.Wait()
		}
	}})
	client := connect(t, address, insecure.NewCredentials())
	check := func(when string, want int) {
		t.Helper()
		if n := w.AtOnce(); n != want {
			t.Errorf("%s: %d calls at once, want %d", when, n, want)
		}
	}
	version := func() { ok(client.Version(ctx, &forge.VersionRequest{})) }
	check("before any", 0)
	version()
	version()
	check("one after the other", 1)
	came.Add(3)
	hold.Store(true)
	var ended sync.WaitGroup
	for range 3 {
		ended.Go(version)
	}
	ended.Wait()
	check("together", 3)
	w.ResetCalls()
	check("afterwards", 0)
}
