package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"converge.dev/converge/internal/keyed"
	"converge.dev/converge/providers"
)

// A host is one libvirt, over a connection that is replaced when it is lost.
type host struct {
	Options
	dial   dialer
	permit *providers.Permit
	health health

	// changing excludes changes of networks. libvirt has no conditional change, so that ours exclude at least each other; and it may give
	// two networks that are defined at the same time the same bridge.
	changing keyed.Mutex

	mu     sync.Mutex
	link   *link         // the newest; nil before the first
	closed chan struct{} // closed with the provider
}

// here reports whether the host is the node that this program runs on: its URI names none.
func (h *host) here() bool {
	u, err := url.Parse(h.URI)
	return err == nil && u.Host == ""
}

// A link is a connection with those who use it: it is closed when it is replaced and the last call on it has returned.
type link struct {
	conn
	mu    sync.Mutex
	users int // one for the host that may use it again
	told  map[*subscriber]bool
}

// A subscriber is told of the objects of a sort.
type subscriber struct {
	object
	event func(name string)
}

// event tells those who want to know.
func (l *link) event(o object, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.told {
		if s.object == o {
			s.event(name)
		}
	}
}

// notify calls event, which must not wait, with the name of each object of a sort that is defined, undefined, started or stopped, until
// cancel.
func (l *link) notify(o object, event func(name string)) (cancel func()) {
	s := &subscriber{o, event}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told[s] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.told, s)
	}
}

func (l *link) use() *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users++
	return l
}

func (l *link) leave() {
	l.mu.Lock()
	l.users--
	last := l.users == 0
	l.mu.Unlock()
	if last {
		l.close()
	}
}

var errClosed = errors.New("the provider is closed")

// connect returns the connection, and counts the caller as its user; a new one when there is none or it was lost.
func (h *host) connect(ctx context.Context) (*link, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.closed:
		return nil, errClosed
	default:
	}
	if h.link != nil && h.link.alive() {
		return h.link.use(), nil
	}
	l := &link{users: 1, told: map[*subscriber]bool{}}
	c, err := h.reach(ctx, l.event)
	h.health.note(ctx, err)
	if err != nil {
		return nil, err
	}
	h.drop()
	l.conn, h.link = c, l
	return l.use(), nil
}

// reach dials. A libvirtd that hangs accepts a connection and never says anything on it, so the wait has an end; what comes of the
// attempt after that is closed.
func (h *host) reach(ctx context.Context, event func(o object, name string)) (conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.Settle, fmt.Errorf("no answer within %s", h.Settle))
	defer cancel()
	c, err := patiently(ctx, func() (conn, error) { return h.dial(h.URI, event) }, func(c conn) { c.close() })
	if err != nil {
		return nil, fmt.Errorf("connect to libvirt at %s: %w", h.URI, err)
	}
	return c, nil
}

// drop lets go of the connection. h.mu is held.
func (h *host) drop() {
	if h.link != nil {
		h.link.leave()
		h.link = nil
	}
}

func (h *host) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.closed:
	default:
		close(h.closed)
	}
	h.drop()
	return nil
}

// patiently returns the result of call, or why ctx ended before. The library of libvirt cannot be interrupted, so the call goes on
// then; late gets its result.
func patiently[T any](ctx context.Context, call func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		v, err := call()
		results <- result{v, err}
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if r := <-results; r.err == nil {
				late(r.value)
			}
		}()
		var none T
		return none, context.Cause(ctx)
	}
}

// on makes calls on the connection.
func on[T any](ctx context.Context, h *host, calls func(c conn) (T, error)) (T, error) {
	var none T
	l, err := h.connect(ctx)
	if err != nil {
		return none, &lost{unsent: true, err: err}
	}
	v, err := patiently(ctx, func() (T, error) {
		defer l.leave()
		return calls(l)
	}, func(T) {})
	var cut *lost
	switch {
	case err != nil && ctx.Err() != nil:
		err = &lost{err: err}
	case errors.As(err, &cut):
		h.health.note(ctx, err)
	default:
		h.health.note(ctx, nil)
	}
	return v, err
}

// health is whether libvirtd answers. A connection that fails or is lost makes it bad, and any answer makes that good again.
type health struct {
	mu    sync.Mutex
	down  error
	probe sync.Mutex // held by the caller that checks whether it is good again
}

// note takes a connection attempt or a call into account. Calls that the caller gave up show nothing.
func (h *health) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = err
}

func (h *health) now() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.down
}

// healthy is the provider's Health. While it is bad, the first caller checks again, and the others get the last known state.
func (h *host) healthy(ctx context.Context) error {
	known := h.health.now()
	if known == nil || !h.health.probe.TryLock() {
		return known
	}
	defer h.health.probe.Unlock()
	_, _ = h.build(ctx) // it notes its own result
	return h.health.now()
}

// build is the provider's Build.
func (h *host) build(ctx context.Context) (string, error) {
	return on(ctx, h, func(c conn) (string, error) { return c.version(ctx) })
}
