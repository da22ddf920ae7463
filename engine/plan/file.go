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

// FileFormat is the version of a plan file. Format 1 was a plan without a proof of where it came from, format 2 one with the
// document in the plan.
const FileFormat = 3

// A File is a plan as it was saved, with its document: the exact bytes, and the proof of which store they came from.
type File struct {
	Plan   *Plan
	Digest string // hex SHA-256 of the plan's bytes, as it was shown when the plan was saved

	data []byte // of the whole file
	body []byte // of the plan, as Encode writes it
}

// envelope is how a File is read; [Seal] writes it.
type envelope struct {
	Format int            `json:"format"`
	MAC    string         `json:"mac"` // hex HMAC-SHA256 of the exact bytes of the plan
	Plan   jsontext.Value `json:"plan"`

	Document Verbatim `json:"document,omitzero"` // whose digest is in the plan
}

// ErrForeign says that a plan file was not saved with the key that it is to be applied with.
var ErrForeign = errors.New("the plan file is not one that this site's store saved: it was edited, damaged, or made with another store")

// EncodeFile returns the plan as a file in which nobody can change a byte without the key, and the digest of that plan.
func (p *Plan) EncodeFile(key []byte) (file []byte, digest string, err error) {
	body, digest, err := p.Encode()
	if err != nil {
		return nil, "", err
	}
	file, err = Seal(body, p.Document, key)
	return file, digest, err
}

// Seal writes the bytes of a plan as a file, with the proof of the key, and with its document if it has one. The proof is of
// the plan, which has the digest of the document.
func Seal(body []byte, document Verbatim, key []byte) ([]byte, error) {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(body) // never fails
	file := fmt.Appendf(nil, `{"format":%d,"mac":"%s","plan":%s`, FileFormat, hex.EncodeToString(h.Sum(nil)), body)
	if len(document) > 0 {
		text, err := document.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("the document of a plan: %w", err)
		}
		file = append(append(file, `,"document":`...), text...)
	}
	return append(file, "}\n"...), nil
}

// IsFile reports whether data looks like a plan file, of whatever version, and not like a document.
func IsFile(data []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(data), []byte(`{"format":`)) }

// DecodeFile reads a plan file. It proves that the plan is well-formed, and nothing about where it came from: for that
// ask [File.Verify]. It keeps data.
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
	p, err := Decode(e.Plan)
	if err != nil {
		return nil, err
	}
	p.Document = e.Document
	if err := p.CheckDocument(); err != nil {
		return nil, err
	}
	body, digest, err := p.Encode()
	if err != nil {
		return refuse(err)
	}
	return &File{Plan: p, Digest: digest, data: data, body: body}, nil
}

// Verify fails with [ErrForeign] unless the file is, byte for byte, what EncodeFile makes of its plan with the key.
func (f *File) Verify(key []byte) error {
	sealed, err := Seal(f.body, f.Plan.Document, key)
	if err != nil || !hmac.Equal(sealed, f.data) { // takes the same time wherever they differ
		return ErrForeign
	}
	return nil
}
