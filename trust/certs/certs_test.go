package certs_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/schema"
	"converge.dev/converge/trust"
	"converge.dev/converge/trust/certs"
)

// An authority issues certificates in tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	text []byte // PEM
}

var serial atomic.Int64

func sign(t *testing.T, template, parent *x509.Certificate, public any, key any) (*x509.Certificate, []byte) {
	t.Helper()
	template.SerialNumber = big.NewInt(serial.Add(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "CA of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{key: key}
	a.cert, a.text = sign(t, template, template, key.Public(), key)
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

// issue returns a certificate for a server and a client named so, and its key, in PEM. It ends after a time, and began as long ago.
func (a *authority) issue(t *testing.T, name string, life time.Duration) (cert, key []byte) {
	t.Helper()
	private := newKey(t)
	_, cert = sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-max(life, -life)), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, private.Public(), a.key)
	return cert, pemKey(t, private)
}

func pemKey(t *testing.T, private *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// A folder has files.
type folder struct {
	*testing.T
	dir string
}

func newFolder(t *testing.T) folder { return folder{t, t.TempDir()} }

func (f folder) write(name string, data []byte) {
	f.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), data, 0o600); err != nil {
		f.Fatal(err)
	}
}

func (f folder) path(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(f.dir, name)
}

// A logged is a log that several write at the same time.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// run runs a source until the test, in its bubble, ends.
func run(t *testing.T, s *certs.Source) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

// shown returns what a client at this moment is shown, and what the server takes it for.
func shown(s *certs.Source, name string, ours ...tls.Certificate) (leaf *x509.Certificate, verified int, err error) {
	return shownBy(s.TLS(), name, ours...)
}

func shownBy(config *tls.Config, name string, ours ...tls.Certificate) (leaf *x509.Certificate, verified int, err error) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	server := tls.Server(there, config)
	failed := make(chan error, 1)
	go func() {
		err := server.Handshake()
		if err != nil {
			there.Close()
		}
		failed <- err
	}()
	client := tls.Client(here, &tls.Config{
		ServerName: name, InsecureSkipVerify: true, // what is shown is compared
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(ours) == 0 {
				return &tls.Certificate{}, nil
			}
			return &ours[0], nil
		},
	})
	go func() { _, _ = client.Read(make([]byte, 1)) }() // an alert must not wait for a reader
	err = client.Handshake()
	if err := errors.Join(err, <-failed); err != nil {
		return nil, 0, err
	}
	return client.ConnectionState().PeerCertificates[0], len(server.ConnectionState().VerifiedChains), nil
}

func serialOf(t *testing.T, s *certs.Source) int64 {
	t.Helper()
	leaf, _, err := shown(s, "site.example")
	if err != nil {
		t.Fatal(err)
	}
	if state, _ := s.State(); !state.Equal(leaf) {
		t.Errorf("what is shown is not what is in use")
	}
	return leaf.SerialNumber.Int64()
}

func numberIn(t *testing.T, cert []byte) int64 {
	t.Helper()
	block, _ := pem.Decode(cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c.SerialNumber.Int64()
}

// A pair of files is replaced while the server runs; of what is written in between nothing is shown, and what is wrong is said once.
func TestFilesAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, ca, log := newFolder(t), newAuthority(t), &logged{}
		one, oneKey := ca.issue(t, "site.example", time.Hour)
		two, twoKey := ca.issue(t, "site.example", 2*time.Hour)
		old, oldKey := ca.issue(t, "site.example", -time.Hour)
		f.write("crt", one)
		f.write("key", oneKey)
		s, err := certs.Open(certs.Options{Config: certs.Config{Files: &certs.Files{Cert: "crt", Key: "key"}}, Path: f.path, Logger: log.logger()})
		if err != nil {
			t.Fatal(err)
		}
		run(t, s)
		is := func(what string, want []byte, wrong string) {
			t.Helper()
			time.Sleep(20 * time.Second)
			synctest.Wait()
			if serialOf(t, s) != numberIn(t, want) {
				t.Errorf("%s: another certificate is shown", what)
			}
			switch _, err := s.State(); {
			case wrong == "" && err != nil:
				t.Errorf("%s: %v", what, err)
			case wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)):
				t.Errorf("%s: %v", what, err)
			case wrong != "" && log.count(wrong) != 1:
				t.Errorf("%s: it is said %d times", what, log.count(wrong))
			}
		}
		is("at first", one, "")
		f.write("crt", two)
		is("the certificate alone", one, "private key does not match")
		f.write("crt", two[:len(two)/2])
		f.write("key", twoKey)
		is("half a certificate", one, "1 blocks of PEM, and only 0")
		f.write("crt", append(bytes.Clone(two), ca.text[:50]...))
		is("half a chain", one, "2 blocks of PEM, and only 1")
		f.write("crt", two)
		is("the pair", two, "")
		f.write("crt", old)
		f.write("key", oldKey)
		is("one that has expired", two, "the new certificate expired")
		private := newKey(t)
		_, early := sign(t, &x509.Certificate{NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().Add(2 * time.Hour)}, ca.cert, private.Public(), ca.key)
		f.write("crt", early)
		f.write("key", pemKey(t, private))
		is("one that is not valid yet", two, "is valid only from")
		f.write("crt", nil)
		is("an empty file", two, "contains no certificate")
		if err := os.Remove(f.path("crt")); err != nil {
			t.Fatal(err)
		}
		is("no file", two, "no such file")
		time.Sleep(3 * time.Hour)
		is("the old one, after its end", two, "no such file")
		f.write("crt", one) // has expired, too
		f.write("key", oneKey)
		is("any other, then", one, "")
	})
}

