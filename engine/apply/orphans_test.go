package apply

import (
	"context"
	"errors"
	"testing"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A step that gives up does not take the list away from those that share it.
func TestCensusIsOfNoStep(t *testing.T) {
	var c sharedList
	at := schema.Place{Scope: "site", Kind: "far.host"}
	since := time.Now()
	begun, goOn := make(chan struct{}), make(chan struct{})
	to := plan.Referent{Kind: "far.guard", ID: "g"}
	look := func() (map[plan.Referent][]*providers.Thing, error) {
		close(begun)
		<-goOn
		return map[plan.Referent][]*providers.Thing{to: {{ID: "x"}}}, nil
	}
	hasty, giveUp := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	first := make(chan error)
	go func() {
		_, err := c.of(hasty, at, since, look)
		first <- err
	}()
	<-begun
	giveUp(enough)
	if err := <-first; !errors.Is(err, enough) {
		t.Errorf("the first has %v", err)
	}
	second := make(chan []*providers.Thing)
	go func() {
		things, err := c.of(t.Context(), at, since, look) // a second observation would close begun again
		if err != nil {
			t.Error(err)
		}
		second <- things[to]
	}()
	close(goOn)
	if things := <-second; len(things) != 1 {
		t.Errorf("the second sees %v", things)
	}
}
