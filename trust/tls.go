package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/state"
)

// RenewName is the server name (SNI) by which a client enters through the door for renewals. There a certificate is accepted that has
// expired up to [RenewLate] ago, or that was superseded just now by one whose reply was lost. [NodeOf] knows nobody who came in there.
const RenewName = "renew.converge.internal"

// Errors of connections.
var (
	// ErrNoCertificate reports that the other side has shown no certificate.
	ErrNoCertificate = errors.New("the call needs a node's certificate, and the connection has none")
	// ErrCertificate reports that a certificate is not that of a node, or of the site's server, here.
	ErrCertificate = errors.New("the certificate is not acceptable")
	// ErrRenewOnly reports that a connection is good for a renewal and nothing else.
	ErrRenewOnly = errors.New("this connection came in through the door for renewals: connect again with the renewed certificate")
)

// TLS returns the configuration of the site's listeners for nodes. A client without a certificate is let in, because enrolment has none:
// every other service asks [NodeOf]. A certificate that is shown must be that of a node of this site, valid now, issued by a node CA
// of the trust document, and acceptable to check, which is [Admission.Check] or has its contract.
func (a *Authority) TLS(check func(node string, serial *big.Int) error, hosts ...string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         a.ServerCertificate(hosts...),
		ClientAuth:             tls.RequestClientCert, // what is shown is verified below, also when something else than a full handshake is added one day
		SessionTicketsDisabled: true,
		Time:                   a.o.Now,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			cert, door := s.PeerCertificates[0], s.ServerName == RenewName
			node, err := a.verifyNode(cert, door)
			if err != nil {
				return err
			}
			err = check(node, cert.SerialNumber)
			if door && errors.Is(err, ErrSuperseded) {
				return nil // Renew decides, in one transaction
			}
			return err
		},
	}
}

// verifyNode checks that a certificate is that of a node of this site, and returns its name. With late, it may have expired a while ago.
func (a *Authority) verifyNode(cert *x509.Certificate, late bool) (string, error) {
	now := a.now()
	end := cert.NotAfter
	at := now
	if late {
		if end = end.Add(RenewLate); !now.Before(cert.NotAfter) && now.Before(end) {
			at = cert.NotAfter.Add(-time.Second)
		}
	}
	node, err := nodeOf(cert, a.site.ID)
	if err != nil {
		return "", err
	}
	if err := within("the certificate of node "+node, cert.NotBefore, end, now); err != nil {
		return "", err
	}
	a.mu.RLock()
	pool := a.pool
	a.mu.RUnlock()
	return node, chained(cert, pool, x509.ExtKeyUsageClientAuth, at)
}

// chained checks that a certificate was issued by one of the authorities, for a use. The authorities issue nothing but leaves, so that
// what else the other side sends does not matter.
func chained(cert *x509.Certificate, pool *x509.CertPool, use x509.ExtKeyUsage, at time.Time) error {
	if cert.IsCA || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{use}) { // package x509 takes no usage for any usage
		return fmt.Errorf("%w: it is for another use", ErrCertificate)
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	return nil
}

// nodeOf reads the name of a node in its certificate; site may be empty for any.
func nodeOf(cert *x509.Certificate, site string) (string, error) {
	if len(cert.URIs) != 1 {
		return "", fmt.Errorf("%w: want one URI, spiffe://SITE/node/NODE", ErrCertificate)
	}
	u := cert.URIs[0]
	node, ok := strings.CutPrefix(u.Path, "/node/")
	if !ok || !label.MatchString(node) || u.String() != nodeURI(u.Host, node).String() {
		return "", fmt.Errorf("%w: its URI is not spiffe://SITE/node/NODE", ErrCertificate)
	}
	if site != "" && u.Host != site {
		return "", fmt.Errorf("%w: %w", ErrCertificate, ErrSite)
	}
	return node, nil
}

// NodeOf returns the node at the other side of a connection whose handshake was made with [Authority.TLS], which has verified it. It fails with
// ErrNoCertificate, and with ErrRenewOnly.
func NodeOf(s tls.ConnectionState) (node string, err error) {
	switch {
	case !s.HandshakeComplete || len(s.PeerCertificates) == 0:
		return "", ErrNoCertificate
	case s.ServerName == RenewName:
		return "", ErrRenewOnly
	}
	return nodeOf(s.PeerCertificates[0], "")
}

