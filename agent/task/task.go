// Package task is what a site asks a node to do, signed, and what both tell each other about it.
//
// A [Task] is one action on one node. A [Head] tells the node how far the site has got and what time it is, so that the node notices
// what it has missed. A [Result] is the node's answer to one task. Each is a JSON object in a DSSE envelope of its own type (package
// internal/dsse), so that none passes for another.
//
// The signed bytes are the truth: the [Digest] of a task is over its payload as it was signed, and nothing is ever encoded again. Who
// sends a task a second time sends the same bytes.
//
// A [Checker] decides at the node whether a task or a head counts. Its checks run in the order of the constants of [Check], it stops at
// the first that fails, and everything that is not understood is refused. It keeps no state: whether the epoch and the sequence
// number are the next ones, and whether the task has run already, is decided by package agent/ledger.
package task

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/google/uuid"

	"converge.dev/converge/internal/dsse"
)

// Types of what is in an envelope.
const (
	Type       = "application/vnd.converge.task.v1+json"
	HeadType   = "application/vnd.converge.head.v1+json"
	ResultType = "application/vnd.converge.result.v1+json"
)

// Limits.
const (
	MaxSize   = 256 << 10        // of an envelope, in bytes: about 144 KiB of Params or Answer, which are in base64 twice
	MaxLife   = 10 * time.Minute // of a task, from NotBefore to Expires
	HeadLife  = 60 * time.Second // of a head, from Now
	Skew      = 60 * time.Second // by which the clocks of the site and the node may differ
	MaxDepth  = 16               // of JSON inside Params, for the one who decodes it; the payloads of this package are flat
	NonceSize = 16               // in bytes
)

// Actions of a task.
const (
	Create = "create"
	Update = "update"
	Delete = "delete"
	Fence  = "fence"
	Settle = "settle" // end a guard
)

// SignHead is the word that allows a [Key] to sign heads. It is no action of a task.
const SignHead = "head"

// actions returns all actions of a task.
func actions() []string { return []string{Create, Update, Delete, Fence, Settle} }

// Once reports whether an action is carried out once, under the idempotency key of a step. The others may be repeated.
func Once(action string) bool { return action != Fence && action != Settle }

// A Task is one action that a site asks of one node. All fields are required unless they say otherwise.
type Task struct {
	ID        string    `json:"id"`        // a UUID in lower case
	Action    string    `json:"action"`    // Create, Update, Delete, Fence or Settle
	Site      string    `json:"site"`      // the site's id
	Node      string    `json:"node"`      // the node's name
	Epoch     int64     `json:"epoch"`     // of the site's leader; > 0
	Seq       int64     `json:"seq"`       // in this epoch and for this node; > 0
	Key       string    `json:"key"`       // idempotency key of the step; optional for Fence and Settle
	NotBefore time.Time `json:"notBefore"` // from here on it may run
	Expires   time.Time `json:"expires"`   // at most MaxLife later
	Nonce     []byte    `json:"nonce"`     // NonceSize random bytes
	Trust     int64     `json:"trust"`     // version of the trust document that the site had; > 0
	Params    []byte    `json:"params"`    // what the action needs, opaque here; optional for Fence and Settle
}

// A Head says how far the site has got with one node. All fields are required; Seq may be 0.
type Head struct {
	Site  string    `json:"site"`
	Node  string    `json:"node"`
	Epoch int64     `json:"epoch"` // > 0
	Seq   int64     `json:"seq"`   // the last sequence number that the site has used for this node in this epoch; 0 for none
	Now   time.Time `json:"now"`   // the site's time when it was signed
	Trust int64     `json:"trust"` // version of the trust document; > 0
}

// A Result is a node's answer to a task. All fields are required; Answer may be empty.
type Result struct {
	Task   string    `json:"task"` // the task's Digest
	Node   string    `json:"node"`
	At     time.Time `json:"at"`     // the node's time when the task had ended
	Answer []byte    `json:"answer"` // opaque here
}

