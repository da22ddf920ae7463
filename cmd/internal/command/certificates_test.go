package command

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
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
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/loopback"
)

// An issuer is the authority of a test for everybody: servers of HTTP, Carbide, and the site.
type issuer struct {
	*testing.T
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	issued atomic.Int64
}

func (i *issuer) issue(template *x509.Certificate, public any) []byte {
	i.Helper()
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1+i.issued.Add(1)), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent := i.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, i.key)
	if err != nil {
		i.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// server returns the certificate of a server on this machine, and its key, in PEM.
func (i *issuer) server() (cert, key []byte) {
	i.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		i.Fatal(err)
	}
	return i.issue(&x509.Certificate{DNSNames: []string{"localhost", "site.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, private.Public()),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// A site agent enrols with a one-time password, reaches Carbide with what it got, applies the document, and says over TLS how its certificates
// stand; the one that it shows is replaced while it runs.
func TestServeHasItsOwnCertificates(t *testing.T) {
	t.Parallel()
	const otp = "canary-of-an-otp"
	b := bench{t, t.TempDir()}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(b.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, authority := newIssuer(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	write("ca.crt", authority)
	cert, key := ca.server()
	write("tls.crt", cert)
	write("tls.key", key)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}

	// Carbide, which knows nobody whose certificate the authority has not signed.
	world, err := carbidesim.New(carbidesim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := carbidesim.NewServer(world, carbidesim.ServerOptions{
		CertFile: filepath.Join(b.dir, "tls.crt"), KeyFile: filepath.Join(b.dir, "tls.key"), ClientCA: filepath.Join(b.dir, "ca.crt"), Mutual: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	defer serving.Wait()
	defer server.Stop()

	// Who issues credentials.
	var asked atomic.Int64
	far := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var in struct{ SiteUUID, OTP, CSR string }
		if json.NewDecoder(r.Body).Decode(&in) != nil || in.SiteUUID != siteID || in.OTP != otp {
			http.Error(w, "Bad OTP", http.StatusInternalServerError)
			return
		}
		block, _ := pem.Decode([]byte(in.CSR))
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		chain := ca.issue(&x509.Certificate{
			URIs: []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/site"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, csr.PublicKey)
		_ = json.NewEncoder(w).Encode(map[string]string{"certificate": string(chain), "cacertificate": string(authority)})
	}))
	far.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	far.Config.ErrorLog = log.New(io.Discard, "", 0)
	far.StartTLS()
	defer far.Close()

	write("site.json", []byte(`{"apiVersion": "converge.dev/v1", "site": {"name": "fra1", "id": "`+siteID+`", "serial": 1}, "carbide": {"tenant": {"acme": {}}}}`))
	write("converge.yaml", fmt.Appendf(nil, `
site: fra1
https: {files: {cert: tls.crt, key: tls.key}, clients: {ca: ca.crt}}
carbide:
  address: %s
  enrol: {url: %s/v1/sitecreds, otp_file: otp, ca: ca.crt, store: {files: {dir: carbide}}}
`, l.Addr(), far.URL))
	for _, line := range []string{"trust init -dev site.json", "put site.json"} {
		name, args, _ := strings.Cut(line, " ")
		if status, said := b.ended(b.command(name, args)); status != exitDone {
			t.Fatalf("%s: exit status %d\n%s", line, status, said)
		}
	}
	web, metrics := loopback.Address(t), loopback.Address(t)
	start := "-listen=127.0.0.1:0 -mode=enforce -sweep=1s -http=" + web + " -metrics=" + metrics
	if status, said := b.ended(b.command("serve", start)); status != exitError || !strings.Contains(said, "needs a one-time password") {
		t.Fatalf("without a password: exit status %d\n%s", status, said)
	}
	write("otp", []byte(otp))
	cmd, said := b.command("serve", start)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()

	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "site.example"}}}
	get := func(url string) (string, *tls.ConnectionState) {
		res, err := client.Get(url)
		if err != nil {
			return err.Error(), nil
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return err.Error(), nil
		}
		return string(body), res.TLS
	}
	await := func(what string, ok func() (string, bool)) {
		t.Helper()
		last := ""
		for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			var done bool
			if last, done = ok(); done {
				return
			}
			select {
			case err := <-ended:
				t.Fatalf("%s: it has ended: %v\n%s", what, err, said)
			default:
			}
		}
		t.Fatalf("%s: it has not happened: %s", what, last)
	}
	await("the document is applied", func() (string, bool) {
		body, _ := get("https://" + web + "/state")
		for _, part := range []string{`"name":"certificate/https","state":"ok"`, `"name":"certificate/carbide","state":"ok"`, `"name":"provider/site/carbide","state":"ok"`, "in-sync"} {
			if !strings.Contains(body, part) {
				return body, false
			}
		}
		return body, true
	})
	body, _ := get("http://" + metrics + "/metrics")
	for _, part := range []string{"converge_enrolments_total 1\n", `converge_site_certificate_expiry_timestamp_seconds{certificate="carbide_ca"}`} {
		if !strings.Contains(body, part) {
			t.Errorf("the metrics lack %s\n%s", part, body)
		}
	}
	if _, state := get("http://" + web + "/state"); state != nil {
		t.Error("it is served without TLS, too")
	}
	_, before := get("https://" + web + "/healthz")
	cert, key = ca.server()
	write("tls.crt", cert)
	write("tls.key", key)
	await("another certificate is shown", func() (string, bool) {
		text, now := get("https://" + web + "/healthz")
		return text, now != nil && !now.PeerCertificates[0].Equal(before.PeerCertificates[0])
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || asked.Load() != 1 {
		t.Errorf("%v, after %d requests for credentials", err, asked.Load())
	}
	if strings.Contains(said.String(), otp) {
		t.Error("the password is in the log")
	}
}
