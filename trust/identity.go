package trust

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/trust/trustpb"
)

// Files of an identity in its directory. A key and its certificate are in one file, so that they are replaced as one.
const (
	identityFile = "identity.pem" // key and chain
	nextKeyFile  = "next.key"     // a key for which a certificate was asked
	trustFile    = "trust.json"   // the trust document in its envelope
	maxIdentity  = 64 << 10
)

// IdentityOptions configure an Identity. The zero value is usable.
type IdentityOptions struct {
	Now func() time.Time // optional: the clock; time.Now when nil
	// Dial is optional: how Bootstrap reaches the site; TCP when nil.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// An Identity is what a node has: its key, its certificate and the trust document, in a directory of its own (mode 0700, files 0600). All of
// it survives a crash at any moment. Its methods may be called at the same time; one process uses a directory.
type Identity struct {
	dir string
	o   IdentityOptions

	writing sync.Mutex // one change of the directory at a time

	mu       sync.RWMutex
	cert     tls.Certificate // its Leaf is set
	document *Document
	pool     *x509.CertPool
}

// NodeKey returns the node's current private key, which signs the results of tasks. Its public key is that of the node's certificate.
func (id *Identity) NodeKey() ed25519.PrivateKey {
	id.mu.RLock()
	defer id.mu.RUnlock()
	return id.cert.PrivateKey.(ed25519.PrivateKey)
}

// Node returns the name of the node.
func (id *Identity) Node() string { return id.Certificate().Subject.CommonName }

// Site returns the name and the id of the site.
func (id *Identity) Site() schema.Site { return id.Document().Site }

// Certificate returns the current certificate. It is shared: do not change it.
func (id *Identity) Certificate() *x509.Certificate {
	id.mu.RLock()
	defer id.mu.RUnlock()
	return id.cert.Leaf
}

// Document returns the newest trust document that the node knows. It is shared: do not change it.
func (id *Identity) Document() *Document {
	id.mu.RLock()
	defer id.mu.RUnlock()
	return id.document
}

// OpenIdentity opens the identity in a directory. It fails with fs.ErrNotExist when the node has not enrolled. It does not fail because something has
// expired: the certificate may still be renewed.
func OpenIdentity(dir string, o IdentityOptions) (*Identity, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("the node has no identity yet (converge agent bootstrap): %w", err)
	}
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	id := &Identity{dir: dir, o: o}
	b, err := files.ReadPrivate(filepath.Join(dir, identityFile), maxIdentity)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the node has no identity yet (converge agent bootstrap): %w", err)
	}
	if err != nil {
		return nil, err
	}
	if id.cert, err = parseIdentity(b); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, identityFile), err)
	}
	envelope, err := files.ReadPrivate(filepath.Join(dir, trustFile), MaxDocument)
	if err != nil {
		return nil, err
	}
	// It was verified when it was stored, and pinned by that.
	if id.document, err = Verify(nil, envelope); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, trustFile), err)
	}
	if _, err := nodeOf(id.cert.Leaf, id.document.Site.ID); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, identityFile), err)
	}
	id.pool = id.document.pool()
	return id, nil
}

// parseIdentity reads the contents of an identity's file. An error repeats nothing of them.
func parseIdentity(b []byte) (tls.Certificate, error) {
	var cert tls.Certificate
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		switch block.Type {
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return cert, errors.New("the private key is damaged")
			}
			cert.PrivateKey = key
		case "CERTIFICATE":
			cert.Certificate = append(cert.Certificate, block.Bytes)
		}
	}
	key, ok := cert.PrivateKey.(ed25519.PrivateKey)
	if !ok || len(cert.Certificate) == 0 {
		return cert, errors.New("want an ed25519 key and its certificate in PEM")
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return cert, errors.New("the certificate is damaged")
	}
	if !key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey) {
		return cert, errors.New("the certificate is for another key")
	}
	cert.Leaf = leaf
	return cert, nil
}

