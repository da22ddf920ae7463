package state

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// secretKeySize is the length of the key in bytes.
const secretKeySize = 32

type secretKey struct {
	Key string `json:"key"` // hex
}

// SecretKey returns the key under which the site's secrets are digested. The first call for a site creates it from random
// bytes; it never changes, because what is recorded depends on it. Anyone who can read it can verify guesses against
// digests, and can write plan files that are accepted as ours: access to it is best limited to converge.
func (s *Store) SecretKey(ctx context.Context) ([]byte, error) {
	for {
		key, err := s.readSecretKey(ctx)
		if !errors.Is(err, ErrNotFound) {
			return key, err
		}
		at := s.secretKeyAt()
		op := s.put(at, secretKey{hex.EncodeToString(randomKey())})
		// What is read back counts: another process may have been first, or the outcome of the write may be unknown.
		if _, err := s.kv.Commit(ctx, []Guard{{Key: at}}, []Op{op}); err != nil && !errors.Is(err, ErrGuard) && !errors.Is(err, ErrUnknown) {
			return nil, fmt.Errorf("write %s: %w", at, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// PassingKey is SecretKey for a process that writes nothing: for a site without a key it returns one that is stored nowhere,
// and stored is false. Digests made with such a key tell values apart as long as the process lives, and mean nothing later.
func (s *Store) PassingKey(ctx context.Context) (key []byte, stored bool, err error) {
	key, err = s.readSecretKey(ctx)
	if errors.Is(err, ErrNotFound) {
		return randomKey(), false, nil
	}
	return key, err == nil, err
}

func randomKey() []byte {
	key := make([]byte, secretKeySize)
	_, _ = rand.Read(key) // never fails
	return key
}

// PlanKey returns the key that authenticates the plan files of the site. It is derived from the secret key, so that what is
// known about one use of that reveals nothing about the other. It creates nothing: a site without a secret key, which has
// saved no plan, has no plan key either (ErrNotFound).
func (s *Store) PlanKey(ctx context.Context) ([]byte, error) {
	secret, err := s.readSecretKey(ctx)
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, secret, nil, "converge.dev/plan-file/v1", sha256.Size)
}

func (s *Store) secretKeyAt() string { return s.key("secret-key") }

// readSecretKey fails with ErrNotFound when there is no key yet.
func (s *Store) readSecretKey(ctx context.Context) ([]byte, error) {
	at := s.secretKeyAt()
	k, _, err := read[secretKey](ctx, s, at)
	if err != nil {
		return nil, err
	}
	b, err := hex.DecodeString(k.Key)
	if err != nil || len(b) != secretKeySize {
		return nil, &DamagedError{at, fmt.Sprintf("want %d bytes in hex", secretKeySize)} // and not the stored value
	}
	return b, nil
}
