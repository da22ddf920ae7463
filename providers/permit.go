package providers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// A Permit says whether this process may still act on the far side. While the engine works under the site lock, it binds
// the permit to the proof that the lock is held, which uses the clock and not the store. It is checked where bytes are
// sent, after the last wait: a process that was suspended in any wait finds that out before its next byte.
//
// The zero Permit, and a nil one, permit everything until they are bound.
type Permit struct {
	mu    sync.Mutex
	proof func() error
	term  int // rises with each binding that ended without proof: connections of earlier terms are dead
}

// Bind makes the permit valid while proof returns nil. Release ends that; if the proof fails by then, connections that
// were made before never write again, whatever is still in their buffers.
func (p *Permit) Bind(proof func() error) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proof = proof
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if proof() != nil {
			p.term++
		}
		p.proof = nil
	}
}

// Check fails when the process may no longer act.
func (p *Permit) Check() error {
	_, err := p.check()
	return err
}

func (p *Permit) check() (term int, err error) {
	if p == nil {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proof != nil {
		err = p.proof()
	}
	return p.term, err
}

// Dialer returns a dialer whose connections write only while the permit is valid. A connection whose write was refused is
// closed, so that nothing in its buffers is sent later.
func (p *Permit) Dialer(dial func(ctx context.Context, address string) (net.Conn, error)) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		term, err := p.check()
		if err != nil {
			return nil, err
		}
		conn, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		return &permitted{conn, p, term}, nil
	}
}

type permitted struct {
	net.Conn
	permit *Permit
	term   int
}

func (c *permitted) Write(b []byte) (int, error) {
	term, err := c.permit.check()
	if err == nil && term != c.term {
		err = errors.New("this connection was made under a site lock that has since been lost")
	}
	if err != nil {
		c.Conn.Close()
		return 0, fmt.Errorf("write to %s: %w", c.Conn.RemoteAddr(), err)
	}
	return c.Conn.Write(b)
}
