package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"converge.dev/converge/providers"
)

// A Client talks to the program of a directory. It connects for each call. Its methods may be called concurrently; their errors are of
// type [*providers.Error].
type Client struct {
	where string
	dial  func(ctx context.Context) (net.Conn, error)
}

// Dial returns a client of the program that serves dir. It does not connect yet.
func Dial(dir string) *Client {
	path := filepath.Join(dir, socketName)
	return &Client{path, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) }}
}

// Open lists the guards without a verdict, and those that failed, ordered by id. It changes nothing.
func (c *Client) Open(ctx context.Context) ([]Open, error) {
	r, err := c.call(ctx, request{Op: "open"})
	return r.Open, err
}

// Settle ends a guard as providers.Provider.Settle says, but for the connection to the far side, which is up to the caller. It waits until
// the changes are undone when they are not kept.
func (c *Client) Settle(ctx context.Context, s providers.Settling) (kept bool, err error) {
	r, err := c.call(ctx, request{Op: "settle", ID: s.ID, Epoch: s.Epoch, Keep: s.Keep})
	return r.Kept && err == nil, err
}

// Fence undoes the changes of guards that were armed in an epoch before this one, and waits until that is done. From then on the program
// refuses to arm changes of such an epoch, until it ends: what stores the epoch durably is the fence of a provider.
func (c *Client) Fence(ctx context.Context, epoch int64) error {
	_, err := c.call(ctx, request{Op: "fence", Epoch: epoch})
	return err
}

// connect sends a request.
func (c *Client) connect(ctx context.Context, r request) (*lines, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, &providers.Error{Op: r.Op, Class: providers.Transient, Err: fmt.Errorf("the guard of this node cannot be reached at %s: %w; start it: converge agent guard", c.where, err)}
	}
	r.Version = version
	l := newLines(conn)
	if err := l.write(r); err != nil {
		return nil, errors.Join(c.lost(r.Op, err), conn.Close())
	}
	return l, nil
}

// lost is the error of a connection that ended early.
func (c *Client) lost(op string, err error) error {
	return &providers.Error{Op: op, Class: providers.Transient, Err: fmt.Errorf("%w (%s): %w", errLost, c.where, err)}
}

// errLost says that a request was sent, and that nobody knows what came of it.
var errLost = errors.New("the guard of this node does not answer")

func (c *Client) call(ctx context.Context, r request) (reply, error) {
	l, err := c.connect(ctx, r)
	if err != nil {
		return reply{}, err
	}
	defer l.conn.Close()
	defer context.AfterFunc(ctx, func() { _ = l.conn.Close() })()
	var out reply
	if err := l.read(&out); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return reply{}, c.lost(r.Op, err)
	}
	return out, out.Failure.error(r.Op)
}

// error returns a failure as an error.
func (f *failure) error(op string) error {
	if f == nil {
		return nil
	}
	e := &providers.Error{Op: op, Class: f.Class, Err: errors.New(f.Text)}
	if f.Stored != 0 {
		e.Err = &providers.OutdatedError{On: "the guard", Stored: f.Stored, Epoch: f.Asked}
	}
	return e
}

// An arming is a change that is armed, while its call is in progress.
type arming struct {
	client *Client
	l      *lines
	over   chan struct{} // closed when the call is to end
	last   chan reply    // the reply to its ending; closed with the connection
}

// arm arms a change. When it fails, nothing is armed, except that with a lost connection the program may have armed what is never done.
func (c *Client) arm(ctx context.Context, r request) (*arming, error) {
	l, err := c.connect(ctx, r)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	var first reply
	if err := l.read(&first); err != nil || !stop() {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, errors.Join(c.lost(r.Op, err), l.conn.Close())
	}
	if err := first.Failure.error(r.Op); err != nil {
		return nil, errors.Join(err, l.conn.Close())
	}
	a := &arming{c, l, make(chan struct{}), make(chan reply, 1)}
	go func() { // ends with the connection
		defer close(a.last)
		told := false
		for {
			var r reply
			err := l.read(&r)
			if (err != nil || r.Over) && !told {
				told = true
				close(a.over)
			}
			if err != nil {
				return
			}
			if !r.Over {
				a.last <- r
				return
			}
		}
	}()
	return a, nil
}

// end tells how the call ended. Without an error the program has taken note of it.
func (a *arming) end(e ending) error {
	if err := a.l.write(e); err != nil {
		return a.client.lost("arm", err)
	}
	t := time.NewTimer(readIn)
	defer t.Stop()
	select {
	case r, ok := <-a.last:
		if !ok {
			return a.client.lost("arm", errors.New("the connection has ended"))
		}
		return r.Failure.error("arm")
	case <-t.C:
		return a.client.lost("arm", context.DeadlineExceeded)
	}
}

// close ends the connection. For the program the call has then ended, and may still have an effect unless end has said otherwise.
func (a *arming) close() {
	_ = a.l.conn.Close()
	for range a.last { // until the reader has ended
	}
}
