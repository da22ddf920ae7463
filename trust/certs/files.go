package certs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/retry"
)

// maxPEM is the maximum size of a file; the bundles of authorities that systems ship have a fifth of it.
const maxPEM = 1 << 20

// A fileOrigin is a pair of files. It reads them again and again, because a change of a mounted directory, or of a link, raises no event on the file.
type fileOrigin struct {
	cert, key string
	used      [sha256.Size]byte // of the pair in use
}

func (f *fileOrigin) obtain(_ context.Context, have *tls.Certificate) (*tls.Certificate, time.Duration, error) {
	chain, err := whole(f.cert)
	if err != nil {
		return nil, look, err
	}
	key, err := files.ReadPrivate(f.key, maxPEM)
	if err != nil {
		return nil, look, err
	}
	sum := sha256.Sum256(key)
	sum = sha256.Sum256(append(sum[:], chain...))
	if sum == f.used {
		return nil, look, nil
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil { // also while only one of the two is replaced
		return nil, look, fmt.Errorf("the certificate %s with the key %s: %w", f.cert, f.key, err)
	}
	if err := better(pair.Leaf, have, time.Now()); err != nil {
		return nil, look, fmt.Errorf("%s: %w", f.cert, err)
	}
	f.used = sum
	return &pair, look, nil
}

// better refuses a certificate that is not valid while the one in use is.
func better(leaf *x509.Certificate, have *tls.Certificate, now time.Time) error {
	if have == nil || now.After(have.Leaf.NotAfter) {
		return nil
	}
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the new certificate expired at %s", stamp(leaf.NotAfter))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the new certificate is valid only from %s: check the clock", stamp(leaf.NotBefore))
	}
	return nil
}

// whole reads a file of certificates that is not in the middle of being written.
func whole(path string) ([]byte, error) {
	b, err := files.Read(path, maxPEM)
	if err != nil {
		return nil, err
	}
	blocks := 0
	for rest := b; ; blocks++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
	}
	switch begun := bytes.Count(b, []byte("-----BEGIN ")); {
	case begun == 0:
		return nil, fmt.Errorf("%s contains no certificate in PEM", path)
	case begun != blocks:
		return nil, fmt.Errorf("%s has %d blocks of PEM, and only %d are complete", path, begun, blocks)
	}
	return b, nil
}

// clients are the authorities of clients, in a file that may be replaced.
type clients struct {
	path string

	mu   sync.Mutex
	now  *x509.CertPool
	used []byte // the contents of the file that are in use
}

func (c *clients) pool() *x509.CertPool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// read reads the file, and reports whether it is another one than before.
func (c *clients) read() (changed bool, err error) {
	b, err := whole(c.path)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil && bytes.Equal(b, c.used) {
		return false, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return false, errors.New(c.path + " contains no certificate")
	}
	c.now, c.used = pool, b
	return true, nil
}

// run reads the file again until ctx is done.
func (c *clients) run(ctx context.Context, log *slog.Logger) {
	said := ""
	for retry.Sleep(ctx, look) == nil {
		switch changed, err := c.read(); {
		case err != nil && said != err.Error():
			said = err.Error()
			log.Error("the authorities of HTTP clients cannot be read: those from before count", "error", err)
		case err == nil:
			said = ""
			if changed {
				log.Info("the authorities of HTTP clients have changed", "file", c.path)
			}
		}
	}
}
