package etcd

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/state"
)

// TestKept: a lease lives for longer than its ttl, as long as it is kept.
func TestKept(t *testing.T) {
	kv := openDir(t, Options{Dir: t.TempDir()})
	l, err := kv.Lease(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/a", Lease: l}}); err != nil {
		t.Fatal(err)
	}
	first := l.Until()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for l.Until().Sub(first) < 2*time.Second {
		select {
		case <-poll.C:
		case <-l.Done():
			t.Fatal("it is gone")
		}
		if time.Until(l.Until()) < -10*time.Second {
			t.Fatal("it was not renewed")
		}
	}
	if it, err := kv.Get(t.Context(), "/a"); err != nil || it.Modified == 0 {
		t.Errorf("its key: %+v, %v", it, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestRevoked: a lease that is gone on the far side ends the lock at the next keepalive.
func TestRevoked(t *testing.T) {
	kv := openDir(t, Options{Dir: t.TempDir()})
	l, err := state.New(kv, "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	work := l.Context(t.Context())
	leases, err := kv.client.Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Fatalf("%v, %v", leases, err)
	}
	if _, err := kv.client.Revoke(t.Context(), leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	<-work.Done()
	if cause := context.Cause(work); !errors.Is(cause, state.ErrFenced) {
		t.Errorf("it ended with %v", cause)
	}
}

// TestSuspended: the time for which the machine was suspended counts, although no timer has seen it.
func TestSuspended(t *testing.T) {
	l := &lease{ttl: 10 * time.Second, asked: now()}
	if rest := time.Until(l.Until()); rest <= 0 || rest > 8*time.Second {
		t.Errorf("certain for %v, want up to 8s", rest)
	}
	l.asked.boot -= time.Hour
	if rest := time.Until(l.Until()); rest > -59*time.Minute {
		t.Errorf("after an hour of standing still it is certain for %v", rest)
	}
}

// TestUnreachable: the error says which endpoint cannot be used, and why.
func TestUnreachable(t *testing.T) {
	web := httptest.NewServer(nil) // HTTP/1
	defer web.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var opened sync.WaitGroup
	defer opened.Wait()
	for endpoint, want := range map[string]string{
		web.URL:                              "does not speak HTTP/2",
		"http://" + loopback.Address(t):      "connection refused",
		"http://" + silent.Addr().String():   "timeout",
		"unix://" + t.TempDir() + "/no.sock": "no such file",
		"etcd.example:2379":                  "must start with http://, https:// or unix://",
		"http://\x7f":                        "invalid",
	} {
		opened.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // which a busy machine may take to be refused
			defer cancel()
			_, err := Open(ctx, Options{Endpoints: []string{endpoint}})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %q", endpoint, err, want)
			}
		})
	}
	if _, err := Open(t.Context(), Options{}); err == nil {
		t.Error("opened nothing")
	}
}
