package guard

import (
	"context"
	"net"
)

// Listening returns options of a program that listens on l.
func (o Options) Listening(l net.Listener) Options {
	o.listen = func() (net.Listener, error) { return l, nil }
	return o
}

// Cutting returns options of a program that calls at before and after each change of its directory, which fails when at does.
func (o Options) Cutting(at func(moment, op, name string) error) Options {
	o.at = at
	return o
}

// DialWith returns a client that connects by dial.
func DialWith(dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{"a test", dial}
}
