package trust

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"converge.dev/converge/internal/dsse"
	"converge.dev/converge/schema"
)

const (
	// Type is the payload type of a trust document in its envelope.
	Type = "application/vnd.converge.trust.v1+json"
	// MaxDocument is the maximum size of an envelope with a trust document in bytes.
	MaxDocument = 256 << 10
	// MaxKeyLife is the longest validity of a key that is online.
	MaxKeyLife = 30 * 24 * time.Hour
	// Overlap is how long before the end of an online key its successor is announced.
	Overlap = 7 * 24 * time.Hour

	// skew is how far clocks may differ: what is valid from now on is made valid from this much earlier.
	skew = time.Minute
	// maxList limits the lists of a document.
	maxList = 32
)

// A Document is what the nodes of a site believe. It is plain data; what counts is its envelope, whose bytes are never encoded again.
type Document struct {
	Version   int64               `json:"version"`   // from 1, by one with each document
	Site      schema.Site         `json:"site"`      // its name and id; no serial
	Roots     []ed25519.PublicKey `json:"roots"`     // all different
	Threshold int                 `json:"threshold"` // how many of them have to sign
	CAs       []Certificate       `json:"cas"`       // the authorities for nodes and the site's server; oldest first
	Tasks     []TaskKey           `json:"tasks"`     // oldest first
	NotBefore time.Time           `json:"not_before"`
	NotAfter  time.Time           `json:"not_after"`
}

// A Certificate is a certificate in PEM.
type Certificate string

// A TaskKey is a key whose signature makes a task. It converts to the key of package agent/task.
type TaskKey struct {
	ID        string            `json:"id"`
	Public    ed25519.PublicKey `json:"public"`
	NotBefore time.Time         `json:"not_before"`
	NotAfter  time.Time         `json:"not_after"`
	Actions   []string          `json:"actions,omitempty"` // what it may sign; empty: everything
}

// Errors of trust documents. Each is wrapped with what exactly is wrong.
var (
	// ErrDocument reports that something is no trust document: its form, or what it says, is not allowed.
	ErrDocument = errors.New("the trust document is not valid")
	// ErrVersion reports that a document is not the next version after the one that is known.
	ErrVersion = errors.New("the trust document has another version than the next one")
	// ErrSite reports that a document, a certificate or a token is for another site.
	ErrSite = errors.New("this is for another site")
	// ErrThreshold reports that too few of the root keys have signed.
	ErrThreshold = errors.New("too few root keys have signed the trust document")
)

// An ExpiredError reports that something is not valid at the time.
type ExpiredError struct {
	What                string
	NotBefore, NotAfter time.Time
	At                  time.Time
}

// Error implements error.
func (e *ExpiredError) Error() string {
	if e.At.Before(e.NotBefore) {
		return fmt.Sprintf("%s is valid only from %s, and it is %s here: check the clock", e.What, stamp(e.NotBefore), stamp(e.At))
	}
	return fmt.Sprintf("%s expired at %s, and it is %s here", e.What, stamp(e.NotAfter), stamp(e.At))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// within fails with an *ExpiredError when at is outside of a validity.
func within(what string, notBefore, notAfter, at time.Time) error {
	if at.Before(notBefore) || !at.Before(notAfter) {
		return &ExpiredError{what, notBefore, notAfter, at}
	}
	return nil
}

// NewRoots makes n root keys. Where they are kept is the caller's affair: apart from each other, and offline. [MarshalKey]
// returns the contents of a file for one.
func NewRoots(n int) []ed25519.PrivateKey {
	roots := make([]ed25519.PrivateKey, n)
	for i := range roots {
		roots[i] = newKey()
	}
	return roots
}

func newKey() ed25519.PrivateKey {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil { // the system's random source does not fail
		panic(fmt.Sprintf("trust: %v", err))
	}
	return key
}

// MarshalKey returns a private key as `openssl genpkey -algorithm ed25519` writes it. The file belongs to one user, mode 0600;
// signed.ReadPrivateKey reads it.
func MarshalKey(key ed25519.PrivateKey) []byte {
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil { // only for keys of other kinds
		panic(fmt.Sprintf("trust: %v", err))
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b})
}

// Sign returns a document in an envelope, signed with the keys. It fails when the document is not valid. To collect signatures in
// several places, sign with the first key and let the others [Cosign].
func Sign(d *Document, keys ...ed25519.PrivateKey) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode the trust document: %w", err)
	}
	return dsse.Seal(Type, b, keys...), nil
}

