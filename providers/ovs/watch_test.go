package ovs_test

import (
	"testing"
	"time"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
)

// TestWatchEnds: a watch ends with its connection, when the database does not answer any more, and with the provider.
func TestWatchEnds(t *testing.T) {
	for name, end := range map[string]func(r *relay, p *providers.Provider) error{
		"cut":       func(r *relay, _ *providers.Provider) error { r.cut(); return nil },
		"no answer": func(r *relay, _ *providers.Provider) error { r.hung.Store(true); return nil },
		"closed":    func(_ *relay, p *providers.Provider) error { return p.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r, endpoint := newRelay(t, ovstest.Fake(t), nil)
			n := newNode(t, nil, ovs.Options{Endpoint: endpoint, Settle: time.Second})
			begun, last := false, error(nil)
			for _, err := range n.p.Kinds[0].Watch(t.Context()) {
				if last = err; !begun {
					begun = true
					n.must(end(r, n.p))
				}
			}
			if providers.ClassOf(last) != providers.Transient || t.Context().Err() != nil {
				t.Errorf("it ended with %v", last)
			}
			r.hung.Store(false)
			for _, err := range n.p.Kinds[0].Watch(t.Context()) {
				if (err != nil) != (name == "closed") {
					t.Errorf("another watch begins with %v", err)
				}
				break
			}
		})
	}
}
