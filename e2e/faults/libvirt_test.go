//go:build linux && cgo && libvirt_dlopen

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt"
)

// A run waits for a libvirtd that stands still, or is gone.
func TestLibvirtdAway(t *testing.T) {
	for _, way := range []struct {
		name string
		away func(*testing.T, *libvirttest.Host) (back func())
	}{
		{"stands still", func(t *testing.T, h *libvirttest.Host) func() {
			h.Freeze(t)
			return func() { h.Thaw(t) }
		}},
		{"killed", func(t *testing.T, h *libvirttest.Host) func() {
			h.Kill(t)
			return func() { h.Restart(t) }
		}},
	} {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, undo %t", way.name, undo), func(t *testing.T) {
				t.Parallel()
				h := libvirttest.Start(t)
				last := fmt.Sprintf(`network: {a0: {bridge: "br-a0", domain: "two"}, a2: bridge: "br-a2"}, pool: p: path: "%s/srv"`, h.Dir)
				// The node cannot run such a machine.
				unable := `, domain: bad: {type: "kvm", vcpus: 1, memory: 67108864, depends_on: ["n/libvirt.network/a0", "n/libvirt.network/a2", "n/libvirt.pool/p"]}`
				absence{
					open: func(ctx context.Context) (*providers.Provider, error) {
						return libvirt.Open(ctx, libvirt.Options{URI: h.URI(), Node: "n", Site: siteID, Settle: time.Second})
					},
					away:    func() (back func()) { return way.away(t, h) },
					waits:   "connect to libvirt at ",
					first:   `libvirt: {network: {a0: {bridge: "br-a0", domain: "one"}, a1: bridge: "br-a1"}}`,
					last:    "libvirt: {" + last + "}",
					failing: "libvirt: {" + last + unable + "}",
				}.outlast(t, undo)
			})
		}
	}
}
