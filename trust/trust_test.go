package trust_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
	"converge.dev/converge/trust"
	"converge.dev/converge/trust/trustpb"
)

const (
	siteID  = "0f0e0d0c-0b0a-4908-8706-050403020100"
	otherID = "1f0e0d0c-0b0a-4908-8706-050403020100"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A clock is set by hand.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = t
}

func (c *clock) add(d time.Duration) { c.set(c.now().Add(d)) }

// A bed is a site with its authority, its store and a server.
type bed struct {
	*trust.Authority
	t         *testing.T
	dir       string
	roots     []ed25519.PrivateKey
	clock     *clock
	store     *state.Store
	admission *trust.Admission
	address   string
	config    *tls.Config

	mu      sync.Mutex
	log     bytes.Buffer
	refused error // what the server's handshake has refused last
}

// Write collects the log.
func (b *bed) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

func (b *bed) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

func newBed(t *testing.T) *bed {
	t.Helper()
	return bedOf(t, siteID, &clock{at: start})
}

func bedOf(t *testing.T, id string, c *clock) *bed {
	t.Helper()
	b := &bed{t: t, dir: filepath.Join(t.TempDir(), "authority"), roots: trust.NewRoots(3), clock: c, store: state.New(mem.New(mem.Options{}), "fra1")}
	var err error
	b.Authority, err = trust.Init(b.dir, schema.Site{Name: "fra1", ID: id}, 2, b.roots, trust.Options{Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	b.admission = trust.NewAdmission(b.store)
	b.config = b.TLS(b.admission.Check, "localhost", "127.0.0.1")
	verify := b.config.VerifyConnection
	b.config.VerifyConnection = func(s tls.ConnectionState) error {
		err := verify(s)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.refused = err
		return err
	}
	b.address = b.serve(b.config)
	return b
}

// refusal returns why the last handshake failed. A client only sees that it did: whether it still reads the alert depends on the moment.
func (b *bed) refusal() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

// serve starts a server with the enrolment service, whose other calls need a node.
func (b *bed) serve(config *tls.Config) string {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.UnaryInterceptor(func(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if info.FullMethod == "/who/Am" {
			p, _ := peer.FromContext(ctx)
			node, err := trust.NodeOf(p.AuthInfo.(credentials.TLSInfo).State)
			if err != nil {
				return nil, status.Error(codes.Unauthenticated, err.Error())
			}
			return &trustpb.ClaimRequest{Token: node}, nil
		}
		return next(ctx, in)
	}))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "who", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Am",
		Handler: func(srv any, ctx context.Context, dec func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
			in := &trustpb.ClaimRequest{}
			if err := dec(in); err != nil {
				return nil, err
			}
			return through(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/who/Am"}, nil)
		}}}}, struct{}{})
	trust.Serve(s, b.Authority, b.store, slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug})))
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	b.t.Cleanup(func() { s.Stop(); served.Wait() })
	return l.Addr().String()
}

func dial(t *testing.T, address string, config *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// who asks the site which node calls.
func who(t *testing.T, address string, config *tls.Config) (string, error) {
	t.Helper()
	out := &trustpb.ClaimRequest{}
	err := dial(t, address, config).Invoke(t.Context(), "/who/Am", &trustpb.ClaimRequest{}, out)
	return out.GetToken(), err
}

func (b *bed) token(node string) string {
	b.t.Helper()
	token, err := b.CreateToken(b.t.Context(), b.store, node, trust.TokenOptions{By: "ann@host"})
	if err != nil {
		b.t.Fatal(err)
	}
	return token
}

// node enrols a node.
func (b *bed) node(name string) *trust.Identity {
	b.t.Helper()
	id, err := b.bootstrap(filepath.Join(b.t.TempDir(), "node"), b.token(name))
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

func (b *bed) bootstrap(dir, token string) (*trust.Identity, error) {
	return trust.Bootstrap(b.t.Context(), dir, token, b.address, trust.IdentityOptions{Now: b.clock.now})
}

func (b *bed) stored(node string) state.Node {
	b.t.Helper()
	n, err := b.store.Node(b.t.Context(), node)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// ca returns the newest node CA and its key, for forging.
func (b *bed) ca() (*x509.Certificate, ed25519.PrivateKey) {
	b.t.Helper()
	cas := b.Document().CAs
	block, _ := pem.Decode([]byte(cas[len(cas)-1]))
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		b.t.Fatal(err)
	}
	paths, _ := filepath.Glob(filepath.Join(b.dir, "ca-*.key"))
	for _, path := range paths {
		key, err := signed.ReadPrivateKey(path)
		if err != nil {
			b.t.Fatal(err)
		}
		if key.Public().(ed25519.PublicKey).Equal(ca.PublicKey) {
			return ca, key
		}
	}
	b.t.Fatal("no key")
	return nil, nil
}

// template returns what the authority would issue to a node.
func template(node string, serial *big.Int) *x509.Certificate {
	u, _ := url.Parse("spiffe://" + siteID + "/node/" + node)
	return &x509.Certificate{SerialNumber: serial, URIs: []*url.URL{u}, NotBefore: start.Add(-time.Minute), NotAfter: start.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

func serverTemplate(site string) *x509.Certificate {
	c := template("x", big.NewInt(1))
	u, _ := url.Parse("spiffe://" + site + "/site")
	c.URIs, c.ExtKeyUsage = []*url.URL{u}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return c
}

// issue makes a certificate for a new key.
func issue(t *testing.T, c, parent *x509.Certificate, signer crypto.Signer) tls.Certificate {
	t.Helper()
	_, key, _ := ed25519.GenerateKey(nil)
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// showing returns a client's configuration that shows a certificate and believes any server.
func showing(c *clock, certs ...tls.Certificate) *tls.Config {
	config := &tls.Config{InsecureSkipVerify: true, Time: c.now}
	if len(certs) > 0 {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certs[0], nil }
	}
	return config
}

func request(t *testing.T, key crypto.Signer, name string) []byte {
	t.Helper()
	r := &x509.CertificateRequest{}
	r.Subject.CommonName = name
	if name != "" {
		r.DNSNames = []string{name}
		u, _ := url.Parse("spiffe://" + siteID + "/node/" + name)
		r.URIs = []*url.URL{u}
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func newKey() ed25519.PrivateKey { return trust.NewRoots(1)[0] }

func parse(t *testing.T, chain [][]byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// files returns the contents of all files in a folder.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(&all, f)
		_ = f.Close()
	}
	return all.String()
}

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
