package libvirt

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
)

// A libvirtd that hangs gets one attempt to connect at a time, however often it is probed, and keeps nobody longer than they wait.
// What comes of the attempt is used.
func TestFrozenDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, hang, f := newFake(), make(chan struct{}), newFake()
		var dials atomic.Int32
		p, err := open(t.Context(), Options{URI: "test:///fake", Node: "n1", Site: providertest.Site}, func(string, func(object, string, bool)) (conn, error) {
			if dials.Add(1) == 1 {
				return dead, nil
			}
			<-hang
			return f, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		dead.gone.Store(true)
		k := served(t, p, "libvirt.pool").Kind
		began := time.Now()
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := k.Get(ctx, []string{"p"})
			expect(t, err, providers.Transient, false, "deadline exceeded")
			cancel()
		}
		first := make(chan error)
		go func() { _, err := k.Get(t.Context(), []string{"p"}); first <- err }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = k.Get(ctx, []string{"p"})
		cancel()
		expect(t, err, providers.Transient, false, "deadline exceeded")
		if waited := time.Since(began); waited != 3*time.Second {
			t.Errorf("the callers waited %s, want 3s", waited)
		}
		expect(t, <-first, providers.Transient, false, "no answer within 10s")
		for range 3 {
			if down := p.Health(t.Context()); down == nil || !strings.Contains(down.Error(), "connect to libvirt at test:///fake: no answer within 10s") {
				t.Errorf("the health is %v", down)
			}
		}
		if n := dials.Load(); n != 2 {
			t.Errorf("it was dialed %d times, want 2", n)
		}
		time.Sleep(abandonAfter) // nothing answers for so long that it is tried again, once more
		for range 3 {
			_ = p.Health(t.Context())
		}
		if n := dials.Load(); n != 3 {
			t.Errorf("it was dialed %d times, want 3", n)
		}
		close(hang)
		synctest.Wait()
		if down := p.Health(t.Context()); down != nil || dials.Load() != 3 {
			t.Errorf("after it answered, the health is %v, and it was dialed %d times", down, dials.Load())
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !f.closed.Load() || !dead.closed.Load() {
			t.Error("a connection stays open")
		}
	})
}

// A provider that is closed while it connects closes what comes of that.
func TestClosedWhileDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, hang, f := newFake(), make(chan struct{}), newFake()
		first := true
		p, err := open(t.Context(), Options{URI: "test:///fake", Node: "n1", Site: providertest.Site}, func(string, func(object, string, bool)) (conn, error) {
			if first {
				first = false
				return dead, nil
			}
			<-hang
			return f, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		dead.gone.Store(true)
		failed := make(chan error)
		go func() {
			_, err := served(t, p, "libvirt.pool").Kind.Get(t.Context(), []string{"p"})
			failed <- err
		}()
		synctest.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; !errors.Is(err, errClosed) {
			t.Errorf("the call ended with %v", err)
		}
		close(hang)
		synctest.Wait()
		if !f.closed.Load() {
			t.Error("the connection stays open")
		}
	})
}

// A connection gets no more calls at the same time than libvirtd reads from it, be they of verbs, watches or probes, and also counting
// those that their callers have given up.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := f.open(t)
		var calls, most atomic.Int32
		hang := make(chan struct{})
		f.observing = func(context.Context) {
			n := calls.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-hang
			calls.Add(-1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 3 {
			for _, k := range p.Kinds {
				all.Go(func() { _, _ = k.Kind.Get(ctx, []string{"a/b"}) })
				if k.Watch != nil {
					all.Go(func() {
						for range k.Watch(ctx) {
						}
					})
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		all.Wait()
		_, err := served(t, p, "libvirt.pool").Kind.Get(ctx, []string{"p"})
		expect(t, err, providers.Transient, false, "deadline exceeded")
		if most.Load() != maxCalls {
			t.Errorf("it got %d calls at the same time, want %d", most.Load(), maxCalls)
		}
		close(hang)
		synctest.Wait()
		if _, err := served(t, p, "libvirt.pool").Kind.Get(t.Context(), []string{"p"}); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A libvirt that does not answer is told from one that is busy: all calls that wait for it end, be it that their callers have no deadline or
// have gone, and the next one connects again.
func TestDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deaf, f := newFake(), newFake()
		dialed := 0
		p, err := open(t.Context(), Options{URI: "test:///fake", Node: "n1", Site: providertest.Site}, func(string, func(object, string, bool)) (conn, error) {
			if dialed++; dialed == 1 {
				return deaf, nil
			}
			return f, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		deaf.observing = func(context.Context) { <-deaf.hung }
		pools := served(t, p, "libvirt.pool").Kind
		failed := make(chan error)
		for range maxCalls + 1 { // the last one waits for a place
			go func() {
				_, err := pools.Get(t.Context(), []string{"p"})
				failed <- err
			}()
		}
		time.Sleep(time.Hour)
		select {
		case err := <-failed:
			t.Errorf("libvirt is busy for an hour, and a call ended: %v", err)
		default:
		}
		deaf.deaf.Store(true)
		began := time.Now()
		for range maxCalls {
			expect(t, <-failed, providers.Transient, false, "libvirt at test:///fake has not answered for 15s: end of file")
		}
		if waited := time.Since(began); waited < probeFor || waited > probeFor+probeEvery {
			t.Errorf("the calls ended after %s, want from %s to %s", waited, probeFor, probeFor+probeEvery)
		}
		<-failed // of the call that waited for a place
		if _, err := pools.Get(t.Context(), []string{"p"}); err != nil || dialed != 2 {
			t.Errorf("after %d connections, it fails: %v", dialed, err)
		}

		// A caller that goes leaves its place to others.
		f.observing = func(context.Context) { <-f.hung }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var gone sync.WaitGroup
		for range maxCalls {
			gone.Go(func() { _, _ = pools.Get(ctx, []string{"p"}) })
		}
		gone.Wait()
		f.deaf.Store(true)
		time.Sleep(probeFor + probeEvery)
		if !f.gone.Load() {
			t.Error("calls whose callers have gone hold their places for ever")
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !deaf.closed.Load() || !f.closed.Load() {
			t.Error("a connection stays open")
		}
	})
}

// A provider is closed also when libvirt does not answer.
func TestCloseDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := f.open(t)
		f.deaf.Store(true)
		began := time.Now()
		if err := p.Close(); err != nil || !f.closed.Load() || time.Since(began) != probeEvery {
			t.Errorf("after %s it is closed: %t (%v)", time.Since(began), f.closed.Load(), err)
		}
	})
}
