package carbidesim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers/carbide/forge"
)

// ServerOptions say how a world is served. Without a certificate it is plaintext HTTP/2.
type ServerOptions struct {
	CertFile string // optional: PEM; read again when it changes
	KeyFile  string // required with CertFile
	ClientCA string // optional: PEM; certificates of clients are checked against it
	Mutual   bool   // refuse clients without a certificate at the handshake; the real service leaves that to roles
	Roles    Roles  // optional: who may call what; nil permits everything to every caller
	Control  string // optional: path of a unix socket for the control endpoint

	// Arrived is called for every call before anything happens. Optional. The context has the peer, its certificate and the
	// metadata.
	Arrived func(ctx context.Context, method string)

	// Answer returns what is sent instead of a reply, which it must not change: the reply shares parts with the world. Optional.
	Answer func(method string, reply proto.Message) proto.Message
}

// Server puts a world on the wire.
type Server struct {
	world   *World
	grpc    *grpc.Server
	control *controlServer // nil without a socket
	conns   conns
}

// NewServer prepares a server; Serve starts it, Stop ends it.
func NewServer(w *World, o ServerOptions) (*Server, error) {
	s := &Server{world: w}
	options := []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			defer w.enter()()
			if o.Arrived != nil {
				o.Arrived(ctx, path.Base(info.FullMethod))
			}
			if o.Roles != nil {
				if err := o.Roles.check(ctx, info.FullMethod); err != nil {
					return nil, err
				}
			}
			reply, err := w.arrive(ctx, request, info, handle, func() { s.conns.cut(ctx) })
			if err == nil && o.Answer != nil {
				reply = o.Answer(path.Base(info.FullMethod), reply.(proto.Message))
			}
			return reply, err
		}),
		// Clients of the service ping every ten seconds, even without calls.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if o.CertFile != "" {
		files := &certificates{options: o}
		if _, err := files.config(nil); err != nil {
			return nil, fmt.Errorf("serve the simulated site: %w", err)
		}
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{
			GetConfigForClient: files.config, MinVersion: tls.VersionTLS12,
		})))
	}
	s.grpc = grpc.NewServer(options...)
	forge.RegisterForgeServer(s.grpc, w.site)
	if o.Control != "" {
		control, err := listenControl(w, o.Control)
		if err != nil {
			return nil, fmt.Errorf("serve the control endpoint: %w", err)
		}
		s.control = control
	}
	return s, nil
}

// Serve answers calls until Stop. It may be called for several listeners.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(s.conns.watch(l)) }

// Connections returns how many connections are open, and how many there have ever been.
func (s *Server) Connections() (open, ever int) {
	s.conns.mu.Lock()
	defer s.conns.mu.Unlock()
	return len(s.conns.open), s.conns.ever
}

// Stop closes all connections, including those with calls that hang, and waits for the calls to end.
func (s *Server) Stop() {
	s.grpc.Stop()
	if s.control != nil {
		s.control.stop()
	}
}

// certificates are files that are read again at a handshake when they have changed.
type certificates struct {
	options ServerOptions

	mu    sync.Mutex
	seen  string
	valid *tls.Config
}

// config returns the configuration for a handshake. Half-written files leave the previous one in place.
func (c *certificates) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.fingerprint()
	if err == nil && now != c.seen {
		var fresh *tls.Config
		if fresh, err = c.read(); err == nil {
			c.seen, c.valid = now, fresh
		}
	}
	if c.valid == nil {
		return nil, err
	}
	return c.valid, nil
}

func (c *certificates) fingerprint() (string, error) {
	out := ""
	for _, name := range []string{c.options.CertFile, c.options.KeyFile, c.options.ClientCA} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		out += fmt.Sprintf("%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
	}
	return out, nil
}

// maxPEM is the maximum size of a TLS file.
const maxPEM = 1 << 20

func (c *certificates) read() (*tls.Config, error) {
	cert, err := files.Read(c.options.CertFile, maxPEM)
	if err != nil {
		return nil, err
	}
	key, err := files.ReadPrivate(c.options.KeyFile, maxPEM)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	out := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2"},
		// A resumed session would skip the check of the client's certificate against the current files.
		SessionTicketsDisabled: true,
	}
	if c.options.ClientCA == "" {
		if c.options.Mutual {
			return nil, errors.New("mutual TLS needs a CA for clients")
		}
		return out, nil
	}
	pem, err := files.Read(c.options.ClientCA, maxPEM)
	if err != nil {
		return nil, err
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", c.options.ClientCA)
	}
	out.ClientAuth = tls.VerifyClientCertIfGiven
	if c.options.Mutual {
		out.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return out, nil
}

// conns are the open connections by the address of the client, so that a fault can cut one.
type conns struct {
	mu   sync.Mutex
	open map[string]net.Conn
	ever int
}

func (c *conns) watch(l net.Listener) net.Listener { return watched{l, c} }

// cut closes the connection of a call.
func (c *conns) cut(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	c.mu.Lock()
	conn := c.open[p.Addr.String()]
	c.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

type watched struct {
	net.Listener
	conns *conns
}

// Accept remembers the connection until it is closed.
func (w watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	name := conn.RemoteAddr().String()
	w.conns.mu.Lock()
	defer w.conns.mu.Unlock()
	if w.conns.open == nil {
		w.conns.open = map[string]net.Conn{}
	}
	w.conns.open[name] = conn
	w.conns.ever++
	return &watchedConn{Conn: conn, forget: func() {
		w.conns.mu.Lock()
		defer w.conns.mu.Unlock()
		if w.conns.open[name] == conn {
			delete(w.conns.open, name)
		}
	}}, nil
}

type watchedConn struct {
	net.Conn
	forget func()
}

// Close forgets the connection.
func (c *watchedConn) Close() error {
	c.forget()
	return c.Conn.Close()
}
