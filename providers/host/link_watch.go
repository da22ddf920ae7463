package host

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"converge.dev/converge/providers"
)

// watch implements [providers.Watch]. Everything is read again when the kernel tells of a change, for a change of one link shows at
// others, such as that of a port at its bridge; what differs is reported. So nothing is missed when the kernel has lost what it was
// to tell: it says that it has.
func (k *links) watch(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		look := make(chan struct{}, 1)
		events, err := k.network.events()
		if err != nil {
			yield(nil, err)
			return
		}
		ctx, stop := context.WithCancelCause(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer stop(nil)
		defer events.Close()
		seen, err := k.shown() // before the caller looks for the first time: what changes after that look differs from it
		if err != nil {
			yield(nil, err)
			return
		}
		changes := providers.NewChanges()
		running.Go(func() {
			if err := listen(events, look); ctx.Err() == nil {
				stop(err)
			}
		})
		running.Go(func() { changes.End(k.follow(ctx, seen, look, changes)) })
		changes.Each(ctx, yield)
	}
}

// follow reports what differs from one look to the next.
func (k *links) follow(ctx context.Context, seen map[string]string, look <-chan struct{}, changes *providers.Changes) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look:
		}
		var err error
		if seen, err = changes.Look(seen, k.shown); err != nil {
			return err
		}
	}
}

func (k *links) shown() (map[string]string, error) {
	things, err := k.observe(nil)
	return providers.Shown(things), err
}

// events opens a socket on which the kernel tells of links, addresses and routes.
func (n *Network) events() (f *os.File, err error) {
	groups := []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}
	err = n.within(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "rtnetlink")
		address := unix.SockaddrNetlink{Family: unix.AF_NETLINK}
		for _, g := range groups {
			address.Groups |= 1 << (g - 1)
		}
		if err := unix.Bind(fd, &address); err != nil {
			return errors.Join(err, f.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the events of the kernel: %w", err)
	}
	return f, nil
}

// listen asks for a look after each event that may concern an object, until the socket is closed.
func listen(events *os.File, look chan<- struct{}) error {
	message := make([]byte, 64<<10)
	for {
		n, err := events.Read(message)
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were lost
		case err != nil:
			return fmt.Errorf("the events of the kernel: %w", err)
		case !concerns(message[:n]):
			continue
		}
		select {
		case look <- struct{}{}:
		default:
		}
	}
}

// concerns reports whether events may be of what objects show. A node with a routing protocol has very many routes of others.
func concerns(message []byte) bool {
	events, err := syscall.ParseNetlinkMessage(message)
	if err != nil {
		return true
	}
	for _, e := range events {
		switch e.Header.Type {
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			if len(e.Data) < unix.SizeofRtMsg {
				return true
			}
			if r := nl.DeserializeRtMsg(e.Data); r.Protocol == unix.RTPROT_STATIC {
				return true
			}
		default:
			return true
		}
	}
	return false
}
