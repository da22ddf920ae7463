// Package enrol gets the site's credentials for Carbide and the cloud around it: for a one-time password, from the service that
// issues them.
//
// # Words
//
// A password enrols the site once. An attempt is one request with it. The mark says with which password the stored credentials were
// had, and does not say what it is.
//
// # Promises
//
// The password is sent over TLS alone, to a server whose certificate one of the configured authorities has signed, and never
// elsewhere; a proxy of the environment sees only encrypted bytes. It is not sent before the store is known to be writable. What the far side sends
// is stored only when the key, the certificate and the authority are whole, the key is that of the certificate, and both certificates are
// valid now; until then the old credentials stay. With the same password nothing is asked twice once it has succeeded, also not by
// another process with the same store; when the password's file has another content, the site enrols again. Attempts are bounded in number and in time.
// Credentials that could not be stored are kept in memory, and are stored as soon as that is possible. Damaged ones count as none.
//
// The key is made here, unless the far side ignores the request for a certificate, or [Download] is configured: then it is used, a
// warning is logged, and it is replaced at once where [Config] says that certificates can be renewed.
//
// No error and no log entry contains the password or a key.
package enrol

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/retry"
)

const (
	lookPause    = 5 * time.Second // between two looks
	firstPause   = time.Second     // between attempts
	longestPause = time.Minute
	renewAgain   = time.Hour // the longest pause between attempts to renew
	maxOTP       = 4 << 10
	saltSize     = 16
	markSize     = saltSize + sha256.Size
	saveTime     = 10 * time.Second
)

// Options make an Enroller. All are required unless they say otherwise.
type Options struct {
	Config Config
	Site   string              // the id of the site
	Path   func(string) string // returns a path of the configuration as it is from here
	Env    func(string) string // optional: the environment; os.Getenv when nil
	Pod    string              // optional: directory of the pod's service account
	Logger *slog.Logger        // optional
}

// An Enroller keeps the credentials of a site. Its methods may be called at the same time; of all processes with one store one may be in Run.
type Enroller struct {
	o     Options
	site  string
	otp   string // path
	store store
	log   *slog.Logger

	look, first time.Duration // between two looks at the password's file, and at the store for State; before the second attempt

	// of Run
	spent   string       // the password with which nothing more is tried
	unsaved *credentials // which are not in the store yet
	renewAt time.Time    // not before, because it failed
	pauses  func() time.Duration

	mu        sync.Mutex
	err       error // of the last attempt, or of the store; nil when there was none or it went well
	attempted int64
	succeeded int64

	reading sync.Mutex
	held    *credentials // as read from the store
	heldErr error
	heldAt  time.Time
}

// Open returns an enroller. It fails when something is missing: then a site must not start, because it would wait for ever.
func Open(ctx context.Context, o Options) (*Enroller, error) {
	c := &o.Config
	if err := c.Check("carbide.enrol"); err != nil {
		return nil, err
	}
	e := &Enroller{o: o, site: cmp.Or(c.SiteUUID, o.Site), otp: o.Path(c.OTPFile), log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		look: lookPause, first: firstPause}
	e.pauses = retry.Policy{First: e.look, Cap: renewAgain}.Pauses()
	if _, err := e.service(c.URL); err != nil {
		return nil, fmt.Errorf("carbide.enrol.%w", err)
	}
	if f := c.Store.Files; f != nil {
		e.store = directory(o.Path(f.Dir))
	} else {
		env := o.Env
		if env == nil {
			env = os.Getenv
		}
		k, err := openCluster(*c.Store.Kubernetes, cmp.Or(o.Pod, account), env)
		if err != nil {
			return nil, fmt.Errorf("carbide.enrol.store.kubernetes: %w", err)
		}
		e.store = k
	}
	held, err := e.store.load(ctx)
	if err != nil {
		e.log.Error("the credentials for Carbide cannot be read", "store", e.store.String(), "error", err)
	}
	if _, missing := e.password(); missing != nil && held == nil && err == nil {
		return nil, fmt.Errorf("carbide.enrol.otp_file: %w: the site has no credentials in %s yet, and needs a one-time password to get them", missing, e.store)
	}
	return e, nil
}

