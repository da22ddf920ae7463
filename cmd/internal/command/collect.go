package command

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// A collector decides how far memory may grow before it is collected: by how many percent of what was in use the last time, as
// GOGC does, which takes over when it is set.
type collector struct {
	mu      sync.Mutex
	percent int  // from the first time on; zero: it is left to GOGC
	first   bool // there was one
}

// collect is that of the process.
var collect collector

// begin lets the first collection wait until 32 MiB are in use, not 4: most commands end before, and scanning what the libraries
// have set up is a fifth of their time.
func (c *collector) begin() {
	if os.Getenv("GOGC") != "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.percent = 100
	debug.SetGCPercent(800)
	runtime.AddCleanup(&struct{ _ [64]byte }{}, func(c *collector) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.first = true
		debug.SetGCPercent(c.percent)
	}, c)
}

// at collects from now on by that percentage: less often what allocates all the time while most of what it holds stays, more often what
// is to be small.
func (c *collector) at(percent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.percent == 0 {
		return
	}
	if c.percent = percent; c.first {
		debug.SetGCPercent(c.percent)
	}
}
