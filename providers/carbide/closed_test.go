package carbide

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A service that accepts no changes is away, even while it answers reads: for longer with each change that it does not accept,
// and it is back with the first that it answers.
func TestClosedForChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h health
		for _, pause := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause, 8 * firstPause, longestPause, longestPause} {
			for range 2 { // concurrent calls count once
				h.change(status.Error(codes.Unavailable, "read only"))
			}
			h.note(nil)
			if time.Sleep(pause - time.Nanosecond); h.now() == nil {
				t.Errorf("a change may try before %s", pause)
			}
			if time.Sleep(time.Nanosecond); h.now() != nil {
				t.Errorf("no change may try after %s", pause)
			}
		}
		h.change(status.Error(codes.Unavailable, "read only"))
		h.change(status.Error(codes.NotFound, "no such thing"))
		if down := h.now(); down != nil {
			t.Errorf("after it was answered: %v", down)
		}
	})
}
