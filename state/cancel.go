package state

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Cancel asks a holder of the lock to end its run in order. It is a request: only that holder acts on it.
type Cancel struct {
	Lock string    `json:"lock"` // id of the holder that is asked
	Run  string    `json:"run"`
	By   string    `json:"by"`
	At   time.Time `json:"at"`
}

// Cancel asks the holder of the lock to end its run in order. It is entered in the audit log. It fails with ErrGuard, and
// has asked nothing, when that process no longer holds the lock.
func (s *Store) Cancel(ctx context.Context, holder LockInfo, by string) error {
	fail := func(err error) error { return fmt.Errorf("cancel run %s: %w", holder.Run, err) }
	now, it, err := read[LockInfo](ctx, s, s.key("leader"))
	if errors.Is(err, ErrNotFound) || err == nil && now.ID != holder.ID {
		return fail(ErrGuard)
	}
	if err != nil {
		return fail(err)
	}
	at := time.Now().UTC()
	_, err = s.kv.Commit(ctx, []Guard{{Key: it.Key, Created: true, Revision: it.Created}}, []Op{
		s.put(s.key("cancel"), Cancel{Lock: holder.ID, Run: holder.Run, By: by, At: at}),
		s.put(s.key("audit", NewRunID(at)), Audit{At: at, By: by, Action: "cancel", Scope: holder.Run, Lock: &holder}),
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// Cancelled reads the request to this holder; nil when there is none. A request to an earlier holder does not count.
func (l *Lock) Cancelled(ctx context.Context) (*Cancel, error) {
	c, _, err := read[Cancel](ctx, l.s, l.s.key("cancel"))
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case c.Lock != l.Info().ID:
		return nil, nil
	}
	return &c, nil
}
