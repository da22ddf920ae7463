// Package budget limits what one input may cost a decoder, for the fuzz tests: a second of processor time and 64 MiB of
// memory. It imports nothing of ours, so the tests of every package may use it.
package budget

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// What one input may cost.
const (
	Time   = time.Second
	Memory = 64 << 20 // bytes allocated, whether or not they are still in use at the end
)

// Largest is how many bytes of an input a fuzz test passes on. Every decoder has a larger limit of its own; what is small
// enough to be kept as a finding is small enough to be tried often.
const Largest = 64 << 10

// Spend runs a decoder on one input and fails the test when it costs too much. Processor time is that of the whole
// process, including garbage collection, so that a busy machine makes no difference.
func Spend(tb testing.TB, decode func()) {
	tb.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := spent(tb)
	decode()
	took := spent(tb) - start
	runtime.ReadMemStats(&after)
	if took > Time*slower {
		tb.Errorf("one input took %v of processor time, want at most %v", took, Time*slower)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > Memory*slower {
		tb.Errorf("one input took %d MiB, want at most %d", used>>20, Memory*slower>>20)
	}
}

func spent(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
