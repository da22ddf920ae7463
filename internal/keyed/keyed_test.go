package keyed

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestMutex(t *testing.T) {
	var m Mutex
	var inside int // guarded by the key: the race detector is the test
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			done, err := m.Lock(t.Context(), "vpc")
			if err != nil {
				t.Error(err)
				return
			}
			defer done()
			if inside++; inside != 1 {
				t.Errorf("%d hold the key at once", inside)
			}
			inside--
		})
	}
	wg.Wait()

	done, err := m.Lock(t.Context(), "vpc")
	if err != nil {
		t.Fatal(err)
	}
	other, err := m.Lock(t.Context(), "another")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Lock(ctx, "vpc"); err == nil {
		t.Error("the key was given while another held it")
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("waiting in vain fails with %v", err)
	}
	done()
	if len(m.busy) != 0 {
		t.Errorf("%d keys are kept", len(m.busy))
	}
}
