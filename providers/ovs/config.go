package ovs

import (
	"context"
	"fmt"
	"strings"

	"converge.dev/converge/providers"
)

// Config says where the database of a node's Open vSwitch is, as nodes.NAME.ovs of converge.yaml: unix:PATH of its socket. Empty: it
// is not configured.
type Config string

// Configured reports whether the node has an Open vSwitch.
func (c Config) Configured() bool { return c != "" }

// Check returns what cannot work, whatever the far side says; setting is where it is in converge.yaml.
func (c Config) Check(setting string) error {
	switch path, ok := strings.CutPrefix(string(c), "unix:"); {
	case c == "":
	case providers.NamesUser(string(c)):
		return fmt.Errorf("%s contains a user or a password: remove it from the address", setting)
	case !ok || path == "":
		return fmt.Errorf("%s is %q: want the database socket, for example %q", setting, string(c), DefaultEndpoint)
	}
	return nil
}

// Open connects to it.
func (c Config) Open(ctx context.Context, at providers.Opening) (*providers.Provider, error) {
	if c == "" {
		return nil, fmt.Errorf("Open vSwitch on node %s is not configured; set its database socket: nodes: {%s: {ovs: %q}}", at.Scope, at.Scope, DefaultEndpoint)
	}
	return Open(ctx, Options{Endpoint: at.Address(string(c)), Node: at.Scope, Site: at.Site.ID, Logger: at.Logger})
}
