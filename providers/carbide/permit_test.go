package carbide_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

// A wire counts what is written to it, and ends the lock in the middle of one of the writes.
type wire struct {
	net.Conn
	lost   *atomic.Bool
	left   *atomic.Int64 // writes until the lock is lost
	late   *atomic.Int64 // writes after that
	latest *atomic.Value
}

func (w wire) Write(b []byte) (int, error) {
	if w.lost.Load() {
		w.late.Add(1)
		w.latest.Store(fmt.Sprintf("%q", b))
	} else if w.left.Add(-1) == 0 {
		w.lost.Store(true)
	}
	return w.Conn.Write(b)
}

// TestNothingLeavesAfterTheLock: whatever its calls wait for when the lock is lost (a slot, the turn of a VPC, a connection,
// a stream, room in a window), not one byte leaves after that.
func TestNothingLeavesAfterTheLock(t *testing.T) {
	w := newWorld(t, carbidesim.Options{Timing: carbidesim.FastTiming})
	address := listen(t, w, carbidesim.ServerOptions{})
	vpc := providers.Call{Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "carbide.vpc", Name: "prod"}, ID: "11111111-1111-4111-8111-111111111111"}
	open := func(o carbide.Options) *providers.Set {
		t.Helper()
		o.Address, o.TLS = address, carbide.TLS{Mode: carbide.Off}
		p, err := carbide.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		set, err := providers.NewSet(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = set.Close() })
		return set
	}
	verbs := func(set *providers.Set, kind string) providers.Kind {
		k, _, _ := set.Find(schema.ScopeSite, kind)
		return k.Kind
	}
	quiet := open(carbide.Options{})
	vpc.Want = schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer"}
	if err := verbs(quiet, "carbide.tenant").Create(t.Context(), providers.Call{ID: "acme", Want: schema.Object{"display_name": "Acme"}, Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "carbide.tenant", Name: "acme"}}); err != nil {
		t.Fatal(err)
	}
	if err := verbs(quiet, "carbide.vpc").Create(t.Context(), vpc); err != nil {
		t.Fatal(err)
	}
	const rounds, steps = 200, 12
	draw := rand.New(rand.NewPCG(1, 2))
	lost := 0
	for round := range rounds {
		var (
			over       atomic.Bool
			left, late atomic.Int64
			latest     atomic.Value
		)
		set := open(carbide.Options{Parallel: 1 + draw.IntN(4), Dial: func(ctx context.Context, at string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
			return wire{conn, &over, &left, &late, &latest}, err
		}})
		release := set.Bind(func() error {
			if over.Load() {
				return errors.New("the lock was lost")
			}
			return nil
		})
		left.Store(int64(1 + draw.IntN(20)))
		var group sync.WaitGroup
		for i := range steps {
			group.Go(func() {
				switch i % 3 {
				case 0: // waits for a slot
					_ = verbs(set, "carbide.tenant_keyset").Delete(t.Context(), providers.Call{ID: fmt.Sprintf("acme/%d-%d", round, i)})
				case 1: // waits for its turn, and makes several calls
					c := vpc
					c.Want = schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer", "description": fmt.Sprint(round, i)}
					_ = verbs(set, "carbide.vpc").Update(t.Context(), c)
				case 2:
					_, _ = providers.Collect(verbs(set, "carbide.vpc").List(t.Context()))
				}
			})
		}
		group.Wait()
		left.Store(0) // it is not lost after this
		release()
		if over.Load() {
			lost++
		}
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
		if n := late.Load(); n > 0 {
			t.Fatalf("round %d: %d writes after the lock was lost, the last %v", round, n, latest.Load())
		}
	}
	if lost < rounds/2 {
		t.Errorf("the lock was lost in %d of %d rounds only", lost, rounds)
	}
}
