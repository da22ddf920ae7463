package engine

import (
	"context"
	"sync/atomic"
	"time"

	"converge.dev/converge/state"
)

// cancelPause is how often the holder of the lock looks whether it was asked to end its run.
const cancelPause = time.Second

// A watch waits for an interrupt of this process, or for a request in the store.
type watch struct {
	interrupt chan struct{}
	by        atomic.Pointer[string] // who asked through the store
	end       chan struct{}
	ended     chan struct{}
}

// watch begins to wait; whoever asked for it closes it.
func (e *Engine) watch(ctx context.Context, lock *state.Lock, interrupt <-chan struct{}) *watch {
	w := &watch{interrupt: make(chan struct{}), end: make(chan struct{}), ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(lock.Context(context.WithoutCancel(ctx)))
	go func() {
		defer close(w.ended)
		defer cancel()
		pause := time.NewTicker(cancelPause)
		defer pause.Stop()
		for {
			select {
			case <-interrupt:
				close(w.interrupt)
				return
			case <-w.end:
				return
			case <-pause.C:
			}
			read, done := context.WithTimeout(ctx, cancelPause)
			asked, err := lock.Cancelled(read)
			done()
			if err != nil {
				e.o.Logger.Debug("looking whether the run is cancelled", "error", err)
			} else if asked != nil {
				w.by.Store(&asked.By)
				close(w.interrupt)
				return
			}
		}
	}()
	return w
}

// asked tells who asked through the store; empty when nobody did.
func (w *watch) asked() string {
	if by := w.by.Load(); by != nil {
		return *by
	}
	return ""
}

func (w *watch) close() {
	close(w.end)
	<-w.ended
}