// What cannot work is refused at the start, and says what to do.
func TestFilesThatCannotBeUsed(t *testing.T) {
	f, ca := newFolder(t), newAuthority(t)
	cert, key := ca.issue(t, "site.example", time.Hour)
	_, other := ca.issue(t, "site.example", time.Hour)
	f.write("crt", cert)
	f.write("key", key)
	f.write("other", other)
	f.write("open", key)
	if err := os.Chmod(f.path("open"), 0o644); err != nil {
		t.Fatal(err)
	}
	open := func(c certs.Config) error {
		_, err := certs.Open(certs.Options{Config: c, Path: f.path})
		return err
	}
	if err := open(certs.Config{Files: &certs.Files{Cert: "crt", Key: "key"}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		certs.Config
		says string
	}{
		"others may read the key": {certs.Config{Files: &certs.Files{Cert: "crt", Key: "open"}}, "chmod"},
		"key of another":          {certs.Config{Files: &certs.Files{Cert: "crt", Key: "other"}}, "does not match"},
		"no file":                 {certs.Config{Files: &certs.Files{Cert: "crt", Key: "missing"}}, "no such file"},
		"two origins":             {certs.Config{Files: &certs.Files{Cert: "crt", Key: "key"}, Builtin: true}, "there are 2"},
		"no origin":               {certs.Config{}, "there are 0"},
		"no key":                  {certs.Config{Files: &certs.Files{Cert: "crt"}}, "belong together"},
		"clients of nobody":       {certs.Config{Builtin: true, Clients: &certs.Clients{}}, "clients.ca is missing"},
		"clients of a key":        {certs.Config{Builtin: true, Clients: &certs.Clients{CA: "key"}}, "contains no certificate"},
		"ACME without a name":     {certs.Config{ACME: &certs.ACME{}}, "hosts is missing"},
		"ACME for an address":     {certs.Config{ACME: &certs.ACME{Hosts: []string{"10.0.0.1"}}}, "no full DNS name"},
		"ACME for any":            {certs.Config{ACME: &certs.ACME{Hosts: []string{"*.example"}}}, "no full DNS name"},
		"ACME in plain text":      {certs.Config{ACME: &certs.ACME{Hosts: []string{"a.example"}, Directory: "http://ca.example/dir"}}, "want https://"},
		"ACME at no address":      {certs.Config{ACME: &certs.ACME{Hosts: []string{"a.example"}, HTTP: "80"}}, "want HOST:PORT"},
		"Vault in plain text":     {certs.Config{Vault: &certs.Vault{Address: "http://vault.example", Role: "r", TokenFile: "key"}}, "want https://"},
		"Vault with a password":   {certs.Config{Vault: &certs.Vault{Address: "https://u:hunter2@vault.example", Role: "r", TokenFile: "key"}}, "user or a password"},
		"Vault without a role":    {certs.Config{Vault: &certs.Vault{Address: "https://vault.example", TokenFile: "key"}}, "role is missing"},
		"Vault, role with a path": {certs.Config{Vault: &certs.Vault{Address: "https://vault.example", Role: "../sys", TokenFile: "key"}}, "without spaces"},
		"Vault without a token":   {certs.Config{Vault: &certs.Vault{Address: "https://vault.example", Role: "r"}}, "either token_file or approle"},
		"Vault, for a moment":     {certs.Config{Vault: &certs.Vault{Address: "https://vault.example", Role: "r", TokenFile: "key", TTL: "5s"}}, "at least 1m"},
		"Vault, half an approle":  {certs.Config{Vault: &certs.Vault{Address: "https://vault.example", Role: "r", AppRole: &certs.AppRole{RoleID: "x"}}}, "secret_id_file"},
	} {
		switch err := open(c.Config); {
		case err == nil || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v", name, err)
		case strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: a password is repeated: %v", name, err)
		}
	}
}

// The certificate of the node CA is renewed at half of its life, and after that of the CA.
func TestBuiltinIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		site := schema.Site{Name: "test", ID: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"}
		keys, err := trust.Init(filepath.Join(t.TempDir(), "trust"), site, 1, trust.NewRoots(1), trust.Options{Dev: true})
		if err != nil {
			t.Fatal(err)
		}
		s, err := certs.Open(certs.Options{Config: certs.Config{Builtin: true}, Builtin: keys.ServerCertificate("site.example", "10.0.0.1")})
		if err != nil {
			t.Fatal(err)
		}
		run(t, s)
		first, _, err := shown(s, "site.example")
		if err != nil || first.VerifyHostname("site.example") != nil || first.VerifyHostname("10.0.0.1") != nil {
			t.Fatalf("%v, for %v", err, first)
		}
		for _, after := range []time.Duration{11 * time.Hour, 2 * time.Hour} {
			time.Sleep(after)
			synctest.Wait()
			now, _, err := shown(s, "site.example")
			if renewed := err == nil && !now.Equal(first); renewed != (after < 11*time.Hour) {
				t.Errorf("after %v: %v, renewed %v", after, err, renewed)
			}
		}
		time.Sleep(40 * 24 * time.Hour) // nobody replaces the CA
		synctest.Wait()
		if leaf, err := s.State(); err == nil || !strings.Contains(err.Error(), "converge trust rotate") || leaf == nil {
			t.Errorf("without a CA: %v, %v", leaf, err)
		}
		if _, err := keys.Rotate(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if leaf, err := s.State(); err != nil || time.Now().After(leaf.NotAfter) {
			t.Errorf("with a new CA: %v, %v", leaf, err)
		}
	})
}

