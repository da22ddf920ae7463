package carbide

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"converge.dev/converge/internal/files"
)

// TLS says how the two sides authenticate each other. Files are PEM. They may be replaced at any time, one after the
// other: their new contents are used from then on, without failing a call.
type TLS struct {
	Mode       TLSMode `json:"mode,omitempty" yaml:"mode,omitempty"`
	CA         string  `json:"ca,omitempty" yaml:"ca,omitempty"`                   // file of the authorities that may sign the server's certificate; empty: the system's
	Cert       string  `json:"cert,omitempty" yaml:"cert,omitempty"`               // file of our certificate; Mutual only
	Key        string  `json:"key,omitempty" yaml:"key,omitempty"`                 // file of its key
	ServerName string  `json:"server_name,omitempty" yaml:"server_name,omitempty"` // optional: name in the server's certificate, when it differs from the address
}

// TLSMode says which side presents a certificate. The zero value is Mutual, the only mode in which the service lets us do more
// than ask for its version.
type TLSMode string

// The modes of TLS.
const (
	Mutual TLSMode = "mutual" // both
	Server TLSMode = "server" // the server
	Off    TLSMode = "off"    // neither: plain text
)

// An identity is the contents of the TLS files when they were read.
type identity struct {
	files  TLS
	digest [sha256.Size]byte // of all that was read
	config *tls.Config       // nil without TLS
	ours   *x509.Certificate // nil when we present none
}

// identity checks the options and reads the files. The digest is valid even when there is an error.
func (o Options) identity() (identity, error) {
	id := identity{files: o.TLS}
	if o.Address == "" {
		return id, errors.New("the address is missing")
	}
	id.files.Mode = cmp.Or(o.TLS.Mode, Mutual)
	switch id.files.Mode {
	case Mutual:
		if o.TLS.Cert == "" || o.TLS.Key == "" {
			return id, errors.New("mutual TLS needs a certificate and its key")
		}
	case Server:
		id.files.Cert, id.files.Key = "", ""
	case Off:
		if !o.AllowInsecure && !Local(o.Address) {
			return id, fmt.Errorf("%s is another machine: without TLS, anyone on the network path could change the site", o.Address)
		}
		id.files = TLS{Mode: Off}
		return id, nil
	default:
		return id, fmt.Errorf("unknown TLS mode %q: want %q, %q or %q", o.TLS.Mode, Mutual, Server, Off)
	}
	read, err := files.ReadCertificates(id.files.CA, id.files.Cert, id.files.Key)
	id.digest = read.Digest
	if err != nil {
		return id, err
	}
	id.config = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.TLS.ServerName, NextProtos: []string{"h2"}, RootCAs: read.Roots}
	if read.Ours != nil {
		id.ours = read.Ours.Leaf
		// This way it is also presented to a server that names other authorities, which then reports why it is refused.
		id.config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read.Ours, nil }
	}
	return id, nil
}

// stale returns why our certificate is not valid at a time; nil when it is. A server would only report that it is bad.
func (id identity) stale(at time.Time) error {
	switch c := id.ours; {
	case c == nil:
		return nil
	case at.After(c.NotAfter):
		return fmt.Errorf("the client certificate %s (%s) expired at %s: renew it, or check this machine's clock, which says %s",
			id.files.Cert, describe(c), stamp(c.NotAfter), stamp(at))
	case at.Before(c.NotBefore):
		return fmt.Errorf("the client certificate %s (%s) is not valid before %s: check this machine's clock, which says %s",
			id.files.Cert, describe(c), stamp(c.NotBefore), stamp(at))
	}
	return nil
}

