package libvirt

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"converge.dev/converge/providers"
)

// watch implements [providers.Watch] with the events of libvirt. It has none of some changes, such as whether an object is started with the
// node, or of the DHCP reservations of a network; so the things are also read every Options.Poll, and what differs is told. It ends
// with its connection.
func (k *kind) watch(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		l, err := k.connect(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		defer l.leave()
		o, ids, _ := k.noun.told()
		changes := providers.NewChanges()
		defer l.notify(o, func(name string) { changes.Add(ids(name)...) })()
		seen, err := k.shown(ctx) // before the caller looks for the first time: what changes after that look differs from it
		if err != nil {
			yield(nil, err)
			return
		}
		ctx, stop := context.WithCancel(ctx)
		var polling sync.WaitGroup
		polling.Go(func() { changes.End(k.poll(ctx, l, seen, changes)) })
		defer polling.Wait()
		defer stop()
		changes.Each(ctx, yield)
	}
}

// poll tells of changes until the connection is lost.
func (k *kind) poll(ctx context.Context, l *link, seen map[string]string, changes *providers.Changes) error {
	tick := time.NewTicker(k.Poll)
	defer tick.Stop()
	for {
		select {
		case <-l.lost():
			return errors.New("the connection to libvirt is lost")
		case <-k.closed:
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		var err error
		if seen, err = changes.Look(seen, func() (map[string]string, error) { return k.shown(ctx) }); err != nil {
			return err
		}
	}
}

// shown returns what a look shows of all things.
func (k *kind) shown(ctx context.Context) (map[string]string, error) {
	things, err := k.observe(ctx, nil)
	return providers.Shown(things), err
}
