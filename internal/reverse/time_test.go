package reverse_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/internal/reverse"
)

// A cable is one end of a connection that can be pulled: from then on nothing arrives, also not that it was closed. It can be
// blocked as well: nothing is taken from the writer any more.
type cable struct {
	net.Conn
	pulled, blocked *atomic.Bool
	closed          chan struct{}
	once            *sync.Once
}

func newCable(c net.Conn, pulled, blocked *atomic.Bool) net.Conn {
	return cable{c, pulled, blocked, make(chan struct{}), new(sync.Once)}
}

func (c cable) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.pulled.Load() {
			return n, err
		}
	}
}

func (c cable) Write(b []byte) (int, error) {
	switch {
	case c.blocked.Load():
		<-c.closed
		return 0, net.ErrClosed
	case c.pulled.Load():
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c cable) Close() error {
	c.once.Do(func() { close(c.closed) })
	if c.pulled.Load() {
		return c.SetReadDeadline(time.Unix(0, 0))
	}
	return c.Conn.Close()
}

// SetReadDeadline ignores what would revive a closed end.
func (c cable) SetReadDeadline(t time.Time) error {
	select {
	case <-c.closed:
		t = time.Unix(0, 0)
	default:
	}
	return c.Conn.SetReadDeadline(t)
}

// cables are a listener whose ends are cables.
type cables struct {
	memory
	pulled, blocked atomic.Bool
}

func (c *cables) Accept() (net.Conn, error) {
	end, err := c.memory.Accept()
	if err != nil {
		return nil, err
	}
	return newCable(end, &c.pulled, &c.blocked), nil
}

func (c *cables) dial(ctx context.Context) (net.Conn, error) {
	end, err := c.memory.dial(ctx)
	if err != nil {
		return nil, err
	}
	return newCable(end, &c.pulled, &c.blocked), nil
}

// A memory is a listener without a network.
type memory struct{ *bufconn.Listener }

func newMemory() memory { return memory{bufconn.Listen(1 << 20)} }

func (m memory) dial(ctx context.Context) (net.Conn, error) { return m.DialContext(ctx) }

// TestSilence: when the other side falls silent, each side notices within 40 s, whether or not something is in flight; and while it
// is there, an idle connection stays.
func TestSilence(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m, at := &cables{memory: newMemory()}, newCalls()
			w := newWorld(t, m)
			defer w.site.Close()
			attended := make(chan error, 1)
			config := w.client("gpu-01")
			go func() { attended <- reverse.Attend(context.Background(), m.dial, config, at.maker) }()
			node := <-w.nodes
			time.Sleep(24 * time.Hour)
			if _, err := repeat(t.Context(), node, nil); err != nil {
				t.Fatalf("after a day: %v", err)
			}
			var ended <-chan error
			if busy {
				ended = inFlight(t, node, at)
			}
			m.pulled.Store(true)
			begin := time.Now()
			<-node.Done()
			if d := time.Since(begin); d > 40*time.Second {
				t.Errorf("the site notices after %v", d)
			}
			if busy {
				for range 2 {
					if err := <-ended; status.Code(err) != codes.Unavailable {
						t.Errorf("a call in flight: %v", err)
					}
				}
			}
			if err := <-attended; err == nil {
				t.Error("no error")
			}
			if d := time.Since(begin); d > 40*time.Second {
				t.Errorf("the node notices after %v", d)
			}
		})
	}
}

// TestBlocked: no end of a connection waits for a peer that takes nothing.
func TestBlocked(t *testing.T) {
	for name, end := range map[string]func(*world, *reverse.Conn){
		"by the site":            func(_ *world, n *reverse.Conn) { n.Close() },
		"by the end of the site": func(w *world, _ *reverse.Conn) { w.site.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			m, at := &cables{memory: newMemory()}, newCalls()
			w := newWorld(t, m)
			defer w.site.Close()
			ctx, stop := context.WithCancel(context.Background())
			attended := make(chan error, 1)
			config := w.client("gpu-01")
			go func() { attended <- reverse.Attend(ctx, m.dial, config, at.maker) }()
			node := <-w.nodes
			ended := inFlight(t, node, at)
			m.blocked.Store(true)
			begin := time.Now()
			end(w, node)
			for range 2 {
				if err := <-ended; status.Code(err) != codes.Unavailable {
					t.Errorf("%s, a call ends with %v", name, err)
				}
			}
			<-node.Done()
			if d := time.Since(begin); d != 0 {
				t.Errorf("%s it takes %v", name, d)
			}
			stop()
			<-attended
		})
	}
}

