package carbide

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
)

// health is what the calls tell of the connection. Only a call that gets no answer because the service cannot be reached,
// or does not know us, makes it bad; what the service says about its objects does not, and any success makes it good.
type health struct {
	mu    sync.Mutex
	seen  providers.Health
	probe sync.Mutex // held by the one who asks whether it is good again
}

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
	return h.seen
}

// healthy is the provider's Health. While the connection is bad the first to ask has the service greeted, and the others
// get what is known.
func (s *service) healthy(ctx context.Context) providers.Health {
	known := s.health.now()
	if known.Down == nil || !s.health.probe.TryLock() {
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