// Cosign adds signatures to a document that is signed already. What it contains is returned too, for the person who signs to see.
func Cosign(envelope []byte, keys ...ed25519.PrivateKey) ([]byte, *Document, error) {
	e, d, err := open(envelope)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range keys {
		if !e.Verified(key.Public().(ed25519.PublicKey)) {
			e.Signatures = append(e.Signatures, dsse.Sign(key, e.Type, e.Payload))
		}
	}
	return e.JSON(), d, nil
}

// Verify checks the document in an envelope. After previous, it must be the next version for the same site, signed by the roots of
// previous and by its own. Without one, it must be signed by its own roots: whoever calls knows from elsewhere that it may be pinned.
// Whether it is valid at this time is up to [Document.Valid], because a node that was away needs expired ones on the way to the newest.
func Verify(previous *Document, envelope []byte) (*Document, error) {
	e, d, err := open(envelope)
	if err != nil {
		return nil, err
	}
	if previous != nil {
		switch {
		case d.Site.ID != previous.Site.ID:
			return nil, fmt.Errorf("%w: the document is for site %s, and the site here is %s", ErrSite, d.Site.ID, previous.Site.ID)
		case d.Version != previous.Version+1:
			return nil, fmt.Errorf("%w: it is %d, and the one here is %d", ErrVersion, d.Version, previous.Version)
		}
		if err := previous.signed(e); err != nil {
			return nil, fmt.Errorf("%w of version %d", err, previous.Version)
		}
	}
	if err := d.signed(e); err != nil {
		return nil, fmt.Errorf("%w of the document itself", err)
	}
	return d, nil
}

// signed fails with ErrThreshold when fewer roots than the document requires have signed. Roots are all different, so none counts twice.
func (d *Document) signed(e *dsse.Envelope) error {
	n := 0
	for _, root := range d.Roots {
		if e.Verified(root) {
			n++
		}
	}
	if n < d.Threshold {
		return fmt.Errorf("%w: %d signatures count, and %d are needed by the roots", ErrThreshold, n, d.Threshold)
	}
	return nil
}

// Follow verifies documents one after the other, from a known one on, and returns the newest with its envelope. Envelopes of versions
// that are known are passed over, so that a chain may be sent again. The newest must be valid at the time; when there is no newer one it
// returns known and no envelope.
func Follow(known *Document, envelopes [][]byte, now time.Time) (*Document, []byte, error) {
	newest, from := known, []byte(nil)
	for _, envelope := range envelopes {
		_, d, err := open(envelope)
		if err != nil {
			return nil, nil, err
		}
		if d.Site.ID == known.Site.ID && d.Version <= known.Version {
			continue
		}
		if d, err = Verify(newest, envelope); err != nil {
			return nil, nil, err
		}
		newest, from = d, envelope
	}
	if from == nil {
		return known, nil, nil
	}
	if err := newest.Valid(now); err != nil {
		return nil, nil, err
	}
	return newest, from, nil
}

func open(envelope []byte) (*dsse.Envelope, *Document, error) {
	e, err := dsse.Open(envelope, MaxDocument)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if e.Type != Type {
		return nil, nil, fmt.Errorf("%w: its payload type is another one than %s", ErrDocument, Type)
	}
	d := &Document{}
	// Names are matched exactly, each may appear once, and nothing may follow.
	if err := json.Unmarshal(e.Payload, d, json.RejectUnknownMembers(true)); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if err := d.check(); err != nil {
		return nil, nil, err
	}
	return e, d, nil
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// check fails with ErrDocument when the document contradicts itself or a limit.
func (d *Document) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrDocument, fmt.Sprintf(format, args...))
	}
	id, err := uuid.Parse(d.Site.ID)
	switch {
	case d.Version < 1:
		return bad("version: want at least 1")
	case err != nil || id.String() != d.Site.ID:
		return bad("site: id: want a UUID in lower case")
	case !label.MatchString(d.Site.Name) || d.Site.Serial != 0:
		return bad("site: want a name of lower-case letters, digits and hyphens, and no serial")
	case len(d.Roots) == 0 || len(d.Roots) > dsse.MaxSignatures/2: // an envelope may have to hold the signatures of old roots and new ones
		return bad("roots: want 1 to %d", dsse.MaxSignatures/2)
	case d.Threshold < 1 || d.Threshold > len(d.Roots):
		return bad("threshold: want 1 to %d, the number of roots", len(d.Roots))
	case len(d.CAs) == 0 || len(d.CAs) > maxList || len(d.Tasks) == 0 || len(d.Tasks) > maxList:
		return bad("cas, tasks: want 1 to %d of each", maxList)
	case !d.NotBefore.Before(d.NotAfter):
		return bad("not_after: want a time after not_before")
	}
	seen := map[string]string{} // a key has one use
	once := func(what string, key ed25519.PublicKey) error {
		if len(key) != ed25519.PublicKeySize {
			return bad("%s: want a public key of %d bytes", what, ed25519.PublicKeySize)
		}
		if other := seen[string(key)]; other != "" {
			return bad("%s: the key is also that of %s", what, other)
		}
		seen[string(key)] = what
		return nil
	}
	for i, root := range d.Roots {
		if err := once(fmt.Sprintf("roots[%d]", i), root); err != nil {
			return err
		}
	}
	for i, k := range d.Tasks {
		what := fmt.Sprintf("tasks[%d]", i)
		if err := once(what, k.Public); err != nil {
			return err
		}
		if k.ID != dsse.KeyID(k.Public) {
			return bad("%s: id: want the one that belongs to the key", what)
		}
		if life := k.NotAfter.Sub(k.NotBefore); life <= 0 || life > MaxKeyLife {
			return bad("%s: want a validity of at most %d days", what, MaxKeyLife/(24*time.Hour))
		}
	}
	for i, text := range d.CAs {
		what := fmt.Sprintf("cas[%d]", i)
		c, err := text.Parse()
		if err != nil {
			return bad("%s: %v", what, err)
		}
		if err := once(what, c.PublicKey.(ed25519.PublicKey)); err != nil {
			return err
		}
	}
	return nil
}