// TestSlowDiallers: who says nothing is cut off at each stage, and does not keep others out for longer than that.
func TestSlowDiallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		w := newWorld(t, m)
		defer w.site.Close()
		begin := time.Now()
		var all sync.WaitGroup
		cutAfter := func(c net.Conn, limit time.Duration) {
			_, _ = io.Copy(io.Discard, c)
			if d := time.Since(begin); d != limit {
				t.Errorf("cut off after %v, want %v", d, limit)
			}
			c.Close()
		}
		// One that says nothing after TLS.
		config := w.client("gpu-00")
		config.NextProtos = []string{reverse.Protocol}
		raw, err := m.Dial()
		if err != nil {
			t.Fatal(err)
		}
		secured := tls.Client(raw, config)
		if err := secured.Handshake(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() { cutAfter(secured, 20*time.Second) })
		synctest.Wait() // it has given its place to others
		for range 256 { // as many as there are places for handshakes, which say nothing at all
			c, err := m.Dial()
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() { cutAfter(c, 10*time.Second) })
		}
		synctest.Wait()
		limit, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		if _, err := m.DialContext(limit); err == nil {
			t.Error("there is room for more than 256 handshakes")
		}
		ctx, stop := context.WithCancel(t.Context())
		good := w.client("gpu-01")
		all.Go(func() {
			_ = reverse.Keep(ctx, "gpu-01", m.dial, good, newCalls().maker, quiet)
		})
		node := <-w.nodes
		if d := time.Since(begin); d != 10*time.Second {
			t.Errorf("a node gets in after %v", d)
		}
		if name := node.State().PeerCertificates[0].Subject.CommonName; name != "gpu-01" {
			t.Errorf("%s was handed over", name)
		}
		<-time.After(20 * time.Second)
		stop()
		all.Wait()
	})
}

// TestSlowSite: a node gives up a site that says nothing.
func TestSlowSite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority()
		config := a.client("gpu-01")
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		for _, c := range []struct {
			dial  reverse.Dialer
			limit time.Duration
		}{
			{func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, 10 * time.Second},
			{func(context.Context) (net.Conn, error) { return ours, nil }, 10 * time.Second},
			{func(context.Context) (net.Conn, error) { // it does not begin HTTP/2
				ours, theirs := net.Pipe()
				site := a.site()
				site.NextProtos = []string{reverse.Protocol}
				go func() { _, _ = io.Copy(io.Discard, tls.Server(theirs, site)) }()
				return ours, nil
			}, 20 * time.Second},
		} {
			begin := time.Now()
			if err := reverse.Attend(t.Context(), c.dial, config, newCalls().maker); err == nil || time.Since(begin) != c.limit {
				t.Errorf("after %v: %v, want %v", time.Since(begin), err, c.limit)
			}
		}
	})
}

// TestKeep: a node comes back, with pauses that grow until a connection lasts, and until its time is over.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		w := newWorld(t, m)
		defer w.site.Close()
		next := retry.Policy{First: time.Second, Cap: 10 * time.Second, Key: "gpu-01"}.Pauses()
		var pauses []time.Duration
		for range 8 {
			pauses = append(pauses, next())
		}
		var dials []time.Time
		dial := func(ctx context.Context) (net.Conn, error) {
			if dials = append(dials, time.Now()); len(dials) <= 3 {
				return nil, errors.New("no route")
			}
			return m.dial(ctx)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		config := w.client("gpu-01")
		var before time.Time // when the last attendance ended
		var took []time.Duration
		go func() {
			ended <- reverse.Keep(ctx, "gpu-01", dial, config, newCalls().maker, slog.New(slog.DiscardHandler))
		}()
		lasts := func(d time.Duration) {
			node := <-w.nodes
			took = append(took, time.Since(before))
			if _, err := repeat(t.Context(), node, nil); err != nil {
				t.Error(err)
			}
			time.Sleep(d)
			node.Close()
			before = time.Now()
		}
		begin := time.Now()
		before = begin
		lasts(time.Second)     // after three failures
		lasts(5 * time.Second) // not long enough
		lasts(6 * time.Second)
		lasts(time.Second) // the pauses have begun anew
		want := []time.Duration{pauses[0] + pauses[1] + pauses[2], pauses[3], pauses[4], pauses[0]}
		if !slices.Equal(took, want) {
			t.Errorf("it comes back after %v, want %v", took, want)
		}
		<-w.nodes
		why := errors.New("why")
		cancel(why)
		if err := <-ended; err != why {
			t.Errorf("it ends with %v", err)
		}
	})
}

// TestAcceptFails: a listener survives what passes, and ends with what does not.
func TestAcceptFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		inner := &failing{Listener: m, errors: slices.Repeat([]error{passing{}}, 300)} // more than there are places
		w := newWorld(t, inner)
		defer w.site.Close()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		config := w.client("gpu-01")
		go func() { _ = reverse.Keep(ctx, "gpu-01", m.dial, config, newCalls().maker, quiet) }()
		node := <-w.nodes
		m.Listener.Close()
		if _, err := w.site.Accept(); err == nil {
			t.Error("Accept returns what is not there")
		}
		<-node.Done()
	})
}

type failing struct {
	net.Listener
	errors []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errors) > 0 {
		err := f.errors[0]
		f.errors = f.errors[1:]
		return nil, err
	}
	return f.Listener.Accept()
}

type passing struct{}

func (passing) Error() string   { return "too many open files" }
func (passing) Temporary() bool { return true }