// A client need not show a certificate; one that it shows has to be of the authorities, which can be replaced.
func TestClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, ca, other := newFolder(t), newAuthority(t), newAuthority(t)
		cert, key := ca.issue(t, "site.example", time.Hour)
		f.write("crt", cert)
		f.write("key", key)
		f.write("ca", ca.text)
		log := &logged{}
		s, err := certs.Open(certs.Options{
			Config: certs.Config{Files: &certs.Files{Cert: "crt", Key: "key"}, Clients: &certs.Clients{CA: "ca"}}, Path: f.path, Logger: log.logger(),
		})
		if err != nil {
			t.Fatal(err)
		}
		run(t, s)
		of := func(a *authority, life time.Duration) tls.Certificate {
			pair, err := tls.X509KeyPair(a.issue(t, "ada", life))
			if err != nil {
				t.Fatal(err)
			}
			return pair
		}
		config := s.TLS() // a server has one
		ours, theirs, late := of(ca, 24*time.Hour), of(other, 24*time.Hour), of(ca, -time.Hour)
		knows := func(what string, good, bad tls.Certificate) {
			t.Helper()
			if _, n, err := shownBy(config, "site.example"); err != nil || n != 0 {
				t.Errorf("%s: without a certificate: %d, %v", what, n, err)
			}
			if _, n, err := shownBy(config, "site.example", good); err != nil || n != 1 {
				t.Errorf("%s: with one: %d, %v", what, n, err)
			}
			for _, c := range []tls.Certificate{bad, late} {
				if _, _, err := shownBy(config, "site.example", c); err == nil {
					t.Errorf("%s: with a bad one it is let in", what)
				}
			}
		}
		knows("at first", ours, theirs)
		f.write("ca", other.text[:len(other.text)-40])
		time.Sleep(20 * time.Second)
		synctest.Wait()
		knows("half of another file", ours, theirs)
		if n := log.count("those from before count"); n != 1 {
			t.Errorf("it is said %d times", n)
		}
		f.write("ca", other.text)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		knows("with other authorities", theirs, ours)
	})
}

// Old protocols are refused, and no session is resumed: that would not ask again whether a client's certificate is good.
func TestTLSVersion(t *testing.T) {
	f, ca := newFolder(t), newAuthority(t)
	cert, key := ca.issue(t, "site.example", time.Hour)
	f.write("crt", cert)
	f.write("key", key)
	s, err := certs.Open(certs.Options{Config: certs.Config{Files: &certs.Files{Cert: "crt", Key: "key"}}, Path: f.path})
	if err != nil {
		t.Fatal(err)
	}
	for version, ok := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		here, there := net.Pipe()
		go func() {
			_ = tls.Server(there, s.TLS()).Handshake()
			there.Close()
		}()
		err := tls.Client(here, &tls.Config{ServerName: "site.example", InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}).Handshake()
		if (err == nil) != ok {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		here.Close()
	}
	config, sessions := s.TLS(), tls.NewLRUClientSessionCache(1)
	for range 2 {
		here, there := net.Pipe()
		go func() {
			_ = tls.Server(there, config).Handshake()
			there.Close()
		}()
		// Tickets of TLS 1.2 are part of the handshake.
		client := tls.Client(here, &tls.Config{ServerName: "site.example", InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, ClientSessionCache: sessions})
		if err := client.Handshake(); err != nil || client.ConnectionState().DidResume {
			t.Errorf("%v, or it was resumed", err)
		}
		here.Close()
	}
}
