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

// less collects half as often from now on, for what allocates all the time while most of what it holds stays. Where a run is
// carried out, that saves about a tenth of the time and costs a fifth more memory.
func (c *collector) less() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.percent == 0 {
		return
	}
	if c.percent = 200; c.first {
		debug.SetGCPercent(c.percent)
	}
}
