package agent_test

import (
	"testing"

	"converge.dev/converge/agent"
	"converge.dev/converge/providers"
)

// Nothing that a node changes can cut a connection within it; what leads elsewhere, or cannot be found out, may be cut.
func TestPath(t *testing.T) {
	for _, c := range []struct {
		server, kind string
		crosses      bool
	}{
		{"127.0.0.1:7443", "host.link", false},
		{"[::1]:7443", "ovs.port", false},
		{"127.0.0.1:7443", "ovs.bridge", false},
		{"no such host:7443", "ovs.bridge", true},
		{"no port", "host.link", true},
	} {
		if crosses := (agent.Path{Servers: []string{c.server}}).Crosses(c.kind, providers.Call{}); crosses != c.crosses {
			t.Errorf("%s on the way to %s: %t", c.kind, c.server, crosses)
		}
	}
}
