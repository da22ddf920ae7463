// Package certs has the certificate of a server: where it comes from, and that it is fresh.
//
// # Words
//
// A source has one certificate in use. Its origin is where the next one comes from: files that somebody else replaces, the site's own
// node CA, an ACME directory such as Let's Encrypt, or the PKI of a Vault.
//
// # Promises
//
// A new certificate is used from the next connection on; connections that are open stay. A certificate is never used without the key
// that belongs to it. While no new one can be had, the old one stays, also after its end: a client then says what is wrong. The
// failure is logged when it begins and when it changes, and [Source.State] has it until it is over.
//
// Keys of the built-in CA and of Vault are made here, are in memory only, and leave it by no way. No error and no log entry contains
// a key, a token or a secret id.
package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/acme"

	"converge.dev/converge/internal/retry"
)

// Config says where the certificate comes from, as https of converge.yaml: from exactly one origin.
type Config struct {
	Files   *Files   `yaml:"files"`
	Builtin bool     `yaml:"builtin"` // issued by the node CA of the site
	ACME    *ACME    `yaml:"acme"`
	Vault   *Vault   `yaml:"vault"`
	Clients *Clients `yaml:"clients"`
}

// Files are a certificate with its chain, and its key, in PEM.
type Files struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Clients says whose certificates clients may show. One that is shown must be good; none needs to be.
type Clients struct {
	CA    string            `yaml:"ca"`    // file with the authorities, in PEM
	Roles map[Role][]string `yaml:"roles"` // optional: the names of the certificates that may change something: cn:NAME, dns:NAME, uri:URI
}

const (
	look      = 5 * time.Second // between two looks at files
	oftenLook = time.Minute     // at what is in memory
	tries     = 5 * time.Minute // the longest pause after a failure
)

// Check returns everything that cannot work, whatever others say; setting is where it is in converge.yaml.
func (c *Config) Check(setting string) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(setting+format, args...)) }
	n := 0
	for _, has := range []bool{c.Files != nil, c.Builtin, c.ACME != nil, c.Vault != nil} {
		if has {
			n++
		}
	}
	if n != 1 {
		wrong(": want one origin of the certificate, and there are %d: files, builtin, acme or vault", n)
	}
	if f := c.Files; f != nil && (f.Cert == "" || f.Key == "") {
		wrong(".files: a certificate and its key belong together: set both cert and key")
	}
	if c.ACME != nil {
		c.ACME.check(func(format string, args ...any) { wrong(".acme"+format, args...) })
	}
	if c.Vault != nil {
		c.Vault.check(func(format string, args ...any) { wrong(".vault"+format, args...) })
	}
	if c.Clients != nil && c.Clients.CA == "" {
		wrong(".clients.ca is missing: want a file with the authorities of clients")
	}
	if c.Clients != nil {
		c.Clients.checkRoles(func(format string, args ...any) { wrong(".clients.roles"+format, args...) })
	}
	return errors.Join(errs...)
}

