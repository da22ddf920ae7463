// Package dsse signs bytes of any type: DSSE envelopes (https://github.com/secure-systems-lab/dsse) with ed25519 signatures.
//
// An [Envelope] has a payload, the payload's type and one or more signatures over both, so that a signature made for something
// else is not valid here. What was signed are the payload's exact bytes: nobody encodes them again.
//
// [Open] checks the form, [Envelope.Verified] checks the signature of one key. Neither decides whose signature counts, how many are
// needed, or which type is wanted: the caller does. A key id is a hint and is never trusted: a signature counts for the key that it
// matches.
package dsse

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxSignatures is the maximum number of signatures of an envelope. It limits the work of checking a hostile one.
const MaxSignatures = 32

// algorithm is the prefix of a public key in base64.
const algorithm = "ed25519:"

// ErrEnvelope reports that something is not an envelope.
var ErrEnvelope = errors.New("the envelope is not valid")

// A Signature is a signature and the id of the key that it is said to match.
type Signature struct {
	KeyID string // as returned by KeyID; in an envelope of others any text, and empty when it has none
	Sig   []byte // ed25519.SignatureSize bytes
}

// An Envelope is a payload with its signatures, which are unchecked unless said otherwise.
type Envelope struct {
	Type       string // of the payload
	Payload    []byte
	Signatures []Signature // at least one, at most MaxSignatures
}

// KeyID returns the text form of a public key: ed25519:BASE64 of its 32 bytes.
func KeyID(key ed25519.PublicKey) string {
	return algorithm + base64.StdEncoding.EncodeToString(key)
}

// ParseKeyID is the inverse of KeyID.
func ParseKeyID(id string) (ed25519.PublicKey, error) {
	b64, ok := strings.CutPrefix(id, algorithm)
	b, canonical := decoded(b64)
	if !ok || !canonical || len(b) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("want %s followed by the %d bytes of a public key in base64", algorithm, ed25519.PublicKeySize)
	}
	return b, nil
}

// PAE returns the bytes that a signature covers: DSSE's pre-authentication encoding of a type and a payload.
func PAE(payloadType string, payload []byte) []byte {
	return append(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(payloadType), payloadType, len(payload)), payload...)
}

// Sign returns the signature of key over a type and a payload.
func Sign(key ed25519.PrivateKey, payloadType string, payload []byte) Signature {
	return Signature{KeyID(key.Public().(ed25519.PublicKey)), ed25519.Sign(key, PAE(payloadType, payload))}
}

// Verified reports whether s is the signature of key over a type and a payload, whatever key it names.
func (s Signature) Verified(key ed25519.PublicKey, payloadType string, payload []byte) bool {
	return len(key) == ed25519.PublicKeySize && ed25519.Verify(key, PAE(payloadType, payload), s.Sig)
}

// Seal returns an envelope as JSON, signed with at least one key, in their order. Open refuses one without signatures.
func Seal(payloadType string, payload []byte, keys ...ed25519.PrivateKey) []byte {
	e := &Envelope{Type: payloadType, Payload: payload}
	for _, key := range keys {
		e.Signatures = append(e.Signatures, Sign(key, payloadType, payload))
	}
	return e.JSON()
}

// Verified reports whether one of the signatures is that of key over type and payload, whatever key it names. Two signatures of the
// same key are one: to reach a threshold, count the different keys that are verified.
func (e *Envelope) Verified(key ed25519.PublicKey) bool {
	return slices.ContainsFunc(e.Signatures, func(s Signature) bool { return s.Verified(key, e.Type, e.Payload) })
}

// JSON returns the envelope as one JSON object, which Open reads. Somebody adds a signature by opening an envelope, appending what
// Sign returns for its type and payload, and calling JSON.
func (e *Envelope) JSON() []byte {
	list := make([]signature, len(e.Signatures))
	for i, s := range e.Signatures {
		list[i] = signature{s.KeyID, base64.StdEncoding.EncodeToString(s.Sig)}
	}
	b, err := json.Marshal(envelope{e.Type, base64.StdEncoding.EncodeToString(e.Payload), list})
	if err != nil { // only texts
		panic(fmt.Sprintf("dsse: %v", err))
	}
	return b
}