// service returns the far side at a URL. The authorities are read each time: they may be replaced along with the password.
func (e *Enroller) service(url string) (service, error) {
	s := service{url: url, skip: e.o.Config.SkipVerify}
	if e.o.Config.CA == "" {
		return s, nil
	}
	path := e.o.Path(e.o.Config.CA)
	b, err := files.Read(path, maxFile)
	if err != nil {
		return s, fmt.Errorf("ca: %w", err)
	}
	if s.roots = x509.NewCertPool(); !s.roots.AppendCertsFromPEM(b) {
		return s, fmt.Errorf("ca: %s contains no certificate", path)
	}
	return s, nil
}

// password reads the one-time password.
func (e *Enroller) password() (string, error) {
	b, err := files.ReadPrivate(e.otp, maxOTP)
	if err != nil {
		return "", err
	}
	otp := strings.TrimSpace(string(b))
	if otp == "" {
		return "", fmt.Errorf("%s is empty", e.otp)
	}
	return otp, nil
}

// mark returns what tells one password from another.
func mark(salt []byte, otp string) []byte {
	mac := hmac.New(sha256.New, salt)
	mac.Write([]byte(otp))
	return mac.Sum(bytes.Clone(salt))
}

// with reports whether credentials were had with a password.
func (c *credentials) with(otp string) bool {
	return len(c.mark) >= markSize && hmac.Equal(c.mark[:markSize], mark(c.mark[:saltSize], otp))
}

// theirs reports whether the far side has made the key: then a byte follows the mark of the password.
func (c *credentials) theirs() bool { return len(c.mark) > markSize }

// Run enrols whenever there is a password with which the site has not enrolled yet, and renews where that is configured, until ctx is done.
func (e *Enroller) Run(ctx context.Context) {
	for ctx.Err() == nil {
		e.round(ctx)
		if retry.Sleep(ctx, e.look) != nil {
			return
		}
	}
}

// note remembers why the credentials are not what they should be, and logs it when it is another reason than before.
func (e *Enroller) note(err error) {
	e.mu.Lock()
	was := e.err
	e.err = err
	e.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		e.log.Error("the credentials for Carbide are not what they should be", "error", err)
	}
}

// round looks once at the password and at the store, and does what is due.
func (e *Enroller) round(ctx context.Context) {
	held, broken := e.store.load(ctx)
	if broken != nil && !errors.As(broken, new(damage)) {
		e.note(broken)
		return
	}
	otp, err := e.password()
	if errors.Is(err, fs.ErrNotExist) && (held != nil || e.unsaved != nil) {
		otp, err = "", nil // it has served
	}
	if err != nil && broken != nil {
		err = fmt.Errorf("%w, and %w", broken, err)
	}
	if err != nil {
		e.note(fmt.Errorf("otp_file: %w", err))
		return
	}
	if e.unsaved != nil && (otp == "" || e.unsaved.with(otp)) {
		e.save(ctx, e.unsaved)
		return
	}
	switch {
	case otp != "" && (held == nil || !held.with(otp)):
		if otp != e.spent { // otherwise what is wrong is noted
			e.enrol(ctx, otp)
		}
		return
	case e.renewAt.IsZero(): // otherwise what is wrong is noted
		e.note(nil)
	}
	if held != nil {
		e.renew(ctx, held)
	}
}

// enrol makes all attempts with one password.
func (e *Enroller) enrol(ctx context.Context, otp string) {
	c := &e.o.Config
	within := defaultWithin
	if c.Within != "" {
		within, _ = time.ParseDuration(c.Within) // Check has
	}
	ask := request{SiteUUID: e.site, OTP: otp}
	var key []byte
	if cmp.Or(c.Key, Local) == Local {
		var csr []byte
		var err error
		if key, csr, err = newKey(e.site); err != nil {
			e.note(err)
			return
		}
		ask.CSR = string(csr)
	}
	far, err := e.service(c.URL)
	if err != nil {
		e.note(err)
		return
	}
	if err := e.store.writable(ctx); err != nil {
		e.note(fmt.Errorf("the site does not use its one-time password yet, because what it gets cannot be stored in %s: %w", e.store, err))
		return
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	e.log.Info("the site enrols with Carbide", "url", c.URL, "site", e.site)
	var got *credentials
	var downloaded, lost bool
	tries := 0
	var last error
	err = retry.Policy{First: e.first, Cap: longestPause, Tries: cmp.Or(c.Attempts, defaultAttempts)}.Do(bounded, func() (bool, error) {
		tries++
		e.count(&e.attempted)
		answer, err := far.ask(bounded, ask)
		if err == nil {
			got, downloaded, err = answer.checked(key, time.Now())
		}
		if err == nil {
			e.count(&e.succeeded)
			return true, nil
		}
		var no refusal
		refused := errors.As(err, &no)
		if refused && lost {
			err = fmt.Errorf("%w (the reply to an attempt before was lost, and the password may have been used up by that: ask for another one)", err)
		}
		lost = lost || errors.As(err, new(lostReply))
		last = err
		e.log.Warn("an attempt to enrol with Carbide failed", "attempt", tries, "error", err)
		return refused, err
	})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return // whoever keeps the site next goes on
	default:
		e.spent = otp
		e.note(fmt.Errorf("enrolment ended after %d attempts: %w; it begins anew when %s has another password, or when the site agent starts again", tries, last, e.otp))
		return
	}
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails
	got.mark = mark(salt, otp)
	if downloaded {
		got.mark = append(got.mark, 1)
		e.log.Warn("the far side has made the private key and sent it: whoever could read that has it, too", "url", c.URL, "replaced", c.Renew != "")
	}
	e.save(ctx, got)
}

