package trust

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"time"

	"converge.dev/converge/state"
)

// RenewLate is how long after its end a certificate can still be renewed. It is good for nothing else then.
const RenewLate = 7 * 24 * time.Hour

// Errors of enrolment and renewal.
var (
	// ErrTokenUnknown reports that the site knows no such token: it was never made here, was changed, or a newer one replaced it.
	ErrTokenUnknown = errors.New("the site does not know this token: it is void once a newer one was made for the node")
	// ErrTokenExpired reports that a token is too old.
	ErrTokenExpired = errors.New("the token has expired: make a new one with converge agent token create")
	// ErrTokenTries reports that a token was presented with unacceptable requests too often.
	ErrTokenTries = errors.New("the token has been refused too often: make a new one with converge agent token create")
	// ErrTokenUsed reports that a token was used by this key and that the node has renewed its certificate since.
	ErrTokenUsed = errors.New("the token was used, and the node has another certificate by now: make a new token with converge agent token create")
	// ErrSuperseded reports that the node has a newer certificate.
	ErrSuperseded = errors.New("the node has a newer certificate: this one is void")
	// ErrSameKey reports that a renewal asks for a key that was certified before.
	ErrSameKey = errors.New("a renewal needs a new key")
	// ErrUnknownNode reports that the site has no record of a node.
	ErrUnknownNode = errors.New("the site does not know this node")
)

// A ContestedError reports that a token was claimed by another key before. Either somebody else has the token, or the node has lost its
// key: an operator has to look.
type ContestedError struct{ Node string }

// Error implements error.
func (e *ContestedError) Error() string {
	return fmt.Sprintf("the token for node %s was claimed with another key before; the node is marked as contested: find out who has the token, then make a new one, or ban the node", e.Node)
}

// A BannedError reports that a node is banned.
type BannedError struct{ Node, Reason string }

// Error implements error.
func (e *BannedError) Error() string { return fmt.Sprintf("node %s is banned: %s", e.Node, e.Reason) }

// Claim exchanges a token's text for a node's certificate, for the key that the request proves, and returns the chain in DER. The first
// claim binds the token to the key, in one guarded transaction; with the same key it can be repeated and returns the same certificate.
// It fails with ErrToken, ErrTokenUnknown, ErrTokenExpired, ErrTokenTries, ErrTokenUsed, ErrRequest, a *ContestedError or a *BannedError.
func (a *Authority) Claim(ctx context.Context, store *state.Store, token string, csr []byte) ([][]byte, error) {
	t, err := ParseToken(token)
	if err != nil {
		return nil, err
	}
	var chain [][]byte
	var refused error // with something to write nevertheless
	err = change(ctx, store, t.Node, false, func(n *state.Node) ([]state.Audit, error) {
		chain, refused = nil, nil
		if n.Token == nil || subtle.ConstantTimeCompare([]byte(n.Token.Hash), []byte(t.hash())) != 1 {
			return nil, ErrTokenUnknown
		}
		key, err := requested(csr)
		other := err == nil && n.Token.Key != "" && n.Token.Key != keyHash(key)
		switch {
		case n.Ban != nil && (n.Token.Key != "" || !a.now().Before(n.Token.Expires)): // it is from before the ban
			return nil, &BannedError{n.Name, n.Ban.Reason}
		case !a.now().Before(n.Token.Expires) && !other: // that another one has used it is news at any time
			return nil, ErrTokenExpired
		case n.Token.Key == "" && n.Token.Tries >= MaxTries:
			return nil, ErrTokenTries
		}
		issue := func() error {
			// Later than any certificate of a record that was lost, which cannot have had one each second.
			n.Count = max(n.Count+1, a.now().Unix())
			if chain, err = a.Issue(n.Name, csr, n.Count); err != nil {
				return err
			}
			n.Token.Key, n.Token.Count = keyHash(key), n.Count
			n.Previous = ""
			return record(n, chain)
		}
		switch {
		case err != nil:
			refused = err
		case n.Token.Key == "":
			var entries []state.Audit
			if n.Ban != nil { // the token was made for another machine
				entries = append(entries, state.Audit{At: a.now().UTC(), By: n.Token.By, Action: "unban", Scope: n.Name, Reason: "a token that was made after the ban was used"})
				n.Ban = nil
			}
			return entries, issue()
		case n.Token.Key == keyHash(key) && n.Token.Count != n.Count:
			return nil, ErrTokenUsed
		case n.Token.Key == keyHash(key) && a.lapsed(n.Certificate): // a clock was wrong
			return nil, issue()
		case n.Token.Key == keyHash(key):
			if chain, err = a.chain(n.Certificate); err != nil {
				return nil, err
			}
			return nil, errSame
		default:
			refused = &ContestedError{n.Name}
			if n.Contested.IsZero() {
				n.Contested = a.now().UTC()
			}
		}
		if n.Token.Tries >= MaxTries {
			return nil, errSame // enough is known
		}
		n.Token.Tries++
		return nil, nil
	})
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, ErrTokenUnknown
	case err != nil:
		return nil, err
	case refused != nil:
		return nil, refused
	}
	return chain, nil
}

// lapsed reports whether a certificate is not valid now: who has asked for it did not get it in time, or a clock was wrong.
func (a *Authority) lapsed(der []byte) bool {
	cert, err := x509.ParseCertificate(der)
	return err == nil && (a.now().Before(cert.NotBefore) || !a.now().Before(cert.NotAfter))
}

