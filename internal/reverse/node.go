package reverse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"converge.dev/converge/internal/retry"
)

// settled is how long a connection lasts after which the next failure is not a continuation of those before it.
const settled = 5 * time.Second

// record is the maximum size of a TLS record from a node, which is what gRPC writes at a time. TLS at the site keeps the buffer for
// the largest record that it has read for as long as the connection lasts: that would be 40 KiB for records of full size.
const record = 2 << 10

// A Dialer opens a connection to the site, without TLS. It is cut off after 10 s.
type Dialer = func(context.Context) (net.Conn, error)

// A Maker makes the server for one connection: with [grpc.NewServer], the given options, which it needs, and others after them. It
// is called when the site has accepted the connection.
type Maker = func(...grpc.ServerOption) *grpc.Server

// serverOptions are those of the server at the node.
func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(established{}),
		grpc.ConnectionTimeout(prefaceLimit),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: nodePing, Timeout: pingLimit}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: sitePing / 2, PermitWithoutStream: true}),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ReadBufferSize(0),
		grpc.WriteBufferSize(record),
	}
}

// Attend connects to the site once and lets the site call the server, until the connection ends, which is always an error: that of
// ctx when it ended, otherwise one that says why. The contexts of calls in flight end then; Attend does not wait for them to
// return, so a node that carries out something for long can connect again in the meantime.
//
// config is that of a client: the certificate of the node, the authorities of the site, and the name by which the site is known
// (ServerName). Versions and protocols are set in a copy. With TLS 1.3 the site judges the certificate after the handshake of the node, so
// the server is made once the site has begun HTTP/2. That it does not accept the certificate is an error that wraps [ErrRefused].
//
// To finish the calls in flight before the connection ends, call GracefulStop of the server.
func Attend(ctx context.Context, dial Dialer, config *tls.Config, server Maker) error {
	l, err := dialSite(ctx, dial, config)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	defer l.Close()
	defer context.AfterFunc(l.ctx, func() { l.Close() })() // also while the server stops gracefully
	if l.await(prefaceLimit) == nil {
		s := server(serverOptions()...)
		defer s.Stop()
		_ = s.Serve(newSingle(l)) // why the connection ended says more
	}
	l.Close()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	why := context.Cause(l.ctx)
	if refused(why) {
		why = fmt.Errorf("%w: %w", ErrRefused, why)
	}
	return fmt.Errorf("the connection to the site at %s ended: %w", l.RemoteAddr(), why)
}

// ErrRefused reports that the site does not accept the certificate of the node.
var ErrRefused = errors.New("the site refuses the certificate of this node")

// refusals are the alerts with which TLS refuses the certificate of the other side.
var refusals = []tls.AlertError{
	42,  // bad_certificate: all that the site itself finds wrong, such as that it has banned the node
	43,  // unsupported_certificate
	44,  // certificate_revoked
	45,  // certificate_expired
	46,  // certificate_unknown
	48,  // unknown_ca
	49,  // access_denied
	116, // certificate_required
}

// refused reports whether a connection ended because the other side does not accept the certificate of this one. The type of an alert is not
// exported by crypto/tls; its text is that of an AlertError.
func refused(err error) bool {
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error" &&
		slices.ContainsFunc(refusals, func(a tls.AlertError) bool { return a.Error() == alert.Err.Error() })
}

func dialSite(ctx context.Context, dial Dialer, config *tls.Config) (*link, error) {
	limit, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	raw, err := dial(limit)
	if err != nil {
		return nil, fmt.Errorf("dial the site: %w", err)
	}
	limit, cancel = context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	c := tls.Client(raw, restrict(config, Protocol))
	if err := c.HandshakeContext(limit); err != nil {
		raw.Close()
		return nil, fmt.Errorf("TLS handshake with the site at %s: %w", raw.RemoteAddr(), err)
	}
	if p := c.ConnectionState().NegotiatedProtocol; p != Protocol {
		raw.Close()
		return nil, fmt.Errorf("what listens at %s does not speak %q: see that it is the port of the site for nodes", raw.RemoteAddr(), Protocol)
	}
	return newLink(ctx, c), nil
}

// A Turn is a connection that [Keep] has made and the site has accepted, or one that it has lost or could not make.
type Turn struct {
	Connected bool
	Err       error         // why not
	Pause     time.Duration // before the next try
}

// Keep attends the site until ctx ends, and returns its cause. After each failure it pauses, from 1 s up to 10 s, spread by the
// name of the node so that the nodes of a site do not come back all at once, and no longer, because a node whose guard has undone what cut
// it off is to be there within 15 s; the pauses begin anew after a connection that lasted
// more than 5 s. See [Attend] for the arguments. Those who are told get to know of each turn, in order; they must not wait. A refusal of
// the certificate, which lasts until somebody acts, is logged once.
func Keep(ctx context.Context, node string, dial Dialer, config *tls.Config, server Maker, log *slog.Logger, told ...func(Turn)) error {
	tell := func(t Turn) {
		for _, told := range told {
			told(t)
		}
	}
	policy := retry.Policy{First: time.Second, Cap: 10 * time.Second, Key: node}
	next := policy.Pauses()
	said := false // that the certificate is refused
	for {
		var since time.Time
		err := Attend(ctx, dial, config, func(o ...grpc.ServerOption) *grpc.Server {
			since = time.Now()
			log.Info("connected to the site")
			tell(Turn{Connected: true})
			return server(o...)
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !since.IsZero() && time.Since(since) > settled {
			next = policy.Pauses()
		}
		pause, level, refused := next(), slog.LevelWarn, errors.Is(err, ErrRefused)
		if refused && said {
			level = slog.LevelDebug
		}
		said = refused
		log.Log(ctx, level, "not connected to the site", "error", err, "pause", pause)
		tell(Turn{Err: err, Pause: pause})
		if retry.Sleep(ctx, pause) != nil {
			return context.Cause(ctx)
		}
	}
}

// A single is a listener with one connection. It ends with it.
type single struct {
	link *link
	once chan *link
	ctx  context.Context
	end  context.CancelFunc
}

func newSingle(l *link) *single {
	s := &single{link: l, once: make(chan *link, 1)}
	s.once <- l
	s.ctx, s.end = context.WithCancel(l.ctx)
	return s
}

func (s *single) Accept() (net.Conn, error) {
	select {
	case l := <-s.once:
		return l, nil
	case <-s.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (s *single) Addr() net.Addr { return s.link.LocalAddr() }

func (s *single) Close() error {
	s.end()
	return nil
}
