package ovs_test

import (
	"testing"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/schema"
)

// F3, F4: once a holder has stored its epoch on a node, one with a lower epoch can no longer change anything there, whatever
// it has seen, over any connection.
func TestOlderEpochIsRefused(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		ctx := t.Context()
		newer, older := newNode(t, s, ovs.Options{}), newNode(t, s, ovs.Options{})
		bridge := func(name string, epoch int64) providers.Call {
			c := call("ovs.bridge", name, schema.Object{"datapath_type": ovstest.Datapath})
			c.Epoch = epoch
			return c
		}
		denied := func(what string, err error) {
			t.Helper()
			if providers.ClassOf(err) != providers.Denied {
				t.Errorf("%s: %v, want it denied", what, err)
			}
		}
		if err := newer.p.Fence(ctx, 7); err != nil {
			t.Fatal(err)
		}
		if err := newer.p.Fence(ctx, 7); err != nil {
			t.Errorf("the same epoch again: %v", err)
		}
		if err := older.p.Fence(ctx, 6); err == nil {
			t.Error("an older epoch was stored")
		}
		if err := newer.kind("ovs.bridge").Create(ctx, bridge("br-new", 7)); err != nil {
			t.Fatal(err)
		}
		k := older.kind("ovs.bridge")
		denied("an older create", k.Create(ctx, bridge("br-old", 6)))
		seen := older.look("ovs.bridge", "br-new")
		c := bridge("br-new", 6)
		c.Have, c.Version = seen.Spec, seen.Version
		denied("an older update", k.Update(ctx, c))
		denied("an older delete", k.Delete(ctx, c))
		c.Epoch = 7
		if err := newer.p.Fence(ctx, 8); err != nil {
			t.Fatal(err)
		}
		denied("a delete of the holder that was replaced", k.Delete(ctx, c))
		c.Epoch = 8
		if err := k.Delete(ctx, c); err != nil {
			t.Errorf("a delete of the newest holder: %v", err)
		}
	})
}
