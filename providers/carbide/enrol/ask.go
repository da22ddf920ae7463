package enrol

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/tells"
)

const (
	maxReply  = 256 << 10        // bytes
	slowClock = 10 * time.Minute // by which our clock may be behind that of the authority
)

// A request is what is asked for, in the words of the service.
type request struct {
	SiteUUID string `json:"siteuuid"`
	OTP      string `json:"otp,omitempty"`
	CSR      string `json:"csr,omitempty"` // PEM
}

// A reply is what the service answers; all is PEM.
type reply struct {
	Key           string `json:"key"` // when the far side has made it
	Certificate   string `json:"certificate"`
	CACertificate string `json:"cacertificate"`
}

// A refusal says that asking once more is of no use.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// A lostReply says that the far side may have done what was asked.
type lostReply struct{ error }

func (l lostReply) Unwrap() error { return l.error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// A service is the far side.
type service struct {
	url   string
	roots *x509.CertPool // the only ones that count
	skip  bool
	ours  *tls.Certificate // optional: what it is shown
}

// ask sends one request and reads the reply. An error names neither the password nor anything of a reply that was a success.
func (s service) ask(ctx context.Context, q request) (*reply, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.roots, InsecureSkipVerify: s.skip}
	if s.ours != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.ours, nil }
	}
	transport := &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: 10 * time.Second}
	client := &http.Client{
		Transport: transport, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a password is for nobody else
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, refusal{err}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	var sent atomic.Bool
	r = r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent.Store(true) }}))
	res, err := client.Do(r)
	if err != nil {
		err = without(q.OTP, err) // it repeats an answer that is no HTTP
		if sent.Load() {
			err = lostReply{err}
		}
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
	switch {
	case err != nil:
		return nil, lostReply{without(q.OTP, fmt.Errorf("POST %s: read the reply: %w", s.url, err))}
	case len(text) > maxReply:
		return nil, refuse("POST %s: the reply has more than %s", s.url, files.Size(maxReply))
	case res.StatusCode != http.StatusOK:
		err := s.refused(res, text, q.OTP)
		if res.StatusCode == http.StatusBadRequest && q.CSR != "" {
			err = fmt.Errorf("%w (a service that takes no certificate request wants key: download)", err)
		}
		return nil, err
	}
	var a reply
	if err := json.Unmarshal(text, &a); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) && syntax.Offset >= int64(len(bytes.TrimRight(text, " \n"))) {
			return nil, lostReply{fmt.Errorf("POST %s: the reply ends in the middle", s.url)}
		}
		return nil, refuse("POST %s: the reply is not the JSON of credentials", s.url)
	}
	return &a, nil
}

// final are the texts with which the service says that a password is good no more; its status is 500 for everything.
var final = regexp.MustCompile(`(?i)OTP already used|bad OTP|OTP expired|site \S+ not found`)

func (s service) refused(res *http.Response, text []byte, otp string) error {
	said := strings.Join(strings.Fields(strings.ToValidUTF8(scrubbed(otp, string(text)), "")), " ")
	if tells.Of(said, otp) {
		said = "what it says repeats the password, encoded"
	}
	if len(said) > 300 {
		said = strings.ToValidUTF8(said[:300], "") + "…"
	}
	err := fmt.Errorf("POST %s: %s: %s", s.url, scrubbed(otp, res.Status), cmp.Or(said, "it does not say why"))
	switch code := res.StatusCode; {
	case code >= 300 && code < 400:
		return refuse("%w: it sends to another address, to which a password is not sent: correct the URL", err)
	case code < 500 && !slices.Contains([]int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}, code), final.Match(text):
		return refusal{err}
	}
	return err
}

// scrubbed returns a text without the password, also as it is in JSON and in a URL.
func scrubbed(otp, text string) string {
	if otp == "" {
		return text
	}
	quoted, _ := json.Marshal(otp) // a string can be
	for _, form := range []string{otp, strings.Trim(string(quoted), `"`), url.QueryEscape(otp), url.PathEscape(otp)} {
		text = strings.ReplaceAll(text, form, "(the password)")
	}
	return text
}

// without returns an error whose text does not contain the password: err, unless its text does.
func without(otp string, err error) error {
	if text := err.Error(); scrubbed(otp, text) != text {
		return errors.New(scrubbed(otp, text))
	}
	return err
}

// credentials are what the far side has issued. They do not print.
type credentials struct {
	key, chain, ca []byte // PEM
	mark           []byte // says with which password, and who made the key; nil when that is not known
	pair           tls.Certificate
	authority      *x509.Certificate // the one in ca that ends first
}

// newKey makes a key, and the request for its certificate.
func newKey(site string) (key, csr []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	ask, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: site}}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: ask}), nil
}

// checked returns the credentials in a reply, which have to be good for a client now. Key is ours; the far side may have ignored our
// request and made one itself, which downloaded says.
func (a *reply) checked(key []byte, now time.Time) (c *credentials, downloaded bool, err error) {
	if a.Key != "" {
		key, downloaded = []byte(a.Key), true
	}
	if key == nil {
		return nil, false, refuse("the reply has no key, and none was made here: set key: local")
	}
	if a.Certificate == "" || a.CACertificate == "" {
		return nil, false, refuse("the reply lacks the certificate or its authority")
	}
	if c, err = parse(key, []byte(a.Certificate), []byte(a.CACertificate), nil); err != nil {
		return nil, false, refuse("the reply is not used: %w", err)
	}
	if err := c.usable(now); err != nil {
		return nil, false, refuse("the reply is not used: %w", err)
	}
	return c, downloaded, nil
}

// parse reads credentials. An error repeats nothing of them.
func parse(key, chain, ca, mark []byte) (*credentials, error) {
	c := &credentials{key: key, chain: chain, ca: ca, mark: mark}
	var err error
	if c.pair, err = tls.X509KeyPair(chain, key); err != nil {
		return nil, fmt.Errorf("the certificate and its key: %w", err)
	}
	for rest := ca; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if len(bytes.TrimSpace(rest)) > 0 {
				return nil, errors.New("the authority's certificate is no PEM, or not complete")
			}
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" || !cert.IsCA {
			return nil, errors.New("the authority's certificate is damaged, or is not that of an authority")
		}
		if c.authority == nil || cert.NotAfter.Before(c.authority.NotAfter) {
			c.authority = cert
		}
	}
	if c.authority == nil {
		return nil, errors.New("the authority's certificate is missing")
	}
	return c, nil
}

// usable fails when the certificates are not good at a time, or not for a client. They may begin a little later: refusing them because
// our clock is slow would cost the password.
func (c *credentials) usable(now time.Time) error {
	leaf := c.pair.Leaf
	for _, cert := range []*x509.Certificate{leaf, c.authority} {
		if now.Add(slowClock).Before(cert.NotBefore) || !now.Before(cert.NotAfter) {
			what := "the certificate"
			if cert != leaf {
				what = "the authority's certificate"
			}
			return fmt.Errorf("%s is valid from %s to %s, and it is %s here: check the clocks", what, stamp(cert.NotBefore), stamp(cert.NotAfter), stamp(now))
		}
	}
	if use := leaf.ExtKeyUsage; leaf.IsCA || len(use) > 0 && !slices.Contains(use, x509.ExtKeyUsageClientAuth) && !slices.Contains(use, x509.ExtKeyUsageAny) {
		return errors.New("the certificate is not one for a client")
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