// record enters a new certificate in the node's record.
func record(n *state.Node, chain [][]byte) error {
	cert, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return fmt.Errorf("issue a certificate: %w", err)
	}
	n.Certificate, n.Serial, n.Expires = chain[0], cert.SerialNumber.Text(16), cert.NotAfter
	return nil
}

// chain returns a certificate with the authority that issued it.
func (a *Authority) chain(der []byte) ([][]byte, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the node's certificate in the store: %w", err)
	}
	for _, ca := range a.Document().authorities() {
		if cert.CheckSignatureFrom(ca) == nil {
			return [][]byte{der, ca.Raw}, nil
		}
	}
	return nil, errors.New("the node CA that issued the node's certificate is no longer in the trust document: make a new token")
}

func keyHash(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:])
}

// Renew issues the next certificate of a node to whoever has shown (over TLS) that it has the key of peer, and returns the chain in DER. Only
// the newest certificate can be renewed, up to [RenewLate] after its end, and only for another key; from then on the new one is the newest.
// The same request can be repeated, with the old certificate as well, and returns the same certificate, or another one for the same key once
// that is not valid. It fails with ErrSuperseded, ErrSameKey, ErrRequest, ErrUnknownNode, an *ExpiredError or a *BannedError, or as a certificate that is not a node's
// here is refused.
func (a *Authority) Renew(ctx context.Context, store *state.Store, peer *x509.Certificate, csr []byte) ([][]byte, error) {
	node, err := a.verifyNode(peer, true)
	if err != nil {
		return nil, err
	}
	key, err := requested(csr)
	if err != nil {
		return nil, err
	}
	var chain [][]byte
	err = change(ctx, store, node, false, func(n *state.Node) ([]state.Audit, error) {
		if n.Ban != nil {
			return nil, &BannedError{n.Name, n.Ban.Reason}
		}
		newest, err := x509.ParseCertificate(n.Certificate)
		if err != nil {
			return nil, ErrUnknownNode // it has a token, and no certificate of this record
		}
		// After a restore from a backup, the certificate may be later than the record.
		current := !older(peer.SerialNumber, newest.SerialNumber)
		again := key.Equal(newest.PublicKey) && n.Previous == peer.SerialNumber.Text(16)
		switch {
		case current && key.Equal(peer.PublicKey):
			return nil, ErrSameKey
		case current || again && a.lapsed(n.Certificate):
			n.Count = max(n.Count, new(big.Int).Rsh(peer.SerialNumber, countShift).Int64()) + 1
			if chain, err = a.Issue(n.Name, csr, n.Count); err != nil {
				return nil, err
			}
			n.Previous = peer.SerialNumber.Text(16)
			return nil, record(n, chain)
		case again:
			if chain, err = a.chain(n.Certificate); err != nil {
				return nil, err
			}
			return nil, errSame
		}
		return nil, ErrSuperseded
	})
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, ErrUnknownNode
	case err != nil:
		return nil, fmt.Errorf("renew the certificate of node %s: %w", node, err)
	}
	return chain, nil
}

// Ban refuses a node from now on: its certificate, its renewals and its token. A token that is made after that is for another machine of
// that name: its claim ends the ban. It is entered in the audit log. It fails with ErrUnknownNode. Connections that are open end when [Admission.Run] has seen the ban.
func Ban(ctx context.Context, store *state.Store, node, reason, by string) error {
	return judge(ctx, store, node, reason, by, "ban", func(n *state.Node, at time.Time) {
		n.Ban = &state.NodeBan{By: by, Reason: reason, At: at}
		if n.Token != nil && n.Token.Key == "" { // who knows who has it
			n.Token.Expires = n.Token.Created
		}
	})
}

// Unban ends a ban: the node's newest certificate counts again. When its key is known to others, make a new token instead, whose
// claim replaces the certificate and ends the ban. It is entered in the audit log. It fails with ErrUnknownNode.
func Unban(ctx context.Context, store *state.Store, node, reason, by string) error {
	return judge(ctx, store, node, reason, by, "unban", func(n *state.Node, _ time.Time) { n.Ban = nil })
}

func judge(ctx context.Context, store *state.Store, node, reason, by, action string, f func(*state.Node, time.Time)) error {
	if reason == "" || by == "" {
		return fmt.Errorf("%s node %s: say who does it, and why", action, node)
	}
	err := change(ctx, store, node, false, func(n *state.Node) ([]state.Audit, error) {
		at := time.Now().UTC()
		f(n, at)
		return []state.Audit{{At: at, By: by, Action: action, Scope: node, Reason: reason}}, nil
	})
	if errors.Is(err, state.ErrNotFound) {
		err = ErrUnknownNode
	}
	if err != nil {
		return fmt.Errorf("%s node %s: %w", action, node, err)
	}
	return nil
}

// VoidTokens makes all tokens void, because the site does not know who has used them since: see [state.Store.Restored].
func VoidTokens(ctx context.Context, store *state.Store) error {
	nodes, err := store.Nodes(ctx)
	for _, n := range nodes {
		if err != nil {
			break
		}
		err = change(ctx, store, n.Name, false, func(n *state.Node) ([]state.Audit, error) {
			if n.Token == nil {
				return nil, errSame
			}
			n.Token = nil
			return nil, nil
		})
		if errors.Is(err, state.ErrNotFound) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("make the enrolment tokens void: %w", err)
	}
	return nil
}

// Nodes lists the nodes that have a token or a certificate, by name.
func Nodes(ctx context.Context, store *state.Store) ([]state.Node, error) { return store.Nodes(ctx) }