func (o IdentityOptions) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// Bootstrap enrols a node: it makes the key in the directory, connects to the site at an address (HOST:PORT), which has to show a certificate of
// an authority that the token pins, exchanges the token for a certificate, verifies what it gets, and stores it with the trust document. When it
// failed, or its machine did, it can be repeated with the same directory and the same token: it presents the same key. A directory that has
// an identity keeps its key, and takes the certificate of the new token, provided that it is for the same node and site.
func Bootstrap(ctx context.Context, dir, token, address string, o IdentityOptions) (*Identity, error) {
	t, err := ParseToken(token)
	if err != nil {
		return nil, err
	}
	if !o.now().Before(t.Expires) {
		return nil, fmt.Errorf("enrol node %s: %w", t.Node, ErrTokenExpired)
	}
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	id, err := OpenIdentity(dir, o)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		id = &Identity{dir: dir, o: o}
	case err != nil:
		return nil, err
	case id.Node() != t.Node:
		return nil, fmt.Errorf("enrol node %s: %s has the identity of node %s: choose another directory, or remove that one", t.Node, dir, id.Node())
	}
	id.writing.Lock()
	defer id.writing.Unlock()
	var key ed25519.PrivateKey
	if id.cert.Leaf != nil {
		key = id.NodeKey()
	} else if key, err = id.nextKey(); err != nil {
		return nil, err
	}
	csr, err := request(key, t.Node)
	if err != nil {
		return nil, err
	}
	var site string // as the server says; the trust document has to say the same
	conn, err := dial(address, o, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // the pin is what is verified, below
		Time:               o.Now,
		VerifyConnection: func(s tls.ConnectionState) (err error) {
			site, err = t.verify(s, o.now())
			return err
		},
	})
	if err != nil {
		return nil, fmt.Errorf("enrol node %s: %w", t.Node, err)
	}
	defer func() { _ = conn.Close() }() // everything is said
	issued, err := trustpb.NewEnrolmentClient(conn).Claim(ctx, &trustpb.ClaimRequest{Token: t.text, Csr: csr})
	if err != nil {
		return nil, fmt.Errorf("enrol node %s at %s: %w", t.Node, address, plainly(err))
	}
	d, envelope, err := id.pinned(ctx, conn, t, issued.GetTrust())
	if err == nil && d.Site.ID != site {
		err = ErrSite
	}
	if err == nil {
		err = id.install(t.Node, key, issued.GetChain(), d, envelope)
	}
	if err != nil {
		return nil, fmt.Errorf("enrol node %s: what the site at %s has sent is refused: %w", t.Node, address, err)
	}
	return id, nil
}

// verify checks that the server's certificate is that of a site, issued by an authority that the token pins, and returns the site's id.
func (t *Token) verify(s tls.ConnectionState, now time.Time) (string, error) {
	pool := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		if c.IsCA && slices.Contains(t.pins, pin(c)) {
			pool.AddCert(c)
		}
	}
	if pool.Equal(x509.NewCertPool()) {
		return "", fmt.Errorf("%w: the server's certificate was issued by none of the authorities that the token names: is this the site that made the token?", ErrCertificate)
	}
	leaf := s.PeerCertificates[0]
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != siteURI(leaf.URIs[0].Host).String() {
		return "", fmt.Errorf("%w: the server's has no URI spiffe://SITE/site", ErrCertificate)
	}
	return leaf.URIs[0].Host, chained(leaf, pool, x509.ExtKeyUsageServerAuth, now)
}

