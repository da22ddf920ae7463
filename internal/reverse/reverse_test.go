package reverse_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"converge.dev/converge/internal/reverse"
)

// TestCalls: the site calls a node that dialled, and each knows who the other is.
func TestCalls(t *testing.T) {
	w := tcpWorld(t)
	node, _ := w.attend(t, "gpu-01", newCalls())
	if name := node.State().PeerCertificates[0].Subject.CommonName; name != "gpu-01" {
		t.Errorf("the site sees %q", name)
	}
	if name, err := who(t.Context(), node); name != siteName || err != nil {
		t.Errorf("the node sees %q, %v", name, err)
	}
	if n, err := count(t.Context(), node, 10_000); n != 10_000 || err != nil {
		t.Errorf("a stream of 10000 has %d, %v", n, err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16) // forty times the window of a stream
	if got, err := repeat(t.Context(), node, large, grpc.MaxCallRecvMsgSize(32<<20)); !bytes.Equal(got, large) || err != nil {
		t.Errorf("of 10 MiB %d bytes come back, %v", len(got), err)
	}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			want := fmt.Appendf(bytes.Repeat([]byte{'.'}, 10_000), "%d", i)
			if got, err := repeat(t.Context(), node, want); !bytes.Equal(got, want) || err != nil {
				t.Errorf("call %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	all.Wait()
	if node.Err() != nil {
		t.Errorf("the connection is gone: %v", node.Err())
	}
}

// TestOrdinary: at the same port, gRPC in the usual direction knows its peer, and those without a certificate get in as well.
func TestOrdinary(t *testing.T) {
	w := tcpWorld(t)
	server := newCalls().maker(grpc.Creds(reverse.Credentials()))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(w.site); err != nil {
			t.Errorf("it serves until %v", err)
		}
	})
	defer serving.Wait()
	defer server.Stop()
	node, _ := w.attend(t, "gpu-01", newCalls())

	call := func(config *tls.Config) (string, error) {
		client, err := grpc.NewClient(w.site.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithAuthority(siteName))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := repeat(t.Context(), client, []byte("x")); err != nil {
			t.Errorf("an ordinary call: %v", err)
		}
		return who(t.Context(), client)
	}
	if name, err := call(w.client("relay")); name != "relay" || err != nil {
		t.Errorf("the peer is %q, %v", name, err)
	}
	if name, err := call(&tls.Config{RootCAs: w.pool()}); name != "nobody" || err != nil {
		t.Errorf("the peer without a certificate is %q, %v", name, err)
	}
	if _, err := repeat(t.Context(), node, nil); err != nil {
		t.Errorf("a call of the node beside it: %v", err)
	}
}

// TestStrangers: who has no certificate takes no more than a share of the connections, and no place of those who have one.
func TestStrangers(t *testing.T) {
	l := listen(t)
	w := &world{authority: newAuthority(), nodes: make(chan *reverse.Conn, 100)}
	w.site = reverse.Listen(l, reverse.Options{TLS: w.authority.site(), Node: func(c *reverse.Conn) { w.nodes <- c }, Strangers: 2, Logger: quiet})
	defer w.site.Close()
	server := newCalls().maker(grpc.Creds(reverse.Credentials()))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(w.site) })
	defer serving.Wait()
	defer server.Stop()
	connect := func(config *tls.Config) (*grpc.ClientConn, error) {
		client, err := grpc.NewClient(w.site.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithAuthority(siteName))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		_, err = repeat(t.Context(), client, nil)
		return client, err
	}
	stranger := func() *tls.Config { return &tls.Config{RootCAs: w.pool()} }
	one, err := connect(stranger())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := connect(stranger()); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(stranger()); status.Code(err) != codes.Unavailable {
		t.Errorf("the third: %v", err)
	}
	if _, err := connect(w.client("relay")); err != nil {
		t.Errorf("who has a certificate: %v", err)
	}
	w.attend(t, "gpu-01", newCalls())
	one.Close()
	for begin := time.Now(); ; runtime.Gosched() { // until the site has seen it
		if _, err := connect(stranger()); err == nil {
			break
		} else if time.Since(begin) > time.Minute {
			t.Fatalf("after one has gone: %v", err)
		}
	}
}

