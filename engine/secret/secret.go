// Package secret keeps the values of secrets out of everything that is written down.
//
// A document holds the place of a secret, never the secret: {from: "env:NAME"} or {from: "file:PATH"}. Between the
// document and a provider's call a secret has three forms, and a [Vault] turns each into the next:
//
//   - A reference is what the document says. [Vault.Seal] reads the value once and turns it into
//   - a sealed secret, the reference with a keyed digest of the value: {from: "env:NAME", digest: "hmac-sha256:…"}.
//     This is what plan, journal and state hold. [Vault.Open] turns it, right before a call, into
//   - the value, text in the place of the object. Only a provider sees it.
//
// What a provider observed goes the other way: [Vault.Conceal] turns each value into {digest: …}, so that what is desired
// and what was observed compare by their digests. A provider leaves out a secret that its far side never returns, and
// reports the empty text where it knows that none is set, which becomes an empty object. [sealed.Assume] says how to compare
// what is left out.
//
// # Promises
//
// [Vault.Wrap] puts all of this around a provider's kind, so that no value leaves it: not in a spec, not in an error, not in
// the text of a panic. When a call with a secret fails, and when observations of that kind fail from then on, only the class
// and code of the error are kept and its text is withheld, because a far side may repeat a secret in a form that cannot be
// found. In other texts of a provider, such as the detail of a thing, every value that the vault has read or observed is
// replaced by "(secret)" in the encodings that [Scrubber] lists, and in no others. Values live as long as the process and
// are never written anywhere.
//
// The digest is HMAC-SHA256 under the site's key, so that a plan or a log does not reveal the value, nor allow a guess
// to be verified. Equal values of one site have equal digests. Anyone who can read the key in the store can verify guesses.
//
// # What is refused
//
// A document's author is not trusted with the machine: files are read below one folder only, symbolic links included, and
// only allowed variables are read. Where no names are given, a document whose files the command names may name every variable,
// and one that others wrote none ([Source.Allows]). A file that everybody on the machine may read or write is refused: it is not
// secret. So is a value that is empty, that is not UTF-8, or that has more than 64 KiB.
package secret

import (
	"fmt"
	"log/slog"
)

// Shown is printed in place of a value.
const Shown = "(secret)"

// A Value is a secret that cannot be printed: formatted, encoded or logged it is "(secret)". It is kept in a function:
// a printer that bypasses the methods, as fmt does for unexported fields, shows only its address.
type Value struct{ reveal func() string }

// NewValue hides a text.
func NewValue(text string) Value { return Value{func() string { return text }} }

// Reveal returns the secret itself. The result must not be kept.
func (v Value) Reveal() string {
	if v.reveal == nil {
		return ""
	}
	return v.reveal()
}

// String implements [fmt.Stringer].
func (Value) String() string { return Shown }

// GoString implements [fmt.GoStringer].
func (Value) GoString() string { return Shown }

// Format implements [fmt.Formatter], so that no verb or flag reaches the text.
func (Value) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(Shown)) }

// MarshalJSON implements json.Marshaler.
func (Value) MarshalJSON() ([]byte, error) { return []byte(`"` + Shown + `"`), nil }

// MarshalText implements [encoding.TextMarshaler].
func (Value) MarshalText() ([]byte, error) { return []byte(Shown), nil }

// LogValue implements [slog.LogValuer].
func (Value) LogValue() slog.Value { return slog.StringValue(Shown) }
