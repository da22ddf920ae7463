package secrets

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
)

// A farSide is everybody whom a site agent shows a secret: the webhook, Vault, and those who issue the credentials of Carbide, which is there,
// too. The first time each refuses what it was shown; the webhook and the issuer repeat it.
type farSide struct {
	*site
	client *http.Client // which trusts its authority
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey

	mu     sync.Mutex
	asked  map[string]int
	events []place
}

// newFarSide starts them, and writes converge.yaml.
func newFarSide(t *testing.T, s *site, happened *torture.Coverage, holds func(name, value string, homes ...string) string) *farSide {
	f := &farSide{site: s, asked: map[string]int{}}
	var err error
	f.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	authority := f.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, f.key.Public())
	block, _ := pem.Decode(authority)
	f.cert, err = x509.ParseCertificate(block.Bytes)
	s.must(err)
	roots := x509.NewCertPool()
	roots.AddCert(f.cert)
	f.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}}}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	s.must(err)
	s.write("far.crt", string(f.issue(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, own.Public())))
	s.write("far.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	s.write("ca.crt", string(authority))

	world, err := carbidesim.New(carbidesim.Options{})
	s.must(err)
	server, err := carbidesim.NewServer(world, carbidesim.ServerOptions{
		CertFile: filepath.Join(s.dir, "far.crt"), KeyFile: filepath.Join(s.dir, "far.key"), ClientCA: filepath.Join(s.dir, "ca.crt"), Mutual: true,
	})
	s.must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(serving.Wait)
	t.Cleanup(server.Stop)

	file := func(canary, name string) string {
		c := newCanary(canary, "")
		s.write(name, c.value+"\n")
		return holds(canary, c.value, name)
	}
	bearer, vault, otp := file("token of the webhook", "webhook.token"), file("token of Vault", "vault.token"), file("one-time password of Carbide", "otp")
	pair, err := tls.LoadX509KeyPair(filepath.Join(s.dir, "far.crt"), filepath.Join(s.dir, "far.key"))
	s.must(err)
	serve := func(answer http.HandlerFunc) string {
		srv := httptest.NewUnstartedServer(answer)
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv.URL
	}
	webhook := serve(func(w http.ResponseWriter, r *http.Request) { f.webhook(w, r, bearer, happened) })
	pki := serve(func(w http.ResponseWriter, r *http.Request) { f.vault(w, r, vault, happened) })
	issuer := serve(func(w http.ResponseWriter, r *http.Request) { f.issuer(w, r, otp, holds, happened) })
	s.write("converge.yaml", fmt.Sprintf(`site: q
server: unix:.converge/serve.sock
policy: {guard: 30s}
events: {webhook: "%s/events", token_file: webhook.token, ca: ca.crt}
https: {vault: {address: "%s", role: web, ca: ca.crt, token_file: vault.token}}
carbide:
  address: %s
  enrol: {url: "%s/v1/sitecreds", otp_file: otp, ca: ca.crt, store: {files: {dir: carbide}}}
`, webhook, pki, l.Addr(), issuer))
	return f
}

// issue has the authority issue a certificate.
func (f *farSide) issue(template *x509.Certificate, public any) []byte {
	f.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	f.must(err)
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent := f.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, f.key)
	if err != nil {
		f.Error(err) // also on another goroutine
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// time counts a request, and returns how many there were before it.
func (f *farSide) time(of string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[of]++
	return f.asked[of] - 1
}

// echo repeats a secret in encodings.
func echo(secret string, encodings ...string) string {
	var all []string
	for _, encoding := range encodings {
		all = append(all, canary{value: secret}.write(encoding, "refused: "))
	}
	return strings.Join(all, " ")
}

func (f *farSide) webhook(w http.ResponseWriter, r *http.Request, token string, happened *torture.Coverage) {
	body, _ := io.ReadAll(r.Body)
	if r.Header.Get("Authorization") != "Bearer "+token {
		f.Errorf("the webhook was shown %q", r.Header.Get("Authorization"))
	}
	headers := r.Header.Clone()
	headers.Del("Authorization")
	f.mu.Lock()
	f.events = append(f.events, place{"event", fmt.Appendf(body, "%v", headers)})
	f.mu.Unlock()
	switch f.time("webhook") {
	case 0:
		http.Error(w, echo(token, encodings...), http.StatusInternalServerError)
		happened.Reach("webhook refuses")
	case 1:
		http.Redirect(w, r, "https://127.0.0.1:1/"+url.PathEscape(echo(token, encodings...)), http.StatusTemporaryRedirect)
		happened.Reach("webhook redirects")
	default:
		happened.Reach("event told")
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *farSide) vault(w http.ResponseWriter, r *http.Request, token string, happened *torture.Coverage) {
	var in struct {
		CSR string `json:"csr"`
	}
	if json.NewDecoder(r.Body).Decode(&in) != nil || r.Header.Get("X-Vault-Token") != token {
		f.Errorf("Vault was asked for %s with the token %q", r.URL, r.Header.Get("X-Vault-Token"))
	}
	block, _ := pem.Decode([]byte(in.CSR))
	if block == nil || f.time("vault") == 0 {
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(map[string][]string{"errors": {echo(token, encodings...)}})
		happened.Reach("Vault refuses")
		return
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		f.Error(err)
		return
	}
	cert := f.issue(&x509.Certificate{IPAddresses: csr.IPAddresses, DNSNames: csr.DNSNames, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, csr.PublicKey)
	_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"certificate": string(cert)}})
}

// issuer issues credentials as the service of Carbide does, which makes the key itself.
func (f *farSide) issuer(w http.ResponseWriter, r *http.Request, otp string, holds func(name, value string, homes ...string) string, happened *torture.Coverage) {
	var in struct{ OTP string }
	if json.NewDecoder(r.Body).Decode(&in) != nil || in.OTP != otp {
		f.Errorf("the password is %q", in.OTP)
	}
	if f.time("issuer") == 0 {
		http.Error(w, echo(otp, encodings...), http.StatusInternalServerError)
		happened.Reach("password refused")
		return
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Error(err)
		return
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		f.Error(err)
		return
	}
	private, err := key.Bytes()
	if err != nil {
		f.Error(err)
		return
	}
	text := base64.StdEncoding.EncodeToString(der)
	holds("key for Carbide", string(private), "carbide/")
	holds("key for Carbide", text[64:(bytes.Index(der, private)+len(private))*8/6], "carbide/") // the part that is in the second line
	_ = json.NewEncoder(w).Encode(map[string]string{
		"key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "cacertificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.cert.Raw})),
		"certificate": string(f.issue(&x509.Certificate{
			URIs: []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/site"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, key.Public())),
	})
}

// told waits until an event was taken.
func (f *farSide) told() {
	f.Helper()
	f.until("an event is told", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.asked["webhook"] > 2
	})
}

// heard returns what the webhook was sent, without the token.
func (f *farSide) heard() []place {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.events
}