// TestConfigForClient: a configuration that is chosen for each client obeys the same rules.
func TestConfigForClient(t *testing.T) {
	a, nodes := newAuthority(), make(chan *reverse.Conn, 1)
	inner := a.site()
	outer := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return inner, nil }}
	w := &world{authority: a, nodes: nodes, site: reverse.Listen(listen(t), reverse.Options{TLS: outer, Node: func(c *reverse.Conn) { nodes <- c }})}
	t.Cleanup(func() { w.site.Close() })
	node, _ := w.attend(t, "gpu-01", newCalls())
	if name, err := who(t.Context(), node); name != siteName || err != nil {
		t.Errorf("the node sees %q, %v", name, err)
	}
	if inner.MinVersion != 0 || inner.NextProtos != nil {
		t.Error("the given configuration was changed")
	}
	sessions := new(sessions)
	resuming := a.client("resuming")
	resuming.NextProtos, resuming.ClientSessionCache = []string{reverse.Protocol}, sessions
	c, err := tls.Dial("tcp", w.site.Addr().String(), resuming)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil || sessions.n != 0 { // tickets come before the first data
		t.Errorf("%v; %d sessions can be resumed", err, sessions.n)
	}
	c.Close()
	old := a.client("old")
	old.MaxVersion = tls.VersionTLS12
	if c, err := tls.Dial("tcp", w.site.Addr().String(), old); err == nil {
		c.Close()
		t.Error("TLS 1.2 is accepted")
	}
}

type sessions struct{ n int }

func (s *sessions) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (s *sessions) Put(string, *tls.ClientSessionState)        { s.n++ }

// inFlight makes one call and one stream that wait at the node, and returns how they end.
func inFlight(t *testing.T, node *reverse.Conn, at *calls) <-chan error {
	ended := make(chan error, 2)
	go func() {
		ended <- node.Invoke(context.Background(), "/test.Calls/WaitOnce", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue))
	}()
	s, err := node.NewStream(context.Background(), &description.Streams[1], "/test.Calls/Wait")
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- s.RecvMsg(new(wrapperspb.BytesValue)) }()
	<-at.waiting
	<-at.waiting
	return ended
}

// TestCut: however a connection ends, calls in flight end at both sides, and nothing can be called any more.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  func(w *world, node *reverse.Conn, wire net.Conn, stop context.CancelFunc)
		site error // why it is gone there, when that is certain
		node string
	}{
		{"under it", func(_ *world, _ *reverse.Conn, wire net.Conn, _ context.CancelFunc) { wire.Close() }, nil, "use of closed"},
		{"by the site", func(_ *world, n *reverse.Conn, _ net.Conn, _ context.CancelFunc) { n.Close(); n.Close() }, reverse.ErrClosed, "the connection to the site at"},
		{"by the end of the site", func(w *world, _ *reverse.Conn, _ net.Conn, _ context.CancelFunc) { w.site.Close() }, net.ErrClosed, "the connection to the site at"},
		{"by the end of the node", func(_ *world, _ *reverse.Conn, _ net.Conn, stop context.CancelFunc) { stop() }, nil, "context canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, at := tcpWorld(t), newCalls()
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			wires, attended := make(chan net.Conn, 1), make(chan error, 1)
			dial := func(ctx context.Context) (net.Conn, error) {
				wire, err := w.dial(ctx)
				wires <- wire
				return wire, err
			}
			config := w.client("gpu-01")
			go func() { attended <- reverse.Attend(ctx, dial, config, at.maker) }()
			node := <-w.nodes
			if node.Err() != nil {
				t.Errorf("alive, but %v", node.Err())
			}
			ended := inFlight(t, node, at)
			c.cut(w, node, <-wires, stop)
			for range 2 {
				if err := <-ended; status.Code(err) != codes.Unavailable {
					t.Errorf("a call in flight ends with %v", err)
				}
				if err := <-at.ended; err == nil {
					t.Error("a call at the node has not ended")
				}
			}
			<-node.Done()
			if node.Err() == nil || c.site != nil && !errors.Is(node.Err(), c.site) {
				t.Errorf("it is gone because of %v", node.Err())
			}
			if _, err := repeat(context.Background(), node, nil, grpc.WaitForReady(true)); status.Code(err) != codes.Unavailable {
				t.Errorf("a call afterwards: %v", err)
			}
			if _, err := count(context.Background(), node, 1); status.Code(err) != codes.Unavailable {
				t.Errorf("a stream afterwards: %v", err)
			}
			if err := <-attended; err == nil || !strings.Contains(err.Error(), c.node) {
				t.Errorf("the node: %v", err)
			}
		})
	}
}

