package carbide

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
)

// health is what the calls tell of the service. Only a call that gets no answer because the service cannot be reached,
// or does not know us, makes it bad; what the service says about its objects does not, and any success makes it good.
//
// A service that is handed over may answer whoever reads, and take no changes. What it answers to a change says so, and
// nothing but another change can find out that it is over: so it is bad for a while, and then lets changes try again.
type health struct {
	mu    sync.Mutex
	seen  providers.Health
	probe sync.Mutex // held by the one who asks whether it is good again

	closed error         // what the last change was answered instead of being taken; nil: changes are taken
	until  time.Time     // when another one may try
	pause  time.Duration // how long that was put off
}

// How long changes are put off that the service does not take: at first, and at most.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Second
)

// change counts a call that changes something.
func (h *health) change(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch status.Code(err) {
	case codes.Unavailable:
		if now := time.Now(); !now.Before(h.until) { // not one of those that were under way when it was found out
			h.pause = min(max(2*h.pause, firstPause), longestPause)
			h.until = now.Add(h.pause)
		}
		h.closed = err
	case codes.Canceled, codes.DeadlineExceeded, codes.Unauthenticated: // which say nothing of it
	default:
		h.closed, h.until, h.pause = nil, time.Time{}, 0
	}
}

// note counts a call.
func (h *health) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if status.Code(err) == codes.Canceled {
		return // by the caller
	}
	if err == nil {
		h.seen.Succeeded++
		h.seen.Down = nil
		return
	}
	h.seen.Failed++
	h.seen.Last, h.seen.LastAt = err, time.Now()
	var refused refusalError
	if code := status.Code(err); code == codes.Unavailable || code == codes.Unauthenticated || errors.As(err, &refused) {
		h.seen.Down = err
	}
}

func (h *health) now() providers.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	if seen.Down == nil && h.closed != nil && time.Now().Before(h.until) {
		seen.Down = fmt.Errorf("the service answers, and takes no changes: %w", h.closed)
	}
	return seen
}

// reached reports whether the service can be reached, so that greeting it would tell nothing new.
func (h *health) reached() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen.Down == nil
}

// healthy is the provider's Health. While the connection is bad the first to ask has the service greeted, and the others
// get what is known.
func (s *service) healthy(ctx context.Context) providers.Health {
	known := s.health.now()
	if known.Down == nil || s.health.reached() || !s.health.probe.TryLock() {
		return known
	}
	defer s.health.probe.Unlock()
	if s.watch != nil {
		s.watch.wish() // new certificates may be all that is needed
	}
	k := s.links.take()
	defer s.links.giveBack(k)
	_, err := s.greet(ctx, k)
	if ctx.Err() != nil {
		return s.health.now() // nobody refused anything
	}
	s.health.note(err)
	return s.health.now()
}