// envelope and signature are the JSON of an envelope. The bytes are in base64, and never null.
type envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     string      `json:"payload"`
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	KeyID string `json:"keyid"`
	Sig   string `json:"sig"`
}

// Open reads an envelope of at most max bytes, and checks no signature. It fails with ErrEnvelope.
//
// It is strict, so that no reader interprets the same bytes differently: one JSON object with just the names of an envelope, spelt
// exactly and each once, base64 with padding in its canonical form, nothing after it. Only keyid may be missing. An error does not
// repeat what it found.
func Open(data []byte, max int) (*Envelope, error) {
	e, err := open(data, max)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	return e, nil
}

func open(data []byte, max int) (*Envelope, error) {
	if len(data) > max {
		return nil, fmt.Errorf("it has %d bytes; at most %d are allowed", len(data), max)
	}
	in := jsontext.NewDecoder(bytes.NewReader(data)) // refuses duplicate names, and text that is not UTF-8
	top, err := members(in, "payloadType", "payload", "signatures")
	if err != nil {
		return nil, err
	}
	if len(bytes.Trim(data[in.InputOffset():], " \t\r\n")) > 0 {
		return nil, errors.New("unexpected data after it")
	}
	e := &Envelope{}
	var ok bool
	if e.Type, ok = text(top["payloadType"]); !ok {
		return nil, errors.New("payloadType: want a string")
	}
	if e.Payload, ok = octets(top["payload"]); !ok {
		return nil, errors.New("payload: want base64")
	}
	list := jsontext.NewDecoder(bytes.NewReader(top["signatures"]))
	if t, err := list.ReadToken(); err != nil || t.Kind() != '[' || list.PeekKind() == ']' {
		return nil, errors.New("signatures: want a list with at least one element")
	}
	for list.PeekKind() != ']' {
		if len(e.Signatures) == MaxSignatures {
			return nil, fmt.Errorf("signatures: at most %d are allowed", MaxSignatures)
		}
		one, err := members(list, "sig", "keyid")
		if err != nil {
			return nil, fmt.Errorf("signatures: %w", err)
		}
		var s Signature
		if s.Sig, ok = octets(one["sig"]); !ok || len(s.Sig) != ed25519.SignatureSize {
			return nil, fmt.Errorf("signatures: sig: want %d bytes in base64", ed25519.SignatureSize)
		}
		if s.KeyID, ok = text(one["keyid"]); !ok && one["keyid"] != nil {
			return nil, errors.New("signatures: keyid: want a string")
		}
		e.Signatures = append(e.Signatures, s)
	}
	return e, nil
}

// members reads an object that has no names but the given ones, each at most once. The value of a missing one is nil, which is neither
// a text nor a list.
func members(in *jsontext.Decoder, names ...string) (map[string]jsontext.Value, error) {
	bad := errors.New("it is not a JSON object, or a name appears twice")
	if t, err := in.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, bad
	}
	found := make(map[string]jsontext.Value, len(names))
	for in.PeekKind() == '"' {
		t, err := in.ReadToken()
		if err != nil {
			return nil, bad
		}
		name := t.String()
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("it has a field other than %s", strings.Join(names, ", "))
		}
		value, err := in.ReadValue()
		if err != nil {
			return nil, bad
		}
		found[name] = value.Clone()
	}
	if _, err := in.ReadToken(); err != nil {
		return nil, bad
	}
	return found, nil
}

func text(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	s, err := jsontext.AppendUnquote(nil, v)
	return string(s), err == nil
}

func octets(v jsontext.Value) ([]byte, bool) {
	s, ok := text(v)
	if !ok {
		return nil, false
	}
	return decoded(s)
}

// decoded reads base64. Go's decoder skips line breaks and spare bits, which would let one envelope be written in many ways.
func decoded(s string) ([]byte, bool) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return b, err == nil && !strings.ContainsAny(s, "\r\n")
}
