package load

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is found does not depend on what was checked while the document was still being read.
func TestIntake(t *testing.T) {
	s := embedded(t)
	numbers := []int{0, 1, 2, 300, 5000}
	if raceEnabled {
		numbers = []int{0, 2, 300} // which are read, checked and refused on all processors
	}
	for _, wrong := range numbers {
		names := rand.Perm(6000)
		var tenants []string
		for _, n := range names {
			spec := `{}`
			if n < wrong {
				spec = fmt.Sprintf(`{"no_field_%d": 1}`, n)
			}
			tenants = append(tenants, fmt.Sprintf(`"t%04d": %s`, n, spec))
		}
		text := fmt.Sprintf(`{"apiVersion": "converge.dev/v1", "site": {"name": "a", "id": "7c0d1f5e-2a34-4f6b-9c8d-1e2f3a4b5c6d"}, "carbide": {"tenant": {%s}}}`, strings.Join(tenants, ",\n"))
		for _, after := range []string{"", "}"} { // the second makes it unreadable once all has been read
			source := Source{Name: "site.json", Data: []byte(text + after)}
			load := func(processors int) (digest string, ds Diagnostics) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
				doc, ds := Document(t.Context(), s, Options{}, source)
				if doc != nil {
					digest = doc.Digest
				}
				return digest, ds
			}
			digest, want := load(1)
			if ok := wrong == 0 && after == ""; ok != (digest != "") {
				t.Fatalf("%d wrong: %v", wrong, want)
			}
			for range 3 {
				again, ds := load(4)
				if diff := cmp.Diff(want, ds); again != digest || diff != "" {
					t.Fatalf("%d wrong: on four processors instead of one: %s", wrong, diff)
				}
			}
		}
	}
}
