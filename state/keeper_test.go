package state_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// keepers returns a store whose leases run on the clock of the test.
func keepers(t *testing.T) *state.Store {
	t.Helper()
	kv := mem.New(mem.Options{})
	t.Cleanup(func() { _ = kv.Close() })
	return state.New(kv, "fra1")
}

// One process keeps the site; the next one does when that ends.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keepers(t)
		first, err := s.Keep(t.Context(), state.KeeperInfo{Who: "a@one"}, 0, func(state.KeeperInfo) { t.Error("it waits for nobody") })
		if err != nil {
			t.Fatal(err)
		}
		if info, err := s.Kept(t.Context()); err != nil || info == nil || info.Who != "a@one" {
			t.Fatalf("%+v, %v", info, err)
		}
		var waited []string
		second := make(chan *state.Keeper, 1)
		go func() {
			k, err := s.Keep(t.Context(), state.KeeperInfo{Who: "b@two"}, 0, func(i state.KeeperInfo) { waited = append(waited, i.Who) })
			if err != nil {
				t.Error(err)
			}
			second <- k
		}()
		time.Sleep(time.Hour) // as long as the first one lives, in the time of the test
		synctest.Wait()
		if len(second) > 0 || len(waited) != 1 || waited[0] != "a@one" {
			t.Fatalf("while the first keeps it, the second has waited for %q, and %d keep it too", waited, len(second))
		}
		ctx := first.Context(t.Context())
		if ctx.Err() != nil {
			t.Error("its context has ended")
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		k := <-second
		<-ctx.Done() // or the test never ends
		if info, _ := s.Kept(t.Context()); info == nil || info.Who != "b@two" {
			t.Errorf("%+v", info)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		if info, err := s.Kept(t.Context()); info != nil || err != nil {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

// Who waits can be stopped.
func TestKeepStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keepers(t)
		k, err := s.Keep(t.Context(), state.KeeperInfo{}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		over := errors.New("it is over")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			synctest.Wait()
			cancel(over)
		}()
		if _, err := s.Keep(ctx, state.KeeperInfo{}, 0, nil); !errors.Is(err, over) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// A keeper that can no longer renew its lease knows that before somebody else keeps the site.
func TestKeeperLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &deaf{KV: mem.New(mem.Options{})}
		s := state.New(kv, "fra1")
		k, err := s.Keep(t.Context(), state.KeeperInfo{}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx := k.Context(t.Context())
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), state.ErrNotKeeper) {
			t.Errorf("it ended with %v", context.Cause(ctx))
		}
		_ = k.Close()
	})
}

// A deaf store does not renew leases.
type deaf struct{ state.KV }

type ending struct {
	state.Lease
	until time.Time
}

func (l ending) Until() time.Time { return l.until }

func (d *deaf) Lease(ctx context.Context, ttl time.Duration) (state.Lease, error) {
	l, err := d.KV.Lease(ctx, ttl)
	return ending{l, time.Now().Add(ttl - state.Margin(ttl))}, err
}
