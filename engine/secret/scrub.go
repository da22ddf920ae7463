package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"converge.dev/converge/providers"
)

// shortest is the length in bytes below which a value is too common to be cut out of a text: a text that holds such a
// value is withheld as a whole.
const shortest = 4

// A Scrubber takes values out of texts. It finds them plain, in base64 (standard and URL alphabet, at every alignment, so
// also inside something longer), in hex (either case), as Go prints bytes, and each of these percent-encoded,
// JSON-escaped or Go-quoted, as a whole or in part, once or several times over. Its methods may be called at the same time.
//
// It cannot find a part of a value, nor one that was reversed, written in another case, compressed, encrypted or broken into
// lines. So it is for texts in which no secret is expected; the answer to a call that holds one is withheld ([Vault.Wrap]).
type Scrubber struct {
	mu    sync.Mutex
	known map[string]bool
	forms atomic.Pointer[[]form] // of all values, longest first; replaced, never modified
}

// A form is one way in which a value may be written.
type form struct {
	text  string
	fold  bool // letters match in either case
	short bool
	left  bool // base64: the preceding character holds a part of the value
	right bool // base64: the following character holds a part of the value
}

// NewScrubber makes a scrubber that knows no value yet.
func NewScrubber() *Scrubber { return &Scrubber{known: map[string]bool{}} }

// Learn adds a value: from now on it is removed from every text.
func (s *Scrubber) Learn(v Value) {
	text := v.Reveal()
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == "" || s.known[text] {
		return
	}
	s.known[text] = true
	var all []form
	if had := s.forms.Load(); had != nil {
		all = slices.Clone(*had)
	}
	all = append(all, formsOf(text)...)
	slices.SortStableFunc(all, func(a, b form) int { return len(b.text) - len(a.text) })
	s.forms.Store(&all)
}

func formsOf(v string) []form {
	short := len(v) < shortest
	forms := []form{{text: v, short: short}, {text: strings.Trim(fmt.Sprint([]byte(v)), "[]"), short: short}}
	quoted, _ := json.Marshal(v) // never fails
	for _, v := range slices.Compact([]string{v, string(quoted[1 : len(quoted)-1])}) {
		forms = append(forms, form{text: hex.EncodeToString([]byte(v)), fold: true, short: short})
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for before := range 3 {
				if short && before > 0 {
					continue // nothing is left between the shared characters at both ends
				}
				text := enc.EncodeToString([]byte(strings.Repeat("\x00", before) + v))
				f := form{short: short, left: before > 0, right: (before+len(v))%3 != 0}
				if f.left {
					text = text[before+1:] // drop what depends on the preceding bytes
				}
				if f.right && !short {
					text = text[:len(text)-1] // drop what depends on the following bytes
				}
				f.text = text
				if !slices.Contains(forms, f) {
					forms = append(forms, f)
				}
			}
		}
	}
	return forms
}

// ScrubText returns a text without the values.
func (s *Scrubber) ScrubText(text string) string {
	forms := s.forms.Load()
	if forms == nil || text == "" {
		return text
	}
	percent := 0
	if strings.ContainsAny(text, "%+") {
		percent = maxPercent
	}
	var out strings.Builder
	from := 0 // start of what was not copied yet
	for i := 0; i < len(text); {
		begin, end := i, 0
		for _, f := range *forms {
			n, ok := match(text[i:], f.text, f.fold, percent)
			if !ok {
				continue
			}
			if f.short {
				return Shown
			}
			b, e := i, i+n
			if f.left && b > from && isBase64(text[b-1]) {
				b--
			}
			if f.right && e < len(text) && isBase64(text[e]) {
				e++
			}
			if e > end {
				begin, end = b, e
			}
		}
		if end == 0 {
			i++
			continue
		}
		out.WriteString(text[from:begin])
		out.WriteString(Shown)
		i, from = end, end
	}
	if from == 0 {
		return text
	}
	out.WriteString(text[from:])
	return out.String()
}

func isBase64(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("+/-_", c) >= 0
}

// Scrub returns an error whose text holds none of the values. An error that needs no change is returned as it is; any
// other keeps its class, operation and thing, if it has them, and nothing else can be unwrapped.
func (s *Scrubber) Scrub(err error) error {
	if err == nil || s.forms.Load() == nil {
		return err
	}
	var of *providers.Error
	classed := errors.As(err, &of)
	clean := s.ScrubText(err.Error())
	if clean == err.Error() && (!classed || of.Err == nil || s.ScrubText(of.Err.Error()) == of.Err.Error()) {
		return err
	}
	if !classed {
		return errors.New(clean)
	}
	inner := &providers.Error{Op: of.Op, Ref: of.Ref, Kind: of.Kind, Class: of.Class, Code: of.Code, Over: of.Over, Err: errors.New(s.ScrubText(fmt.Sprint(of.Err)))}
	if err == error(of) {
		return inner
	}
	return &scrubbed{clean, inner}
}

// scrubbed is an error around a *providers.Error.
type scrubbed struct {
	text  string
	cause *providers.Error
}

// Error implements error.
func (e *scrubbed) Error() string { return e.text }

// Unwrap returns the cause, also without values.
func (e *scrubbed) Unwrap() error { return e.cause }

// said returns the text of a panic without the values.
func (s *Scrubber) said(p any) string { return s.ScrubText(fmt.Sprint(p)) }
