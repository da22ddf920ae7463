package sysfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"converge.dev/converge/providers"
)

// Poll is how often a watch reads all objects by default. The kernel sends no event when an attribute is written, such as a driver
// override or the size of a pool.
const Poll = time.Second

// watch implements [providers.Watch]. Objects are read when the kernel sends an event, and again now and then; what differs is reported.
func (k *kind) watch(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		changes := providers.NewChanges()
		look := make(chan struct{}, 1)
		ctx, stop := context.WithCancelCause(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer stop(nil)
		if k.kernel.Events != nil {
			end, err := k.kernel.Events(func() {
				select {
				case look <- struct{}{}:
				default:
				}
			})
			if err != nil {
				yield(nil, err)
				return
			}
			defer end()
		}
		seen, err := k.shown() // before the caller looks for the first time: what changes after that look differs from it
		if err != nil {
			yield(nil, err)
			return
		}
		running.Go(func() { changes.End(k.poll(ctx, seen, look, changes)) })
		changes.Each(ctx, yield)
	}
}

// poll reports what differs from one look to the next.
func (k *kind) poll(ctx context.Context, seen map[string]string, look <-chan struct{}, changes *providers.Changes) error {
	every := k.kernel.Poll
	if every == 0 {
		every = Poll
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		case <-look:
		}
		var err error
		if seen, err = changes.Look(seen, k.shown); err != nil {
			return err
		}
	}
}

// shown returns what a look shows of all objects.
func (k *kind) shown() (map[string]string, error) {
	things, err := k.observe(nil)
	return providers.Shown(things), err
}

// pciEvents calls changed after each event of a PCI function, such as that a driver was bound to it, until end is called.
func pciEvents(changed func()) (end func(), err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("the events of the kernel: %w", err)
	}
	f := os.NewFile(uintptr(fd), "uevents")
	const kernel = 1 // the group of events that come from the kernel itself
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernel}); err != nil {
		return nil, errors.Join(fmt.Errorf("the events of the kernel: %w", err), f.Close())
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		message := make([]byte, 64<<10)
		for {
			n, err := f.Read(message)
			switch {
			case errors.Is(err, unix.ENOBUFS): // events were lost
				changed()
			case err != nil:
				return
			case bytes.Contains(message[:n], []byte("\x00SUBSYSTEM=pci\x00")):
				changed()
			}
		}
	})
	return func() {
		_ = f.Close()
		reading.Wait()
	}, nil
}