// Parse reads the certificate of an authority.
func (c Certificate) Parse() (*x509.Certificate, error) {
	block, rest := pem.Decode([]byte(c))
	if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("want one certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errors.New("the certificate is damaged")
	}
	if _, ok := cert.PublicKey.(ed25519.PublicKey); !ok || !cert.IsCA || !cert.BasicConstraintsValid || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("want the certificate of an authority with an ed25519 key")
	}
	if life := cert.NotAfter.Sub(cert.NotBefore); life <= 0 || life > MaxKeyLife {
		return nil, fmt.Errorf("want a validity of at most %d days", MaxKeyLife/(24*time.Hour))
	}
	return cert, nil
}

func encodeCertificate(der []byte) Certificate {
	return Certificate(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// authorities returns the certificates of the authorities. The document was checked.
func (d *Document) authorities() []*x509.Certificate {
	certs := make([]*x509.Certificate, 0, len(d.CAs))
	for _, text := range d.CAs {
		if c, err := text.Parse(); err == nil {
			certs = append(certs, c)
		}
	}
	return certs
}

// pool returns the authorities as roots for a chain.
func (d *Document) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range d.authorities() {
		pool.AddCert(c)
	}
	return pool
}

// Valid fails with an *ExpiredError when the document is not valid at a time.
func (d *Document) Valid(at time.Time) error {
	return within(fmt.Sprintf("version %d of the trust document", d.Version), d.NotBefore, d.NotAfter, at)
}

// An Alarm says that most of a lifetime has passed.
type Alarm struct {
	What     string    // the trust document, the node CA, the task key
	Share    int       // 50, 75 or 90: percent of the lifetime that have passed
	NotAfter time.Time // when it ends
}

// Alarms returns what is due for replacement: the document, and its newest authority and task key once 50, 75 or 90 % of the lifetime
// have passed. What already has a successor raises none.
func (d *Document) Alarms(now time.Time) []Alarm {
	var alarms []Alarm
	add := func(what string, notBefore, notAfter time.Time) {
		if share := Share(notBefore, notAfter, now); share > 0 {
			alarms = append(alarms, Alarm{what, share, notAfter})
		}
	}
	add("the trust document", d.NotBefore, d.NotAfter)
	var ca *x509.Certificate
	for _, c := range d.authorities() {
		if ca == nil || c.NotAfter.After(ca.NotAfter) {
			ca = c
		}
	}
	add("the node CA", ca.NotBefore, ca.NotAfter)
	key := d.Tasks[0]
	for _, k := range d.Tasks {
		if k.NotAfter.After(key.NotAfter) {
			key = k
		}
	}
	add("the task key", key.NotBefore, key.NotAfter)
	return alarms
}

// Share returns the highest of 50, 75 and 90 percent of a lifetime that has passed, and 0 before.
func Share(notBefore, notAfter, now time.Time) int {
	life, age := notAfter.Sub(notBefore), now.Sub(notBefore)
	for _, share := range []int{90, 75, 50} {
		if age >= life/100*time.Duration(share) {
			return share
		}
	}
	return 0
}

// pin returns what a token says of an authority: the SHA-256 of its public key.
func pin(c *x509.Certificate) [sha256.Size]byte { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }
