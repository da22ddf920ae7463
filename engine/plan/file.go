package plan

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// FileFormat is the version of a plan file. Format 1 was a plan without a proof of where it came from.
const FileFormat = 2

// A File is a plan as it was saved: its exact bytes, and the proof of which store they came from.
type File struct {
	Plan   *Plan
	Digest string // hex SHA-256 of the plan's bytes, as it was shown when the plan was saved

	body []byte
	mac  []byte
}

// envelope is how a File is written.
type envelope struct {
	Format int            `json:"format"`
	MAC    string         `json:"mac"` // hex HMAC-SHA256 of the exact bytes of the plan
	Plan   jsontext.Value `json:"plan"`
}

// ErrForeign says that a plan file was not saved with the key that it is to be applied with.
var ErrForeign = errors.New("the plan file is not one that this site's store saved: it was edited, damaged, or made with another store")

// EncodeFile returns the plan as a file whose plan nobody can change without the key, and the digest of that plan.
func (p *Plan) EncodeFile(key []byte) (file []byte, digest string, err error) {
	body, digest, err := p.Encode()
	if err != nil {
		return nil, "", err
	}
	head := fmt.Sprintf(`{"format":%d,"mac":"%s","plan":`, FileFormat, hex.EncodeToString(authenticate(body, key)))
	return append(append([]byte(head), body...), "}\n"...), digest, nil
}

// IsFile reports whether data looks like a plan file, of whatever version, and not like a document.
func IsFile(data []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(data), []byte(`{"format":`)) }

// DecodeFile reads a plan file. It proves that the plan is well-formed, and nothing about where it came from: for that
// ask [File.Verify].
func DecodeFile(data []byte) (*File, error) {
	refuse := func(err error) (*File, error) { return nil, fmt.Errorf("%w: %w", ErrFormat, err) }
	if err := shallow(data); err != nil {
		return refuse(err)
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return refuse(err)
	}
	if head.Format != FileFormat {
		return refuse(fmt.Errorf("the file has format %d, want %d; plan again", head.Format, FileFormat))
	}
	var e envelope
	if err := json.Unmarshal(data, &e, strict); err != nil {
		return refuse(err)
	}
	mac, err := hex.DecodeString(e.MAC)
	if err != nil {
		return refuse(fmt.Errorf("its mac: %w", err))
	}
	p, err := Decode(e.Plan)
	if err != nil {
		return nil, err
	}
	again, digest, err := p.Encode() // what is applied is encoded once more: it must be what was saved, byte for byte
	if err != nil {
		return refuse(err)
	}
	if !bytes.Equal(again, e.Plan) {
		return refuse(errors.New("the plan is not written as converge writes it"))
	}
	return &File{Plan: p, Digest: digest, body: e.Plan, mac: mac}, nil
}

// Verify fails with [ErrForeign] unless the file was encoded with the key.
func (f *File) Verify(key []byte) error {
	if !hmac.Equal(authenticate(f.body, key), f.mac) { // takes the same time wherever they differ
		return ErrForeign
	}
	return nil
}

func authenticate(body, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(body) // never fails
	return h.Sum(nil)
}
