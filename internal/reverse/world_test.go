package reverse_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"converge.dev/converge/internal/reverse"
)

const siteName = "site.test"

var quiet = slog.New(slog.DiscardHandler)

// An authority signs the certificates of a test. They hold for all times, also those of synctest.
type authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newAuthority() *authority {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	a := &authority{key: key}
	template := certificate("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		panic(err)
	}
	return a
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func (a *authority) sign(name string) tls.Certificate { return a.issue(certificate(name)) }

func (a *authority) issue(template *x509.Certificate) tls.Certificate {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificate(nil, template, a.cert, public, a.key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *authority) site() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.sign(siteName)}, ClientCAs: a.pool(), ClientAuth: tls.VerifyClientCertIfGiven}
}

func (a *authority) client(name string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.sign(name)}, RootCAs: a.pool(), ServerName: siteName}
}

// calls is the service of the tests: it repeats, counts, waits, and says who asks.
type calls struct {
	waiting chan struct{} // gets one for each call that waits
	ended   chan error    // gets why it no longer does
}

func newCalls() *calls {
	return &calls{waiting: make(chan struct{}, 1000), ended: make(chan error, 1000)}
}

func (c *calls) maker(o ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(o, grpc.MaxRecvMsgSize(32<<20))...)
	s.RegisterService(&description, c)
	return s
}

var description = grpc.ServiceDesc{
	ServiceName: "test.Calls", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: "Repeat", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			return in, decode(in)
		}},
		{MethodName: "Who", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			p, _ := peer.FromContext(ctx)
			info, ok := p.AuthInfo.(credentials.TLSInfo)
			if !ok || info.SecurityLevel != credentials.PrivacyAndIntegrity {
				return nil, errors.New("no identity")
			}
			name := "nobody"
			if len(info.State.VerifiedChains) > 0 {
				name = info.State.PeerCertificates[0].Subject.CommonName
			}
			return wrapperspb.Bytes([]byte(name)), decode(new(wrapperspb.BytesValue))
		}},
		{MethodName: "WaitOnce", Handler: func(c any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(new(wrapperspb.BytesValue)); err != nil {
				return nil, err
			}
			return nil, c.(*calls).wait(ctx)
		}},
	},
	Streams: []grpc.StreamDesc{
		{StreamName: "Count", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			var to wrapperspb.UInt32Value
			if err := s.RecvMsg(&to); err != nil {
				return err
			}
			for i := range to.Value {
				if err := s.SendMsg(wrapperspb.UInt32(i)); err != nil {
					return err
				}
			}
			return nil
		}},
		{StreamName: "Wait", ServerStreams: true, ClientStreams: true, Handler: func(c any, s grpc.ServerStream) error {
			return c.(*calls).wait(s.Context())
		}},
	},
}

func (c *calls) wait(ctx context.Context) error {
	c.waiting <- struct{}{}
	<-ctx.Done()
	c.ended <- ctx.Err()
	return ctx.Err()
}

func repeat(ctx context.Context, c grpc.ClientConnInterface, b []byte, o ...grpc.CallOption) ([]byte, error) {
	out := new(wrapperspb.BytesValue)
	err := c.Invoke(ctx, "/test.Calls/Repeat", wrapperspb.Bytes(b), out, o...)
	return out.Value, err
}

func who(ctx context.Context, c grpc.ClientConnInterface) (string, error) {
	out := new(wrapperspb.BytesValue)
	err := c.Invoke(ctx, "/test.Calls/Who", new(wrapperspb.BytesValue), out)
	return string(out.Value), err
}

func count(ctx context.Context, c grpc.ClientConnInterface, to uint32) (n uint32, err error) {
	s, err := c.NewStream(ctx, &description.Streams[0], "/test.Calls/Count")
	if err != nil {
		return 0, err
	}
	if err := errors.Join(s.SendMsg(wrapperspb.UInt32(to)), s.CloseSend()); err != nil {
		return 0, err
	}
	for {
		var i wrapperspb.UInt32Value
		if err := s.RecvMsg(&i); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
		if i.Value != n {
			return n, errors.New("not in order")
		}
		n++
	}
}

// A world is a site on which nodes may call, all in one process.
type world struct {
	*authority
	site  *reverse.Listener
	nodes chan *reverse.Conn
}

func newWorld(tb testing.TB, l net.Listener) *world {
	tb.Helper()
	w := &world{authority: newAuthority(), nodes: make(chan *reverse.Conn, 100)}
	w.site = reverse.Listen(l, reverse.Options{TLS: w.authority.site(), Node: func(c *reverse.Conn) { w.nodes <- c }, Logger: quiet})
	tb.Cleanup(func() { w.site.Close() })
	return w
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func tcpWorld(tb testing.TB) *world { return newWorld(tb, listen(tb)) }

func (w *world) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", w.site.Addr().String())
}

// attend starts a node, and returns its connection at the site and how its attendance ends.
func (w *world) attend(tb testing.TB, name string, c *calls) (*reverse.Conn, <-chan error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var running sync.WaitGroup
	config := w.client(name)
	running.Go(func() { ended <- reverse.Attend(ctx, w.dial, config, c.maker) })
	tb.Cleanup(running.Wait)
	tb.Cleanup(cancel)
	select {
	case conn := <-w.nodes:
		return conn, ended
	case err := <-ended:
		tb.Fatalf("the node ended before it was connected: %v", err)
		return nil, nil
	}
}

// goroutines waits until no more than n goroutines are left.
func goroutines(tb testing.TB, n int) {
	tb.Helper()
	for begin := time.Now(); runtime.NumGoroutine() > n; runtime.Gosched() {
		if time.Since(begin) > 20*time.Second {
			all := make([]byte, 1<<20)
			tb.Fatalf("%d goroutines are left of %d:\n%s", runtime.NumGoroutine(), n, all[:runtime.Stack(all, true)])
		}
	}
}
