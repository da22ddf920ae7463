package files_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"converge.dev/converge/internal/files"
)

// A client shows the certificate that its files have when it connects, and none when it has none.
func TestClientTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	issue := func() []byte {
		t.Helper()
		secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, of, of, secret.Public(), secret)
		if err != nil {
			t.Fatal(err)
		}
		hidden, err := x509.MarshalPKCS8PrivateKey(secret)
		if err == nil {
			err = errors.Join(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
				os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: hidden}), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	if _, err := files.ClientTLS("", cert, key); err == nil {
		t.Error("files that are missing are used")
	}
	issue()
	config, err := files.ClientTLS(cert, cert, key)
	if err != nil || config.RootCAs == nil {
		t.Fatal(config, err)
	}
	renewed := issue()
	if c, err := config.GetClientCertificate(nil); err != nil || !bytes.Equal(c.Certificate[0], renewed) {
		t.Errorf("%v: not the renewed certificate", err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if c, err := config.GetClientCertificate(nil); err == nil {
		t.Errorf("without its key there is %v", c)
	}
	if config, err = files.ClientTLS("", "", ""); err != nil || config.GetClientCertificate != nil || config.RootCAs != nil {
		t.Errorf("%v, %v", config, err)
	}
}
