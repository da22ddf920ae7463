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

// FileFormat is the version of a plan file. Format 1 was a plan without a proof of origin, format 2 one that contained its
// document.
const FileFormat = 3

// A File is a saved plan, and what was saved with it for its readers: the exact bytes, and the proof of the store that
// they came from.
type File struct {
	Plan   *Plan
	Digest string // hex SHA-256 of the plan's bytes, as shown when the plan was saved

	data []byte // of the whole file
	body []byte // what the proof covers, as encodeBody writes it
}

// envelope is how a File is read; [Seal] writes its head, encodeBody the rest.
type envelope struct {
	Format int    `json:"format"`
	MAC    string `json:"mac"` // hex HMAC-SHA256 of the exact bytes of the rest, from the name of its first member to the value of its last
	body
}

type body struct {
	Plan      jsontext.Value `json:"plan"`
	Document  Verbatim       `json:"document,omitempty"`
	Drift     []Drift        `json:"drift,omitempty"`
	Unmanaged []Unmanaged    `json:"unmanaged,omitempty"`
	Remarks   []Remark       `json:"remarks,omitempty"`
}

// ErrForeign reports that a plan file was not saved with the key with which it is to be applied.
var ErrForeign = errors.New("the plan file cannot be authenticated with this site's store: it was edited, damaged, or saved with another store")

// EncodeFile returns the plan as a file in which no byte can be changed without the key, and the digest of the plan.
func (p *Plan) EncodeFile(key []byte) (file []byte, digest string, err error) {
	members, digest, err := p.encodeBody()
	if err != nil {
		return nil, "", err
	}
	return Seal(members, key), digest, nil
}

// encodeBody returns the members of a plan file that its proof covers, and the digest of the plan.
func (p *Plan) encodeBody() (members []byte, digest string, err error) {
	saved, err := p.Encode()
	if err != nil {
		return nil, "", err
	}
	object, err := compact(body{Plan: saved.Data, Document: p.Document, Drift: p.Drift, Unmanaged: p.Unmanaged, Remarks: p.Remarks})
	if err != nil {
		return nil, "", err
	}
	return object[1 : len(object)-1], saved.Digest, nil
}

// Seal returns a complete plan file of the given members, with the proof made with the key in front.
func Seal(members, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(members) // never fails
	return fmt.Appendf(nil, `{"format":%d,"mac":"%s",%s}`+"\n", FileFormat, hex.EncodeToString(h.Sum(nil)), members)
}

// IsFile reports whether data looks like a plan file, of whatever version, and not like a document.
func IsFile(data []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(data), []byte(`{"format":`)) }

// DecodeFile reads a plan file. It checks that the plan is well-formed, and nothing about where it came from: for that
// see [File.Verify]. It keeps data.
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
	p.Document, p.Drift, p.Unmanaged, p.Remarks = e.Document, e.Drift, e.Unmanaged, e.Remarks
	if err := p.CheckDocument(); err != nil {
		return nil, err
	}
	members, digest, err := p.encodeBody()
	if err != nil {
		return refuse(err)
	}
	return &File{Plan: p, Digest: digest, data: data, body: members}, nil
}

// Verify fails with [ErrForeign] unless the file is, byte for byte, what EncodeFile makes of its plan with the key.
func (f *File) Verify(key []byte) error {
	if !hmac.Equal(Seal(f.body, key), f.data) { // takes constant time, wherever they differ
		return ErrForeign
	}
	return nil
}