// pinned checks the trust document that came with the first certificate. A document that the node has already is replaced only by the
// versions that follow it.
func (id *Identity) pinned(ctx context.Context, conn grpc.ClientConnInterface, t *Token, envelope []byte) (*Document, []byte, error) {
	d, err := Verify(nil, envelope)
	if err != nil {
		return nil, nil, err
	}
	if err := d.Valid(id.o.now()); err != nil {
		return nil, nil, err
	}
	if !slices.ContainsFunc(d.authorities(), func(c *x509.Certificate) bool { return slices.Contains(t.pins, pin(c)) }) {
		return nil, nil, fmt.Errorf("%w: it names none of the authorities that the token names", ErrDocument)
	}
	have := id.document
	switch {
	case have == nil:
		return d, envelope, nil
	case have.Site.ID != d.Site.ID:
		return nil, nil, fmt.Errorf("%w: %s has an identity of site %s", ErrSite, id.dir, have.Site.ID)
	}
	return id.newer(ctx, conn)
}

// nextKey returns the key for which a certificate was, or is about to be, asked. It is on the disk before anybody learns of it.
func (id *Identity) nextKey() (ed25519.PrivateKey, error) {
	path := filepath.Join(id.dir, nextKeyFile)
	key, err := signed.ReadPrivateKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		key = newKey()
		err = writeFile(path, MarshalKey(key))
	}
	return key, err
}

// request returns a certificate request, which proves the key. The name in it is for people.
func request(key ed25519.PrivateKey, node string) ([]byte, error) {
	template := &x509.CertificateRequest{}
	template.Subject.CommonName = node
	csr, err := x509.CreateCertificateRequest(nil, template, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return csr, nil
}

// install verifies a certificate and stores it with its key and, when there is an envelope, with the trust document.
func (id *Identity) install(node string, key ed25519.PrivateKey, chain [][]byte, d *Document, envelope []byte) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: there is none", ErrCertificate)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return fmt.Errorf("%w: it is damaged", ErrCertificate)
	}
	if !key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey) {
		return fmt.Errorf("%w: it is for another key", ErrCertificate)
	}
	name, err := nodeOf(leaf, d.Site.ID)
	if err != nil {
		return err
	}
	if name != node || leaf.Subject.CommonName != node {
		return fmt.Errorf("%w: it is for node %s", ErrCertificate, name)
	}
	if err := chained(leaf, d.pool(), x509.ExtKeyUsageClientAuth, id.o.now()); err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(MarshalKey(key))
	for _, der := range chain {
		b.WriteString(string(encodeCertificate(der)))
	}
	if envelope != nil {
		if err := writeFile(filepath.Join(id.dir, trustFile), envelope); err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(id.dir, identityFile), b.Bytes()); err != nil {
		return err
	}
	id.mu.Lock()
	id.cert = tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}
	id.document, id.pool = d, d.pool()
	id.mu.Unlock()
	// The key is in the other file now. If this fails, the next renewal recognises it.
	if err := os.Remove(filepath.Join(id.dir, nextKeyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(id.dir)
}

func dial(address string, o IdentityOptions, config *tls.Config) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
	if o.Dial != nil {
		options = append(options, grpc.WithContextDialer(o.Dial))
		address = "passthrough:///" + address
	}
	return grpc.NewClient(address, options...)
}

// TLS returns the configuration with which the node connects to its site: its certificate, which is the current one at each connection, and a
// server that has the certificate of the site, issued by a node CA of the trust document.
func (id *Identity) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection verifies: what counts is the site's URI, not the name that was dialled
		Time:               id.o.Now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			id.mu.RLock()
			defer id.mu.RUnlock()
			cert := id.cert
			return &cert, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			id.mu.RLock()
			d, pool := id.document, id.pool
			id.mu.RUnlock()
			if err := d.Valid(id.o.now()); err != nil {
				return err
			}
			leaf := s.PeerCertificates[0]
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != siteURI(d.Site.ID).String() {
				return fmt.Errorf("%w: the server's is not that of site %s", ErrCertificate, d.Site.ID)
			}
			return chained(leaf, pool, x509.ExtKeyUsageServerAuth, id.o.now())
		},
	}
}

// RenewTLS is [Identity.TLS] for the door for renewals, which also lets in who has an expired certificate, or has missed the reply to a renewal.
func (id *Identity) RenewTLS() *tls.Config {
	c := id.TLS()
	c.ServerName = RenewName
	return c
}

