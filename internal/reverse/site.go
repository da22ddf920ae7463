package reverse

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"converge.dev/converge/internal/retry"
)

// maxHandshakes is the maximum number of handshakes at a time, and maxStrangers that of connections without a certificate, unless options
// say otherwise: enrolling takes moments.
const (
	maxHandshakes = 256
	maxStrangers  = 1024
)

// ErrClosed is why a connection is gone that the site itself closed.
var ErrClosed = errors.New("closed by the site")

// Options say how a site listens.
type Options struct {
	// TLS is required: the certificate of the site, and how certificates of clients are verified: by ClientAuth with
	// [tls.VerifyClientCertIfGiven] or more, or by VerifyConnection. Versions, protocols and session tickets are set by [Listen] in a copy.
	TLS *tls.Config

	// Node is called for each connection of a node as soon as the node can be called, in a goroutine of its own. The connection
	// outlives it. Optional: without it nodes are refused.
	Node func(*Conn)

	Strangers int          // optional: how many ordinary connections without a certificate there can be at a time; 1024 when zero
	Logger    *slog.Logger // optional; gets what was refused and why
}

// A Listener accepts ordinary gRPC connections and those of nodes at one address. It implements [net.Listener] for the ordinary
// ones.
type Listener struct {
	inner  net.Listener
	config *tls.Config
	node   func(*Conn)
	log    *slog.Logger

	ordinary  chan net.Conn
	strangers atomic.Int64
	max       int64         // of those
	slots     chan struct{} // one for each handshake
	ctx       context.Context
	end       context.CancelCauseFunc
	work      sync.WaitGroup
}

// Listen splits what l accepts. It begins at once and takes l over.
func Listen(l net.Listener, o Options) *Listener {
	protocols := []string{ordinary}
	if o.Node != nil {
		protocols = []string{Protocol, ordinary}
	}
	s := &Listener{
		inner: l, config: restrict(o.TLS, protocols...), node: o.Node, log: o.Logger,
		ordinary: make(chan net.Conn), slots: make(chan struct{}, maxHandshakes), max: int64(cmp.Or(o.Strangers, maxStrangers)),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	s.work.Go(s.accept)
	return s
}

// Accept implements [net.Listener]: it returns the next ordinary connection, on which TLS is established, as a [*tls.Conn].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ordinary:
		return c, nil
	case <-l.ctx.Done():
		return nil, context.Cause(l.ctx)
	}
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

// Close implements [net.Listener]. It closes all connections of nodes, and leaves alone those that Accept returned. It waits until
// nothing of the listener runs, calls of Options.Node included; so it must not be called from there.
func (l *Listener) Close() error {
	l.end(net.ErrClosed)
	err := l.inner.Close()
	l.work.Wait()
	return err
}

func (l *Listener) accept() {
	policy := retry.Policy{First: 5 * time.Millisecond, Cap: time.Second}
	next := policy.Pauses()
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		c, err := l.inner.Accept()
		if err == nil {
			next = policy.Pauses()
			l.work.Go(func() { l.welcome(c) })
			continue
		}
		<-l.slots
		passing, ok := err.(interface{ Temporary() bool }) // as when the process has no file descriptors left
		if !ok || !passing.Temporary() {
			l.end(err)
			return
		}
		pause := next()
		l.log.Warn("no connection could be accepted", "error", err, "pause", pause)
		if retry.Sleep(l.ctx, pause) != nil {
			return
		}
	}
}

// welcome makes the handshake and passes the connection on. It gives back the slot.
func (l *Listener) welcome(c net.Conn) {
	leave := sync.OnceFunc(func() { <-l.slots })
	defer leave()
	line := &ending{Conn: c}
	secured := tls.Server(line, l.config)
	limit, cancel := context.WithTimeout(l.ctx, handshakeLimit)
	err := secured.HandshakeContext(limit)
	cancel()
	if err != nil {
		level := slog.LevelInfo
		if errors.Is(err, io.EOF) || l.ctx.Err() != nil {
			level = slog.LevelDebug // a probe that only connects, or the end of this listener
		}
		l.refuse(c, level, fmt.Errorf("the TLS handshake failed: %w", err))
		return
	}
	switch state := secured.ConnectionState(); {
	case state.NegotiatedProtocol == ordinary && len(state.PeerCertificates) == 0 && !l.admit(line):
		l.refuse(c, slog.LevelWarn, fmt.Errorf("%d clients without a certificate are connected", l.max))
	case state.NegotiatedProtocol == ordinary:
		select { // with the slot: connections that nobody accepts do not pile up
		case l.ordinary <- secured:
		case <-l.ctx.Done():
			c.Close()
		}
	case state.NegotiatedProtocol != Protocol:
		l.refuse(c, slog.LevelInfo, fmt.Errorf("the client asked for none of the protocols %q by ALPN", l.config.NextProtos))
	case len(state.PeerCertificates) == 0, len(state.VerifiedChains) == 0 && l.config.VerifyConnection == nil:
		l.refuse(c, slog.LevelWarn, errors.New("a node showed no certificate that was verified: it has to enrol"))
	default:
		leave()
		l.connect(secured)
	}
}

