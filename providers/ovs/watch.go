package ovs

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"converge.dev/converge/providers"
)

// watch implements [providers.Watch]. Its events have no ids: most changes come with a new cur_cfg, which may end the waiting of
// any number of things, and one transaction reads all things as well as one. It ends with its connection.
func (k *kind) watch(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		changes := providers.NewChanges()
		k.mu.Lock()
		// Of a table that is named twice, the client monitors what is named last.
		c, err := k.dial(ctx, func() { changes.Add() }, slices.Concat([]reading{rootRows}, k.noun.reads())...)
		k.mu.Unlock()
		if err != nil {
			yield(nil, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		var probing sync.WaitGroup
		probing.Go(func() { changes.End(k.probe(ctx, c)) })
		defer probing.Wait()
		defer c.drop()
		defer cancel()
		changes.Each(ctx, yield)
	}
}

// probe returns once the connection is lost; a far side that hangs or is gone without a word does not answer.
func (k *kind) probe(ctx context.Context, c *conn) error {
	tick := time.NewTicker(k.Settle)
	defer tick.Stop()
	for {
		select {
		case <-c.lost:
			return errLost
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(ctx, k.Settle)
		err := c.client.Echo(limited)
		cancel()
		if err != nil {
			return err
		}
	}
}
