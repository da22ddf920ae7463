package state

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A Keeper is the right to keep the site by itself: of several site agents on one store, one has it. It decides who works and does not
// guard what is done: for that there is the lock, which every run takes.
type Keeper struct {
	lease Lease
	alive context.Context // ends with it
	end   context.CancelCauseFunc
	watch sync.WaitGroup
}

// KeeperInfo describes the process that keeps the site.
type KeeperInfo struct {
	ID      string    `json:"id"`
	Who     string    `json:"who"` // USER@HOST
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
}

// ErrNotKeeper is why the context of a keeper ended that could no longer prove to be one.
var ErrNotKeeper = errors.New("this process no longer keeps the site: the store did not answer in time")

// Keep waits until nobody else keeps the site, and then returns the right to it. Info describes the caller; its ID and Since are filled in.
// Waiting is called, if it is not nil, with each holder that is waited for. The right outlives a holder that no longer responds for ttl,
// DefaultTTL when zero. It fails with the cause of ctx, or when the store does.
func (s *Store) Keep(ctx context.Context, info KeeperInfo, ttl time.Duration, waiting func(KeeperInfo)) (*Keeper, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	info.ID = uuid.NewString()
	for {
		info.Since = time.Now().UTC()
		k, err := s.tryKeep(ctx, info, ttl)
		if !errors.Is(err, ErrGuard) {
			return k, err
		}
		if err := s.kept(ctx, waiting); err != nil {
			return nil, err
		}
	}
}

// tryKeep fails with ErrGuard when somebody else keeps the site.
func (s *Store) tryKeep(ctx context.Context, info KeeperInfo, ttl time.Duration) (*Keeper, error) {
	lease, err := s.kv.Lease(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("keep the site: %w", err)
	}
	key := s.key("keeper")
	_, err = s.kv.Commit(ctx, []Guard{{Key: key}}, []Op{{Key: key, Value: encode(key, info), Lease: lease}})
	if err == nil || errors.Is(err, ErrUnknown) { // the lease may be gone already, and a reply may have been lost
		var have KeeperInfo
		if have, _, err = read[KeeperInfo](ctx, s, key); errors.Is(err, ErrNotFound) || err == nil && have.ID != info.ID {
			err = ErrGuard
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the site: %w", err), lease.Close())
	}
	k := &Keeper{lease: lease}
	k.alive, k.end = context.WithCancelCause(context.Background())
	k.watch.Go(k.prove)
	return k, nil
}

// kept returns once nobody keeps the site.
func (s *Store) kept(ctx context.Context, waiting func(KeeperInfo)) error {
	key := s.key("keeper")
	for batch, err := range s.kv.Watch(ctx, key) {
		if err != nil {
			return err
		}
		held := false
		for _, c := range batch.Changes {
			if c.Key != key || c.Gone {
				continue
			}
			held = true
			var info KeeperInfo
			if err := decode(c.Item, &info); err != nil {
				return err
			}
			if waiting != nil {
				waiting(info)
			}
		}
		if !held {
			return nil
		}
	}
	return context.Cause(ctx)
}

// prove ends the right as soon as it can no longer be proven.
func (k *Keeper) prove() {
	for {
		rest := time.Until(k.lease.Until())
		if rest <= 0 {
			k.end(ErrNotKeeper)
			return
		}
		select {
		case <-time.After(min(rest, time.Second)):
		case <-k.lease.Done():
			k.end(ErrNotKeeper)
			return
		case <-k.alive.Done():
			return
		}
	}
}

// Context derives a context that also ends, with ErrNotKeeper, when the right can no longer be proven to be held.
func (k *Keeper) Context(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(k.alive, func() { cancel(context.Cause(k.alive)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// Close gives the right up.
func (k *Keeper) Close() error {
	k.end(nil)
	k.watch.Wait()
	return k.lease.Close()
}

// Kept returns who keeps the site; nil when nobody does.
func (s *Store) Kept(ctx context.Context) (*KeeperInfo, error) {
	info, _, err := read[KeeperInfo](ctx, s, s.key("keeper"))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &info, nil
}
