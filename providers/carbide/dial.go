package carbide

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
)

// TLS says how the two sides know each other. Files are PEM.
type TLS struct {
	Mode       TLSMode
	CA         string // file of the authorities that may sign the server's certificate; empty: the system's
	Cert, Key  string // files of our certificate; Mutual only. They are read again for each connection
	ServerName string // optional: name in the server's certificate, when it is not that of the address
}

// TLSMode says who shows a certificate. The zero value is Mutual, the only one with which the service lets us do more
// than ask for its version.
type TLSMode string

// Modes of TLS.
const (
	Mutual TLSMode = "mutual" // both
	Server TLSMode = "server" // the server
	Off    TLSMode = "off"    // nobody: plain text
)

const (
	versionTimeout   = 5 * time.Second
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 15 * time.Second
	defaultTimeout   = 30 * time.Second
	defaultParallel  = 8
	defaultIDs       = 100 // per call, where the site does not say

	// The ids of 100 000 objects come in one answer, of about 4 MB.
	largestAnswer = 64 << 20
)

// A service is the connection to one site's control service.
type service struct {
	forge.ForgeClient
	conn    *grpc.ClientConn
	ids     int           // most ids in one call
	slots   chan struct{} // one per call under way
	timeout time.Duration // of one call
	late    time.Duration // how long after that it may have its effect
	log     *slog.Logger
	orders  turns // one at a time per VPC for calls that move its version
}

func open(ctx context.Context, o Options) (*service, error) {
	s := &service{
		slots:   make(chan struct{}, max(cmp.Or(o.Parallel, defaultParallel), 1)),
		timeout: cmp.Or(o.Timeout, defaultTimeout),
		late:    cmp.Or(o.Late, late),
		log:     cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
	}
	config, err := o.tlsConfig()
	if err != nil {
		return nil, openError(providers.Invalid, err)
	}
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer)),
		grpc.WithUnaryInterceptor(s.call),
		grpc.WithStatsHandler(watcher{}),
		grpc.WithNoProxy(), // the service is on the site's own network; a proxy for the internet cannot reach it
	}
	target := o.Address
	if o.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(o.Dial))
		target = "passthrough:///" + o.Address
	}
	if s.conn, err = grpc.NewClient(target, opts...); err != nil {
		return nil, openError(providers.Invalid, fmt.Errorf("address %q: %w", o.Address, err))
	}
	s.ForgeClient = forge.NewForgeClient(s.conn)
	if err := s.greet(ctx, o, config); err != nil {
		s.conn.Close()
		return nil, err
	}
	return s, nil
}

func openError(class providers.Class, err error) error {
	return &providers.Error{Op: "open", Kind: Name, Class: class, Err: err}
}

// greet asks for the version, because a connection says little: with TLS 1.3 the server looks at our certificate only
// after our side has finished.
func (s *service) greet(ctx context.Context, o Options, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	info, err := s.Version(ctx, &forge.VersionRequest{DisplayConfig: true})
	if err != nil {
		if config != nil && status.Code(err) == codes.Unavailable {
			if refusal := o.handshake(ctx, config); refusal != nil {
				return openError(providers.Denied, fmt.Errorf("%s: %w", o.Address, refusal))
			}
		}
		return openError(readClass(err), fmt.Errorf("%s: %w", o.Address, err))
	}
	s.ids = int(cmp.Or(info.GetRuntimeConfig().GetMaxFindByIds(), defaultIDs))
	s.log.Debug("connected to Carbide", "address", o.Address, "version", info.GetBuildVersion(), "ids_per_call", s.ids)
	return nil
}

// tlsConfig checks the options and reads the files. It is nil when there is no TLS.
func (o Options) tlsConfig() (*tls.Config, error) {
	if o.Address == "" {
		return nil, errors.New("no address is given")
	}
	mode := cmp.Or(o.TLS.Mode, Mutual)
	switch mode {
	case Mutual, Server:
	case Off:
		if !o.AllowInsecure && !local(o.Address) {
			return nil, fmt.Errorf("%s is another machine: without TLS anybody between could change the site", o.Address)
		}
		return nil, nil
	default:
		return nil, fmt.Errorf("TLS mode %q is unknown: want %q, %q or %q", mode, Mutual, Server, Off)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.TLS.ServerName, NextProtos: []string{"h2"}}
	if o.TLS.CA != "" {
		pem, err := os.ReadFile(o.TLS.CA)
		if err != nil {
			return nil, fmt.Errorf("read the authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", o.TLS.CA)
		}
	}
	if mode == Mutual {
		if o.TLS.Cert == "" || o.TLS.Key == "" {
			return nil, errors.New("mutual TLS needs a certificate and its key")
		}
		load := func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.TLS.Cert, o.TLS.Key)
			if err != nil {
				return nil, fmt.Errorf("read our certificate: %w", err)
			}
			return &c, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		// Certificates are renewed while we run; each connection shows the newest.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return config, nil
}

// local reports whether an address is on this machine.
func local(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// handshake connects once more, outside gRPC, to learn which of the two sides refused the other's certificate and
// why; gRPC keeps only a text. It gives nil when nobody did.
func (o Options) handshake(ctx context.Context, config *tls.Config) error {
	var raw net.Conn
	var err error
	switch path, unix := strings.CutPrefix(o.Address, "unix:"); {
	case o.Dial != nil:
		raw, err = o.Dial(ctx, o.Address)
	case unix:
		raw, err = new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
	default:
		raw, err = new(net.Dialer).DialContext(ctx, "tcp", o.Address)
	}
	if err != nil {
		return nil
	}
	defer raw.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := raw.SetDeadline(deadline); err != nil {
			return nil
		}
	}
	config = config.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(o.Address)
	}
	conn := tls.Client(raw, config)
	if err = conn.HandshakeContext(ctx); err == nil {
		_, err = conn.Read(make([]byte, 1)) // the server's verdict on our certificate, or its first frame
	}
	return refusal(err)
}

// refusal says in words which side refused the other's certificate; nil when err is about something else.
func refusal(err error) error {
	var (
		invalid   x509.CertificateInvalidError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		network   *net.OpError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the server's certificate has expired or is not valid yet: %w", err)
	case errors.As(err, &authority):
		return fmt.Errorf("the server's certificate is signed by none of our authorities: %w", err)
	case errors.As(err, &name):
		return fmt.Errorf("the server's certificate is for another name: %w", err)
	case errors.As(err, &network) && network.Op == "remote error": // a TLS alert
		return fmt.Errorf("the server refuses our certificate, or wants one and got none: %w", err)
	case errors.As(err, &invalid):
		return fmt.Errorf("the server's certificate is not acceptable: %w", err)
	}
	return nil
}

// call wraps every call: it waits for a slot, bounds the time, and finds out whether the request left at all.
func (s *service) call(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return unsentError{status.FromContextError(ctx.Err()).Err()}
	}
	defer func() { <-s.slots }()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var sent atomic.Bool
	start := time.Now()
	err := invoke(context.WithValue(ctx, sentKey{}, &sent), method, req, reply, conn, opts...)
	if s.log.Enabled(ctx, slog.LevelDebug) {
		s.log.Debug("call", "method", method, "took", time.Since(start), "code", status.Code(err))
	}
	if err != nil && !sent.Load() {
		return unsentError{err}
	}
	return err
}

// An unsentError is the error of a call whose request never left: it had no effect, whatever its code.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

type sentKey struct{}

// watcher notes on a call's context that its request began to leave.
type watcher struct{}

func (watcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (watcher) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutHeader); ok {
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

func (watcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (watcher) HandleConn(context.Context, stats.ConnStats) {}