// RenewAt returns when the certificate should be renewed: after half of its life, ± 10 % of that, by node and certificate, so that nodes do
// not all come at once.
func (id *Identity) RenewAt() time.Time {
	leaf := id.Certificate()
	half := leaf.NotAfter.Sub(leaf.NotBefore) / 2
	sum := sha256.Sum256(leaf.Raw)
	share := time.Duration(binary.BigEndian.Uint16(sum[:])) // 0 to 65535
	return leaf.NotBefore.Add(half - half/10 + half/5*share/65535)
}

// Renew replaces the certificate by one for a new key, over a connection made with [Identity.RenewTLS], and stores it. The next
// connections use it. When it fails, it can be repeated: the key stays the same until the site has certified it.
func (id *Identity) Renew(ctx context.Context, conn grpc.ClientConnInterface) error {
	id.writing.Lock()
	defer id.writing.Unlock()
	node := id.Node()
	key, err := id.nextKey()
	if err == nil && key.Equal(id.NodeKey()) { // it was certified just before a crash
		if err = os.Remove(filepath.Join(id.dir, nextKeyFile)); err == nil {
			key, err = id.nextKey()
		}
	}
	if err != nil {
		return fmt.Errorf("renew the certificate of node %s: %w", node, err)
	}
	csr, err := request(key, node)
	if err != nil {
		return err
	}
	issued, err := trustpb.NewEnrolmentClient(conn).Renew(ctx, &trustpb.RenewRequest{Csr: csr})
	if err != nil {
		return fmt.Errorf("renew the certificate of node %s: %w", node, plainly(err))
	}
	// The certificate may be issued by a node CA of a newer trust document.
	d, envelope, err := id.newer(ctx, conn)
	if err != nil {
		return fmt.Errorf("renew the certificate of node %s: %w", node, err)
	}
	if err := id.install(node, key, issued.GetChain(), d, envelope); err != nil {
		return fmt.Errorf("renew the certificate of node %s: what the site has sent is refused: %w", node, err)
	}
	return nil
}

// newer asks the site for the trust documents that follow the node's, and returns the newest; its envelope is nil when that is the node's.
func (id *Identity) newer(ctx context.Context, conn grpc.ClientConnInterface) (*Document, []byte, error) {
	have := id.Document()
	answer, err := trustpb.NewEnrolmentClient(conn).Trust(ctx, &trustpb.TrustRequest{After: have.Version})
	if err != nil {
		return nil, nil, fmt.Errorf("ask for newer trust documents: %w", plainly(err))
	}
	return Follow(have, answer.GetEnvelopes(), id.o.now())
}

// CatchUp asks the site at an address for newer trust documents, and installs them as [Identity.Update] does. It is for a node that was away
// while the node CA was replaced, and so cannot verify the site's certificate: it does not look at that, shows none of its own and sends
// nothing. Whoever answers can withhold documents, and cannot make any: the roots sign them.
func (id *Identity) CatchUp(ctx context.Context, address string) error {
	conn, err := dial(address, id.o, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Time: id.o.Now})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // everything is said
	answer, err := trustpb.NewEnrolmentClient(conn).Trust(ctx, &trustpb.TrustRequest{After: id.Document().Version})
	if err != nil {
		return fmt.Errorf("ask %s for newer trust documents: %w", address, plainly(err))
	}
	return id.Update(answer.GetEnvelopes())
}

// Update verifies trust documents that follow the node's, each signed by the roots of the one before, and stores the newest durably. It fails
// as [Follow] does, and then keeps what it has.
func (id *Identity) Update(envelopes [][]byte) error {
	id.writing.Lock()
	defer id.writing.Unlock()
	d, envelope, err := Follow(id.Document(), envelopes, id.o.now())
	if err != nil || envelope == nil {
		return err
	}
	if err := writeFile(filepath.Join(id.dir, trustFile), envelope); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.document, id.pool = d, d.pool()
	return nil
}