// who returns how the service identifies us: by the URIs in our certificate.
func (id identity) who() string {
	if id.ours == nil {
		return fmt.Sprintf("a client without a certificate (TLS mode %q presents none)", id.files.Mode)
	}
	var names []string
	for _, uri := range id.ours.URIs {
		names = append(names, uri.String())
	}
	return fmt.Sprintf("%s, as named in the client certificate %s (%s)", cmp.Or(strings.Join(names, " and "), "no identity"), id.files.Cert, describe(id.ours))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// describe names a certificate, so that it can be found.
func describe(c *x509.Certificate) string {
	return fmt.Sprintf("%s, serial %x, signed by %s", cmp.Or(c.Subject.String(), "no subject"), c.SerialNumber, cmp.Or(c.Issuer.String(), "no issuer"))
}

// Local reports whether an address, HOST:PORT or unix:PATH, is on this machine. Nothing is sent to another machine without TLS
// unless the configuration says so, neither to this service nor to the store.
func Local(address string) bool {
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

// dial connects to HOST:PORT, unix:PATH or unix://PATH.
func (o Options) dial(ctx context.Context, address string) (net.Conn, error) {
	if o.Dial != nil {
		return o.Dial(ctx, address)
	}
	if path, unix := strings.CutPrefix(address, "unix:"); unix {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// handshake connects once more, outside gRPC, to learn which of the two sides refused the other's certificate and
// why; gRPC keeps only a text. It returns nil when neither did.
func (o Options) handshake(ctx context.Context, id identity) error {
	raw, err := o.dial(ctx, o.Address)
	if err != nil {
		return nil
	}
	defer raw.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := raw.SetDeadline(deadline); err != nil {
			return nil
		}
	}
	config := id.config.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(o.Address)
	}
	conn := tls.Client(raw, config)
	if err = conn.HandshakeContext(ctx); err == nil {
		_, err = conn.Read(make([]byte, 1)) // the server's verdict on our certificate, or its first frame
	}
	return id.refusal(err, config.ServerName)
}

// refusal explains which side refused which certificate of the other, and what to do; nil when err is about something
// else.
func (id identity) refusal(err error, name string) error {
	var (
		invalid   x509.CertificateInvalidError
		authority x509.UnknownAuthorityError
		wrong     x509.HostnameError
		network   *net.OpError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		whose := "the server's certificate"
		if invalid.Cert.IsCA {
			whose = "the certificate of a CA that signed the server's certificate"
		}
		if now := time.Now(); now.Before(invalid.Cert.NotBefore) {
			return fmt.Errorf("%s (%s) is not valid before %s: check the clocks of both machines; this one says %s: %w",
				whose, describe(invalid.Cert), stamp(invalid.Cert.NotBefore), stamp(now), err)
		}
		return fmt.Errorf("%s (%s) expired at %s: it must be renewed at the site: %w", whose, describe(invalid.Cert), stamp(invalid.Cert.NotAfter), err)
	case errors.As(err, &authority):
		from := cmp.Or(id.files.CA, "the system's trust store")
		shown := "unreadable"
		if authority.Cert != nil {
			shown = describe(authority.Cert)
		}
		return fmt.Errorf("the server's certificate (%s) is not signed by a CA in %s: add the site's CA there: %w", shown, from, err)
	case errors.As(err, &wrong):
		return fmt.Errorf("the server's certificate (%s) is not valid for %q: correct the address, or set the server name: %w", describe(wrong.Certificate), name, err)
	case errors.As(err, &network) && network.Op == "remote error" && id.ours == nil: // a TLS alert
		return fmt.Errorf("the server requires a client certificate, but the TLS mode is %q: set it to %q, with a certificate and its key: %w", id.files.Mode, Mutual, err)
	case errors.As(err, &network) && network.Op == "remote error":
		return fmt.Errorf("the server rejects the client certificate %s (%s, valid until %s): have it signed by a CA that the site trusts: %w",
			id.files.Cert, describe(id.ours), stamp(id.ours.NotAfter), err)
	case errors.As(err, &invalid):
		return fmt.Errorf("the server's certificate (%s) is not acceptable: it must be reissued at the site: %w", describe(invalid.Cert), err)
	}
	return nil
}
