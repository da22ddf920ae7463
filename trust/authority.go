package trust

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"converge.dev/converge/internal/dsse"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
)

const (
	// DefaultNodeLife is the validity of a node's certificate.
	DefaultNodeLife = 24 * time.Hour
	// DefaultDocumentLife is the validity of a trust document. It is longer than that of the keys in it, so that a node that was away
	// knows what it missed.
	DefaultDocumentLife = 90 * 24 * time.Hour

	// handover is how long before its end an online key is no longer used when there is a successor: by then every node has had four
	// days to learn of that, and what the old key has signed ends before the old key does.
	handover = 3 * 24 * time.Hour
	// countShift is where in a node's serial number the count of its certificates begins; below are random bits.
	countShift = 64
	// serverLife is the validity of the site's server certificate, which is made anew in memory.
	serverLife = 24 * time.Hour
)

// Options configure an Authority. The zero value is usable.
type Options struct {
	Now      func() time.Time // optional: the clock; time.Now when nil
	NodeLife time.Duration    // optional: validity of a node's certificate; DefaultNodeLife when zero
	// Dev keeps the root keys in the directory as well, so that [Authority.Rotate] needs nobody. For trying things out: whoever can
	// read the directory can then become the site for ever. Init writes them, and Open uses those that are there.
	Dev bool
}

// An Authority has what a site agent needs online: the private keys of a node CA and of a task key, and the trust documents. Its methods
// may be called at the same time. One process at a time may change the directory (Init, Proposal, Adopt, Rotate); others see the
// change with Reload.
//
// In its directory (mode 0700, files 0600) are ca-*.key, task-*.key, and trust-NNNNNN.json, all versions of the trust document. Which key is
// used follows from the newest document and the clock; so nothing has to be switched when keys are replaced.
type Authority struct {
	dir  string
	o    Options
	site schema.Site

	mu        sync.RWMutex
	document  *Document
	envelopes [][]byte // from the first version that is there to the newest
	first     int64    // the version of envelopes[0]
	keys      map[string]ed25519.PrivateKey
	pool      *x509.CertPool
}

// Init makes an authority in an empty directory, or one that does not exist: a node CA, a task key, and the first version of the trust
// document, signed by the roots. It fails when the directory has an authority already.
func Init(dir string, site schema.Site, threshold int, roots []ed25519.PrivateKey, o Options) (*Authority, error) {
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	old, err := named(dir, "trust-*.json")
	if err != nil {
		return nil, err
	}
	if len(old) > 0 {
		return nil, fmt.Errorf("%s has trust documents already: choose another directory, or open this one", dir)
	}
	left, err := named(dir, "ca-*.key", "task-*.key") // by an Init that did not finish
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	a := &Authority{dir: dir, o: o, site: schema.Site{Name: site.Name, ID: site.ID}}
	d := &Document{Version: 1, Site: a.site, Threshold: threshold}
	for _, root := range roots {
		d.Roots = append(d.Roots, root.Public().(ed25519.PublicKey))
	}
	if err := a.extend(d); err != nil {
		return nil, err
	}
	envelope, err := Sign(d, roots...)
	if err != nil {
		return nil, err
	}
	if _, err := Verify(nil, envelope); err != nil {
		return nil, err
	}
	if o.Dev {
		for i, root := range roots {
			if err := writeFile(filepath.Join(dir, fmt.Sprintf("root-%d.key", i+1)), MarshalKey(root)); err != nil {
				return nil, err
			}
		}
	}
	// The document comes last: without it there is no authority, and Init can be repeated.
	if err := writeFile(documentPath(dir, 1), envelope); err != nil {
		return nil, err
	}
	return Open(dir, o)
}

// Open opens an authority that Init made. All trust documents in the directory are verified. It does not fail because something has
// expired: then the calls that need it do.
func Open(dir string, o Options) (*Authority, error) {
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, o: o}
	paths, err := named(dir, "trust-*.json")
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no trust document: make an authority there with converge trust init: %w", dir, fs.ErrNotExist)
	}
	for _, path := range paths {
		envelope, err := files.ReadPrivate(path, MaxDocument)
		if err != nil {
			return nil, err
		}
		d, err := Verify(a.document, envelope)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if a.document == nil {
			a.first, a.site = d.Version, d.Site
		}
		a.document, a.envelopes = d, append(a.envelopes, envelope)
	}
	a.pool = a.document.pool()
	if err := a.readKeys(); err != nil {
		return nil, err
	}
	return a, nil
}

// Reload reads the directory again, which another process may have changed. When it fails, everything stays as it was.
func (a *Authority) Reload() error {
	b, err := Open(a.dir, a.o)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.site != a.site || b.document.Version < a.document.Version {
		return fmt.Errorf("%s has version %d of the trust document of site %s, and %d of site %s was read before", a.dir, b.document.Version, b.site.ID, a.document.Version, a.site.ID)
	}
	a.document, a.envelopes, a.first, a.keys, a.pool = b.document, b.envelopes, b.first, b.keys, b.pool
	return nil
}

