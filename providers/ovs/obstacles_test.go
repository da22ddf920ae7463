package ovs_test

import (
	"testing"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// TestObstacles: what other clients have on bridges, and what refers to ports, qos and queues, is found before anything is deleted. What goes with
// them, and the ports of virtual machines, do not count.
func TestObstacles(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newShaped(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br1", aBridge))
		n.must(n.update("ovs.port", "p0", schema.Object{"qos": "uplink"}))
		n.must(n.create("ovs.mirror", "m0", schema.Object{"bridge": "br0", "select_all": true, "output_port": "p0"}))
		s.AddPort(t, "br1", "theirs", nil)
		s.AddPort(t, "br0", "vnet0", map[string]string{"vm-id": "4dea22b3-1d52-48f3-8516-782e98ab3fa0"})
		gold := rowCalled(t, s, vswitch.QueueTable, "gold")
		theirs := s.AddRow(t, vswitch.QoSTable, ovsdb.Row{"type": "linux-htb", "queues": numbered(3, gold)})
		of := func(kind, id string) providers.Target { return providers.Target{Kind: kind, ID: id} }
		br0, br1, p0, m0, uplink, queue := of("ovs.bridge", "br0"), of("ovs.bridge", "br1"), of("ovs.port", "p0"), of("ovs.mirror", "m0"), of("ovs.qos", "uplink"), of("ovs.queue", "gold")
		type targets = []providers.Target
		n.unchanged(func() {
			for name, c := range map[string]struct {
				deletes, changes targets
				want             map[providers.Target]string
			}{
				"one by one":   {deletes: targets{br0}, want: map[providers.Target]string{br0: "it still has the ports p0"}},
				"the port":     {deletes: targets{p0}, want: map[providers.Target]string{p0: "mirror m0 refers to it"}},
				"with mirror":  {deletes: targets{p0, m0, br0}},
				"let go":       {deletes: targets{br0, p0}, changes: targets{m0}},
				"of another":   {deletes: targets{br1}, want: map[providers.Target]string{br1: "it still has the ports theirs"}},
				"the qos":      {deletes: targets{uplink}, want: map[providers.Target]string{uplink: "it is still used by port p0"}},
				"with port":    {deletes: targets{uplink, p0, m0}},
				"the queue":    {deletes: targets{queue, uplink, p0, m0}, want: map[providers.Target]string{queue: "it is still used by qos " + theirs}},
				"what is gone": {deletes: targets{of("ovs.bridge", "gone"), of("ovs.port", "gone"), of("ovs.qos", "gone"), of("ovs.queue", "gone"), of("ovs.setting", "gone")}},
			} {
				found, err := n.p.Obstacles(t.Context(), c.deletes, c.changes)
				if err != nil || len(found) != len(c.want) {
					t.Errorf("%s: %v, %v", name, found, err)
				}
				for _, o := range found {
					if c.want[o.Target] != o.Why {
						t.Errorf("%s: %q of %s, want %q", name, o.Why, o.ID, c.want[o.Target])
					}
				}
			}
		})
	})
}
