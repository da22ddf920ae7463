package carbide

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// A link is a connection with the identity that it was made with. A call ends on the link on which it began.
type link struct {
	*grpc.ClientConn
	identity identity
	calls    int  // in flight
	retired  bool // another link has replaced it
}

// links are the link for new calls, and those that close with their last call.
type links struct {
	mu   sync.Mutex
	now  *link
	old  map[*link]bool
	over bool
}

// take returns the link for a call, which must be returned with giveBack.
func (l *links) take() *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.calls++
	return l.now
}

// digest returns the digest of the files of the link for new calls.
func (l *links) digest() [sha256.Size]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.identity.digest
}

// giveBack ends a call. The last one on a link that was replaced closes it.
func (l *links) giveBack(k *link) {
	l.mu.Lock()
	k.calls--
	idle := k.retired && k.calls == 0
	if idle {
		delete(l.old, k)
	}
	l.mu.Unlock()
	if idle {
		k.Close() // fails only when it was already closed
	}
}

// replace makes k the link for new calls. Those in flight end on the previous link, which closes when it is idle.
func (l *links) replace(k *link) {
	l.mu.Lock()
	out := l.now
	switch {
	case l.over: // too late for a new one
		out = k
	case out.calls > 0:
		out.retired = true
		l.old[out] = true
		l.now, out = k, nil
	default:
		l.now = k
	}
	l.mu.Unlock()
	if out != nil {
		out.Close()
	}
}

// close closes all links, with the calls on them.
func (l *links) close() error {
	l.mu.Lock()
	l.over = true
	all := []*link{l.now}
	all = slices.AppendSeq(all, maps.Keys(l.old))
	clear(l.old)
	l.mu.Unlock()
	var errs []error
	for _, k := range all {
		errs = append(errs, k.Close())
	}
	return errors.Join(errs...)
}

// A watch monitors the certificate files, in a goroutine of its own. It makes a link with their new contents and
// puts it in place once the service has answered on it; until then everything stays as it is.
type watch struct {
	service *service
	look    chan struct{} // holds one request to check now
	stop    context.CancelFunc
	ended   chan struct{}

	failed [sha256.Size]byte // digest of files that could not be used, which has been logged

	mu   sync.Mutex
	last time.Time // time of the last request
}

// Without calls the files are checked this many times less often than with them.
const idleFactor = 12

func startWatch(s *service) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{service: s, look: make(chan struct{}, 1), stop: cancel, ended: make(chan struct{}), last: time.Now()}
	go w.run(ctx)
	return w
}

func (w *watch) close() {
	w.stop()
	<-w.ended
}

func (w *watch) run(ctx context.Context) {
	defer close(w.ended)
	tick := time.NewTicker(idleFactor * w.service.options.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.look:
		}
		w.refresh(ctx)
	}
}

// wish requests a check of the files, unless one was requested recently. It does not wait.
func (w *watch) wish() {
	w.mu.Lock()
	now := time.Now()
	due := now.Sub(w.last) >= w.service.options.Recheck
	if due {
		w.last = now
	}
	w.mu.Unlock()
	if !due {
		return
	}
	select {
	case w.look <- struct{}{}:
	default: // already requested
	}
}

func (w *watch) refresh(ctx context.Context) {
	s := w.service
	id, err := s.options.identity()
	if err == nil {
		if id.digest == s.links.digest() {
			w.failed = [sha256.Size]byte{}
			return
		}
		var fresh *link
		if fresh, err = s.connect(ctx, id); err == nil {
			s.links.replace(fresh)
			s.health.note(nil)
			w.failed = [sha256.Size]byte{}
			s.log.Info("connected to Carbide with new certificates", "address", s.options.Address)
			return
		}
	}
	if ctx.Err() == nil && id.digest != w.failed { // logged once for each state of the files, which are perhaps half written
		w.failed = id.digest
		s.log.Warn("the new certificates cannot be used: keeping the previous ones", "address", s.options.Address, "error", err)
	}
}
