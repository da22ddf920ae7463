package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// facts are what the store says about a site at one time. What could not be read has an error in place of a value; what does not exist
// has neither.
type facts struct {
	store  error // it does not answer
	keeper *state.KeeperInfo

	lock                                                      *state.LockInfo
	status                                                    *site.Status
	drift                                                     *drift.Report
	head                                                      *state.Head
	stops                                                     []state.Hold
	nodes                                                     []state.Node
	lockErr, statusErr, driftErr, headErr, stopsErr, nodesErr error
}

const (
	fresh   = 2 * time.Second // how long facts are used again
	patient = 3 * time.Second // how long the store may take to answer
)

// runs are all runs, newest first.
type runs struct {
	list []state.Run
	err  error
}

// A cached value is read again when it is no longer fresh, one reading at a time.
type cached[T any] struct {
	read func(context.Context) T
	now  func() time.Time

	mu   sync.Mutex
	last T
	at   time.Time // when last was read; zero before
}

// get returns a value that is at most a moment old. It is shared: nobody may modify it. That the one who asked has gone does not end a
// reading, since others may wait for it.
func (c *cached[T]) get() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); !c.at.IsZero() && now.Sub(c.at) < fresh && !now.Before(c.at) {
		return c.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	c.last = c.read(ctx)
	c.at = c.now()
	return c.last
}

// drop forgets the value.
func (c *cached[T]) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var none T
	c.last, c.at = none, time.Time{}
}

func read(ctx context.Context, s *state.Store) *facts {
	f := &facts{}
	if f.keeper, f.store = s.Kept(ctx); f.store != nil && damaged(f.store) {
		f.store = nil // it answers, and whoever reads the key as its user says what is wrong
	}
	if f.store != nil {
		return f
	}
	f.lock, f.lockErr = s.LockInfo(ctx)
	f.status, f.statusErr = published[site.Status](ctx, s, "status")
	f.drift, f.driftErr = published[drift.Report](ctx, s, "drift/latest")
	if head, err := s.Head(ctx); err == nil {
		f.head = &head
	} else if !errors.Is(err, state.ErrNotFound) {
		f.headErr = err
	}
	if stops, err := s.Stops(ctx); err == nil {
		f.stops = stops.All()
	} else {
		f.stopsErr = err
	}
	f.nodes, f.nodesErr = s.Nodes(ctx)
	for _, err := range []error{f.lockErr, f.statusErr, f.driftErr, f.headErr, f.stopsErr, f.nodesErr} {
		if err != nil && !damaged(err) {
			f.store = err
		}
	}
	return f
}

// damaged reports whether the store answered with something that cannot be understood.
func damaged(err error) bool {
	var d *state.DamagedError
	return errors.As(err, &d)
}

// published reads what the keeper has published; nil when it has not yet.
func published[T any](ctx context.Context, s *state.Store, key string) (*T, error) {
	body, err := s.Published(ctx, key)
	if errors.Is(err, state.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, &state.DamagedError{Key: key, Why: fmt.Sprint(err)}
	}
	return v, nil
}
