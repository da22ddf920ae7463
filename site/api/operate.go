package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/trust/certs"
)

// Limits of operators.
const (
	MaxOperators  = 64   // connections at a time; they also count among [MaxConns]
	MaxOperations = 1000 // calls at a time on each of them, with the streams that are open

	maxCall = 2 << 20     // bytes of a message: a transaction of the store
	recheck = time.Second // how often it is asked whether an operator still has the role
)

// h2 is HTTP/2 in the negotiation of TLS.
const h2 = "h2"

// operations are what clients in the role [certs.Operate] may call, by gRPC over HTTP/2. Nobody else is served that.
type operations struct {
	*API
	server *grpc.Server
	slots  chan struct{} // holds an element for each connection
}

// operations returns them for a server of a configuration; nil when there are none.
func (a *API) operations(config *tls.Config) *operations {
	if a.o.Operate == nil || a.o.Writes == nil || config == nil || !slices.Contains(config.NextProtos, h2) {
		return nil
	}
	o := &operations{API: a, slots: make(chan struct{}, MaxOperators)}
	o.server = grpc.NewServer(grpc.Creds(reverse.Credentials()), grpc.ConnectionTimeout(readTime), grpc.MaxRecvMsgSize(maxCall),
		grpc.MaxConcurrentStreams(MaxOperations), grpc.UnaryInterceptor(o.call), grpc.StreamInterceptor(o.stream),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 5 * time.Minute, Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	a.o.Operate(o.server)
	return o
}

// allowed returns as whom a client operates the site.
func (o *operations) allowed(conn tls.ConnectionState) (string, error) {
	return o.o.Writes.Allowed(certs.Operate, &conn)
}

// admit returns the connection of an operator, which is closed once that has not the role any more; nil when it is not admitted.
func (o *operations) admit(c *tls.Conn) net.Conn {
	who, err := o.allowed(c.ConnectionState())
	if err != nil {
		var no *certs.ForbiddenError
		if errors.As(err, &no) {
			who = strings.Join(no.Names, ", ")
		}
		o.o.Logger.Warn("an operator was refused", "who", who, "address", c.RemoteAddr().String(), "error", err)
		return nil
	}
	select {
	case o.slots <- struct{}{}:
	default:
		o.o.Logger.Warn("an operator was refused", "who", who, "address", c.RemoteAddr().String(), "error", fmt.Sprintf("%d are connected already", cap(o.slots)))
		return nil
	}
	o.o.Logger.Info("an operator is connected", "who", who, "address", c.RemoteAddr().String())
	over := make(chan struct{})
	admitted := &operating{Conn: c, gone: sync.OnceFunc(func() { close(over); <-o.slots })}
	go func() {
		tick := time.NewTicker(recheck)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			if _, err := o.allowed(c.ConnectionState()); err != nil {
				o.o.Logger.Warn("an operator is no longer one", "who", who, "error", err)
				_ = admitted.Close()
				return
			}
		}
	}()
	return admitted
}

// operating is the connection of an operator, which counts until it is closed.
type operating struct {
	*tls.Conn
	gone func()
}

// Close implements [net.Conn].
func (c *operating) Close() error {
	c.gone()
	return c.Conn.Close()
}

func (o *operations) call(ctx context.Context, q any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	defer o.recover(info.FullMethod, &err)
	if strings.HasSuffix(info.FullMethod, "/LeaseGrant") { // with which each run begins
		if p, ok := peer.FromContext(ctx); ok {
			who, _ := o.allowed(p.AuthInfo.(credentials.TLSInfo).State)
			o.o.Logger.Info("an operator takes a lease", "who", who)
		}
	}
	return handler(ctx, q)
}

func (o *operations) stream(server any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer o.recover(info.FullMethod, &err)
	return handler(server, s)
}

// recover answers for a call that panics.
func (o *operations) recover(call string, err *error) {
	if p := recover(); p != nil {
		o.o.Logger.Error("a call made the program fail: this is a bug", "call", call, "error", o.text(fmt.Sprint(p)), "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "the program failed at this call; its log says how")
	}
}

// A fork takes the connections of a listener, and gives those that speak HTTP/2 to operators. It is itself the listener of the others.
type fork struct {
	net.Listener // without TLS
	config       *tls.Config
	operators    *operations
	requests     chan net.Conn
	calls        chan net.Conn
	failed       chan error
	closed       chan struct{}
	close        func() error
}

func newFork(l net.Listener, config *tls.Config, o *operations) *fork {
	f := &fork{Listener: l, config: config, operators: o, requests: make(chan net.Conn), calls: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{})}
	f.close = sync.OnceValue(func() error {
		close(f.closed)
		return l.Close()
	})
	go f.run()
	return f
}

func (f *fork) run() {
	for {
		c, err := f.Listener.Accept()
		if err == nil {
			go f.greet(tls.Server(c, f.config))
			continue
		}
		select {
		case f.failed <- err: // who accepts decides what comes of it
		case <-f.closed:
			return
		}
	}
}

// greet finds out what a connection speaks.
func (f *fork) greet(c *tls.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		f.operators.o.Logger.Log(ctx, slog.LevelDebug, "a client was refused", "address", c.RemoteAddr().String(), "error", err) // strangers cause these
		_ = c.Close()
		return
	}
	to, conn := f.requests, net.Conn(c)
	if c.ConnectionState().NegotiatedProtocol == h2 {
		to, conn = f.calls, f.operators.admit(c)
	}
	if conn == nil {
		_ = c.Close()
		return
	}
	select {
	case to <- conn:
	case <-f.closed:
		_ = conn.Close()
	}
}

// Accept implements [net.Listener].
func (f *fork) Accept() (net.Conn, error) {
	select {
	case c := <-f.requests:
		return c, nil
	case err := <-f.failed:
		return nil, err
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (f *fork) Close() error { return f.close() }

// callers is the listener of a fork for operators.
type callers struct{ *fork }

// Accept implements [net.Listener].
func (c callers) Accept() (net.Conn, error) {
	select {
	case conn := <-c.calls:
		return conn, nil
	case <-c.closed:
		return nil, net.ErrClosed
	}
}