func (a *Authority) readKeys() error {
	a.keys = map[string]ed25519.PrivateKey{}
	paths, err := named(a.dir, "ca-*.key", "task-*.key")
	if err != nil {
		return err
	}
	for _, path := range paths {
		key, err := signed.ReadPrivateKey(path)
		if err != nil {
			return err
		}
		a.keys[string(key.Public().(ed25519.PublicKey))] = key
	}
	return nil
}

// named returns the paths in a directory whose names match one of the patterns, in the order of their names.
func named(dir string, patterns ...string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, entry := range entries {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, entry.Name()); return ok }) {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, nil
}

func documentPath(dir string, version int64) string {
	return filepath.Join(dir, fmt.Sprintf("trust-%06d.json", version))
}

func (a *Authority) now() time.Time {
	if a.o.Now != nil {
		return a.o.Now()
	}
	return time.Now()
}

// extend adds a new node CA and a new task key to a document, with their private keys in the directory, and sets its validity.
func (a *Authority) extend(d *Document) error {
	now := a.now().UTC().Truncate(time.Second)
	from, until := now.Add(-skew), now.Add(-skew+MaxKeyLife)
	ca, task := newKey(), newKey()
	number := make([]byte, 8)
	_, _ = rand.Read(number) // never fails
	self := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(append([]byte{1}, number...)),
		Subject:               pkix.Name{CommonName: "converge site " + d.Site.Name + " " + hex.EncodeToString(number)}, // distinct, so that a chain is found by name
		NotBefore:             from,
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(nil, self, self, ca.Public(), ca)
	if err != nil {
		return fmt.Errorf("make the certificate of the node CA: %w", err)
	}
	for kind, key := range map[string]ed25519.PrivateKey{"ca": ca, "task": task} {
		if err := writeFile(keyPath(a.dir, kind, key.Public().(ed25519.PublicKey)), MarshalKey(key)); err != nil {
			return err
		}
	}
	public := task.Public().(ed25519.PublicKey)
	d.CAs = append(d.CAs, encodeCertificate(der))
	d.Tasks = append(d.Tasks, TaskKey{ID: dsse.KeyID(public), Public: public, NotBefore: from, NotAfter: until})
	d.NotBefore, d.NotAfter = from, from.Add(DefaultDocumentLife)
	return nil
}

func keyPath(dir, kind string, public ed25519.PublicKey) string {
	return filepath.Join(dir, fmt.Sprintf("%s-%x.key", kind, []byte(public)[:8]))
}

// Site returns the name and the id of the site.
func (a *Authority) Site() schema.Site { return a.site }

// Document returns the newest trust document. It is shared: do not change it.
func (a *Authority) Document() *Document {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.document
}

// Envelope returns the newest trust document in its envelope, as it was signed.
func (a *Authority) Envelope() []byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.envelopes[len(a.envelopes)-1]
}

// Envelopes returns the trust documents that are newer than a version, in order.
func (a *Authority) Envelopes(after int64) [][]byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	skip := min(max(after-a.first+1, 0), int64(len(a.envelopes)))
	return slices.Clone(a.envelopes[skip:])
}

// choose returns the first of a list, ordered by age, that is valid and not about to end, or else the last that is valid.
func choose[T any](list []T, now time.Time, usable func(T) bool, validity func(T) (from, until time.Time)) (chosen T, ok bool) {
	for _, v := range list {
		from, until := validity(v)
		if !usable(v) || now.Before(from) || !now.Before(until) {
			continue
		}
		chosen, ok = v, true
		if now.Before(until.Add(-handover)) {
			break
		}
	}
	return chosen, ok
}

// SignKey returns the key that signs tasks now, with what the trust document says of it. It fails when none is valid.
func (a *Authority) SignKey() (ed25519.PrivateKey, TaskKey, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	k, ok := choose(a.document.Tasks, a.now(), func(k TaskKey) bool { return a.keys[string(k.Public)] != nil },
		func(k TaskKey) (time.Time, time.Time) { return k.NotBefore, k.NotAfter })
	if !ok {
		return nil, k, a.nothing("task key")
	}
	return a.keys[string(k.Public)], k, nil
}

// issuer returns the node CA that signs now.
func (a *Authority) issuer() (*x509.Certificate, ed25519.PrivateKey, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	keyOf := func(c *x509.Certificate) ed25519.PrivateKey { return a.keys[string(c.PublicKey.(ed25519.PublicKey))] }
	c, ok := choose(a.document.authorities(), a.now(), func(c *x509.Certificate) bool { return keyOf(c) != nil },
		func(c *x509.Certificate) (time.Time, time.Time) { return c.NotBefore, c.NotAfter })
	if !ok {
		return nil, nil, a.nothing("node CA")
	}
	return c, keyOf(c), nil
}