// secure refuses a URL over which a secret must not be sent.
func secure(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("want a URL, https://HOST")
	case u.User != nil:
		return errors.New("contains a user or a password: remove it from the URL")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return errors.New("is another machine: want https://")
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Options make a Source. All are required unless they say otherwise.
type Options struct {
	Config Config
	Path   func(string) string // returns a path of the configuration as it is from here
	Hosts  []string            // the names and addresses of the server, for a certificate of the built-in CA or of a Vault
	// Builtin returns the certificate that the node CA issues now.
	Builtin func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Logger  *slog.Logger // optional
}

// An origin is where certificates come from.
type origin interface {
	// obtain returns the certificate to use from now on; nil: the one in use, which is nil at first, stays. It is asked again after a
	// time; zero: soon when it failed.
	obtain(ctx context.Context, have *tls.Certificate) (cert *tls.Certificate, after time.Duration, err error)
}

// A Source is the certificate of a server. Its methods may be called at the same time.
type Source struct {
	from    origin
	clients *clients // nil: no certificate is asked for
	roles   map[Role][]string
	log     *slog.Logger

	mu   sync.Mutex
	cert *tls.Certificate // in use; nil while there is none. Its Leaf is set
	err  error            // why there is no newer one
}

// Open returns a source. It fails when files are configured and cannot be used; other origins are asked by [Source.Run].
func Open(o Options) (*Source, error) {
	c := o.Config
	if err := c.Check("https"); err != nil {
		return nil, err
	}
	s := &Source{log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	if c.Clients != nil {
		s.clients, s.roles = &clients{path: o.Path(c.Clients.CA)}, c.Clients.Roles
		if _, err := s.clients.read(); err != nil {
			return nil, fmt.Errorf("https.clients.ca: %w", err)
		}
	}
	switch {
	case c.Files != nil:
		s.from = &fileOrigin{cert: o.Path(c.Files.Cert), key: o.Path(c.Files.Key)}
	case c.Builtin:
		s.from = builtin(o.Builtin)
	case c.ACME != nil:
		from, err := c.ACME.open(o)
		if err != nil {
			return nil, fmt.Errorf("https.acme: %w", err)
		}
		s.from = from
	default:
		from, err := c.Vault.open(o)
		if err != nil {
			return nil, fmt.Errorf("https.vault: %w", err)
		}
		s.from = from
	}
	if c.Files != nil || c.Builtin { // these ask nobody
		s.renew(context.Background())
		if c.Files != nil && s.cert == nil {
			return nil, fmt.Errorf("https.files: %w", s.err)
		}
	}
	return s, nil
}

// builtin is the node CA of the site, which issues without being asked for it.
type builtin func(*tls.ClientHelloInfo) (*tls.Certificate, error)

func (b builtin) obtain(_ context.Context, have *tls.Certificate) (*tls.Certificate, time.Duration, error) {
	cert, err := b(nil)
	if err != nil || cert == have {
		return nil, oftenLook, err
	}
	return cert, oftenLook, nil
}

// renew asks the origin once, and returns after which time to ask again.
func (s *Source) renew(ctx context.Context) time.Duration {
	s.mu.Lock()
	have, was := s.cert, s.err
	s.mu.Unlock()
	cert, after, err := s.from.obtain(ctx, have)
	if ctx.Err() != nil {
		return after
	}
	s.mu.Lock()
	if s.err = err; err == nil && cert != nil {
		s.cert = cert
	}
	s.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		left := "there is none"
		if have != nil {
			left = "until " + stamp(have.Leaf.NotAfter)
		}
		s.log.Error("no new certificate of the HTTP server can be had", "error", err, "in_use", left)
	case err == nil && cert != nil:
		s.log.Info("the HTTP server has a new certificate", "not_after", stamp(cert.Leaf.NotAfter), "names", names(cert.Leaf))
	case err == nil && was != nil:
		s.log.Info("the origin of the HTTP server's certificate works again")
	}
	return after
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func names(leaf *x509.Certificate) []string {
	all := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		all = append(all, ip.String())
	}
	return all
}

// halfway returns after which time half of the life of a certificate has passed.
func halfway(leaf *x509.Certificate, now time.Time) time.Duration {
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2).Sub(now)
}

// Run keeps the certificate fresh until ctx is done.
func (s *Source) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if s.clients != nil {
		running.Go(func() { s.clients.run(ctx, s.log) })
	}
	if a, ok := s.from.(*acmeOrigin); ok {
		stop := context.AfterFunc(ctx, a.end)
		defer stop()
		if a.answers != nil {
			running.Go(func() { a.serve(ctx, s.log) })
		}
	}
	policy := retry.Policy{First: look, Cap: tries}
	pauses := policy.Pauses()
	for ctx.Err() == nil {
		after := s.renew(ctx)
		if _, err := s.State(); err == nil {
			pauses = policy.Pauses()
		} else if after == 0 {
			after = pauses()
		}
		if retry.Sleep(ctx, max(after, look)) != nil { // also when a clock is wrong, and half of the life of each has passed at once
			return
		}
	}
}

// State returns the certificate in use, nil while there is none, and why no newer one can be had; nil when nothing is wrong.
func (s *Source) State() (*x509.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert == nil {
		return nil, s.err
	}
	return s.cert.Leaf, s.err
}

// certificate returns what a client is shown.
func (s *Source) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if a, ok := s.from.(*acmeOrigin); ok && a.knows(hello) {
		return a.manager.GetCertificate(hello)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert == nil {
		return nil, cmp.Or(s.err, errors.New("the server has no certificate yet"))
	}
	return s.cert, nil
}

// TLS returns the configuration of the server: TLS 1.2 or later, HTTP/1.1 and, for clients in the role [Operate], HTTP/2, verified anew at each connection. The certificate of a client is in
// the state of its connection, and so in the TLS of its requests, when it was shown and is good; otherwise there is no connection.
func (s *Source) TLS() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: s.certificate, NextProtos: []string{"http/1.1"},
		SessionTicketsDisabled: true, // a resumed session would not ask again whether the client's certificate is good
	}
	if len(s.roles[Operate]) > 0 {
		config.NextProtos = append(config.NextProtos, "h2") // last: for those who speak nothing else
		config.VerifyConnection = func(c tls.ConnectionState) error {
			if c.NegotiatedProtocol != "h2" {
				return nil
			}
			_, err := s.Allowed(Operate, &c)
			return err
		}
	}
	if _, ok := s.from.(*acmeOrigin); ok {
		config.NextProtos = append(config.NextProtos, acme.ALPNProto)
	}
	if s.clients == nil {
		return config
	}
	config.ClientAuth = tls.VerifyClientCertIfGiven
	each := config.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := each.Clone()
		now.ClientCAs = s.clients.pool()
		return now, nil
	}
	return config
}
