package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
)

// A run waits for an ovs-vswitchd that is away while its database answers.
func TestSwitchDaemonAway(t *testing.T) {
	still := func(t *testing.T, s *ovstest.Switch) (back func()) {
		s.Freeze(t)
		return func() { s.Thaw(t) }
	}
	killed := func(t *testing.T, s *ovstest.Switch) (back func()) {
		s.Kill(t)
		return func() { s.Restart(t) }
	}
	ports := func(ports string) string {
		return fmt.Sprintf("ovs: {bridge: br: datapath_type: %q, port: [string]: bridge: \"br\", port: {%s}}", ovstest.Datapath, ports)
	}
	const (
		internal = `interface: type: "internal"`
		last     = `a0: {tag: 2, ` + internal + `}, a2: {` + internal + `}`
	)
	for _, way := range []struct {
		name  string
		start func(testing.TB) *ovstest.Switch
		away  func(*testing.T, *ovstest.Switch) (back func())
	}{
		{"simulated, stands still", ovstest.Fake, still},
		{"stands still", ovstest.Start, still},
		{"killed", ovstest.Start, killed},
	} {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, undo %t", way.name, undo), func(t *testing.T) {
				t.Parallel()
				sw := way.start(t)
				absence{
					open: func(ctx context.Context) (*providers.Provider, error) {
						return ovs.Open(ctx, ovs.Options{Endpoint: sw.Endpoint, Node: "n", Site: siteID, Settle: time.Second})
					},
					away:    func() (back func()) { return way.away(t, sw) },
					waits:   "ovs-vswitchd is not applying changes",
					first:   ports(`a0: {tag: 1, ` + internal + `}, a1: {` + internal + `}`),
					last:    ports(last),
					failing: ports(last + `, bad0: {}`), // a port of this name has no device
				}.outlast(t, undo)
			})
		}
	}
}
