package budget

import (
	"testing"
	"time"
)

// A recorder records what a test would report.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }

var kept []byte

func TestSpend(t *testing.T) {
	for name, c := range map[string]struct {
		decode func()
		fails  bool
	}{
		"nothing":  {func() {}, false},
		"a little": {func() { kept = make([]byte, 1<<20) }, false},
		"too much": {func() { kept = make([]byte, slower*Memory+1<<20) }, true},
		"bit by bit": {func() {
			for range 100 * slower {
				kept = make([]byte, 1<<20)
			}
		}, true},
		"for too long": {func() {
			for end := spent(t) + slower*Time + 50*time.Millisecond; spent(t) < end; {
			}
		}, true},
	} {
		r := &recorder{TB: t}
		Spend(r, c.decode)
		if r.failed != c.fails {
			t.Errorf("%s: failed is %v", name, r.failed)
		}
	}
	kept = nil
}
