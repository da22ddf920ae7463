package carbide

import (
	"context"
	"sync"
	"testing"
)

func TestTurns(t *testing.T) {
	var orders turns
	var inside int // guarded by the turns: the race detector is the test
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			done, err := orders.take(t.Context(), "vpc")
			if err != nil {
				t.Error(err)
				return
			}
			defer done()
			if inside++; inside != 1 {
				t.Errorf("%d have their turn at once", inside)
			}
			inside--
		})
	}
	wg.Wait()

	done, err := orders.take(t.Context(), "vpc")
	if err != nil {
		t.Fatal(err)
	}
	other, err := orders.take(t.Context(), "another")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := orders.take(ctx, "vpc"); err == nil {
		t.Error("a turn was given while another had it")
	} else if class, _ := answered(err); class != "transient" {
		t.Errorf("waiting in vain has class %q", class)
	}
	done()
	if len(orders.busy) != 0 {
		t.Errorf("%d keys are kept", len(orders.busy))
	}
}
