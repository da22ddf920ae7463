package carbide

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// health is the state of the service as its calls show it. Only a call that gets no answer because the service cannot
// be reached, or does not authenticate us, makes it bad; errors about its objects do not, and any success makes it good.
//
// During a failover a service may answer reads but accept no changes. Its answer to a change shows that, and only
// another change can find out that it is over: so health is bad for a while, and then lets changes try again.
type health struct {
	mu    sync.Mutex
	down  error      // why the service cannot be reached, as the last call shows it; nil: it can
	probe sync.Mutex // held by the caller that checks whether it is good again

	closed error         // the answer to the last change that was not accepted; nil: changes are accepted
	until  time.Time     // when another change may be tried
	pause  time.Duration // how long changes were last put off
}

// How long changes that the service does not accept are put off: at first, and at most.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Second
)

// change takes the result of a change into account.
func (h *health) change(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch status.Code(err) {
	case codes.Unavailable:
		if now := time.Now(); !now.Before(h.until) { // not one of those that were in flight when it was found out
			h.pause = min(max(2*h.pause, firstPause), longestPause)
			h.until = now.Add(h.pause)
		}
		h.closed = err
	case codes.Canceled, codes.DeadlineExceeded, codes.Unauthenticated: // which say nothing about it
	default:
		h.closed, h.until, h.pause = nil, time.Time{}, 0
	}
}

// note takes the result of a call into account.
func (h *health) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if status.Code(err) == codes.Canceled {
		return // cancelled by the caller
	}
	if err == nil {
		h.down = nil
		return
	}
	var refused refusalError
	if code := status.Code(err); code == codes.Unavailable || code == codes.Unauthenticated || errors.As(err, &refused) {
		h.down = err
	}
}

// now returns why the service is unavailable.
func (h *health) now() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down == nil && h.closed != nil && time.Now().Before(h.until) {
		return fmt.Errorf("the service answers but accepts no changes: %w", h.closed)
	}
	return h.down
}

// reached reports whether the service can be reached, so that greeting it would show nothing new.
func (h *health) reached() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.down == nil
}

// healthy is the provider's Health. While the connection is bad, the first caller greets the service, and the others get
// the last known state.
func (s *service) healthy(ctx context.Context) error {
	known := s.health.now()
	if known == nil || s.health.reached() || !s.health.probe.TryLock() {
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
		return s.health.now() // nothing was refused
	}
	s.health.note(err)
	return s.health.now()
}