// admit counts a stranger until the connection is closed; it reports whether there are not too many.
func (l *Listener) admit(c *ending) bool {
	if l.strangers.Add(1) > l.max {
		l.strangers.Add(-1)
		return false
	}
	gone := sync.OnceFunc(func() { l.strangers.Add(-1) })
	c.gone.Store(&gone)
	return true
}

// ending is a connection that says when it is closed.
type ending struct {
	net.Conn
	gone atomic.Pointer[func()]
}

// Close implements [net.Conn].
func (c *ending) Close() error {
	err := c.Conn.Close()
	if gone := c.gone.Load(); gone != nil {
		(*gone)()
	}
	return err
}

func (l *Listener) refuse(c net.Conn, level slog.Level, why error) {
	l.log.Log(context.Background(), level, "a connection was refused", "from", c.RemoteAddr().String(), "error", why)
	c.Close()
}

// connect makes a client of the connection of a node, waits until it can be used, and hands it over.
func (l *Listener) connect(secured *tls.Conn) {
	k := newLink(l.ctx, secured)
	client, err := grpc.NewClient("passthrough:///node", clientOptions(k)...)
	if err != nil { // the options are wrong
		l.refuse(k, slog.LevelError, err)
		return
	}
	l.work.Add(1)
	context.AfterFunc(k.ctx, func() {
		defer l.work.Done()
		k.Close() // first: the client would wait for a peer that reads nothing
		client.Close()
	})
	client.Connect()
	for s := client.GetState(); s != connectivity.Ready; s = client.GetState() {
		if !client.WaitForStateChange(k.ctx, s) {
			l.refuse(k, slog.LevelInfo, fmt.Errorf("the node did not begin HTTP/2: %w", context.Cause(k.ctx)))
			return
		}
	}
	l.node(&Conn{k, client})
}

// clientOptions are those of the client at the site. There is one client for each node, so they save memory: TLS reads whole records,
// so that another buffer for reading gains nothing. The buffer for writing is borrowed only while something is written.
func clientOptions(k *link) []grpc.DialOption {
	var taken atomic.Bool
	return []grpc.DialOption{
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if taken.Swap(true) {
				return nil, errors.New("the node's connection is gone, and only the node can make another one")
			}
			return k, nil
		}),
		grpc.WithTransportCredentials(established{}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: prefaceLimit}),
		grpc.WithIdleTimeout(0), // it would close the connection
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: sitePing, Timeout: pingLimit, PermitWithoutStream: true}),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithReadBufferSize(0),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithNoProxy(),
	}
}

// A Conn is the connection of one node at the site. It implements [grpc.ClientConnInterface]; it is safe for concurrent use.
//
// Calls fail with [codes.Unavailable] when it is gone, also those that would otherwise wait until it is ready.
type Conn struct {
	link   *link
	client *grpc.ClientConn
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// State returns what TLS knows about the node; the certificates are verified.
func (c *Conn) State() tls.ConnectionState { return c.link.ConnectionState() }

// RemoteAddr returns the address from which the node dialled.
func (c *Conn) RemoteAddr() net.Addr { return c.link.RemoteAddr() }

// Done returns a channel that is closed when the connection is gone.
func (c *Conn) Done() <-chan struct{} { return c.link.ctx.Done() }

// Err returns why the connection is gone, which is [ErrClosed] after Close, and nil while it is not.
func (c *Conn) Err() error { return context.Cause(c.link.ctx) }

// Close cuts the connection without farewell: everything in flight fails at once, also at the node. It does not wait, and may be
// called more than once.
func (c *Conn) Close() { c.link.close(ErrClosed) }

// Invoke implements [grpc.ClientConnInterface].
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	return c.failure(ctx, c.client.Invoke(ctx, method, args, reply, o...))
}

// NewStream implements [grpc.ClientConnInterface].
func (c *Conn) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.client.NewStream(ctx, d, method, o...)
	if err != nil {
		return nil, c.failure(ctx, err)
	}
	return &stream{s, c, ctx}, nil
}

// failure returns the error of a call. gRPC says Canceled when its client was closed, as if it had been the wish of the caller.
func (c *Conn) failure(ctx context.Context, err error) error {
	if status.Code(err) == codes.Canceled && c.Err() != nil && ctx.Err() == nil {
		return status.Errorf(codes.Unavailable, "the connection of the node is gone: %v", c.Err())
	}
	return err
}

// A stream has the errors of its connection.
type stream struct {
	grpc.ClientStream
	conn *Conn
	ctx  context.Context // of the caller; that of ClientStream also ends with the connection
}

func (s *stream) failure(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return s.conn.failure(s.ctx, err)
}

func (s *stream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.failure(err)
}

func (s *stream) SendMsg(m any) error { return s.failure(s.ClientStream.SendMsg(m)) }

func (s *stream) RecvMsg(m any) error { return s.failure(s.ClientStream.RecvMsg(m)) }
