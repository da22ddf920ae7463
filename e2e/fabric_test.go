package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/carbidesim"
)

// Peerings and partitions are created, stay unchanged, and are deleted; also where the site never forgets a deleted NVLink
// partition. What was destroyed can be created again.
func TestFabrics(t *testing.T) {
	t.Parallel()
	for _, without := range []bool{false, true} {
		t.Run(fmt.Sprintf("forgets=%v", !without), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(o *carbidesim.Options) {
				o.Rules.Peering, o.Rules.NoNVLink = carbidesim.PeeringMixed, without
			})
			text, err := os.ReadFile(filepath.Join("testdata", "fabrics.cue"))
			s.must(err)
			s.write("fabrics.cue", string(text))
			s.write("swapped.cue", regexp.MustCompile(`\["(\w+)", "(\w+)"\]`).ReplaceAllString(string(text), `["$2", "$1"]`))
			if s.read("swapped.cue") == string(text) {
				t.Fatal("no pair was swapped: the test proves nothing")
			}
			for range 2 {
				s.apply("fabrics.cue")
				s.run(0, "plan", "-detailed-exitcode", "fabrics.cue")
				s.run(0, "plan", "-detailed-exitcode", "swapped.cue").says("No changes")
				if n := s.count("ib_partition", "nvlink_logical_partition", "spx_partition", "vpc_peering"); n < 7 {
					t.Errorf("%d peerings and partitions are there, want 7 and what the site does not forget", n)
				}
				s.approved(0, "apply", "-destroy", "-auto-approve")
				if n := s.count("ib_partition", "spx_partition", "vpc_peering", "vpc"); n != 0 {
					t.Errorf("%d things are left", n)
				}
			}
			if kept := strings.Count(s.dump(), "TERMINATING"); (kept == 2) != without || kept > 2 {
				t.Errorf("%d NVLink partitions are left", kept)
			}
		})
	}
}

// count counts the objects of some kinds.
func (s *site) count(kinds ...string) (n int) {
	for _, o := range s.world.Objects() {
		if slices.Contains(kinds, o.Kind) {
			n++
		}
	}
	return n
}