// TestCallerCancels: a call that its caller cancelled says so.
func TestCallerCancels(t *testing.T) {
	w, at := tcpWorld(t), newCalls()
	node, _ := w.attend(t, "gpu-01", at)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-at.waiting
		cancel()
	}()
	err := node.Invoke(ctx, "/test.Calls/WaitOnce", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue))
	if status.Code(err) != codes.Canceled || node.Err() != nil {
		t.Errorf("%v, and the connection: %v", err, node.Err())
	}
}

// TestStorm: whenever the connection is cut, a call either succeeds or is unavailable.
func TestStorm(t *testing.T) {
	w, at := tcpWorld(t), newCalls()
	for range 10 {
		node, _ := w.attend(t, "gpu-01", at)
		var all sync.WaitGroup
		first := make(chan struct{}, 1000)
		for i := range 20 {
			all.Go(func() {
				for {
					var err error
					if i%2 == 0 {
						_, err = repeat(context.Background(), node, make([]byte, 50_000))
					} else {
						_, err = count(context.Background(), node, 50)
					}
					if err != nil && status.Code(err) != codes.Unavailable {
						t.Errorf("a call ends with %v", err)
					}
					if err != nil {
						return
					}
					select {
					case first <- struct{}{}:
					default:
					}
				}
			})
		}
		<-first
		node.Close()
		all.Wait()
	}
}

// TestGracefulStop: a node may end its attendance in peace.
func TestGracefulStop(t *testing.T) {
	w := tcpWorld(t)
	servers, ended := make(chan *grpc.Server, 1), make(chan error, 1)
	config := w.client("gpu-01")
	go func() {
		ended <- reverse.Attend(context.Background(), w.dial, config, func(o ...grpc.ServerOption) *grpc.Server {
			s := newCalls().maker(o...)
			servers <- s
			return s
		})
	}()
	node := <-w.nodes
	if _, err := repeat(t.Context(), node, nil); err != nil {
		t.Fatal(err)
	}
	(<-servers).GracefulStop()
	if err := <-ended; err == nil {
		t.Error("the end of an attendance is an error")
	}
	<-node.Done()
}

// TestImpatientStop: the end of its time also ends an attendance that waits for calls.
func TestImpatientStop(t *testing.T) {
	w, at := tcpWorld(t), newCalls()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	servers, ended := make(chan *grpc.Server, 1), make(chan error, 1)
	config := w.client("gpu-01")
	go func() {
		ended <- reverse.Attend(ctx, w.dial, config, func(o ...grpc.ServerOption) *grpc.Server {
			s := at.maker(o...)
			servers <- s
			return s
		})
	}()
	node := <-w.nodes
	calls, server := inFlight(t, node, at), <-servers
	var stopping sync.WaitGroup
	stopping.Go(server.GracefulStop)
	for { // until it has begun
		if _, err := repeat(t.Context(), node, nil); err != nil {
			break
		}
	}
	if node.Err() != nil {
		t.Errorf("with calls in flight: %v", node.Err())
	}
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Errorf("it ends with %v", err)
	}
	stopping.Wait()
	for range 2 {
		if err := <-calls; status.Code(err) != codes.Unavailable {
			t.Errorf("a call in flight: %v", err)
		}
	}
}

