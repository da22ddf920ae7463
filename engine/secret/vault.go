package secret

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// KeySize is the length of a site's key in bytes.
const KeySize = 32

// Options make a vault.
type Options struct {
	Source   Source    // where secrets are read
	Scrubber *Scrubber // optional: shared with other code that must not show the values, such as the log
}

// A Vault reads secrets and knows every value that it has read or observed. Its methods may be called at the same time.
type Vault struct {
	*Scrubber
	fetch  func() ([]byte, error)
	source Source

	mu     sync.Mutex
	key    []byte           // set once it is needed
	values map[string]Value // by digest
	dark   map[string]bool  // kinds with secrets that this process does not know, or has sent
}

// New makes a vault. The site's key is fetched when the first secret is met: observing a site without secrets leaves no trace.
func New(key func() ([]byte, error), o Options) *Vault {
	if o.Scrubber == nil {
		o.Scrubber = NewScrubber()
	}
	return &Vault{Scrubber: o.Scrubber, fetch: key, source: o.Source, values: map[string]Value{}, dark: map[string]bool{}}
}

// siteKey returns the site's key.
func (v *Vault) siteKey() ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.key != nil {
		return v.key, nil
	}
	key, err := v.fetch()
	if err == nil && len(key) != KeySize {
		err = fmt.Errorf("it has %d bytes, want %d", len(key), KeySize)
	}
	if err != nil {
		return nil, fmt.Errorf("the site's secret key: %w", err)
	}
	v.key = key
	return key, nil
}

// Seal reads the secrets that a desired spec refers to and adds the digests of their values. Anything else in
// place of a reference is refused and not repeated. The spec is not modified.
func (v *Vault) Seal(k *schema.Kind, spec schema.Object) (schema.Object, error) {
	var missing []error
	out, err := sealed.Each(k, spec, func(path string, ref any) (any, error) {
		from, err := reference(ref)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		value, err := v.read(from)
		if err != nil { // all missing ones are reported at once
			missing = append(missing, fmt.Errorf("%s: %w", path, err))
			return ref, nil
		}
		digest, err := v.remember(value)
		return map[string]any{"from": from, "digest": digest}, err
	})
	if err = errors.Join(append(missing, err)...); err != nil {
		return nil, err
	}
	if sealed.Held(k) {
		k.Normalize(out) // by digest, as what is observed will be
	}
	return out, nil
}

// reference returns the place of a secret from what a document says. Anything else in the document may be the secret itself.
func reference(v any) (string, error) {
	m, _ := v.(map[string]any)
	from, _ := m["from"].(string)
	if strings.HasPrefix(from, "env:") || strings.HasPrefix(from, "file:") {
		return from, nil
	}
	return "", errors.New(`a secret must be a reference: want {from: "env:NAME"} or {from: "file:PATH"}`)
}

// ErrChanged reports that a secret is no longer the one that the plan was made with.
var ErrChanged = errors.New("the secret changed since the plan was made")

// Open replaces sealed secrets by their values. A value that is read again must have the planned digest; one that was
// only observed is found by its digest. The spec is not modified. The result is for one call.
func (v *Vault) Open(k *schema.Kind, spec schema.Object) (schema.Object, error) {
	return sealed.Each(k, spec, v.open)
}

// Check reads the secrets whose place a sealed spec names. They must exist, and be what was planned; all that are not are
// reported at once. The error wraps [ErrChanged] when a secret was read and differs.
func (v *Vault) Check(k *schema.Kind, spec schema.Object) error {
	var errs []error
	_, _ = sealed.Each(k, spec, func(path string, closed any) (any, error) {
		if _, err := reference(closed); err == nil {
			_, err = v.open(path, closed)
			errs = append(errs, err)
		}
		return closed, nil
	})
	return errors.Join(errs...)
}

func (v *Vault) open(path string, closed any) (any, error) {
	if m, ok := closed.(map[string]any); ok && len(m) == 0 {
		return "", nil // none is set
	}
	digest := sealed.Digest(closed)
	if !sealed.IsDigest(digest) {
		return nil, fmt.Errorf("%s: the secret is not sealed", path)
	}
	from, err := reference(closed)
	if err != nil {
		v.mu.Lock()
		value, known := v.values[digest]
		v.mu.Unlock()
		if !known {
			return nil, fmt.Errorf("%s: only the digest of the secret is known, not its source", path)
		}
		return value.Reveal(), nil
	}
	value, err := v.read(from)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	now, err := v.remember(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !hmac.Equal([]byte(now), []byte(digest)) {
		return nil, fmt.Errorf("%s: %s: %w", path, from, ErrChanged)
	}
	return value.Reveal(), nil
}

// Conceal replaces the values that a provider observed by their digests. The spec is not modified.
func (v *Vault) Conceal(k *schema.Kind, observed schema.Object) (schema.Object, error) {
	return sealed.Each(k, observed, func(path string, seen any) (any, error) {
		text, ok := seen.(string)
		if !ok { // against the contract, but a secret all the same
			b, err := json.Marshal(seen)
			if err != nil {
				return nil, fmt.Errorf("%s: the secret is not JSON", path)
			}
			text = string(b)
		}
		if text == "" {
			return map[string]any{}, nil
		}
		digest, err := v.remember(NewValue(text))
		return map[string]any{"digest": digest}, err
	})
}

// Recall reads, where possible, the secrets of a spec that was sealed before, so that no text shows them: a far side may
// mention a secret before it is observed. Where that is not possible, the texts of failed observations of the kind
// are withheld from here on.
func (v *Vault) Recall(k *schema.Kind, spec schema.Object) {
	_, _ = sealed.Each(k, spec, func(_ string, s any) (any, error) {
		digest := ""
		if from, err := reference(s); err == nil {
			if value, err := v.read(from); err == nil {
				digest, _ = v.remember(value)
			}
		}
		if !hmac.Equal([]byte(digest), []byte(sealed.Digest(s))) {
			v.darken(k)
		}
		return s, nil
	})
}

// remember stores a value and returns its digest.
func (v *Vault) remember(value Value) (string, error) {
	v.Learn(value)
	key, err := v.siteKey()
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(value.Reveal()))
	digest := sealed.Algorithm + hex.EncodeToString(h.Sum(nil))
	v.mu.Lock()
	defer v.mu.Unlock()
	v.values[digest] = value
	return digest, nil
}

// read reads a secret and makes sure that no text shows it from here on.
func (v *Vault) read(from string) (Value, error) {
	value, err := v.source.Read(from)
	if err == nil {
		v.Learn(value)
	}
	return value, err
}

// refused returns the error of a call that was not made because its secrets could not be opened.
func refused(op string, c providers.Call, err error) error {
	return &providers.Error{Op: op, Ref: c.Ref, Class: providers.Conflict, Err: err}
}
