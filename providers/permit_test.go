package providers_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"converge.dev/converge/providers"
)

var errLost = errors.New("the lock was lost")

// TestPermitAfterTheWait: a call that waits for its slot while the permit ends never reaches the provider.
func TestPermitAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &counting{entered: make(chan struct{}, 10), release: make(chan struct{})}
		p := providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: k})
		p.Limit = 1
		set, err := providers.NewSet(p)
		if err != nil {
			t.Fatal(err)
		}
		var lost atomic.Bool
		release := set.Bind(func() error {
			if lost.Load() {
				return errLost
			}
			return nil
		})
		served, _, _ := set.Find("site", "x.y")
		var wg sync.WaitGroup
		wg.Go(func() { _ = served.Kind.Create(t.Context(), providers.Call{}) })
		<-k.entered
		for range 5 {
			wg.Go(func() {
				err := served.Kind.Create(t.Context(), providers.Call{})
				if !errors.Is(err, errLost) || providers.ClassOf(err) != providers.Transient {
					t.Errorf("a call that had waited ended with %v", err)
				}
			})
		}
		synctest.Wait() // all of them wait for the slot
		lost.Store(true)
		close(k.release)
		wg.Wait()
		if n := len(k.entered); n != 0 {
			t.Errorf("%d calls began after the lock was lost", n)
		}
		release()
		if err := served.Kind.Create(t.Context(), providers.Call{}); err != nil {
			t.Errorf("without a lock nothing is to be proven: %v", err)
		}
	})
}

// TestPermittedConnection: a connection writes nothing once the permit has ended, and never again after that, whichever
// process then holds the lock.
func TestPermittedConnection(t *testing.T) {
	var permit providers.Permit
	var far []net.Conn
	dial := permit.Dialer(func(context.Context, string) (net.Conn, error) {
		near, other := net.Pipe()
		far = append(far, other)
		return near, nil
	})
	lost := false
	release := permit.Bind(func() error {
		if lost {
			return errLost
		}
		return nil
	})
	conn, err := dial(t.Context(), "far")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = conn.Write([]byte("a")) }()
	b := make([]byte, 8)
	if n, err := far[0].Read(b); err != nil || string(b[:n]) != "a" {
		t.Fatalf("while the lock is held it wrote %q (%v)", b[:n], err)
	}
	spare, err := dial(t.Context(), "far")
	if err != nil {
		t.Fatal(err)
	}
	lost = true
	if _, err := conn.Write([]byte("b")); !errors.Is(err, errLost) {
		t.Errorf("a write after the lock was lost ended with %v", err)
	}
	if n, err := far[0].Read(b); err != io.EOF {
		t.Errorf("the far side read %q (%v), want the end of the connection", b[:n], err)
	}
	if _, err := dial(t.Context(), "far"); !errors.Is(err, errLost) {
		t.Errorf("a new connection after the lock was lost ended with %v", err)
	}
	release()
	if _, err := spare.Write([]byte("c")); err == nil {
		t.Error("a connection of the lost lock wrote after it")
	}
	next, err := dial(t.Context(), "far")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = next.Write([]byte("d")) }()
	if n, err := far[2].Read(b); err != nil || string(b[:n]) != "d" {
		t.Errorf("a new connection wrote %q (%v)", b[:n], err)
	}
}
