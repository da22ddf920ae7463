package carbide_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/carbide/carbidesim"
	"converge.dev/converge/providers/carbide/carbidesim/devcert"
)

func TestOpenRefused(t *testing.T) {
	server, client := mutual(t)
	other, err := devcert.Ensure(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	named, err := devcert.Ensure(t.TempDir(), "elsewhere.example")
	if err != nil {
		t.Fatal(err)
	}
	old := expired(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := carbidesim.ServerOptions{}
	lenient := server
	lenient.Mutual = false
	for name, c := range map[string]struct {
		server  carbidesim.ServerOptions
		address string // empty: the server's
		tls     carbide.TLS
		class   providers.Class
		says    string
	}{
		"expired":              {server: carbidesim.ServerOptions{CertFile: old.ServerCert, KeyFile: old.ServerKey}, tls: carbide.TLS{Mode: carbide.Server, CA: old.CA}, class: denied, says: "expired"},
		"wrong authority":      {server: server, tls: carbide.TLS{CA: other.CA, Cert: client.Cert, Key: client.Key}, class: denied, says: "signed by none of our authorities"},
		"wrong name":           {server: carbidesim.ServerOptions{CertFile: named.ServerCert, KeyFile: named.ServerKey}, tls: carbide.TLS{Mode: carbide.Server, CA: named.CA}, class: denied, says: "another name"},
		"no certificate":       {server: server, tls: carbide.TLS{Mode: carbide.Server, CA: client.CA}, class: denied, says: "wants one and got none"},
		"unknown certificate":  {server: server, tls: carbide.TLS{CA: client.CA, Cert: other.ClientCert, Key: other.ClientKey}, class: denied, says: "refuses our certificate"},
		"plain server":         {server: plain, tls: client, class: transient},
		"plain client":         {server: server, tls: carbide.TLS{Mode: carbide.Off}, class: transient},
		"nobody there":         {server: server, address: "127.0.0.1:1", tls: client, class: transient},
		"plain to far":         {server: plain, address: "192.0.2.1:1079", tls: carbide.TLS{Mode: carbide.Off}, class: invalid, says: "another machine"},
		"no address":           {server: plain, address: " ", tls: carbide.TLS{Mode: carbide.Off}, class: invalid},
		"unknown mode":         {server: server, tls: carbide.TLS{Mode: "some"}, class: invalid, says: `"some" is unknown`},
		"no key":               {server: server, tls: carbide.TLS{CA: client.CA, Cert: client.Cert}, class: invalid, says: "needs a certificate and its key"},
		"missing CA file":      {server: server, tls: carbide.TLS{CA: text + "-not", Cert: client.Cert, Key: client.Key}, class: invalid, says: "read the authorities"},
		"CA without any":       {server: server, tls: carbide.TLS{CA: text, Cert: client.Cert, Key: client.Key}, class: invalid, says: "holds no certificate"},
		"key of another":       {server: server, tls: carbide.TLS{CA: client.CA, Cert: client.Cert, Key: other.ClientKey}, class: invalid, says: "read our certificate"},
		"certificate optional": {server: lenient, tls: carbide.TLS{Mode: carbide.Server, CA: client.CA}, class: ""},
	} {
		t.Run(name, func(t *testing.T) {
			address := listen(t, newWorld(t, carbidesim.Options{}), c.server)
			if c.address != "" {
				address = strings.TrimSpace(c.address)
			}
			p, err := carbide.Open(t.Context(), carbide.Options{Address: address, TLS: c.tls})
			switch {
			case c.class == "" && err != nil:
				t.Fatalf("open failed: %v", err)
			case c.class == "":
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			case err == nil:
				p.Close()
				t.Fatal("open succeeded")
			case providers.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.says):
				t.Errorf("class %s: %v\nwant class %s and %q in it", providers.ClassOf(err), err, c.class, c.says)
			}
		})
	}
}

// TestAnonymous: without a certificate the site tells its version and nothing else.
func TestAnonymous(t *testing.T) {
	server, client := mutual(t)
	server.Mutual = false
	client = carbide.TLS{Mode: carbide.Server, CA: client.CA}
	w := newWorld(t, carbidesim.Options{})
	p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &site{t, w, p}
	_, err = s.kind("vpc").Observe(t.Context(), nil)
	s.class("observe", err, denied)
}

// TestDial goes through a dialer and a unix socket, as plain text.
func TestDial(t *testing.T) {
	w := newWorld(t, carbidesim.Options{})
	server, err := carbidesim.NewServer(w, carbidesim.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "c") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		if address != "somewhere:1" {
			t.Errorf("dialled %s", address)
		}
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	for _, o := range []carbide.Options{
		{Address: "unix:" + socket, TLS: carbide.TLS{Mode: carbide.Off}},
		{Address: "somewhere:1", TLS: carbide.TLS{Mode: carbide.Off}, AllowInsecure: true, Dial: dial},
	} {
		p, err := carbide.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRenewedCertificate: a new connection shows the certificate that is in the file then.
func TestRenewedCertificate(t *testing.T) {
	server, client := mutual(t)
	other, err := devcert.Ensure(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	place := func(from, name string) string {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return to
	}
	client.Cert, client.Key = place(client.Cert, "cert"), place(client.Key, "key")
	w := newWorld(t, carbidesim.Options{})
	p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &site{t, w, p}
	place(other.ClientCert, "cert")
	place(other.ClientKey, "key")
	if _, err := s.kind("vpc").Observe(t.Context(), nil); err != nil {
		t.Fatalf("the open connection: %v", err)
	}
	if err := w.Inject(carbidesim.Fault{Method: "FindVpcIds", Effect: carbidesim.Cut}); err != nil {
		t.Fatal(err)
	}
	_, err = s.kind("vpc").Observe(t.Context(), nil)
	s.class("a call whose connection is cut", err, transient)
	_, err = s.kind("vpc").Observe(t.Context(), nil)
	s.class("a call with the other certificate", err, transient)
}

// expired are the files of a server whose certificate has ended.
func expired(t *testing.T) devcert.Files {
	t.Helper()
	dir := t.TempDir()
	f := devcert.Files{CA: filepath.Join(dir, "ca"), ServerCert: filepath.Join(dir, "cert"), ServerKey: filepath.Join(dir, "key")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "old"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		f.CA: {Type: "CERTIFICATE", Bytes: cert}, f.ServerCert: {Type: "CERTIFICATE", Bytes: cert}, f.ServerKey: {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}
