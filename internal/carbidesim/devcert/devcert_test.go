package devcert

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestEnsure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	f, err := Ensure(dir, "site.example", "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o700, f.ServerKey: 0o600, f.ClientKey: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	key, err := os.ReadFile(f.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	if k, err := x509.ParseECPrivateKey(block.Bytes); err != nil || block.Type != "EC PRIVATE KEY" || k.Curve.Params().Name != "P-256" {
		t.Errorf("server key: %s, %v", block.Type, err)
	}
	pair, err := tls.LoadX509KeyPair(f.ClientCert, f.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	if uris := pair.Leaf.URIs; len(uris) != 1 || uris[0].String() != ClientURI {
		t.Errorf("identity of the client: %v", uris)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.*.*")); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
	server, err := tls.LoadX509KeyPair(f.ServerCert, f.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	if !server.Leaf.IPAddresses[0].Equal(net.ParseIP("192.0.2.1")) || server.Leaf.DNSNames[0] != "site.example" {
		t.Errorf("server is %v, %v", server.Leaf.DNSNames, server.Leaf.IPAddresses)
	}
}

func TestEnsureKeepsWhatIsGood(t *testing.T) {
	dir := t.TempDir()
	read := func() string {
		t.Helper()
		f, err := Ensure(dir)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(f.ServerCert)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := read()
	if read() != first {
		t.Fatal("good certificates were replaced")
	}
	spoil := map[string]func(Files) error{
		"missing":        func(f Files) error { return os.Remove(f.ClientKey) },
		"key of another": func(f Files) error { return os.Rename(f.ClientKey, f.ServerKey) },
		"no certificate": func(f Files) error { return os.WriteFile(f.CA, []byte("x"), 0o600) },
		"about to end": func(f Files) error {
			return f.create([]string{"localhost", "127.0.0.1", "::1"}, time.Now().Add(leastAge-lifetime-time.Minute))
		},
		"for other hosts": func(f Files) error { return f.create([]string{"other"}, time.Now()) },
	}
	for name, do := range spoil {
		f, err := Ensure(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := do(f); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(f.ServerCert)
		if read() == string(before) {
			t.Errorf("%s: kept", name)
		}
	}
}

func TestEnsureReportsWhatItCannotWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(filepath.Join(file, "tls")); err == nil {
		t.Error("no error from a directory that cannot be")
	}
}
