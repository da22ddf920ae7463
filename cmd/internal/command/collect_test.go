package command

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// The first collection waits; from then on memory is collected as usual, or as often as was asked for before or after it.
func TestCollector(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	percent := func() int {
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now
	}
	begun := func() *collector {
		c := new(collector)
		c.begin()
		if got := percent(); got != 800 {
			t.Errorf("%d percent at the beginning", got)
		}
		return c
	}
	collected := func(c *collector) {
		for {
			runtime.GC()
			c.mu.Lock()
			first := c.first
			c.mu.Unlock()
			if first {
				return
			}
		}
	}

	t.Setenv("GOGC", "")
	c := begun()
	collected(c)
	if got := percent(); got != 100 {
		t.Errorf("%d percent after the first time", got)
	}
	c.at(200)
	if got := percent(); got != 200 {
		t.Errorf("%d percent when another one was asked for", got)
	}

	c = begun()
	c.at(400)
	if got := percent(); got != 800 {
		t.Errorf("%d percent before the first time, when another one was asked for", got)
	}
	collected(c)
	if got := percent(); got != 400 {
		t.Errorf("%d percent after it", got)
	}

	t.Setenv("GOGC", "50")
	debug.SetGCPercent(50)
	c = new(collector)
	c.begin()
	c.at(200)
	if got := percent(); got != 50 {
		t.Errorf("%d percent where GOGC says 50", got)
	}
}
