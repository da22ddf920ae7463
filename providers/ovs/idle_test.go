package ovs

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestIdle: only an ovs-vswitchd that for a while applies nothing of what is pending counts as not acting.
func TestIdle(t *testing.T) {
	type look struct {
		after     time.Duration
		cur, next int
		down      bool // right after the observation
	}
	const idle = 5 * time.Second
	for name, looks := range map[string][]look{
		"never started, and never asked": {{0, 0, 0, false}, {time.Hour, 0, 0, false}},
		"never started":                  {{0, 0, 1, false}, {idle, 0, 1, true}},
		"quick":                          {{0, 6, 7, false}, {time.Second, 7, 7, false}, {time.Hour, 7, 7, false}},
		"away and back":                  {{0, 6, 7, false}, {idle, 6, 9, true}, {0, 9, 9, false}},
		"slow":                           {{0, 6, 7, false}, {2 * idle, 6, 9, true}, {0, 7, 9, false}, {idle - 1, 8, 9, false}, {idle, 9, 9, false}},
		"others ask all the time":        {{0, 6, 7, false}, {idle, 7, 8, false}, {idle, 8, 9, false}, {idle, 9, 10, false}},
		"others ask all the time, and nobody acts":   {{0, 6, 7, false}, {idle / 2, 6, 8, false}, {idle / 2, 6, 9, true}, {idle, 6, 10, true}},
		"nobody looked for a while":                  {{0, 6, 7, false}, {time.Hour, 8, 9, false}},
		"the database was put back while it is away": {{0, 6, 7, false}, {idle, 3, 5, false}, {idle, 3, 5, true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := health{idle: idle}
				for i, l := range looks {
					time.Sleep(l.after)
					h.acts(l.cur, l.next)
					if down := h.now(); (down != nil) != l.down {
						t.Errorf("look %d, at %d of %d: down is %v", i+1, l.cur, l.next, down)
					}
				}
			})
		})
	}
}