// An Admission knows from the store which certificates of nodes are valid, and learns at once when one no longer is. Its methods may be
// called at the same time.
type Admission struct {
	store *state.Store

	mu    sync.Mutex
	nodes map[string]standing // nil while the store is not watched
}

type standing struct {
	serial *big.Int // of the newest certificate; nil: none was issued
	ban    string
	banned bool
}

// NewAdmission returns one that asks the store each time until [Admission.Run] watches it.
func NewAdmission(store *state.Store) *Admission { return &Admission{store: store} }

// lookUp is how long a check waits for the store.
const lookUp = 5 * time.Second

// Check decides whether the certificate with this serial number may be used by a node. It fails with a *BannedError, ErrSuperseded or
// ErrUnknownNode. A node that the watch has not brought yet, it reads from the store; when that does not answer within 5 s, it fails.
//
// A certificate later than the newest on record is accepted: the node CA has issued it, and the watch is behind, or the store was
// restored from a backup.
func (m *Admission) Check(node string, serial *big.Int) error {
	m.mu.Lock()
	s, known := m.nodes[node]
	m.mu.Unlock()
	if !known {
		ctx, cancel := context.WithTimeout(context.Background(), lookUp)
		defer cancel()
		n, err := m.store.Node(ctx, node)
		if errors.Is(err, state.ErrNotFound) {
			return fmt.Errorf("%w: %s", ErrUnknownNode, node)
		}
		if err != nil {
			return err
		}
		s = standingOf(&n)
	}
	switch {
	case s.banned:
		return &BannedError{node, s.ban}
	case s.serial == nil:
		return fmt.Errorf("%w: it has no certificate on record: %s", ErrUnknownNode, node)
	case older(serial, s.serial):
		return ErrSuperseded
	}
	return nil
}

// Replaced reports whether the node is known to have a newer certificate than the one with this serial number. It asks nobody: false when
// the store is not watched.
func (m *Admission) Replaced(node string, serial *big.Int) bool {
	m.mu.Lock()
	s := m.nodes[node]
	m.mu.Unlock()
	return s.serial != nil && older(serial, s.serial)
}

type ending struct {
	node string
	why  error
}

func standingOf(n *state.Node) standing {
	var s standing
	if serial, ok := new(big.Int).SetString(n.Serial, 16); ok {
		s.serial = serial
	}
	if n.Ban != nil {
		s.banned, s.ban = true, n.Ban.Reason
	}
	return s
}

// older reports whether a certificate is neither the newest on record nor a later one. The upper part of a serial number counts the
// node's certificates.
func older(serial, newest *big.Int) bool {
	count := func(n *big.Int) *big.Int { return new(big.Int).Rsh(n, countShift) }
	return serial.Cmp(newest) != 0 && count(serial).Cmp(count(newest)) <= 0
}

// Run follows the nodes in the store until the watch ends, and returns why. It calls refused, from one goroutine, with each node that is
// no longer admitted, for whatever certificate: whoever serves that node ends its connections then. The caller runs it again, with a pause;
// meanwhile Check asks the store.
func (m *Admission) Run(ctx context.Context, refused func(node string, why error)) error {
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.nodes = nil
	}()
	for changes, err := range m.store.WatchNodes(ctx) {
		if err != nil {
			return err
		}
		m.mu.Lock()
		before := m.nodes
		if changes.Whole || m.nodes == nil {
			m.nodes = map[string]standing{}
		}
		nodes := m.nodes
		var ended []ending
		for _, c := range changes.Changes {
			delete(nodes, c.Name)
			if changes.Whole {
				delete(before, c.Name)
			}
			switch {
			case c.Err != nil:
				ended = append(ended, ending{c.Name, c.Err})
			case c.Node == nil:
				ended = append(ended, ending{c.Name, ErrUnknownNode})
			default:
				s := standingOf(c.Node)
				nodes[c.Name] = s
				if s.banned {
					ended = append(ended, ending{c.Name, &BannedError{c.Name, s.ban}})
				}
			}
		}
		if changes.Whole {
			for name := range before { // what is left is gone
				ended = append(ended, ending{name, ErrUnknownNode})
			}
		}
		m.mu.Unlock()
		for _, e := range ended {
			refused(e.node, e.why)
		}
	}
	return context.Cause(ctx)
}
