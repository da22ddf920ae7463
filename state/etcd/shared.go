package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/state"
)

// look is how often a process checks whether the directory is free, or served again.
const look = 10 * time.Millisecond

// A share is a process's access to a store in a directory: it is a client of the process that serves it, and serves it
// itself when no other does. The client never learns which process that is: its connection breaks, and the next one leads
// elsewhere.
type share struct {
	*directory
	o     Options
	ended func(error) // called when the store can no longer be used

	mu     sync.Mutex
	member *member // nil while another process serves
	err    error   // why this process will not serve
}

// openShared opens the store in o.Dir.
func openShared(ctx context.Context, o Options) (_ state.KV, err error) {
	kv := &kv{place: "the store in " + o.Dir, log: o.Logger}
	kv.life, kv.end = context.WithCancelCause(context.Background())
	d, err := openDirectory(o.Dir, o.Command)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", kv.place, unwritable(err))
	}
	kv.share = &share{directory: d, o: o, ended: kv.end}
	kv.close = func() error {
		if kv.client != nil {
			_ = kv.client.Close() // returns that it was cancelled, which is how closing works
		}
		return kv.share.close()
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open %s: %w", kv.place, unwritable(err)), kv.Close())
		}
	}()
	kv.share.mu.Lock()
	first, err := kv.share.takeOver(ctx, false)
	kv.share.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if first { // no need to go through the socket
		server := kv.share.member.server.Server
		kv.client = v3client.New(server)
		kv.leases = adapter.LeaseServerToLeaseClient(v3rpc.NewQuotaLeaseServer(server))
	} else if err := kv.join(ctx); err != nil {
		return nil, err
	}
	return kv, kv.endLeases(ctx)
}

// join creates the client of a store that another process serves.
func (kv *kv) join(ctx context.Context) error {
	wait, cancel := context.WithTimeoutCause(ctx, startTimeout, context.DeadlineExceeded)
	defer cancel()
	conn, err := kv.share.dial(wait) // that process may only just have started
	if err != nil {
		return err
	}
	_ = conn.Close()
	kv.client, err = clientv3.New(clientv3.Config{
		Endpoints:            []string{"http://store"}, // a name for messages
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		Logger:               zap.New(logCore{kv.share.o.Logger}),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return kv.share.dial(ctx) }),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: look, Multiplier: 1.6, MaxDelay: time.Second},
				MinConnectTimeout: openTimeout,
			}),
		},
	})
	if err != nil {
		return err
	}
	kv.leases = etcdserverpb.NewLeaseClient(kv.client.ActiveConnection())
	ask, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if _, err := kv.client.Get(ask, "/converge/", clientv3.WithKeysOnly()); err != nil {
		return errors.Join(context.Cause(ctx), kv.unanswered(ctx, err))
	}
	return kv.share.remember() // not the data file, which the next serving process may write anew
}

// dial connects to the process that serves the store, which is this one from now on if no other does. It waits while
// that changes: a call that was not sent yet then goes to the next one.
func (s *share) dial(ctx context.Context) (net.Conn, error) {
	var conn net.Conn
	err := retry.Policy{First: look}.Do(ctx, func() (over bool, err error) {
		if conn, err = s.reach(ctx); err != nil {
			s.ended(err)
		}
		return conn != nil || err != nil, err
	})
	if conn == nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return nil, s.holder()
	}
	return conn, err
}

// reach connects to the process that serves the store at this moment. There is no connection while that changes.
func (s *share) reach(ctx context.Context) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", s.socket())
	if err == nil {
		return conn, nil
	}
	// What is started goes on when the caller is cancelled: it serves all callers.
	if took, err := s.takeOver(context.WithoutCancel(ctx), true); err != nil || !took {
		return nil, err
	}
	conn, err = dialer.DialContext(ctx, "unix", s.socket())
	if err != nil { // it took longer than the caller may wait; the next caller finds it
		return nil, nil
	}
	return conn, nil
}

// takeOver serves the store, if no other process does. The caller holds s.mu.
func (s *share) takeOver(ctx context.Context, takeover bool) (bool, error) {
	if s.err != nil || s.member != nil {
		return false, s.err
	}
	took, err := s.tryLock()
	if err != nil || !took {
		return false, err
	}
	m, err := startMember(ctx, s.o, s.directory, takeover, s.ended)
	if takeover && errors.As(err, new(*NoAnswerError)) { // the process that served before is about to end
		return false, s.unlock()
	}
	s.member, s.err = m, err
	return err == nil, err
}

// proven fails, and ends the store for this process, when its files are no longer where they were: what was just written is lost.
func (s *share) proven() error {
	err := s.kept()
	if err != nil {
		s.ended(err)
	}
	return err
}

func (s *share) serves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.member != nil
}

// close leaves the store to the others.
func (s *share) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errClosed
	if s.member != nil {
		s.member.close()
	}
	return s.directory.Close()
}

// endLeases ends the leases of processes that are gone according to the kernel, so that nothing has to wait for them to run out.
func (kv *kv) endLeases(ctx context.Context) error {
	ctx, cancel := kv.call(ctx)
	defer cancel()
	leases, err := kv.client.Leases(ctx)
	if err != nil {
		return explain(ctx, err)
	}
	for _, l := range leases.Leases {
		gone, err := kv.share.gone(l.ID)
		if err != nil {
			return fmt.Errorf("find the owner of a lease: %w", err)
		}
		if !gone {
			continue
		}
		if _, err := kv.client.Revoke(ctx, l.ID); err != nil && !refused(err) { // another process was faster
			return explain(ctx, err)
		}
	}
	return nil
}

// unanswered adds to the error of a call that another process did not answer which process that is.
func (kv *kv) unanswered(ctx context.Context, err error) error {
	if kv.share == nil {
		return explain(ctx, err)
	}
	if away := kv.share.proven(); away != nil {
		return away
	}
	if !kv.share.serves() && silent(err) {
		return fmt.Errorf("%w (%w)", kv.share.holder(), err)
	}
	return explain(ctx, err)
}