func (e *Enroller) count(n *int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*n++
}

// save stores credentials. What could not be stored is tried again in the next round.
func (e *Enroller) save(ctx context.Context, c *credentials) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime) // the password is used up
	defer cancel()
	if err := e.store.save(ctx, c); err != nil {
		e.unsaved = c
		e.note(fmt.Errorf("the new credentials cannot be stored in %s: %w", e.store, err))
		return
	}
	e.unsaved = nil
	e.reading.Lock()
	e.heldAt = time.Time{}
	e.reading.Unlock()
	e.note(nil)
	e.log.Info("the site has new credentials for Carbide", "store", e.store.String(), "not_after", stamp(c.pair.Leaf.NotAfter))
}

// renew replaces credentials at half of their life, and those whose key the far side has made at once, where that is configured.
func (e *Enroller) renew(ctx context.Context, held *credentials) {
	leaf, now := held.pair.Leaf, time.Now()
	due := held.theirs() || !now.Before(leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore)/2))
	if e.o.Config.Renew != "" && due && !now.Before(e.renewAt) {
		e.replace(ctx, held)
	}
}

// replace has a new key certified for the holder of the old one.
func (e *Enroller) replace(ctx context.Context, held *credentials) {
	key, csr, err := newKey(e.site)
	var far service
	if err == nil {
		far, err = e.service(e.o.Config.Renew)
	}
	var answer *reply
	if err == nil {
		far.ours = &held.pair
		answer, err = far.ask(ctx, request{SiteUUID: e.site, CSR: string(csr)})
	}
	var got *credentials
	if err == nil {
		var downloaded bool
		if got, downloaded, err = answer.checked(key, time.Now()); downloaded {
			err = errors.New("the far side has made a key although it was sent a certificate request")
		}
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		e.renewAt = time.Now().Add(e.pauses())
		e.note(fmt.Errorf("the credentials are not renewed: %w", err))
		return
	}
	e.pauses = retry.Policy{First: e.look, Cap: renewAgain}.Pauses()
	e.renewAt = time.Time{}
	got.mark = held.mark[:min(markSize, len(held.mark))]
	e.save(ctx, got)
}

// Counts returns how often this process has asked for credentials with a password, and how often it got them.
func (e *Enroller) Counts() (attempted, succeeded int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.attempted, e.succeeded
}

// A Held is what the store has.
type Held struct {
	Certificate *x509.Certificate // nil: nothing
	Authority   *x509.Certificate // of those that were sent with it, the one that ends first
}

// State returns what is in the store, as any replica sees it, and what this process knows to be wrong. It may read the store.
func (e *Enroller) State() (Held, error) {
	e.reading.Lock()
	defer e.reading.Unlock()
	if time.Since(e.heldAt) > e.look {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		e.held, e.heldErr = e.store.load(ctx)
		e.heldAt = time.Now()
	}
	e.mu.Lock()
	err := e.err
	e.mu.Unlock()
	switch {
	case err == nil:
		err = e.heldErr
	case e.heldErr != nil && !strings.Contains(err.Error(), e.heldErr.Error()):
		err = fmt.Errorf("%w; %w", e.heldErr, err)
	}
	if e.held == nil {
		return Held{}, err
	}
	return Held{e.held.pair.Leaf, e.held.authority}, err
}