func (a *Authority) nothing(what string) error {
	return fmt.Errorf("no %s that version %d of the trust document announces is valid at %s and has its private key in %s: replace it with converge trust rotate",
		what, a.document.Version, stamp(a.now()), a.dir)
}

// sign makes a certificate that ends with its issuer at the latest, and returns the chain.
func (a *Authority) sign(template *x509.Certificate, life time.Duration, public ed25519.PublicKey) ([][]byte, error) {
	ca, key, err := a.issuer()
	if err != nil {
		return nil, err
	}
	now := a.now().UTC().Truncate(time.Second)
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(life)
	if template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(nil, template, ca, public, key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	return [][]byte{der, ca.Raw}, nil
}

// Issue issues a node's certificate for the key that a request (PKCS#10, DER) proves. Nothing else of the request is used. Count is the
// number of this certificate among those of the node, from 1; later ones have greater serial numbers. It returns the chain, in DER. It
// fails with ErrRequest.
//
// It records nothing: [Authority.Claim] and [Authority.Renew] do.
func (a *Authority) Issue(node string, csr []byte, count int64) ([][]byte, error) {
	public, err := requested(csr)
	if err != nil {
		return nil, err
	}
	if !label.MatchString(node) || count < 1 {
		return nil, fmt.Errorf("issue a certificate: the node %q or its count %d is not valid", node, count)
	}
	number := make([]byte, 8)
	_, _ = rand.Read(number) // never fails
	serial := new(big.Int).Lsh(big.NewInt(count), countShift)
	return a.sign(&x509.Certificate{
		SerialNumber: serial.Or(serial, new(big.Int).SetBytes(number)),
		Subject:      pkix.Name{CommonName: node},
		URIs:         []*url.URL{nodeURI(a.site.ID, node)},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, cmp.Or(a.o.NodeLife, DefaultNodeLife), public)
}

// ErrRequest reports that a certificate request is not acceptable.
var ErrRequest = errors.New("the certificate request is not acceptable")

// maxRequest is the maximum size of a certificate request in bytes.
const maxRequest = 16 << 10

// requested returns the key that a request proves.
func requested(csr []byte) (ed25519.PublicKey, error) {
	if len(csr) > maxRequest {
		return nil, fmt.Errorf("%w: it has more than %s", ErrRequest, files.Size(maxRequest))
	}
	r, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("%w: want PKCS#10 in DER", ErrRequest)
	}
	public, ok := r.PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%w: want an ed25519 key", ErrRequest)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: its signature does not match its key", ErrRequest)
	}
	return public, nil
}

func siteURI(site string) *url.URL { return &url.URL{Scheme: "spiffe", Host: site, Path: "/site"} }

func nodeURI(site, node string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: site, Path: "/node/" + node}
}

// ServerCertificate returns a source of the site's server certificate, for tls.Config.GetCertificate: for these host names and addresses,
// valid for a day, with its key in memory only, and replaced at half of its life or when the node CA changes.
func (a *Authority) ServerCertificate(hosts ...string) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	var mu sync.Mutex
	var have *tls.Certificate
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		ca, _, err := a.issuer()
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if now := a.now(); have != nil && slices.Equal(have.Certificate[1], ca.Raw) && Share(have.Leaf.NotBefore, have.Leaf.NotAfter, now) == 0 && !now.Before(have.Leaf.NotBefore) {
			return have, nil
		}
		made, err := a.serverCertificate(hosts)
		if err != nil {
			return nil, err
		}
		have = made
		return have, nil
	}
}

func (a *Authority) serverCertificate(hosts []string) (*tls.Certificate, error) {
	number := make([]byte, 16)
	_, _ = rand.Read(number) // never fails
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(append([]byte{1}, number...)),
		Subject:      pkix.Name{CommonName: "converge site " + a.site.Name},
		URIs:         []*url.URL{siteURI(a.site.ID)},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey()
	chain, err := a.sign(template, serverLife, key.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, nil
}

// RotateAt returns when the next version of the trust document is due: an [Overlap] before the newest of its online keys, or the
// document, ends.
func (a *Authority) RotateAt() time.Time {
	d := a.Document()
	at := d.NotAfter
	var ca, task time.Time
	for _, c := range d.authorities() {
		ca = later(ca, c.NotAfter)
	}
	for _, k := range d.Tasks {
		task = later(task, k.NotAfter)
	}
	for _, end := range []time.Time{ca, task} {
		if end.Before(at) {
			at = end
		}
	}
	return at.Add(-Overlap)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Proposal returns the next version of the trust document, unsigned: with a new node CA and a new task key beside those that are still
// valid. Their private keys are in the directory and are used once the document is adopted. Until that, and for an overlap, it returns the
// same again, so that several people see and sign the same. The caller may change Roots and Threshold before it signs.
func (a *Authority) Proposal() (*Document, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, next := a.now(), a.document.Version+1
	path := filepath.Join(a.dir, "proposal.json")
	if b, err := files.ReadPrivate(path, MaxDocument); err == nil {
		d := &Document{}
		if json.Unmarshal(b, d, json.RejectUnknownMembers(true)) == nil && d.check() == nil && d.Version == next && now.Before(d.NotBefore.Add(Overlap)) && a.ours(d, now) == nil {
			return d, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	d := &Document{Version: next, Site: a.site, Roots: slices.Clone(a.document.Roots), Threshold: a.document.Threshold}
	// A certificate that has expired can be renewed for a while, so its issuer stays as long.
	for _, text := range a.document.CAs {
		if c, err := text.Parse(); err == nil && now.Before(c.NotAfter.Add(RenewLate)) {
			d.CAs = append(d.CAs, text)
		}
	}
	for _, k := range a.document.Tasks {
		if now.Before(k.NotAfter) {
			d.Tasks = append(d.Tasks, k)
		}
	}
	if err := a.extend(d); err != nil {
		return nil, err
	}
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode the trust document: %w", err)
	}
	if err := writeFile(path, b); err != nil {
		return nil, err
	}
	return d, a.readKeys()
}

// ours fails when a document lacks a node CA or a task key that is valid and whose private key is here.
func (a *Authority) ours(d *Document, now time.Time) error {
	if !slices.ContainsFunc(d.authorities(), func(c *x509.Certificate) bool {
		return a.keys[string(c.PublicKey.(ed25519.PublicKey))] != nil && now.Before(c.NotAfter)
	}) {
		return fmt.Errorf("%w: it has no node CA that is valid and whose private key is in %s", ErrDocument, a.dir)
	}
	if !slices.ContainsFunc(d.Tasks, func(k TaskKey) bool { return a.keys[string(k.Public)] != nil && now.Before(k.NotAfter) }) {
		return fmt.Errorf("%w: it has no task key that is valid and whose private key is in %s", ErrDocument, a.dir)
	}
	return nil
}

// Adopt installs the next version of the trust document, durably. It fails as [Verify] does, when the document has expired, and when
// the private keys for it are not here. Private keys that it no longer names are removed.
func (a *Authority) Adopt(envelope []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	d, err := Verify(a.document, envelope)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Valid(a.now()), a.ours(d, a.now())); err != nil {
		return err
	}
	if err := writeFile(documentPath(a.dir, d.Version), envelope); err != nil {
		return err
	}
	a.document, a.envelopes, a.pool = d, append(a.envelopes, envelope), d.pool()
	return a.forget()
}

// forget removes what the newest document does not need.
func (a *Authority) forget() error {
	keep := map[string]bool{}
	for _, c := range a.document.authorities() {
		keep[keyPath(a.dir, "ca", c.PublicKey.(ed25519.PublicKey))] = true
	}
	for _, k := range a.document.Tasks {
		keep[keyPath(a.dir, "task", k.Public)] = true
	}
	paths, err := named(a.dir, "proposal.json", "ca-*.key", "task-*.key")
	if err != nil {
		return err
	}
	for _, path := range paths {
		if keep[path] {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return a.readKeys()
}

// Rotate replaces the online keys if that is due ([Authority.RotateAt]), with the root keys in the directory. It reports whether it did, and fails
// when the authority was not made with Options.Dev.
func (a *Authority) Rotate() (bool, error) {
	if a.now().Before(a.RotateAt()) {
		return false, nil
	}
	paths, err := named(a.dir, "root-*.key")
	if err != nil {
		return false, err
	}
	if len(paths) == 0 || !a.o.Dev {
		return false, fmt.Errorf("the root keys are not in %s: make the next trust document with converge trust rotate and have it signed", a.dir)
	}
	var roots []ed25519.PrivateKey
	for _, path := range paths {
		root, err := signed.ReadPrivateKey(path)
		if err != nil {
			return false, err
		}
		roots = append(roots, root)
	}
	d, err := a.Proposal()
	if err != nil {
		return false, err
	}
	envelope, err := Sign(d, roots...)
	if err != nil {
		return false, err
	}
	return true, a.Adopt(envelope)
}

// privateDir makes a directory, unless it exists and belongs to one user.
func privateDir(dir string) error { return files.PrivateDir(dir) }

// writeFile replaces a private file durably: when it returns, the new contents survive a power cut.
func writeFile(path string, data []byte) (err error) {
	if err := files.Replace(path, data, 0o600); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) (err error) {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}
