package enrol_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/providers/carbide/enrol"
)

const (
	siteID = "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"
	first  = "canary-otp-1"
	second = "canary-otp-2"
)

var serial atomic.Int64

// An authority issues certificates in tests.
type authority struct {
	*testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	text string // PEM
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{T: t, key: newKey(t)}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "CA of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = template
	a.text = a.sign(template, a.key.Public())
	block, _ := pem.Decode([]byte(a.text))
	var err error
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(template *x509.Certificate, public any) string {
	a.Helper()
	template.SerialNumber = big.NewInt(serial.Add(1))
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		a.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// client returns the certificate of a client that began some time ago and ends after another.
func (a *authority) client(public any, ago, life time.Duration) string {
	return a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "client." + siteID}, NotBefore: time.Now().Add(-ago), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, public)
}

// server returns that of a server.
func (a *authority) server(name string, life time.Duration) tls.Certificate {
	a.Helper()
	key := newKey(a.T)
	cert := a.sign(&x509.Certificate{
		DNSNames: []string{name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(life), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public())
	pair, err := tls.X509KeyPair([]byte(cert), []byte(keyText(a.T, key)))
	if err != nil {
		a.Fatal(err)
	}
	return pair
}

func keyText(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key) // as Vault does
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// A manager is the far side: the site manager's credentials endpoint, with its fields, its texts and its status of 500 for everything, and
// one that signs requests. What it does not know it refuses, which the real one does not.
type manager struct {
	*testing.T
	*authority
	signs     bool                                                    // it takes certificate requests
	ago, life time.Duration                                           // of certificates
	intercept func(w http.ResponseWriter, r *http.Request) (end bool) // optional: answers instead
	change    func(reply map[string]string)                           // optional: changes a reply
	drop      int                                                     // replies that are lost on the way

	mu    sync.Mutex
	otp   string // that is good; empty: it was used
	asked []map[string]string
	shown []*x509.Certificate // by clients
}

func (m *manager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in := map[string]string{}
	d := json.NewDecoder(r.Body)
	if err := d.Decode(&in); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	m.asked = append(m.asked, in)
	if m.intercept != nil && m.intercept(w, r) {
		return
	}
	known := []string{"siteuuid", "otp"}
	if m.signs {
		known = append(known, "csr")
	}
	for name := range in {
		if !slices.Contains(known, name) {
			http.Error(w, fmt.Sprintf("json: unknown field %q", name), http.StatusBadRequest)
			return
		}
	}
	reply := map[string]string{"cacertificate": m.text}
	switch r.URL.Path {
	case "/v1/sitecreds":
		switch {
		case in["siteuuid"] != siteID:
			http.Error(w, "site "+in["siteuuid"]+" not found", http.StatusInternalServerError)
			return
		case m.otp == "":
			http.Error(w, "OTP already used", http.StatusInternalServerError)
			return
		case in["otp"] != m.otp:
			http.Error(w, "Bad OTP", http.StatusInternalServerError)
			return
		}
		m.otp = ""
	case "/v1/renew":
		if len(r.TLS.PeerCertificates) == 0 || in["otp"] != "" {
			http.Error(w, "no certificate", http.StatusUnauthorized)
			return
		}
		m.shown = append(m.shown, r.TLS.PeerCertificates[0])
	default:
		http.NotFound(w, r)
		return
	}
	if in["csr"] != "" {
		block, _ := pem.Decode([]byte(in["csr"]))
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || csr.CheckSignature() != nil {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		reply["certificate"] = m.client(csr.PublicKey, m.ago, m.life)
	} else {
		key := newKey(m.T)
		reply["key"], reply["certificate"] = keyText(m.T, key), m.client(key.Public(), m.ago, m.life)
	}
	if m.change != nil {
		m.change(reply)
	}
	b, _ := json.Marshal(reply)
	if m.drop > 0 {
		m.drop--
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		_, _ = w.Write(b[:len(b)/2])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(b)
}

func (m *manager) requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

func (m *manager) roll(otp string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.otp = otp
}

// A bed is a site that enrols, and its far side.
type bed struct {
	*testing.T
	*manager
	dir string
	set enrol.Config
	log lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newBed(t *testing.T) *bed {
	t.Helper()
	t.Parallel()
	a := newAuthority(t)
	b := &bed{T: t, dir: t.TempDir(), manager: &manager{T: t, authority: a, signs: true, life: time.Hour, ago: time.Minute, otp: first}}
	srv := b.serve(a.server("localhost", time.Hour))
	b.write("ca.crt", a.text)
	b.write("otp", first+"\n")
	b.set = enrol.Config{URL: srv + "/v1/sitecreds", OTPFile: "otp", CA: "ca.crt", Attempts: 3, Store: enrol.Store{Files: &enrol.FileStore{Dir: "far/carbide"}}}
	return b
}

// serve serves the far side with a certificate, and returns its URL.
func (b *bed) serve(cert tls.Certificate) string {
	srv := httptest.NewUnstartedServer(b.manager)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	b.T.Cleanup(srv.Close)
	return strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)
}

func (b *bed) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(b.dir, name)
}

func (b *bed) write(name, text string) {
	b.T.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o600); err != nil {
		b.T.Fatal(err)
	}
}

func (b *bed) options() enrol.Options {
	return enrol.Options{Config: b.set, Site: siteID, Path: b.path, Logger: slog.New(slog.NewTextHandler(&b.log, nil))}
}

func (b *bed) open() *enrol.Enroller {
	b.T.Helper()
	e, err := enrol.Open(b.T.Context(), b.options())
	if err != nil {
		b.T.Fatal(err)
	}
	return e
}

// run lets one process keep the site until stop.
func (b *bed) run(e *enrol.Enroller) (stop func()) {
	e.Hurry()
	ctx, cancel := context.WithCancel(b.T.Context())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	b.T.Cleanup(stop)
	return stop
}

func (b *bed) until(what string, ok func() bool) {
	b.T.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.T.Fatalf("%s: it has not happened within a minute\n%s", what, b.log.String())
		}
	}
}