// TestRefused: who does not speak the protocol is cut off, and others go on.
func TestRefused(t *testing.T) {
	w := tcpWorld(t)
	node, _ := w.attend(t, "gpu-01", newCalls())
	foreign := newAuthority()
	change := func(f func(*tls.Config)) *tls.Config {
		c := w.client("gpu-02")
		c.NextProtos = []string{reverse.Protocol}
		f(c)
		return c
	}
	for name, config := range map[string]*tls.Config{
		"no ALPN":           change(func(c *tls.Config) { c.NextProtos = nil }),
		"other ALPN":        change(func(c *tls.Config) { c.NextProtos = []string{"other"} }),
		"HTTP/1.1":          change(func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }),
		"TLS 1.2":           change(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }),
		"no certificate":    change(func(c *tls.Config) { c.Certificates = nil }),
		"other certificate": change(func(c *tls.Config) { c.Certificates = []tls.Certificate{foreign.sign("gpu-02")} }),
	} {
		c, err := tls.Dial("tcp", w.site.Addr().String(), config)
		if err == nil { // with TLS 1.3 the client learns of it when it reads
			t.Logf("%s gets through the handshake", name)
			_, _ = io.Copy(io.Discard, c)
			c.Close()
		}
	}
	for _, words := range []string{"GET / HTTP/1.1\r\n\r\n", "", strings.Repeat("\x16\x03", 1000)} {
		c, err := w.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if words == "" {
			c.(*net.TCPConn).CloseWrite()
		} else if _, err := c.Write([]byte(words)); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
	c, err := tls.Dial("tcp", w.site.Addr().String(), change(func(*tls.Config) {}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("this is not the beginning of HTTP/2, however long one reads it")); err != nil {
		t.Error(err)
	}
	_, _ = io.Copy(io.Discard, c)
	c.Close()

	if _, err := repeat(t.Context(), node, nil); err != nil {
		t.Errorf("a node that was there before: %v", err)
	}
	if last, _ := w.attend(t, "gpu-03", newCalls()); last.State().PeerCertificates[0].Subject.CommonName != "gpu-03" {
		t.Error("one that was refused was handed over as a node")
	}
}

// TestAttendFails: a node says with what it could not connect.
func TestAttendFails(t *testing.T) {
	w := tcpWorld(t)
	strict := w.authority.site()
	strict.ClientAuth = tls.RequireAndVerifyClientCert
	other := reverse.Listen(listen(t), reverse.Options{TLS: strict, Node: func(c *reverse.Conn) { t.Error("a node without certificate") }})
	defer other.Close()
	unready := reverse.Listen(listen(t), reverse.Options{TLS: w.authority.site()})
	defer unready.Close()
	plain, err := tls.Listen("tcp", "127.0.0.1:0", w.authority.site())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		if c, err := plain.Accept(); err == nil {
			_, _ = io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	to := func(l net.Listener) reverse.Dialer {
		return func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}
	}
	good, bare, stranger := w.client("gpu-01"), w.client("gpu-01"), newAuthority().client("gpu-01")
	bare.Certificates = nil
	for _, c := range []struct {
		dial   reverse.Dialer
		config *tls.Config
		want   string
	}{
		{func(context.Context) (net.Conn, error) { return nil, errors.New("no route") }, good, "dial the site: no route"},
		{to(w.site), stranger, "certificate signed by unknown authority"},
		{to(other), bare, "certificate required"},
		{to(unready), good, "no application protocol"},
		{to(plain), good, "does not speak"},
		{w.dial, bare, "the connection to the site at"},
	} {
		if err := reverse.Attend(t.Context(), c.dial, c.config, newCalls().maker); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	select {
	case <-w.nodes:
		t.Error("a node without certificate was handed over")
	default:
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	if err := reverse.Attend(ctx, w.dial, good, newCalls().maker); err != why {
		t.Errorf("its time was over before: %v", err)
	}
}

// TestClose: nothing of a listener outlives it, whatever its connections did at the time.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	w, at := tcpWorld(t), newCalls()
	var attended []<-chan error
	for i := range 5 {
		node, ended := w.attend(t, fmt.Sprintf("gpu-%d", i), at)
		inFlight(t, node, at)
		attended = append(attended, ended)
	}
	var silent []net.Conn
	for range 3 { // before TLS
		c, err := w.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	for _, protocol := range []string{"h2", reverse.Protocol} { // not accepted by anybody, and before HTTP/2
		config := w.client("silent")
		config.NextProtos = []string{protocol}
		c, err := tls.Dial("tcp", w.site.Addr().String(), config)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	w.site.Close()
	w.site.Close()
	if _, err := w.site.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	for _, c := range silent {
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
	for _, ended := range attended {
		<-ended
	}
	goroutines(t, before)
}

// TestCertificateRefused: a node whose certificate the site does not accept is told so by an error of its own, however the site has come to that, and
// was not connected meanwhile.
func TestCertificateRefused(t *testing.T) {
	a, other := newAuthority(), newAuthority()
	site := a.site()
	site.VerifyConnection = func(s tls.ConnectionState) error {
		if s.PeerCertificates[0].Subject.CommonName == "banned" {
			return errors.New("it is banned")
		}
		return nil
	}
	listener := reverse.Listen(listen(t), reverse.Options{TLS: site, Node: func(c *reverse.Conn) { c.Close() }})
	defer listener.Close()
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}
	old := certificate("old")
	old.NotAfter = old.NotBefore.AddDate(1, 0, 0)
	for name, c := range map[string]struct {
		cert    tls.Certificate
		refused bool
	}{
		"banned":               {a.sign("banned"), true},
		"of another authority": {other.sign("gpu-01"), true},
		"expired":              {a.issue(old), true},
		"accepted, and closed": {a.sign("gpu-01"), false},
	} {
		config := a.client("gpu-01")
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.cert, nil }
		made := false
		err := reverse.Attend(t.Context(), dial, config, func(o ...grpc.ServerOption) *grpc.Server {
			made = true
			return newCalls().maker(o...)
		})
		if errors.Is(err, reverse.ErrRefused) != c.refused || made == c.refused {
			t.Errorf("%s: connected %t, then %v", name, made, err)
		}
	}
}

// TestCertificateRefusedOnce: the log says once that the certificate is refused, and again after something else.
func TestCertificateRefusedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := newAuthority()
		site, banned, away := a.site(), new(atomic.Bool), new(atomic.Bool)
		banned.Store(true)
		site.VerifyConnection = func(tls.ConnectionState) error {
			if banned.Load() {
				return errors.New("it is banned")
			}
			return nil
		}
		nodes := make(chan *reverse.Conn, 1)
		listener := reverse.Listen(m, reverse.Options{TLS: site, Node: func(c *reverse.Conn) { nodes <- c }})
		defer listener.Close()
		dial := func(ctx context.Context) (net.Conn, error) {
			if away.Load() {
				return nil, errors.New("no route")
			}
			return m.dial(ctx)
		}
		var text bytes.Buffer
		said := func(want ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			var got []string
			for line := range strings.Lines(text.String()) {
				msg, _, _ := strings.Cut(line, " error=")
				if msg = strings.TrimSpace(msg); len(got) == 0 || got[len(got)-1] != msg || strings.Contains(line, reverse.ErrRefused.Error()) {
					got = append(got, msg)
				}
			}
			text.Reset()
			if !slices.Equal(got, want) {
				t.Errorf("it says %q, want %q", got, want)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}}))
		config := a.client("gpu-01")
		go func() { ended <- reverse.Keep(ctx, "gpu-01", dial, config, newCalls().maker, log) }()
		not, connected := `msg="not connected to the site"`, `msg="connected to the site"`
		said(not)
		said()
		away.Store(true)
		said(not)
		away.Store(false)
		said(not)
		banned.Store(false)
		said(connected)
		banned.Store(true)
		(<-nodes).Close()
		said(not, not) // that it was closed, and that it is refused
		stop()
		<-ended
	})
}
