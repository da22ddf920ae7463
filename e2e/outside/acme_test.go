package outside

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/letsencrypt/challtestsrv"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// acmeName is the name that the site agent has a certificate for.
const acmeName = "site.example"

// acme: the site agent gets its certificate from Let's Encrypt's own test server by both challenges, serves with it, keeps it over a
// restart, and renews it while it runs.
func acme(t *testing.T, program string) {
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	for _, challenge := range []string{"tls-alpn-01", "http-01"} {
		t.Run(challenge, func(t *testing.T) {
			s := openSite(t, program)
			web, plain := free(t), free(t)
			port := func(address string, challenges string) int {
				_, text, _ := net.SplitHostPort(address)
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Fatal(err)
				}
				if challenge != challenges {
					return 1 // nobody answers there
				}
				return n
			}
			host, _, _ := net.SplitHostPort(web)
			answers := ""
			if challenge == "http-01" {
				host, _, _ = net.SplitHostPort(plain)
				answers = ", http: " + plain
			}
			directory, own, roots := pebble(t, host, port(plain, "http-01"), port(web, "tls-alpn-01"))
			s.write("acme-ca.pem", own)
			s.write("converge.yaml", fmt.Appendf(nil, "site: fra1\nfake: {world: world.json}\nhttps: {acme: {directory: %q, email: ops@example.net, hosts: [%s], ca: acme-ca.pem%s}}\n", directory, acmeName, answers))
			s.run("trust", "init", "-dev", "site.json")

			stop := serve(t, s, web)
			first := certificate(t, web, roots, nil)
			stop()
			stop = serve(t, s, web)
			if again := certificate(t, web, roots, nil); again.Cmp(first) != 0 {
				t.Error("after a restart another certificate was ordered")
			}
			certificate(t, web, roots, first) // when two thirds of its life have passed
			stop()
		})
	}
}

// serve starts the site agent, and returns what stops it.
func serve(t *testing.T, s *site, web string) (stop func()) {
	t.Helper()
	cmd := exec.Command(s.program, "serve", "-listen=127.0.0.1:0", "-http="+web, "-metrics=none", "-data-dir="+filepath.Join(s.dir, ".converge"))
	cmd.Dir = s.dir
	var said bytes.Buffer
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(io.TeeReader(out, &said))
	for lines.Scan() {
		if strings.Contains(lines.Text(), "site agent started") {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return func() {
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	t.Fatalf("%v: %s", cmd.Wait(), said.String())
	return nil
}

// certificate waits for one that is trusted and is not a known one, and returns its serial number.
func certificate(t *testing.T, web string, roots *x509.CertPool, known *big.Int) *big.Int {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, web)
		},
	}}
	var last error
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		res, err := client.Get("https://" + acmeName + "/healthz")
		if last = err; err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if n := res.TLS.PeerCertificates[0].SerialNumber; known == nil || n.Cmp(known) != 0 {
			return n
		}
	}
	t.Fatalf("no such certificate came: %v", last)
	return nil
}

// pebble starts an ACME server for which every name is at one address. It returns the URL of its directory, the authority of its own
// certificate in PEM, and the authorities of those that it issues, which live for 45 seconds.
func pebble(t *testing.T, host string, httpPort, tlsPort int) (directory string, own []byte, roots *x509.CertPool) {
	t.Helper()
	dns := free(t)
	names, err := challtestsrv.New(challtestsrv.Config{DNSOneAddrs: []string{dns}, Log: log.New(io.Discard, "", 0)})
	if err != nil {
		t.Fatal(err)
	}
	names.SetDefaultDNSIPv4(host)
	names.SetDefaultDNSIPv6("")
	go names.Run()
	t.Cleanup(names.Shutdown)

	quiet, store := log.New(io.Discard, "", 0), db.NewMemoryStore()
	authority := ca.New(quiet, store, "", 0, 1, map[string]ca.Profile{"default": {Description: "short", ValidityPeriod: 45}})
	front := wfe.New(quiet, store, va.New(quiet, httpPort, tlsPort, true, dns, store), authority, true, false, 1, 1)
	srv := httptest.NewTLSServer(front.Handler())
	t.Cleanup(srv.Close)
	roots = x509.NewCertPool()
	roots.AddCert(authority.GetRootCert(0).Cert)
	return srv.URL + wfe.DirectoryPath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), roots
}