// has waits for credentials that are stored whole, and returns the certificate.
func (b *bed) has(other *x509.Certificate) *x509.Certificate {
	b.T.Helper()
	var leaf *x509.Certificate
	identity := b.path("far/carbide/identity.pem")
	b.until("there are new credentials", func() bool {
		pair, err := tls.LoadX509KeyPair(identity, identity)
		if err != nil {
			return false
		}
		leaf = pair.Leaf
		return other == nil || !leaf.Equal(other)
	})
	for path, mode := range map[string]os.FileMode{identity: 0o600, b.path("far/carbide/ca.pem"): 0o600, b.path("far"): 0o700, b.path("far/carbide"): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			b.T.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	return leaf
}

// silent fails when a secret is in the log or in an error.
func (b *bed) silent(errs ...error) {
	b.T.Helper()
	text := b.log.String() + fmt.Sprint(errs)
	if strings.Contains(text, "canary") || strings.Contains(text, "PRIVATE KEY") {
		b.T.Errorf("a secret is in\n%s", text)
	}
}

// A site enrols once for a password, also when other processes come and go, and again for another one without being started again.
func TestEnrolsOncePerPassword(t *testing.T) {
	b := newBed(t)
	e := b.open()
	if held, err := e.State(); held.Certificate != nil || err != nil {
		t.Errorf("at first: %+v, %v", held, err)
	}
	stop := b.run(e)
	leaf := b.has(nil)
	if ask := b.asked[0]; ask["siteuuid"] != siteID || ask["otp"] != first || !strings.Contains(ask["csr"], "CERTIFICATE REQUEST") || strings.Contains(fmt.Sprint(ask), "PRIVATE") {
		t.Errorf("it asks with %v", ask)
	}
	stop()
	if err := os.Remove(b.path("otp")); err != nil { // it has served
		t.Fatal(err)
	}
	b.open()
	b.write("otp", first)
	other := b.open() // as another process would
	other.Once(t.Context())
	b.run(other)
	held, err := other.State()
	if err != nil || !held.Certificate.Equal(leaf) || !held.Authority.Equal(b.cert) {
		t.Errorf("%+v, %v", held, err)
	}
	b.roll(second)
	b.write("otp", second)
	b.has(leaf)
	if n := b.requests(); n != 2 {
		t.Errorf("%d requests were made for two passwords", n)
	}
	if tried, got := other.Counts(); tried != 1 || got != 1 {
		t.Errorf("counted are %d attempts and %d successes", tried, got)
	}
	b.silent()
}

// A far side that makes the key is asked for one only where that is configured; its key is replaced at once where it signs requests.
func TestDownloadedKey(t *testing.T) {
	b := newBed(t)
	b.set.Key, b.set.Renew = enrol.Download, strings.Replace(b.set.URL, "sitecreds", "renew", 1)
	b.run(b.open())
	b.until("it is renewed", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.shown) == 1 })
	b.mu.Lock()
	downloaded := b.shown[0]
	ask := b.asked
	b.mu.Unlock()
	b.has(downloaded)
	if ask[0]["csr"] != "" || ask[1]["csr"] == "" || ask[1]["otp"] != "" {
		t.Errorf("%v", ask)
	}
	if !strings.Contains(b.log.String(), "made the private key") {
		t.Error("nobody is warned")
	}
	b.silent()
}

