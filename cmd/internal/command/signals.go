package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"sync"
	"syscall"
)

// An interrupt asks a run to start no more steps.
type interrupt struct {
	mu      sync.Mutex
	run     chan struct{} // nil while no run is in progress
	closed  bool
	started bool // the run has its lock and carries out steps
}

// listen handles SIGINT, SIGTERM and, unless it is ignored as under nohup, SIGHUP. The first ends a run in order, and
// everything else by cancelling the context; the second ends the process at once. So does SIGQUIT, after dumping all
// goroutines. A reader of our output that goes away causes a write error, not a signal.
func (a *app) listen(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Ignore(syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				// Both the kernel and a shell signal that a terminal is gone: two signals that mean one.
				last := a.signal.Swap(&s)
				if s == syscall.SIGQUIT {
					_ = pprof.Lookup("goroutine").WriteTo(a.sys.Stderr, 2) // as Go writes them when it crashes
				}
				if s == syscall.SIGQUIT || last != nil && s != syscall.SIGHUP {
					a.leave()
				}
				a.shutDown(cancel)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// shutDown ends what is in progress in order.
func (a *app) shutDown(cancel func()) {
	i := &a.interrupt
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.run != nil && !i.closed {
		i.closed = true
		close(i.run)
	}
	if !i.started {
		cancel()
	}
}

// leave ends the process although steps may be in flight: their intents are in the journal.
func (a *app) leave() {
	if a.hasStarted() {
		fmt.Fprintln(a.sys.Stderr, "\nStopped immediately. Steps in progress may still take effect; resume the run with: converge resume")
	}
	a.sys.Exit(a.interrupted())
}

// running records that from now on the first signal ends a run in order.
func (a *app) running() (interrupt <-chan struct{}) {
	i := &a.interrupt
	i.mu.Lock()
	defer i.mu.Unlock()
	i.run = make(chan struct{})
	if a.signal.Load() != nil {
		i.closed = true
		close(i.run)
	}
	return i.run
}

// started records that the run carries out steps.
func (a *app) started() {
	a.interrupt.mu.Lock()
	defer a.interrupt.mu.Unlock()
	a.interrupt.started = true
}

func (a *app) hasStarted() bool {
	a.interrupt.mu.Lock()
	defer a.interrupt.mu.Unlock()
	return a.interrupt.started
}
