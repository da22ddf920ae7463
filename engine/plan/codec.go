package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	jsonv1 "encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/schema"
)

// maxDepth is how deep objects and lists of a plan may be nested. A document has at most 32 levels.
const maxDepth = 64

// strict accepts what Encode writes and nothing else: no unknown, repeated or differently spelt names. Integers of any
// size stay integers, as in [schema.Object].
var strict = json.JoinOptions(json.RejectUnknownMembers(true), json.WithUnmarshalers(json.JoinUnmarshalers(
	json.UnmarshalFunc(func(b []byte, v *any) error {
		var o schema.Object
		err := o.UnmarshalJSON(append(append([]byte(`{"v":`), b...), '}'))
		*v = o["v"]
		return err
	}),
	json.UnmarshalFunc(func(b []byte, d *time.Duration) error { return json.Unmarshal(b, (*int64)(d)) }),
)))

// A Verbatim is JSON that is kept byte for byte, because a digest or a signature covers its bytes. In a plan file it is
// written as it is when it is compact, as encoding/json would write it, and otherwise as base64 text.
type Verbatim []byte

// MarshalJSON implements json.Marshaler.
func (v Verbatim) MarshalJSON() ([]byte, error) {
	var compacted bytes.Buffer
	if err := jsonv1.Compact(&compacted, v); err != nil {
		return nil, err
	}
	if bytes.Equal(compacted.Bytes(), v) {
		return v, nil
	}
	return jsonv1.Marshal([]byte(v))
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Verbatim) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		return jsonv1.Unmarshal(data, (*[]byte)(v))
	}
	*v = bytes.Clone(data)
	return nil
}

// Saved is the saved form of a plan.
type Saved struct {
	Data     []byte
	Digest   string // hex SHA-256 of the data
	Approval string // see [Plan.Approval]
}

// Encode returns the saved form of the plan. Each spec of a step is saved once.
func (p *Plan) Encode() (Saved, error) {
	rest := *p
	rest.Steps = nil
	encoded, err := compact(&rest)
	if err != nil {
		return Saved{}, err
	}
	steps, err := p.encodeSteps()
	if err != nil {
		return Saved{}, err
	}
	before, after, _ := bytes.Cut(encoded, []byte(`"steps":null`)) // which no text within can contain
	data := slices.Concat(before, []byte(`"steps":`), steps, after)
	sum := sha256.Sum256(data)
	return Saved{data, hex.EncodeToString(sum[:]), p.approval(steps)}, nil
}

func (p *Plan) encodeSteps() ([]byte, error) {
	steps := slices.Clone(p.Steps)
	for i := range steps {
		steps[i].fold()
	}
	return compact(steps)
}

// Approval identifies what a person approves by approving the plan: the hex SHA-256 of the site, the document and all
// steps. A plan that is made again while nothing has changed has the same approval, although its digest differs. A passing
// plan has none.
func (p *Plan) Approval() string {
	steps, err := p.encodeSteps()
	if err != nil { // a plan consists of JSON values only
		panic(fmt.Sprintf("plan: encode the steps: %v", err))
	}
	return p.approval(steps)
}

func (p *Plan) approval(steps []byte) string {
	if p.Passing {
		return ""
	}
	head, err := compact(struct {
		Site, Document string
		Destroy, Sweep bool
	}{p.Site.ID, p.Digest, p.Destroy, p.Sweep})
	if err != nil {
		panic(fmt.Sprintf("plan: encode the approval: %v", err))
	}
	h := sha256.New()
	_, _ = h.Write(head) // never fails, nor does the next
	_, _ = h.Write(steps)
	return hex.EncodeToString(h.Sum(nil))
}

// ShortApproval is the length of a sufficient prefix of an approval.
const ShortApproval = 16

// Approves reports whether a text is that approval, or a sufficient prefix of it.
func Approves(text, approval string) bool {
	return len(text) >= ShortApproval && strings.HasPrefix(approval, strings.ToLower(text))
}

// compact returns v as JSON without blanks or unnecessary escapes: it has to be readable.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := jsonv1.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// fold removes what unfold restores.
func (s *Step) fold() {
	if r := s.Record; r != nil && r.Spec != nil && s.Want != nil && r.Spec.Equal(s.Want) {
		folded := *r
		folded.Spec = nil
		s.Record = &folded
	}
	if s.Want != nil && s.After != nil && s.Want.Equal(s.After) {
		s.Want = nil
	}
}

// unfold is the inverse of fold. A step that makes something states a spec, and a record has one unless it is gone, so a
// missing spec is never ambiguous.
func (s *Step) unfold() {
	if s.Want == nil {
		s.Want = s.After
	}
	if r := s.Record; r != nil && r.Spec == nil && !r.Gone {
		r.Spec = s.Want
	}
}

// Decode is the inverse of Encode. It accepts nothing that [Make] could not have made: the plan has passed
// [Plan.Check].
func Decode(data []byte) (*Plan, error) {
	if err := shallow(data); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if head.Format != Format { // reported before errors about fields that only another version has
		return nil, fmt.Errorf("%w: it has format %d, want %d; plan again", ErrFormat, head.Format, Format)
	}
	var p Plan
	if err := json.Unmarshal(data, &p, strict); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	for i := range p.Steps {
		p.Steps[i].unfold()
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &p, nil
}

// shallow refuses what is not JSON, or is nested so deeply that reading it would take more stack than any plan needs.
func shallow(data []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		switch _, err := d.ReadToken(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case d.StackDepth() > maxDepth:
			return fmt.Errorf("it nests objects and lists more than %d levels deep", maxDepth)
		}
	}
}
