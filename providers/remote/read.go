package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/wire/wirepb"
)

// Limits of what a node is waited for, and of what it can make a site keep: it may hang, or be in the wrong hands.
const (
	answers = 30 * time.Second // a call that reads one thing
	quiet   = time.Minute      // between two pages of a list

	mostThings = 200_000   // in one list
	mostBytes  = 256 << 20 // in one list
)

// errQuiet is why a list ends whose node says nothing more.
var errQuiet = fmt.Errorf("the node has not answered for %v", quiet)

// ask makes a call that only reads.
func (c *conn) ask(ctx context.Context, method string, args, reply any, opts []grpc.CallOption) error {
	far, _, err := c.Line.Conn(ctx)
	if err != nil {
		return unavailable(err)
	}
	within, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	err = far.Invoke(within, method, args, reply, opts...)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		c.silent()
		return status.Errorf(codes.Unavailable, "node %s has not answered for %v", c.Node, answers)
	}
	return err
}

func (c *conn) silent() {
	if c.Silent != nil {
		c.Silent()
	}
}

// NewStream implements grpc.ClientConnInterface. What streams only reads. A list is limited; a watch may say nothing for as long as
// nothing changes.
func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	far, _, err := c.Line.Conn(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	if method == wirepb.Providers_Watch_FullMethodName {
		return far.NewStream(ctx, desc, method, opts...)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	l := &list{conn: c, ctx: ctx, cancel: cancel}
	l.timer = time.AfterFunc(quiet, func() { cancel(errQuiet) })
	if l.ClientStream, err = far.NewStream(ctx, desc, method, opts...); err != nil {
		return nil, l.end(err)
	}
	return l, nil
}

// A list is a stream of pages.
type list struct {
	grpc.ClientStream
	conn   *conn
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer

	things, bytes int
}

// RecvMsg implements grpc.ClientStream.
func (l *list) RecvMsg(m any) error {
	l.timer.Reset(quiet)
	if err := l.ClientStream.RecvMsg(m); err != nil {
		return l.end(err)
	}
	l.timer.Stop() // the caller may take its time
	page, ok := m.(*wirepb.Things)
	if !ok {
		return nil
	}
	l.things += len(page.GetThings())
	l.bytes += proto.Size(page)
	if l.things > mostThings || l.bytes > mostBytes {
		return l.end(status.Errorf(codes.ResourceExhausted, "node %s lists more than %d things or %d MiB of one kind", l.conn.Node, mostThings, mostBytes>>20))
	}
	return nil
}

// end releases what a list holds, and returns why it ended.
func (l *list) end(err error) error {
	l.timer.Stop()
	if errors.Is(context.Cause(l.ctx), errQuiet) {
		l.conn.silent()
		err = status.Errorf(codes.Unavailable, "node %s: %v", l.conn.Node, errQuiet)
	}
	l.cancel(nil)
	return err
}
