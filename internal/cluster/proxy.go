package cluster

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

// A proxy stands before a member and forwards traffic, at once or late. Kernels without netem leave no other way to make a
// network slow. It ends with its process.
type proxy struct {
	target string
	delay  atomic.Int64 // mean, in nanoseconds
	late   atomic.Int64 // pieces that were delayed
}

// serve accepts connections until the listener is closed.
func (p *proxy) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go p.relay(conn)
	}
}

func (p *proxy) relay(outer net.Conn) {
	inner, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = outer.Close() // as on a host on which nothing listens
		return
	}
	go p.pump(inner, outer)
	p.pump(outer, inner)
}

// A piece is bytes and the time at which they arrive.
type piece struct {
	at    time.Time
	bytes []byte
}

// pump forwards one direction. It never blocks a sender for longer than the delay, so the bandwidth is unchanged.
func (p *proxy) pump(dst, src net.Conn) {
	defer dst.Close()
	way := make(chan piece, 1024)
	go func() {
		defer close(way)
		var last time.Time // what was sent earlier arrives earlier
		for {
			buf := make([]byte, 32<<10)
			n, err := src.Read(buf)
			if n > 0 {
				at := time.Now()
				if d := p.delay.Load(); d > 0 {
					p.late.Add(1)
					at = at.Add(time.Duration(d/2 + rand.Int64N(d)))
				}
				if at.Before(last) {
					at = last
				}
				last = at
				way <- piece{at, buf[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for m := range way {
		if wait := time.Until(m.at); wait > 0 {
			<-time.After(wait)
		}
		if _, err := dst.Write(m.bytes); err != nil {
			break
		}
	}
	_ = src.Close()
	for range way { // so that the reader can end
	}
}
