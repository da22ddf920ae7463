package api

import (
	"net"
	"sync"
	"sync/atomic"
)

// A capped listener closes connections at once that are more than max at a time. It goes on accepting meanwhile: connections that
// nobody accepts would wait in the kernel, and so would those who look whether the process lives.
type capped struct {
	net.Listener
	max  int64
	open atomic.Int64
}

// Accept implements [net.Listener].
func (l *capped) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.max {
			return &counted{Conn: c, gone: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		_ = c.Close() // nothing was sent on it
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	gone func()
}

// Close implements [net.Conn].
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.gone()
	return err
}
