package state

import (
	"fmt"
	"strings"
	"time"
)

// Limits of one transaction. etcd allows a request of 1.5 MiB; the difference is room for its framing.
const (
	MaxOps   = 128                      // operations, and as many guards
	MaxBytes = 1<<20 + 1<<19 - 16*1<<10 // sum of all keys and values
)

// Check checks that a transaction is within the limits of every backend. It fails with ErrInvalid when there are too many
// operations, guards or bytes, when a key is empty, and when two operations name the same key.
func Check(guards []Guard, ops []Op) error {
	if len(ops) > MaxOps || len(guards) > MaxOps {
		return fmt.Errorf("%w: %d operations and %d guards; the limit is %d of each", ErrInvalid, len(ops), len(guards), MaxOps)
	}
	size := 0
	seen := make(map[string]bool, len(ops))
	var prefixes []string
	for _, op := range ops {
		if op.Key == "" {
			return fmt.Errorf("%w: an operation without a key", ErrInvalid)
		}
		if seen[op.Key] {
			return fmt.Errorf("%w: two operations on %s", ErrInvalid, op.Key)
		}
		seen[op.Key] = true
		if op.Prefix {
			prefixes = append(prefixes, op.Key)
		}
		if size += len(op.Key) + len(op.Value); size > MaxBytes {
			return fmt.Errorf("%w: with %s it exceeds %d bytes", ErrInvalid, op.Key, MaxBytes)
		}
	}
	for _, p := range prefixes {
		for _, op := range ops {
			if op.Key != p && strings.HasPrefix(op.Key, p) {
				return fmt.Errorf("%w: two operations on %s, one by the prefix %s", ErrInvalid, op.Key, p)
			}
		}
	}
	for _, g := range guards {
		if g.Key == "" {
			return fmt.Errorf("%w: a guard without a key", ErrInvalid)
		}
		if size += len(g.Key); size > MaxBytes {
			return fmt.Errorf("%w: with the guard on %s it exceeds %d bytes", ErrInvalid, g.Key, MaxBytes)
		}
	}
	return nil
}

// Margin returns how long before its ttl has passed a lease is given up: two seconds, or a fifth of a shorter ttl. It
// covers the time that a cancellation takes to reach a call in flight.
func Margin(ttl time.Duration) time.Duration { return min(2*time.Second, ttl/5) }
