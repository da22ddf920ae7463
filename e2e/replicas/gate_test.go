package replicas

import (
	"net"
	"sync"
	"time"

	"converge.dev/converge/internal/loopback"
)

// A gate stands before a server. It holds back what goes in a direction that is shut, and lets it pass when that is opened: so do networks
// whose packets are lost for a while and sent again.
type gate struct {
	address string // of the gate
	target  string // of the server

	in, out valve // to the server, and back

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once the gate is gone
}

// A valve lets pass, or does not.
type valve struct {
	mu   sync.Mutex
	open chan struct{} // nil while it lets pass; closed when it does again
}

// shut holds back what comes from now on, until it is opened.
func (v *valve) shut(is bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case is && v.open == nil:
		v.open = make(chan struct{})
	case !is && v.open != nil:
		close(v.open)
		v.open = nil
	}
}

// pass waits until the valve is open.
func (v *valve) pass() {
	for {
		v.mu.Lock()
		open := v.open
		v.mu.Unlock()
		if open == nil {
			return
		}
		<-open
	}
}

// newGate opens a gate before a server.
func newGate(s *site, target string) *gate {
	s.Helper()
	g := &gate{target: target, conns: map[net.Conn]bool{}}
	g.address = loopback.Address(s)
	var l net.Listener
	s.until("the gate listens", func() (ok bool) { // a process that is just being started may still have the address
		var err error
		l, err = net.Listen("tcp", g.address)
		return err == nil
	})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { g.relay(c) })
		}
	})
	s.Cleanup(func() {
		l.Close()
		g.mu.Lock()
		all := g.conns
		g.conns = nil
		g.mu.Unlock()
		for c := range all {
			c.Close()
		}
		g.in.shut(false)
		g.out.shut(false)
		running.Wait()
	})
	return g
}

// cut shuts both directions, or opens them.
func (g *gate) cut(is bool) {
	g.in.shut(is)
	g.out.shut(is)
}

// reset ends all connections, as a firewall does that has forgotten them.
func (g *gate) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.Close()
		delete(g.conns, c)
	}
}

// own makes a connection one of those that reset and the end of the gate close; false when the gate is gone.
func (g *gate) own(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		c.Close()
		return false
	}
	g.conns[c] = true
	return true
}

func (g *gate) disown(c net.Conn) {
	c.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

func (g *gate) relay(client net.Conn) {
	if !g.own(client) {
		return
	}
	defer g.disown(client)
	server := g.dial(client)
	if server == nil {
		return
	}
	defer g.disown(server)
	var back sync.WaitGroup
	back.Go(func() { pump(client, server, &g.out) })
	pump(server, client, &g.in)
	back.Wait()
}

// dial connects to the server. While that is not there the gate is silent, as a host is that has lost its power, until the client may give up.
func (g *gate) dial(client net.Conn) net.Conn {
	for until := time.Now().Add(8 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		g.mu.Lock()
		there := g.conns[client]
		g.mu.Unlock()
		if !there {
			return nil
		}
		if server, err := net.Dial("tcp", g.target); err == nil {
			if !g.own(server) {
				return nil
			}
			return server
		}
	}
	return nil
}

// pump forwards one direction until a side closes, and then ends both.
func pump(to, from net.Conn, v *valve) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		v.pass()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
