// Package reverse lets a site call its nodes by gRPC although nothing listens on a node: the node dials, and the site is the client.
//
// A node opens a connection to a port of the site with TLS 1.3 and mutual certificates, and agrees on [Protocol] by ALPN. From
// then on the roles of HTTP/2 are reversed: the node runs a gRPC server on that connection, and the site calls it. So gRPC's own
// multiplexing, flow control and keepalive work from end to end, and there is no tunnel inside a stream. The same port takes
// ordinary gRPC, in which the dialling side is the client; that is ALPN "h2".
//
// At the site, [Listen] splits a listener: ordinary connections come out of Accept, for a [google.golang.org/grpc.Server] with [Credentials], and
// those of nodes are handed to a function as a [Conn]. At a node, [Attend] makes one connection and serves it, and [Keep] does so
// again and again.
//
// Promises:
//
//   - Both sides are TLS 1.3 without session resumption. A [Conn] belongs to a node whose certificate was verified by the
//     [tls.Config] of the site; without one the connection is refused before anything is called on it.
//   - A Conn is one connection and never becomes another one. When it is gone, [Conn.Done] is closed, and calls in flight as well
//     as new ones fail with [google.golang.org/grpc/codes.Unavailable] at once.
//   - A peer that falls silent, as after a pulled cable, is noticed within 40 s by both sides, also when no call is in flight.
//   - A dialler that is slow or says nothing is cut off: 10 s for TLS, then 20 s for the start of HTTP/2. There are no more than
//     256 handshakes at a time; those beyond that wait in the backlog of the operating system.
//   - A node at rest costs the site less than 60 KiB, see BenchmarkIdleNodes: 6 goroutines with about 20 KiB of stacks, and 35 KiB
//     of heap for TLS and the client of gRPC.
//   - What a node can make the site keep for it is bounded by the flow-control windows, 1 MiB for each connection, and by the
//     largest message that a call accepts.
package reverse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// Protocol is the name in ALPN of a connection on which the side that dialled is the gRPC server.
const Protocol = "converge-node/1"

// ordinary is the name in ALPN of a connection on which the side that dialled is the client.
const ordinary = "h2"

const (
	handshakeLimit = 10 * time.Second // for TLS, and for dialling
	prefaceLimit   = 20 * time.Second // from the end of the handshake until HTTP/2 has begun

	// The site pings first. A node pings only when it has heard nothing for longer, so that a connection in good health carries
	// the pings of one side.
	sitePing  = 20 * time.Second
	nodePing  = 25 * time.Second
	pingLimit = 10 * time.Second // for the answer

	// The windows are fixed: gRPC would otherwise raise them up to 16 MiB for each connection, and let a node decide how much.
	streamWindow = 256 << 10
	connWindow   = 1 << 20

	maxHeaders = 64 << 10 // bytes of metadata in one direction of a call
	maxStreams = 1000     // calls in flight on one connection; those beyond that wait
)

// errClosedHere is why a connection ended that gRPC closed without an error from the network.
var errClosedHere = errors.New("closed by this side, which stopped, or got no answer to its pings, or was not understood")

// A link is an established connection that knows when it is gone and why.
type link struct {
	*tls.Conn
	ctx context.Context // ends with the connection; its cause says why
	end context.CancelCauseFunc

	begun []byte // what await has read
}

// newLink returns a link that is also gone when ctx ends.
func newLink(ctx context.Context, c *tls.Conn) *link {
	l := &link{Conn: c}
	l.ctx, l.end = context.WithCancelCause(ctx)
	return l
}

// await waits until the other side says something, which is not lost. What fails ends the link.
func (l *link) await(limit time.Duration) error {
	_ = l.SetReadDeadline(time.Now().Add(limit)) // that it is closed is what Read says
	first := make([]byte, 1)
	n, err := l.Read(first)
	l.begun = first[:n]
	if err == nil {
		err = l.SetReadDeadline(time.Time{})
	}
	return err
}

// Read implements [net.Conn]. Its first error ends the link; one of Write does not, because what came before may still be read.
func (l *link) Read(b []byte) (int, error) {
	if len(l.begun) > 0 {
		n := copy(b, l.begun)
		l.begun = l.begun[n:]
		return n, nil
	}
	n, err := l.Conn.Read(b)
	if err != nil {
		l.end(err)
	}
	return n, err
}

// Close implements [net.Conn].
func (l *link) Close() error { return l.close(errClosedHere) }

// close says no farewell in TLS: that would wait up to 5 s for a peer that reads nothing, and HTTP/2 notices a truncation by itself.
func (l *link) close(why error) error {
	l.end(why)
	return l.NetConn().Close()
}

// restrict returns a copy of config for the given protocols.
func restrict(config *tls.Config, protocols ...string) *tls.Config {
	c := config.Clone()
	c.MinVersion = tls.VersionTLS13
	c.NextProtos = protocols
	c.SessionTicketsDisabled = true
	c.ClientSessionCache = nil
	if choose := config.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if chosen == nil || err != nil {
				return nil, err
			}
			chosen = restrict(chosen, protocols...)
			chosen.GetConfigForClient = nil // crypto/tls asks once
			return chosen, nil
		}
	}
	return c
}

// Credentials returns what a [google.golang.org/grpc.Server] needs for the connections from [Listener.Accept]: they have TLS already, and the
// identity of the peer is in the context of each call as [credentials.TLSInfo]. Connections without TLS 1.3 are refused.
func Credentials() credentials.TransportCredentials { return established{} }

// established are the credentials of connections on which TLS has been established before gRPC sees them.
type established struct{}

func (established) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return identify(c)
}

func (established) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return identify(c)
}

func (established) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (established) Clone() credentials.TransportCredentials { return established{} }

func (established) OverrideServerName(string) error { return nil }

func identify(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil, nil, fmt.Errorf("a connection of type %T has no TLS: use these credentials with the listener of this package only", c)
	}
	state := secured.ConnectionState()
	if !state.HandshakeComplete || state.Version < tls.VersionTLS13 {
		return nil, nil, errors.New("TLS 1.3 has not been established: use these credentials with the listener of this package only")
	}
	return c, credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}