// A downloaded key that could not be replaced at once is replaced as soon as that is possible, also by the next process, and then no more.
func TestDownloadedKeyIsReplacedLater(t *testing.T) {
	b := newBed(t)
	b.set.Key, b.set.Renew = enrol.Download, strings.Replace(b.set.URL, "sitecreds", "renew", 1)
	sealed := true
	b.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if sealed && r.URL.Path == "/v1/renew" {
			http.Error(w, "sealed", http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	e := b.open()
	stop := b.run(e)
	downloaded := b.has(nil)
	b.until("it is not renewed", func() bool { _, err := e.State(); return err != nil && strings.Contains(err.Error(), "sealed") })
	stop()
	b.mu.Lock()
	sealed = false
	b.mu.Unlock()
	stop = b.run(b.open())
	b.has(downloaded)
	stop()
	text, err := os.ReadFile(b.path("far/carbide/identity.pem"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("-----END CERTIFICATE-----"))
	if block, _ := pem.Decode(text); block == nil || len(block.Bytes) != 16+32 {
		t.Errorf("it says still that the far side has made the key: %v", block)
	}
}

// The service that ignores certificate requests has used the password up by then, so what it sends is taken, with a warning.
func TestRequestIsIgnored(t *testing.T) {
	b := newBed(t)
	b.change = func(reply map[string]string) {
		key := newKey(t)
		reply["key"], reply["certificate"] = keyText(t, key), b.client(key.Public(), time.Minute, time.Hour)
	}
	b.run(b.open())
	b.has(nil)
	b.until("the warning", func() bool { return strings.Contains(b.log.String(), "made the private key") })
	b.silent()
}

// Half of a life after their issue, credentials are renewed with a new key, as the one whom they name.
func TestRenewal(t *testing.T) {
	b := newBed(t)
	b.set.Renew = strings.Replace(b.set.URL, "sitecreds", "renew", 1)
	b.ago, b.life = 2*time.Hour, time.Hour
	e := b.open()
	stop := b.run(e)
	old := b.has(nil)
	stop()
	b.mu.Lock()
	b.ago = time.Minute
	b.mu.Unlock()
	b.run(e)
	leaf := b.has(old)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.shown[0].Equal(old) || old.PublicKey.(*ecdsa.PublicKey).Equal(leaf.PublicKey) {
		t.Error("it was renewed by another, or with the same key")
	}
	b.silent()
}
