package state

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
)

// secretKeySize is the length of the key in bytes.
const secretKeySize = 32

type secretKey struct {
	Key string `json:"key"` // hex
}

// SecretKey gives the key under which the site's secrets are digested. The first call of a site's life makes it, of random
// bytes; it never changes, because what is recorded depends on it. Whoever may read it can try guesses against digests,
// so access to it is best given to converge alone.
func (s *Store) SecretKey(ctx context.Context) ([]byte, error) {
	at := s.key("secret-key")
	for {
		k, _, err := read[secretKey](ctx, s, at)
		switch {
		case err == nil:
			b, err := hex.DecodeString(k.Key)
			if err != nil || len(b) != secretKeySize {
				return nil, fmt.Errorf("%s is damaged: want %d bytes in hex", at, secretKeySize) // and not what stands there
			}
			return b, nil
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
		var b [secretKeySize]byte
		_, _ = rand.Read(b[:]) // never fails
		op := s.put(at, secretKey{hex.EncodeToString(b[:])})
		// What counts is what is read back: another may have been first, or the outcome of the write may be unknown.
		if _, err := s.kv.Commit(ctx, []Guard{{Key: at}}, []Op{op}); err != nil && !errors.Is(err, ErrGuard) && !errors.Is(err, ErrUnknown) {
			return nil, fmt.Errorf("write %s: %w", at, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}
