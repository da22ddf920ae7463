// Package signed authenticates the author of a document: an ed25519 signature over its exact JSON bytes, in a DSSE envelope
// (https://github.com/secure-systems-lab/dsse).
//
// An [Envelope] is what a cloud leaves in the inbox in place of the plain document. A [Signature] is stored beside the
// bytes, so that it can be checked again whenever they are read. [Trust] lists whose signatures count.
//
// The signature covers the payload and its type, so that a signature made for something else is not valid for a document.
// The key id of an envelope is a hint and never trusted: a signature counts for the key that it matches.
package signed

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// PayloadType is the type of a document's JSON.
const PayloadType = "application/vnd.converge.document.v1+json"

// MaxSize is the maximum size of an envelope in bytes: a document of one MiB in base64, and what is around it.
const MaxSize = 3 << 19

// Errors of a signature.
var (
	// ErrEnvelope reports that something has the keys of an envelope but is not one.
	ErrEnvelope = errors.New("the envelope is not valid")
	// ErrSignature reports that a signature does not match the bytes, or matches no known key.
	ErrSignature = errors.New("the signature matches neither a trusted key nor the key that it names")
)

// A Signature is a signature and the key that it is said to match.
type Signature struct {
	Key string `json:"key,omitempty"` // as returned by [Name]; in an envelope any text
	Sig []byte `json:"sig"`
}

// A Signer is somebody whose signatures count.
type Signer struct {
	Name string
	Key  ed25519.PublicKey
}

// Trust is the set of signers whose signatures count.
type Trust []Signer

// Sign signs a document.
func Sign(key ed25519.PrivateKey, payload []byte) Signature {
	return Signature{Name(key.Public().(ed25519.PublicKey)), ed25519.Sign(key, authenticated(PayloadType, payload))}
}

// Check returns whose signature it is, and the key that it matches; by is empty when that key is not in the set. It fails
// with ErrSignature when the signature matches neither a key of the set nor the key that it names.
func (t Trust) Check(s Signature, payload []byte) (by, key string, err error) {
	message := authenticated(PayloadType, payload)
	if len(s.Sig) == ed25519.SignatureSize {
		for _, signer := range t {
			if ed25519.Verify(signer.Key, message, s.Sig) {
				return signer.Name, Name(signer.Key), nil
			}
		}
		if named, err := ParseName(s.Key); err == nil && ed25519.Verify(named, message, s.Sig) {
			return "", Name(named), nil
		}
	}
	return "", "", ErrSignature
}

// authenticated returns what is signed: DSSE's pre-authentication encoding.
func authenticated(kind string, payload []byte) []byte {
	return append(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(kind), kind, len(payload)), payload...)
}

// Envelope returns a document with its signature as one JSON object.
func Envelope(s Signature, payload []byte) []byte {
	b, err := json.Marshal(envelope{PayloadType, payload, []signature{{s.Key, s.Sig}}})
	if err != nil { // only texts and bytes
		panic(fmt.Sprintf("signed: %v", err))
	}
	return b
}

type envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"`
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	KeyID string `json:"keyid"`
	Sig   []byte `json:"sig"`
}

// Open returns the document in an envelope with its unchecked signature. Data that do not look like an envelope are
// returned as they are, without a signature: they are a plain document, or the reader of documents reports what is wrong.
//
// It is strict, so that no reader interprets the same bytes differently: one JSON object with just these names, spelt exactly
// and each once, one signature, base64 with padding in its canonical form, nothing after it. An error does not repeat what it
// found.
func Open(data []byte) (payload []byte, s *Signature, err error) {
	if !resembles(data) {
		return data, nil, nil
	}
	fail := func(format string, args ...any) ([]byte, *Signature, error) {
		return nil, nil, fmt.Errorf("%w: %s", ErrEnvelope, fmt.Sprintf(format, args...))
	}
	if len(data) > MaxSize {
		return fail("it has %d bytes; at most %d are allowed", len(data), MaxSize)
	}
	in := jsontext.NewDecoder(bytes.NewReader(data)) // refuses duplicate names, and text that is not UTF-8
	top, err := members(in, "payloadType", "payload", "signatures")
	if err != nil {
		return fail("%v", err)
	}
	if len(bytes.Trim(data[in.InputOffset():], " \t\r\n")) > 0 {
		return fail("unexpected data after it")
	}
	var list []json.RawMessage
	if err := json.Unmarshal(top["signatures"], &list); err != nil || len(list) != 1 {
		return fail("signatures: want a list with one element")
	}
	one, err := members(jsontext.NewDecoder(bytes.NewReader(list[0])), "sig", "keyid")
	if err != nil {
		return fail("signatures: %v", err)
	}
	kind, ok := text(top["payloadType"])
	switch {
	case !ok:
		return fail("payloadType: want a string")
	case kind != PayloadType:
		return fail("payloadType: want %s", PayloadType)
	}
	s = &Signature{}
	if payload, ok = decoded(top["payload"]); !ok {
		return fail("payload: want base64")
	}
	if s.Sig, ok = decoded(one["sig"]); !ok || len(s.Sig) != ed25519.SignatureSize {
		return fail("signatures: sig: want %d bytes in base64", ed25519.SignatureSize)
	}
	if s.Key, ok = text(one["keyid"]); !ok && one["keyid"] != nil {
		return fail("signatures: keyid: want a string")
	}
	return payload, s, nil
}

// resembles reports whether something is a JSON object with a name of an envelope, however spelt. A document has no such name.
func resembles(data []byte) bool {
	in := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if t, err := in.ReadToken(); err != nil || t.Kind() != '{' {
		return false
	}
	for {
		t, err := in.ReadToken()
		if err != nil || t.Kind() != '"' {
			return false
		}
		switch strings.ToLower(t.String()) {
		case "payloadtype", "payload", "signatures":
			return true
		}
		if err := in.SkipValue(); err != nil {
			return false
		}
	}
}

// members reads an object that has the given names, and no others. All but keyid are required.
func members(in *jsontext.Decoder, names ...string) (map[string]json.RawMessage, error) {
	bad := errors.New("it is not a JSON object, or a name appears twice")
	if t, err := in.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, bad
	}
	found := make(map[string]json.RawMessage, len(names))
	for in.PeekKind() == '"' {
		t, err := in.ReadToken()
		if err != nil {
			return nil, bad
		}
		name := t.String()
		value, err := in.ReadValue()
		if err != nil {
			return nil, bad
		}
		found[name] = json.RawMessage(bytes.Clone(value))
	}
	if _, err := in.ReadToken(); err != nil {
		return nil, bad
	}
	known := 0
	for _, name := range names {
		switch _, ok := found[name]; {
		case ok:
			known++
		case name != "keyid":
			return nil, fmt.Errorf("%s is missing", name)
		}
	}
	if len(found) > known {
		return nil, fmt.Errorf("it has a field other than %s", strings.Join(names, ", "))
	}
	return found, nil
}

func text(v json.RawMessage) (string, bool) {
	var s *string
	if err := json.Unmarshal(v, &s); err != nil || s == nil {
		return "", false
	}
	return *s, true
}

// decoded reads base64. Go's decoder skips line breaks and spare bits, which would let one envelope be written in many ways.
func decoded(v json.RawMessage) ([]byte, bool) {
	s, ok := text(v)
	if !ok || strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return b, err == nil
}
