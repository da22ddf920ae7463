package carbide

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/spec"
)

// numbers is a complete wire: the objects are the numbers below a limit.
type numbers struct {
	wire[int, spec.VPC]
	lists atomic.Int64
	limit atomic.Int64
	hold  chan struct{}
}

func (*numbers) thing(o int) providers.Thing { return providers.Thing{ID: string(rune('a' + o))} }

func (n *numbers) all(ctx context.Context) ([]int, error) {
	n.lists.Add(1)
	var all []int
	for i := range n.limit.Load() {
		all = append(all, int(i))
	}
	select {
	case <-n.hold:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A reader that asks while a list is in progress shares the next one, which has what happened before it asked.
func TestReadersShareTheNextList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &numbers{hold: make(chan struct{})}
		n.limit.Store(1)
		r := &reader[int]{wire: n}
		var readers sync.WaitGroup
		read := func(want int) {
			readers.Go(func() {
				if l, err := r.read(t.Context()); err != nil || len(l.objects) != want || len(l.byID) != want {
					t.Errorf("read %v, %v; want %d", l, err, want)
				}
			})
		}
		read(1)
		synctest.Wait() // the first list is in progress, and does not know of what follows
		n.limit.Store(2)
		for range 10 {
			read(2)
		}
		synctest.Wait()
		close(n.hold)
		readers.Wait()
		if lists := n.lists.Load(); lists != 2 {
			t.Errorf("%d lists were fetched for 11 readers, want 2", lists)
		}
	})
}

// A list without waiting readers ends, and the next reader gets one.
func TestReadersThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &numbers{hold: make(chan struct{})}
		n.limit.Store(3)
		r := &reader[int]{wire: n}
		ctx, leave := context.WithCancelCause(t.Context())
		var readers sync.WaitGroup
		left := errors.New("left")
		for range 3 { // one in progress, and one that was not begun
			readers.Go(func() {
				if l, err := r.read(ctx); !errors.Is(err, left) {
					t.Errorf("read %v, %v; want that it left", l, err)
				}
			})
			synctest.Wait()
		}
		leave(left)
		readers.Wait()
		synctest.Wait()
		if r.busy || r.next != nil {
			t.Error("somebody works on a list that nobody waits for")
		}
		close(n.hold)
		if l, err := r.read(t.Context()); err != nil || len(l.objects) != 3 {
			t.Errorf("read %v, %v; want 3", l, err)
		}
	})
}
