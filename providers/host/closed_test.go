package host

import (
	"errors"
	"sync"
	"testing"
)

// What is looking while the provider is closed ends its look, or is told.
func TestClosedMeanwhile(t *testing.T) {
	n, err := OpenNetwork(NetworkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var looking sync.WaitGroup
	looked := make(chan struct{}, 1)
	for range 4 {
		looking.Go(func() {
			for {
				_, err := n.look()
				switch {
				case errors.Is(err, errClosed):
					return
				case err != nil:
					t.Error(err)
					return
				}
				select {
				case looked <- struct{}{}:
				default:
				}
			}
		})
	}
	<-looked
	n.close()
	looking.Wait()
}
