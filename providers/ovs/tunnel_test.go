package ovs_test

import (
	"strings"
	"testing"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/schema"
)

// A tunnel that a real switch refuses has failed, with what ovs-vswitchd says; so has one that it gives up later, because of what others did.
func TestRefusedTunnelHasFailed(t *testing.T) {
	s := ovstest.Start(t)
	n := newNode(t, s, ovs.Options{})
	tunnel := schema.Object{"bridge": "br0", "interface": map[string]any{"type": "vxlan", "options": map[string]any{"remote_ip": "192.0.2.7", "key": "100"}}}
	failed := func(name, text string) {
		t.Helper()
		if th := n.look("ovs.port", name); th.Phase != providers.Failed || !strings.Contains(th.Detail, text) {
			t.Errorf("%s is %s (%s), want failed, with %q", name, th.Phase, th.Detail, text)
		}
	}
	n.must(n.create("ovs.bridge", "br0", aBridge))
	n.must(n.create("ovs.port", "t0", tunnel))
	n.fails(n.create("ovs.port", "t1", tunnel), providers.Unknown, "(File exists)")
	failed("t1", "(File exists)")
	n.must(n.delete("ovs.port", "t1"))

	// Others change its other end to what is no address.
	s.Vsctl(t, "--no-wait", "set", "interface", "t0", "options:remote_ip=nowhere")
	s.Settle(t)
	failed("t0", "bad vxlan 'remote_ip'")
	n.must(n.update("ovs.port", "t0", tunnel))
	if th := n.look("ovs.port", "t0"); th.Phase != providers.Ready {
		t.Errorf("t0 is %s (%s) after it was put right", th.Phase, th.Detail)
	}
}
