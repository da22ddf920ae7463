package state

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Asked says what a holder of the lock is asked for.
type Asked string

// What can be asked for.
const (
	ToCancel  Asked = "cancel"  // to end its run in order
	ToConfirm Asked = "confirm" // to keep what its run has changed
)

// A Request asks a holder of the lock for something. Only that holder acts on it.
type Request struct {
	Lock string    `json:"lock"` // id of the holder that is asked
	Run  string    `json:"run"`
	By   string    `json:"by"`
	At   time.Time `json:"at"`
}

// Ask asks the holder of the lock for something that concerns its run. It is entered in the audit log. It fails with ErrGuard, and
// has asked nothing, when that process no longer holds the lock.
func (s *Store) Ask(ctx context.Context, what Asked, holder LockInfo, by string) error {
	fail := func(err error) error { return fmt.Errorf("%s run %s: %w", what, holder.Run, err) }
	now, it, err := read[LockInfo](ctx, s, s.key("leader"))
	if errors.Is(err, ErrNotFound) || err == nil && now.ID != holder.ID {
		return fail(ErrGuard)
	}
	if err != nil {
		return fail(err)
	}
	at := time.Now().UTC()
	_, err = s.kv.Commit(ctx, []Guard{{Key: it.Key, Created: true, Revision: it.Created}}, []Op{
		s.put(s.key(string(what)), Request{Lock: holder.ID, Run: holder.Run, By: by, At: at}),
		s.put(s.key("audit", NewRunID(at)), Audit{At: at, By: by, Action: string(what), Scope: holder.Run, Lock: &holder}),
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// Asked reads what this holder is asked for; nil when it is not. A request to an earlier holder does not count.
func (l *Lock) Asked(ctx context.Context, what Asked) (*Request, error) {
	r, _, err := read[Request](ctx, l.s, l.s.key(string(what)))
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case r.Lock != l.Info().ID:
		return nil, nil
	}
	return &r, nil
}
