package engine

import (
	"context"
	"time"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/state"
)

// cancelPause is how often the holder of the lock checks whether it was asked to end its run.
const cancelPause = time.Second

// cancellable returns a context that ends, with an [apply.CancelledError], when somebody asks through the store to end the run
// of this holder. Release stops the checking.
func (e *Engine) cancellable(ctx context.Context, lock *state.Lock) (_ context.Context, release func()) {
	ctx, end := context.WithCancelCause(ctx)
	look, stop := context.WithCancel(lock.Context(context.WithoutCancel(ctx)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pause := time.NewTicker(cancelPause)
		defer pause.Stop()
		for {
			select {
			case <-look.Done():
				return
			case <-pause.C:
			}
			read, done := context.WithTimeout(look, cancelPause)
			asked, err := lock.Asked(read, state.ToCancel)
			done()
			if err != nil {
				e.o.Logger.Debug("failed to check whether the run is cancelled", "error", err)
			} else if asked != nil {
				end(&apply.CancelledError{By: asked.By})
				return
			}
		}
	}()
	return ctx, func() { stop(); <-ended; end(nil) }
}
