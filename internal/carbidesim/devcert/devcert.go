// Package devcert makes certificates for development: a CA, a server's and a client's, in the forms that a Carbide site
// uses. They are for machines that nobody else can reach; a real site has its own authority.
package devcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Files are the paths of the files in a directory.
type Files struct {
	CA         string // checks the server's and the client's certificate
	ServerCert string
	ServerKey  string
	ClientCert string
	ClientKey  string
}

// ClientURI is the identity in the client's certificate: a site agent.
const ClientURI = "spiffe://nico.local/nico-system/sa/elektra-site-agent"

const (
	lifetime = 30 * 24 * time.Hour
	leastAge = 24 * time.Hour       // certificates that expire sooner are replaced
	caMargin = 365 * 24 * time.Hour // how much earlier the CA becomes valid, and how much later it expires, than what it signs
)

// Ensure returns the certificates in a directory, and creates them when needed: all of them when one is missing, expires
// within a day, or does not cover the hosts. Hosts are the names and addresses of the server; the default is localhost.
// Keys are readable only by their owner.
func Ensure(dir string, hosts ...string) (Files, error) {
	hosts = orHere(hosts)
	f := in(dir)
	if f.usable(hosts, time.Now().Add(leastAge)) {
		return f, nil
	}
	return f, f.make(hosts, time.Now())
}

// Made replaces all certificates in a directory as if they were made at the given time: in the past they may have
// expired, in the future they are not valid yet. The CA is valid now in any case. It is for tests.
func Made(dir string, at time.Time, hosts ...string) (Files, error) {
	f := in(dir)
	return f, f.make(orHere(hosts), at)
}

func (f Files) make(hosts []string, at time.Time) error {
	dir := filepath.Dir(f.CA)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make development certificates: %w", err)
	}
	if err := f.create(hosts, at); err != nil {
		return fmt.Errorf("make development certificates in %s: %w", dir, err)
	}
	return nil
}

func orHere(hosts []string) []string {
	if len(hosts) == 0 {
		return []string{"localhost", "127.0.0.1", "::1"}
	}
	return hosts
}

func in(dir string) Files {
	return Files{
		CA:         filepath.Join(dir, "ca.crt"),
		ServerCert: filepath.Join(dir, "server.crt"),
		ServerKey:  filepath.Join(dir, "server.key"),
		ClientCert: filepath.Join(dir, "client.crt"),
		ClientKey:  filepath.Join(dir, "client.key"),
	}
}

// usable reports whether all files exist, belong together, and are valid at a time.
func (f Files) usable(hosts []string, at time.Time) bool {
	bundle, err := os.ReadFile(f.CA)
	if err != nil {
		return false
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return false
	}
	valid := func(cert, key string, usage x509.ExtKeyUsage) *x509.Certificate {
		pair, err := tls.LoadX509KeyPair(cert, key) // it fails when they do not match
		if err != nil {
			return nil
		}
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
		if err != nil {
			return nil
		}
		return pair.Leaf
	}
	server := valid(f.ServerCert, f.ServerKey, x509.ExtKeyUsageServerAuth)
	client := valid(f.ClientCert, f.ClientKey, x509.ExtKeyUsageClientAuth)
	if server == nil || client == nil {
		return false
	}
	return !slices.ContainsFunc(hosts, func(h string) bool { return server.VerifyHostname(h) != nil })
}

// create writes new files. The CA's key is not among them: it is discarded after signing.
func (f Files) create(hosts []string, now time.Time) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := template("converge development CA", now)
	ca.IsCA, ca.BasicConstraintsValid = true, true
	ca.NotBefore, ca.NotAfter = ca.NotBefore.Add(-caMargin), ca.NotAfter.Add(caMargin)
	ca.KeyUsage = x509.KeyUsageCertSign
	if err := issue(f.CA, ca, ca, caKey, &caKey.PublicKey); err != nil {
		return err
	}

	server := template("converge development server", now)
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, h)
		}
	}
	if err := pair(f.ServerCert, f.ServerKey, server, ca, caKey); err != nil {
		return err
	}

	uri, err := url.Parse(ClientURI)
	if err != nil {
		return err
	}
	client := template("converge development client", now)
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	client.URIs = []*url.URL{uri}
	return pair(f.ClientCert, f.ClientKey, client, ca, caKey)
}

func template(name string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		// Serial numbers must differ within a CA; the time ensures that, as certificates are made one after the other.
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// pair creates a key and a certificate for it.
func pair(certFile, keyFile string, cert, ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key) // SEC 1, the only form that the real server reads
	if err != nil {
		return err
	}
	if err := write(keyFile, "EC PRIVATE KEY", der, 0o600); err != nil {
		return err
	}
	return issue(certFile, cert, ca, caKey, &key.PublicKey)
}

func issue(file string, cert, ca *x509.Certificate, caKey *ecdsa.PrivateKey, public *ecdsa.PublicKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, public, caKey)
	if err != nil {
		return err
	}
	return write(file, "CERTIFICATE", der, 0o644)
}

// write replaces a file atomically, so that a server that reads it again never sees half of it.
func write(file, kind string, der []byte, mode os.FileMode) error {
	t, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(t.Name())
	if err := pem.Encode(t, &pem.Block{Type: kind, Bytes: der}); err != nil {
		t.Close()
		return err
	}
	if err := t.Chmod(mode); err != nil {
		t.Close()
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return os.Rename(t.Name(), file)
}
