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
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/internal/dsse"
)

// PayloadType is the type of a document's JSON.
const PayloadType = "application/vnd.converge.document.v1+json"

// MaxSize is the maximum size of an envelope in bytes: a document of one MiB in base64, and what is around it.
const MaxSize = 3 << 19

// Errors of a signature.
var (
	// ErrEnvelope reports that something has the keys of an envelope but is not one.
	ErrEnvelope = dsse.ErrEnvelope
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
	s := dsse.Sign(key, PayloadType, payload)
	return Signature{s.KeyID, s.Sig}
}

// Check returns whose signature it is, and the key that it matches; by is empty when that key is not in the set. It fails
// with ErrSignature when the signature matches neither a key of the set nor the key that it names.
func (t Trust) Check(s Signature, payload []byte) (by, key string, err error) {
	d := dsse.Signature{KeyID: s.Key, Sig: s.Sig}
	for _, signer := range t {
		if d.Verified(signer.Key, PayloadType, payload) {
			return signer.Name, Name(signer.Key), nil
		}
	}
	if named, err := ParseName(s.Key); err == nil && d.Verified(named, PayloadType, payload) {
		return "", Name(named), nil
	}
	return "", "", ErrSignature
}

// Envelope returns a document with its signature as one JSON object.
func Envelope(s Signature, payload []byte) []byte {
	e := dsse.Envelope{Type: PayloadType, Payload: payload, Signatures: []dsse.Signature{{KeyID: s.Key, Sig: s.Sig}}}
	return e.JSON()
}

// Open returns the document in an envelope with its unchecked signature. Data that do not look like an envelope are
// returned as they are, without a signature: they are a plain document, or the reader of documents reports what is wrong.
//
// It is as strict as [dsse.Open], and wants the type of a document and one signature. An error does not repeat what it found.
func Open(data []byte) (payload []byte, s *Signature, err error) {
	if !resembles(data) {
		return data, nil, nil
	}
	e, err := dsse.Open(data, MaxSize)
	switch {
	case err != nil:
		return nil, nil, err
	case e.Type != PayloadType:
		return nil, nil, fmt.Errorf("%w: payloadType: want %s", ErrEnvelope, PayloadType)
	case len(e.Signatures) != 1:
		return nil, nil, fmt.Errorf("%w: signatures: want a list with one element", ErrEnvelope)
	}
	return e.Payload, &Signature{e.Signatures[0].KeyID, e.Signatures[0].Sig}, nil
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
