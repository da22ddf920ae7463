package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"converge.dev/converge/internal/keyed"
	"converge.dev/converge/providers"
)

// A host is one libvirt, over a connection that is replaced when it is lost.
type host struct {
	Options
	dial   dialer
	permit *providers.Permit
	health health

	changing keyed.Mutex              // excludes changes; see exclusive
	volumes  joint[[]providers.Thing] // what may use something, for those who take that away
	machines joint[*users]

	mu      sync.Mutex    // not held while anything is waited for
	link    *link         // the newest; nil before the first
	dialing *attempt      // nil: none
	closed  chan struct{} // closed with the provider
}

// An attempt is one to connect, for all who wait for a connection: the library keeps a thread for each, which cannot be interrupted.
type attempt struct {
	began time.Time
	done  chan struct{} // closed when it has ended
	err   error         // set by then
}

// abandonAfter is how long an attempt keeps others from being made. A libvirtd that hangs answers when it goes on, and one that ends
// fails the attempt, but the end of a whole node may never be noticed.
const abandonAfter = 10 * time.Minute

// here reports whether the host is the node that this program runs on: its URI names none.
func (h *host) here() bool {
	u, err := url.Parse(h.URI)
	return err == nil && u.Host == ""
}

// A link is a connection with those who use it: it is closed when it is replaced and the last call on it has returned.
type link struct {
	conn
	calls chan struct{} // holds one element for each caller whose calls libvirt may still be answering
	over  chan struct{} // closed with the connection
	hangs atomic.Bool   // libvirt did not answer in time, and the connection was ended
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
		close(l.over)
		shut(l.conn)
	}
}

// shut closes a connection, which takes a call too.
func shut(c conn) {
	hung := time.AfterFunc(probeEvery, c.hangUp)
	defer hung.Stop()
	c.close()
}

// guard ends the connection when libvirt does not answer a probe while calls wait for it: they have no end of their own, and hold
// their places also when their callers have gone.
func (l *link) guard() {
	for l.passes(probeEvery, nil) {
		if len(l.calls) == 0 {
			continue
		}
		answered, ok := l.probe()
		if !ok {
			return
		}
		// Not at once: after a time in which this process stood still, the answer is there, and has yet to be read.
		for range probeFor / probeEvery {
			if !l.passes(probeEvery, answered) {
				break
			}
		}
		select {
		case <-answered:
		case <-l.over:
		default:
			l.hangs.Store(true)
			l.hangUp()
			select { // one probe at a time
			case <-answered:
			case <-l.over:
			}
		}
	}
}

// probe makes a call that libvirt answers without waiting for anything else. It reports false when the connection is closed.
func (l *link) probe() (answered chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return nil, false
	}
	l.users++
	answered = make(chan struct{})
	go func() {
		defer l.leave()
		defer close(answered)
		_, _ = l.version(context.Background()) // an error is an answer, or the end of the connection
	}()
	return answered, true
}

// passes waits, and reports whether nothing has ended the wait.
func (l *link) passes(d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-sooner:
	case <-l.over:
	}
	return false
}

var errClosed = errors.New("the provider is closed")

// connect returns the connection, and counts the caller as its user; a new one when there is none or it was lost.
func (h *host) connect(ctx context.Context) (*link, error) {
	for {
		l, a, err := h.current()
		if a == nil {
			return l, err
		}
		if err := h.wait(ctx, a); err != nil {
			return nil, h.unreached(err)
		}
	}
}

func (h *host) unreached(err error) error {
	return fmt.Errorf("connect to libvirt at %s: %w", h.URI, err)
}

// current returns the connection with the caller as its user or, when there is none, the attempt to make one.
func (h *host) current() (*link, *attempt, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isClosed() {
		return nil, nil, errClosed
	}
	if h.link != nil && h.link.alive() {
		return h.link.use(), nil, nil
	}
	if h.dialing == nil || time.Since(h.dialing.began) > abandonAfter {
		h.dialing = &attempt{began: time.Now(), done: make(chan struct{})}
		go h.reach(h.dialing)
	}
	return nil, h.dialing, nil
}

func (h *host) isClosed() bool {
	select {
	case <-h.closed:
		return true
	default:
		return false
	}
}

// wait waits for an attempt. A libvirtd that hangs accepts a connection and never says anything on it, so the wait has an end.
func (h *host) wait(ctx context.Context, a *attempt) error {
	settle := time.NewTimer(time.Until(a.began.Add(h.Settle)))
	defer settle.Stop()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.closed:
		return errClosed
	case <-settle.C:
		err := fmt.Errorf("no answer within %s", h.Settle)
		h.health.note(ctx, h.unreached(err))
		return err
	}
}

// reach dials. However late its result is, it is used, unless the provider is closed or another attempt is made by then.
func (h *host) reach(a *attempt) {
	l := &link{calls: make(chan struct{}, maxCalls), over: make(chan struct{}), users: 1, told: map[*subscriber]bool{}}
	c, err := h.dial(h.URI, func(o object, name string, ends bool) {
		switch { // what ends begins to use nothing
		case ends:
		case o == domainObject:
			h.machines.forget()
		case o == poolObject:
			h.volumes.forget()
		}
		l.event(o, name)
	})
	l.conn, a.err = c, err
	if err == nil {
		h.machines.forget() // nothing tells of what happened before
		h.volumes.forget()
		go l.guard()
	}
	var unused *link
	h.mu.Lock()
	current := h.dialing == a
	if current {
		h.dialing = nil
		var down error
		if err != nil {
			down = h.unreached(err)
		}
		h.health.set(down)
	}
	switch {
	case err != nil:
	case current && !h.isClosed():
		unused, h.link = h.link, l
	default:
		unused = l
	}
	h.mu.Unlock()
	close(a.done)
	if unused != nil {
		unused.leave()
	}
}

func (h *host) close() error {
	h.mu.Lock()
	if !h.isClosed() {
		close(h.closed)
	}
	l := h.link
	h.link = nil
	h.mu.Unlock()
	if l != nil {
		l.leave()
	}
	return nil
}

// patiently returns the result of call, or why ctx ended before. The library of libvirt cannot be interrupted, so the call goes on
// then, and its result is lost.
func patiently[T any](ctx context.Context, call func() (T, error)) (T, error) {
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
		var none T
		return none, context.Cause(ctx)
	}
}

// on makes calls on the connection, one after the other, in one of its maxCalls places. The provider's Limit would not do for that: it
// counts neither watches and probes, nor the calls that go on after their callers have gone, but those that wait for others.
func on[T any](ctx context.Context, h *host, calls func(c conn) (T, error)) (T, error) {
	var none T
	l, err := h.connect(ctx)
	if err != nil {
		return none, &lost{unsent: true, err: err}
	}
	select {
	case l.calls <- struct{}{}:
	case <-ctx.Done():
		l.leave()
		return none, &lost{unsent: true, err: context.Cause(ctx)}
	}
	v, err := patiently(ctx, func() (T, error) {
		defer l.leave()
		defer func() { <-l.calls }()
		c, end := l.session()
		defer end()
		return calls(c)
	})
	var cut *lost
	switch {
	case err != nil && ctx.Err() != nil:
		err = &lost{err: err}
	case errors.As(err, &cut) && l.hangs.Load():
		err = &lost{unsent: cut.unsent, err: fmt.Errorf("libvirt at %s has not answered for %s: %w", h.URI, probeFor, err)} // others may have that error
		h.health.note(ctx, err)
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
	h.set(err)
}

func (h *health) set(err error) {
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
