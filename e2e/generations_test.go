package e2e

import (
	"testing"

	"converge.dev/converge/internal/carbidesim"
)

// TestGenerations brings about a site on servers of all generations. Whatever fields a server fills, the plan is empty
// afterwards, there is no drift, and everything can be deleted again.
func TestGenerations(t *testing.T) {
	for _, g := range carbidesim.Generations {
		t.Run(string(g), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(o *carbidesim.Options) { o.Generation = g })
			s.apply("before.cue")
			s.run(0, "plan", "-detailed-exitcode", "before.cue").says("No changes")
			s.run(0, "drift")
			s.apply("after.cue")
			s.run(0, "plan", "-detailed-exitcode", "after.cue").says("No changes")
			s.approved(0, "destroy", "-auto-approve", "-max-destroy=100%")
		})
	}
}
