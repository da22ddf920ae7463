package api_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/site/api"
)

// How much of the life of a certificate has passed decides how its component stands; what is wrong with it is said, without secrets.
func TestCertificates(t *testing.T) {
	b := newBed(t)
	start := b.time()
	cert := api.Certificate{Name: "https", NotBefore: start, NotAfter: start.Add(100 * time.Hour)}
	none := false
	b.certificates = func() []api.Certificate {
		if none {
			return []api.Certificate{{Name: "https", Err: errors.New("nobody answers: " + scrubed)}}
		}
		return []api.Certificate{cert}
	}
	b.enrolments = func() (int64, int64) { return 3, 1 }
	is := func(want api.State, says ...string) {
		t.Helper()
		for _, c := range b.Health().Components {
			if c.Name != "certificate/https" {
				continue
			}
			if c.State != want || c.Critical {
				t.Errorf("at %v: %+v, want %s", b.time().Sub(start), c, want)
			}
			for _, text := range says {
				if !strings.Contains(c.Detail, text) {
					t.Errorf("%q lacks %q", c.Detail, text)
				}
			}
			if strings.Contains(c.Detail, scrubed) {
				t.Errorf("a secret is in %q", c.Detail)
			}
			return
		}
		t.Error("there is no such component")
	}
	measured := func(lines ...string) {
		t.Helper()
		_, body := ask(b.Metrics(), "GET", "/metrics")
		for _, line := range lines {
			if !strings.Contains(body, line+"\n") {
				t.Errorf("the metrics lack %q:\n%s", line, body)
			}
		}
	}
	is(api.OK, "it ends ")
	b.pass(50 * time.Hour)
	is(api.OK)
	measured(`converge_site_certificate_used_ratio{certificate="https"} 0.5`, "converge_enrolment_attempts_total 3", "converge_enrolments_total 1")
	cert.Err = errors.New("no new one: " + scrubed)
	is(api.Warn, "50 %", "no new one: ***")
	cert.Err = nil
	b.pass(25 * time.Hour)
	is(api.Warn, "75 %")
	b.pass(15 * time.Hour)
	is(api.Error, "90 %")
	b.pass(10 * time.Hour)
	is(api.Critical, "it ended")
	measured(`converge_site_certificate_used_ratio{certificate="https"} 1`)
	none = true
	is(api.Error, "there is none: nobody answers: ***")
	if _, body := ask(b.Metrics(), "GET", "/metrics"); strings.Contains(body, "certificate=\"https\"") {
		t.Error("metrics know a certificate that is not there")
	}
}

// Over TLS a handler sees the client's verified certificate, any name is answered for, and connections count as they do without.
func TestServeTLS(t *testing.T) {
	b := newBed(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"site.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool, pair := x509.NewCertPool(), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	pool.AddCert(leaf)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan *tls.ConnectionState, 1)
	all := b.Handler()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		err := b.ServeTLS(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { seen <- r.TLS; all.ServeHTTP(w, r) }),
			&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven})
		if err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	for _, ours := range [][]tls.Certificate{nil, {pair}} {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: ours},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
			},
		}}
		res, err := client.Get("https://site.example/v1/site")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		client.CloseIdleConnections()
		if s := <-seen; res.StatusCode != http.StatusOK || s == nil || len(s.VerifiedChains) != len(ours) {
			t.Errorf("status %d, TLS %+v", res.StatusCode, s)
		}
	}
}
