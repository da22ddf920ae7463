package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"converge.dev/converge/internal/files"
)

// ACME is a directory of RFC 8555 that issues certificates to whoever answers at a name.
type ACME struct {
	Directory string   `yaml:"directory"` // URL; empty: Let's Encrypt
	Email     string   `yaml:"email"`     // optional: whom the authority tells of problems
	Hosts     []string `yaml:"hosts"`     // DNS names; a client that asks for another one is shown the certificate of the first
	CA        string   `yaml:"ca"`        // file of the authorities that may sign the directory's own certificate; empty: the system's
	Dir       string   `yaml:"dir"`       // directory of the account and of the certificates, mode 0700; "acme" when empty
	HTTP      string   `yaml:"http"`      // optional: HOST:PORT where challenges are answered in plain HTTP (http-01), besides those in TLS at the server's own port (tls-alpn-01)
}

func (a *ACME) check(wrong func(format string, args ...any)) {
	if a.Directory != "" {
		if err := secure(a.Directory); err != nil {
			wrong(".directory %v", err)
		}
	}
	if len(a.Hosts) == 0 {
		wrong(".hosts is missing: want the DNS names of the server")
	}
	for _, host := range a.Hosts {
		if net.ParseIP(host) != nil || !strings.Contains(strings.Trim(host, "."), ".") || strings.ContainsAny(host, "*:/ ") {
			wrong(".hosts: %q is no full DNS name, such as site.example", host)
		}
	}
	if a.HTTP != "" {
		if _, port, err := net.SplitHostPort(a.HTTP); err != nil || port == "" {
			wrong(".http is %q: want HOST:PORT, such as :80", a.HTTP)
		}
	}
}

// acmeOrigin has its certificates from a directory. The manager renews them by itself, when a third of their life is left, at most 30 days.
type acmeOrigin struct {
	hosts   []string
	manager *autocert.Manager
	answers net.Listener // for challenges in plain HTTP; nil without
	end     func()       // ends what the manager asks: it takes no context
}

func (a *ACME) open(o Options) (*acmeOrigin, error) {
	dir := o.Path(a.Dir)
	if a.Dir == "" {
		dir = o.Path("acme")
	}
	if err := files.PrivateDir(dir); err != nil {
		return nil, err
	}
	roots, err := authorities(a.CA, o)
	if err != nil {
		return nil, err
	}
	until, end := context.WithCancel(context.Background())
	client := web(roots)
	client.Transport = &ending{client.Transport, until}
	m := &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(dir), HostPolicy: hostPolicy(a.Hosts), Email: a.Email,
		Client: &acme.Client{DirectoryURL: a.Directory, UserAgent: "converge", HTTPClient: client},
	}
	if a.Directory == "" {
		m.Client.DirectoryURL = autocert.DefaultACMEDirectory
	}
	from := &acmeOrigin{hosts: a.Hosts, manager: m, end: end}
	if a.HTTP != "" {
		if from.answers, err = net.Listen("tcp", a.HTTP); err != nil {
			end()
			return nil, fmt.Errorf("http: cannot listen on the address: %w", err)
		}
		m.HTTPHandler(nil) // from now on it tries http-01, too
	}
	return from, nil
}

// hostPolicy allows the names. A challenge in plain HTTP that comes in by another port than 80 has the port in its name.
func hostPolicy(hosts []string) autocert.HostPolicy {
	allowed := autocert.HostWhitelist(hosts...)
	return func(ctx context.Context, host string) error {
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		return allowed(ctx, host)
	}
}

// authorities reads a file of them; nil, for the system's, when there is none.
func authorities(path string, o Options) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	c := clients{path: o.Path(path)}
	if _, err := c.read(); err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	return c.now, nil
}

// web returns a client that trusts these authorities.
func web(roots *x509.CertPool) *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // what is sent is for nobody else
	}
}

// ending ends requests when a context does.
type ending struct {
	next  http.RoundTripper
	until context.Context
}

// RoundTrip implements [http.RoundTripper].
func (e *ending) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(e.until, cancel)
	over := func() { stop(); cancel() }
	res, err := e.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		over()
		return nil, err
	}
	res.Body = &endingBody{res.Body, over}
	return res, nil
}

// endingBody is read before its request is over.
type endingBody struct {
	io.ReadCloser
	over func()
}

// Close implements [io.Closer].
func (b *endingBody) Close() error {
	defer b.over()
	return b.ReadCloser.Close()
}

// knows reports whether the manager answers a client: it asks for one of the names.
func (a *acmeOrigin) knows(hello *tls.ClientHelloInfo) bool {
	name := strings.TrimSuffix(strings.ToLower(hello.ServerName), ".")
	return slices.ContainsFunc(a.hosts, func(host string) bool { return strings.EqualFold(host, name) })
}

// obtain makes the manager have a certificate for each name before a client asks for it.
func (a *acmeOrigin) obtain(ctx context.Context, have *tls.Certificate) (*tls.Certificate, time.Duration, error) {
	var first *tls.Certificate
	for i, host := range a.hosts {
		if ctx.Err() != nil {
			return nil, oftenLook, nil
		}
		cert, err := a.manager.GetCertificate(modern(host))
		if err != nil {
			return nil, oftenLook, fmt.Errorf("%s: %w", host, err)
		}
		if cert.Leaf == nil {
			return nil, oftenLook, errors.New("the manager of certificates has returned one that is not parsed")
		}
		if i == 0 {
			first = cert
		}
	}
	if have != nil && have.Leaf.Equal(first.Leaf) {
		return nil, oftenLook, nil
	}
	return first, oftenLook, nil
}

// modern is the hello of a client that knows elliptic curves; for others the manager would order another certificate with an RSA key.
func modern(host string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName: host, SupportedVersions: []uint16{tls.VersionTLS13, tls.VersionTLS12}, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256},
		SupportedCurves: []tls.CurveID{tls.CurveP256}, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	}
}

// serve answers challenges in plain HTTP, and nothing else, until ctx is done.
func (a *acmeOrigin) serve(ctx context.Context, log *slog.Logger) {
	s := &http.Server{
		Handler: a.manager.HTTPHandler(http.NotFoundHandler()), MaxHeaderBytes: 16 << 10, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // strangers cause these
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(a.answers); ctx.Err() == nil {
		log.Error("challenges of ACME are no longer answered in plain HTTP", "error", err)
	}
}
