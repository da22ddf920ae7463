package agent_test

import (
	"testing"

	"converge.dev/converge/agent"
	"converge.dev/converge/providers"
)

// Whatever may cut a connection does, as far as the node can know: what leads elsewhere is not known.
func TestPath(t *testing.T) {
	for _, c := range []struct{ server, kind string }{
		{"127.0.0.1:7443", "host.link"}, // there may be a tunnel behind it
		{"127.0.0.1:7443", "ovs.bridge"},
		{"[::1]:7443", "ovs.port"},
		{"no such host:7443", "ovs.bridge"},
		{"no port", "host.link"},
	} {
		if !(agent.Path{Servers: []string{c.server}}).Crosses(c.kind, providers.Call{}) {
			t.Errorf("%s is not on the way to %s", c.kind, c.server)
		}
	}
}
