package remote_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/providers"
)

// reading returns the site of a node, of whose lists nothing is left but what list yields, and how often it was said to be silent.
func reading(t *testing.T, list func(context.Context, func(providers.Thing, error) bool)) (k providers.Kind, silent *int) {
	n := newNode(t, newWorld())
	n.serve = func() *providers.Provider {
		p := n.world.Provider("lab", nodeName)
		for i := range p.Kinds {
			p.Kinds[i].Kind = lists{p.Kinds[i].Kind, list}
		}
		return p
	}
	n.restart()
	n.connect()
	silent = new(int)
	o := n.site().options
	o.Silent = func() { *silent++ }
	return n.siteWith(o).kind("lab.switch"), silent
}

// lists is a kind whose list is another one.
type lists struct {
	providers.Kind
	list func(context.Context, func(providers.Thing, error) bool)
}

func (l lists) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return func(yield func(providers.Thing, error) bool) { l.list(ctx, yield) }
}

// A list without an end fails before it fills the memory.
func TestEndlessList(t *testing.T) {
	k, _ := reading(t, func(ctx context.Context, yield func(providers.Thing, error) bool) {
		for i := 0; ctx.Err() == nil && yield(providers.Thing{ID: fmt.Sprint(i)}, nil); i++ {
		}
	})
	n := 0
	var err error
	for _, err = range k.List(t.Context()) {
		n++
	}
	if err == nil || !strings.Contains(err.Error(), "lists more than") || n > 250_000 {
		t.Errorf("after %d things: %v", n, err)
	}
}

// A node that does not go on with a list, and one that does not answer a call, are given up.
func TestSilentReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, silent := reading(t, func(ctx context.Context, yield func(providers.Thing, error) bool) {
			if yield(providers.Thing{ID: "1"}, nil) {
				<-ctx.Done()
			}
		})
		began := time.Now()
		things, err := providers.Collect(k.List(t.Context()))
		if providers.ClassOf(err) != providers.Transient || errors.Is(err, context.Canceled) || things != nil || *silent != 1 || time.Since(began) > 2*time.Minute {
			t.Errorf("after %v: %v, %d times silent", time.Since(began), err, *silent)
		}
	})
}
