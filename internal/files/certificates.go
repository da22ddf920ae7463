package files

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
)

// Certificates are the contents of the files of one side of TLS when they were read.
type Certificates struct {
	Roots  *x509.CertPool    // the authorities; nil: the system's
	Ours   *tls.Certificate  // nil when we show none
	Digest [sha256.Size]byte // of all that was read
}

// maxPEM is the maximum size of a TLS file; the bundles of authorities that systems ship have a fifth of it.
const maxPEM = 1 << 20

// ReadCertificates reads PEM files, each of them once, so that the digest is that of what is used; those without a name are
// left out. The digest is valid even when there is an error.
func ReadCertificates(ca, cert, key string) (c Certificates, err error) {
	hash := sha256.New()
	take := func(name string, read func(string, int64) ([]byte, error)) []byte {
		if name == "" {
			return nil
		}
		b, missing := read(name, maxPEM)
		if missing != nil {
			err = cmp.Or(err, missing)
			b = []byte(missing.Error())
		}
		// The length first: otherwise a part that moves from one file to the next would change nothing.
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		hash.Write(b)
		return b
	}
	authorities, chain, secret := take(ca, Read), take(cert, Read), take(key, ReadPrivate)
	hash.Sum(c.Digest[:0])
	if err != nil {
		return c, fmt.Errorf("read the certificates: %w", err)
	}
	if ca != "" {
		c.Roots = x509.NewCertPool()
		if !c.Roots.AppendCertsFromPEM(authorities) {
			return c, fmt.Errorf("%s contains no certificate", ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.X509KeyPair(chain, secret)
		if err != nil {
			return c, fmt.Errorf("read the client certificate %s with the key %s: %w", cert, key, err)
		}
		c.Ours = &pair
	}
	return c, nil
}

// ClientTLS returns how a client that talks for long uses these files. They are read now, so that what is wrong with them is an error
// here; our certificate is read again for each connection, since it may have been renewed.
func ClientTLS(ca, cert, key string) (*tls.Config, error) {
	read, err := ReadCertificates(ca, cert, key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: read.Roots}
	if read.Ours != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			read, err := ReadCertificates("", cert, key)
			return read.Ours, err
		}
	}
	return config, nil
}
