package trust

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"converge.dev/converge/state"
	"converge.dev/converge/trust/trustpb"
)

// Serve registers the enrolment service with a gRPC server whose connections are made with [Authority.TLS]. Refusals are statuses with the
// text of the error: Unauthenticated for a token or a certificate that does not count, PermissionDenied for a contested or banned node,
// InvalidArgument for a request that cannot be served, ResourceExhausted for an address that has just presented a token that is not known.
func Serve(r grpc.ServiceRegistrar, a *Authority, store *state.Store, log *slog.Logger) {
	trustpb.RegisterEnrolmentServer(r, &service{a: a, store: store, log: log, slow: limiter{now: a.now}})
}

type service struct {
	trustpb.UnimplementedEnrolmentServer
	a     *Authority
	store *state.Store
	log   *slog.Logger
	slow  limiter
}

func (s *service) Claim(ctx context.Context, in *trustpb.ClaimRequest) (*trustpb.Issued, error) {
	from := address(ctx)
	if !s.slow.allowed(from) {
		return nil, status.Error(codes.ResourceExhausted, "a token that is not known was presented from this address within the last second: try again later")
	}
	chain, err := s.a.Claim(ctx, s.store, in.GetToken(), in.GetCsr())
	if errors.Is(err, ErrTokenUnknown) || errors.Is(err, ErrToken) {
		s.slow.missed(from)
	}
	node := ""
	if t, terr := ParseToken(in.GetToken()); terr == nil {
		node = t.Node
	}
	if err != nil {
		s.log.Warn("a claim was refused", "node", node, "from", from.String(), "error", err)
		return nil, refusal(err)
	}
	s.log.Info("a node has claimed its certificate", "node", node, "from", from.String())
	return s.issued(chain), nil
}

func (s *service) Renew(ctx context.Context, in *trustpb.RenewRequest) (*trustpb.Issued, error) {
	p, _ := peer.FromContext(ctx)
	var tls credentials.TLSInfo
	if p != nil {
		tls, _ = p.AuthInfo.(credentials.TLSInfo)
	}
	if len(tls.State.PeerCertificates) == 0 {
		return nil, refusal(ErrNoCertificate)
	}
	cert := tls.State.PeerCertificates[0]
	chain, err := s.a.Renew(ctx, s.store, cert, in.GetCsr())
	if err != nil {
		s.log.Warn("a renewal was refused", "node", cert.Subject.CommonName, "serial", cert.SerialNumber.Text(16), "error", err)
		return nil, refusal(err)
	}
	s.log.Info("a node has renewed its certificate", "node", cert.Subject.CommonName, "serial", cert.SerialNumber.Text(16))
	return s.issued(chain), nil
}

func (s *service) Trust(_ context.Context, in *trustpb.TrustRequest) (*trustpb.TrustResponse, error) {
	return &trustpb.TrustResponse{Envelopes: s.a.Envelopes(in.GetAfter())}, nil
}

func (s *service) issued(chain [][]byte) *trustpb.Issued {
	return &trustpb.Issued{Chain: chain, Trust: s.a.Envelope()}
}

// refusal returns an error as a status. What is not a refusal is the store's or ours, and can be tried again.
func refusal(err error) error {
	var contested *ContestedError
	var banned *BannedError
	var expired *ExpiredError
	code := codes.Unavailable
	switch {
	case errors.As(err, &contested), errors.As(err, &banned):
		code = codes.PermissionDenied
	case errors.Is(err, ErrToken), errors.Is(err, ErrRequest), errors.Is(err, ErrSameKey):
		code = codes.InvalidArgument
	case errors.Is(err, ErrTokenUnknown), errors.Is(err, ErrTokenExpired), errors.Is(err, ErrTokenTries), errors.Is(err, ErrTokenUsed),
		errors.Is(err, ErrSuperseded), errors.Is(err, ErrUnknownNode), errors.Is(err, ErrNoCertificate), errors.Is(err, ErrCertificate), errors.As(err, &expired):
		code = codes.Unauthenticated
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Error(code, err.Error())
}

// address returns where a call comes from: an IPv4 address, or the /64 of an IPv6 one, because a host has all of it.
func address(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.Addr{} // everything that has no address counts as one
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if net, err := ip.Prefix(64); err == nil {
			return net.Addr()
		}
	}
	return ip
}

const (
	// missPause is how long an address has to wait after a token that is not known.
	missPause = time.Second
	// maxMisses limits the addresses that are remembered. When there are more, all wait.
	maxMisses = 4096
)

// A limiter slows down who guesses tokens.
type limiter struct {
	now func() time.Time

	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

func (l *limiter) allowed(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if len(l.until) >= maxMisses {
		for at, until := range l.until {
			if !now.Before(until) {
				delete(l.until, at)
			}
		}
	}
	until, missed := l.until[from]
	return (!missed || !now.Before(until)) && len(l.until) < maxMisses
}

func (l *limiter) missed(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until == nil {
		l.until = map[netip.Addr]time.Time{}
	}
	l.until[from] = l.now().Add(missPause)
}