// Sign returns the task in an envelope. It fails with a [RefusedError] when a node would refuse it whenever it arrives: a field is
// missing or out of range, it lives too long, or it is too large.
func (t *Task) Sign(key ed25519.PrivateKey) ([]byte, error) {
	return seal(key, Type, *t, step{CheckFields, t.malformed}, step{CheckLife, t.life})
}

// Sign returns the head in an envelope. It fails with a [RefusedError] as [Task.Sign] does.
func (h *Head) Sign(key ed25519.PrivateKey) ([]byte, error) {
	return seal(key, HeadType, *h, step{CheckFields, h.malformed})
}

// Sign returns the result in an envelope, signed with the key of the node's certificate. It fails with a [RefusedError] as [Task.Sign]
// does: an answer that is too large must be cut before.
func (r *Result) Sign(key ed25519.PrivateKey) ([]byte, error) {
	return seal(key, ResultType, *r, step{CheckFields, r.malformed})
}

func seal(key ed25519.PrivateKey, kind string, what any, before ...step) ([]byte, error) {
	var envelope []byte
	encode := func() string {
		payload, err := write(what)
		if err != nil {
			return err.Error()
		}
		envelope = dsse.Seal(kind, payload, key)
		return ""
	}
	size := func() string { return tooLarge(envelope) }
	if err := run(nil, append(before, step{CheckJSON, encode}, step{CheckSize, size})...); err != nil {
		return nil, err
	}
	return envelope, nil
}

// Digest returns the digest of the task in an envelope: hex SHA-256 of its payload, as in [Checked] and [Result]. It checks no
// signature. It fails when it is no envelope of a task.
func Digest(envelope []byte) (string, error) {
	var in opened
	if err := run(nil, in.size(envelope), in.open(envelope), in.kind(Type)); err != nil {
		return "", err
	}
	return digest(in.Payload), nil
}

func digest(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}

// malformed returns what is wrong with the fields, and nothing when a checker would accept them.
func (t *Task) malformed() string {
	switch id, err := uuid.Parse(t.ID); {
	case err != nil || id == uuid.Nil || id.String() != t.ID:
		return "id: want a UUID in lower case"
	case !slices.Contains(actions(), t.Action):
		return "action: want create, update, delete, fence or settle"
	case t.Key == "" && Once(t.Action):
		return "key: want the idempotency key of the step"
	case len(t.Nonce) != NonceSize:
		return "nonce: want 16 bytes"
	case len(t.Params) == 0 && Once(t.Action):
		return "params: want what the action needs"
	case t.Seq <= 0:
		return "seq: want a number above 0"
	case t.NotBefore.IsZero():
		return "notBefore: want a time"
	case t.Expires.IsZero():
		return "expires: want a time"
	}
	return addressed(t.Site, t.Node, t.Epoch, t.Trust)
}

// life returns what is wrong with the time from NotBefore to Expires.
func (t *Task) life() string {
	if life := t.Expires.Sub(t.NotBefore); life <= 0 || life > MaxLife {
		return "the task lives " + life.String() + " from notBefore to expires; want more than 0 and at most " + MaxLife.String()
	}
	return ""
}

func (h *Head) malformed() string {
	switch {
	case h.Seq < 0:
		return "seq: want 0 or a number above it"
	case h.Now.IsZero():
		return "now: want a time"
	}
	return addressed(h.Site, h.Node, h.Epoch, h.Trust)
}

func (r *Result) malformed() string {
	switch b, err := hex.DecodeString(r.Task); {
	case err != nil || len(b) != sha256.Size || hex.EncodeToString(b) != r.Task:
		return "task: want the digest of a task"
	case r.Node == "":
		return "node: want a name"
	case r.At.IsZero():
		return "at: want a time"
	}
	return ""
}

// addressed returns what is wrong with the fields that a task and a head share.
func addressed(site, node string, epoch, trust int64) string {
	switch {
	case site == "":
		return "site: want an id"
	case node == "":
		return "node: want a name"
	case epoch <= 0:
		return "epoch: want a number above 0"
	case trust <= 0:
		return "trust: want a number above 0"
	}
	return ""
}
