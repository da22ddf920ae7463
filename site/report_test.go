package site_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/trust"
)

// What a guard protects is kept only when its node can connect anew: that it still has a connection is not enough, and what it says of
// itself neither. To undo it, the connection that there is will do.
func TestReportAnew(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		var settled []bool
		y.guard = func(_ schema.Site, p *providers.Provider) (*providers.Provider, error) {
			p.Settle = func(_ context.Context, s providers.Settling) (bool, error) {
				settled = append(settled, s.Keep)
				return s.Keep, nil
			}
			return p, nil
		}
		y.attend("n1")
		y.connected("n1", true)
		set, err := y.nodes.Open(t.Context(), []providers.Need{{Scope: "n1", Provider: "near"}})
		if err != nil || set.Failure("n1", "near") != nil {
			t.Fatal(err, set.Failure("n1", "near"))
		}
		p := set.All()[0]
		if err := p.Fence(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		dial := y.dial
		var dialled atomic.Int32
		y.redial(func(ctx context.Context) (net.Conn, error) {
			dialled.Add(1)
			return dial(ctx)
		})
		kept, err := p.Settle(t.Context(), providers.Settling{ID: "g", Epoch: 1, Keep: true})
		if err != nil || !kept || dialled.Load() != 3 {
			t.Errorf("%t, %v after %d connections", kept, err, dialled.Load())
		}
		for name, dial := range map[string]func(ctx context.Context, changed time.Time) (net.Conn, error){
			"cut a second later": func(ctx context.Context, changed time.Time) (net.Conn, error) {
				if time.Since(changed) > time.Second {
					return nil, errors.New("no route to host")
				}
				return dial(ctx)
			},
			"no route": func(context.Context, time.Time) (net.Conn, error) { return nil, errors.New("no route to host") },
			"silence":  func(ctx context.Context, _ time.Time) (net.Conn, error) { <-ctx.Done(); return nil, context.Cause(ctx) },
		} {
			changed := time.Now()
			y.redial(func(ctx context.Context) (net.Conn, error) { return dial(ctx, changed) })
			if kept, err := p.Settle(t.Context(), providers.Settling{ID: "g", Epoch: 1, Keep: true}); kept || providers.ClassOf(err) != providers.Transient {
				t.Errorf("%s: %t, %v", name, kept, err)
			}
		}
		if kept, err := p.Settle(t.Context(), providers.Settling{ID: "g", Epoch: 1}); err != nil || kept {
			t.Errorf("%t, %v", kept, err)
		}
		if !slices.Equal(settled, []bool{true, false}) {
			t.Errorf("the guard was told %v", settled)
		}
		if err := p.Fence(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Settle(t.Context(), providers.Settling{ID: "g", Epoch: 1}); providers.ClassOf(err) != providers.Denied {
			t.Errorf("a former lock holder settles a guard: %v", err)
		}
	})
}
