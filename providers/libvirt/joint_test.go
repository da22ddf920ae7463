package libvirt

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Those who ask while one reads share the next reading; nobody gets one that began before it asked, or that ended because another caller
// has gone.
func TestJoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j joint[int]
		var began atomic.Int64
		read := func() (int, error) {
			n := began.Add(1)
			time.Sleep(time.Second)
			return int(n), nil
		}
		var all sync.WaitGroup
		ask := func(ctx context.Context, how func() (int, error), want int, says string) {
			before := int(began.Load())
			all.Go(func() {
				n, err := j.read(ctx, how)
				if n != want || (err == nil) != (says == "") || err != nil && err.Error() != says {
					t.Errorf("it got reading %d, %v; want %d, %q", n, err, want, says)
				}
				if err == nil && n <= before {
					t.Errorf("it got reading %d, which began before it asked", n)
				}
			})
			synctest.Wait()
		}
		ask(t.Context(), read, 1, "")
		for range 5 {
			ask(t.Context(), read, 2, "")
		}
		all.Wait()

		gone, leave := context.WithCancelCause(t.Context())
		ask(gone, func() (int, error) { began.Add(1); <-gone.Done(); return 0, context.Cause(gone) }, 0, "gone")
		for range 3 {
			ask(t.Context(), read, 4, "")
		}
		leave(errors.New("gone"))
		all.Wait()

		broken := func() (int, error) { began.Add(1); time.Sleep(time.Second); return 0, errors.New("broken") }
		ask(t.Context(), read, 5, "")
		for range 2 {
			ask(t.Context(), broken, 0, "broken")
		}
		all.Wait()
		if began.Load() != 6 {
			t.Errorf("%d readings, want 6", began.Load())
		}
		if n, ok := j.recent(4 * time.Second); !ok || n != 5 { // it took one second, and the one that broke another two
			t.Errorf("the newest reading is %d (%t), want 5", n, ok)
		}
		if n, ok := j.recent(time.Second); ok {
			t.Errorf("reading %d counts as recent", n)
		}
		all.Go(func() { _, _ = j.read(t.Context(), read) })
		time.Sleep(time.Second / 2)
		j.forget()
		all.Wait()
		if n, ok := j.recent(time.Hour); ok {
			t.Errorf("reading %d counts as recent, though what it saw has changed meanwhile", n)
		}
	})
}
