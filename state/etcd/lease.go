package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"converge.dev/converge/state"
)

// lease keeps an etcd lease alive. The client library does that too, but does not report when it sent a keepalive, and
// the lease is certain only from that time on.
type lease struct {
	kv  *kv
	id  clientv3.LeaseID
	ttl time.Duration

	mu    sync.Mutex
	asked moment // when the last answered keepalive was sent

	done   chan struct{} // closed when the lease is known to be gone
	stop   context.CancelFunc
	keeper sync.WaitGroup
}

// A moment is a point in time on two clocks: the monotonic one, which Go's timers follow, stands still while the machine
// is suspended; boot time does not, nor does the clock of the far side.
type moment struct {
	at   time.Time
	boot time.Duration
}

func now() moment {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("etcd: read the boot clock: %v", err)) // every Linux has it
	}
	return moment{time.Now(), time.Duration(t.Nano())}
}

// suspended returns how long the machine stood still between two moments.
func (m moment) suspended(later moment) time.Duration {
	return max(0, (later.boot-m.boot)-later.at.Sub(m.at))
}

// Lease implements state.KV. The ttl is rounded up to whole seconds on the far side.
func (kv *kv) Lease(ctx context.Context, ttl time.Duration) (state.Lease, error) {
	if err := kv.ready(ctx); err != nil {
		return nil, err
	}
	call, cancel := kv.call(ctx)
	defer cancel()
	var (
		asked moment
		id    clientv3.LeaseID
	)
	err := kv.insist(call, func(ctx context.Context) (err error) { // a lease that no process knows of runs out
		asked = now()
		id, err = kv.grant(ctx, int64((ttl+time.Second-1)/time.Second))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get a lease: %w", kv.failed(ctx, err))
	}
	l := &lease{kv: kv, id: id, ttl: ttl, asked: asked, done: make(chan struct{})}
	life, stop := context.WithCancel(kv.life)
	l.stop = stop
	l.keeper.Go(func() { l.keep(life) })
	return l, nil
}

// grant requests a lease of so many seconds. In a shared directory its id identifies the owner.
func (kv *kv) grant(ctx context.Context, seconds int64) (id clientv3.LeaseID, err error) {
	if kv.share == nil {
		resp, err := kv.client.Grant(ctx, seconds)
		if err != nil {
			return 0, err
		}
		return resp.ID, nil
	}
	err = anew.Do(ctx, func() (over bool, err error) {
		if id, err = kv.share.lease(); err != nil {
			return true, err
		}
		_, err = kv.leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: seconds, ID: int64(id)})
		if err != nil && kv.life.Err() != nil {
			return true, context.Cause(kv.life)
		}
		return code(err) != codes.Unavailable || ctx.Err() != nil, err
	})
	return id, err
}

// keep renews the lease, three times per ttl, until it is closed or gone.
func (l *lease) keep(life context.Context) {
	pause := time.NewTimer(l.ttl / 3)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-life.Done():
			return
		}
		call, cancel := context.WithTimeout(life, l.ttl/3)
		asked := now()
		gone, err := l.ask(call)
		cancel()
		if gone {
			close(l.done)
			return
		}
		if err == nil && l.kv.share != nil {
			err = l.kv.share.proven() // even while nothing is written
		}
		if err == nil {
			l.mu.Lock()
			l.asked = asked
			l.mu.Unlock()
		}
		// After a failure renew again soon: there is no time to lose, and the call itself waits.
		next := l.ttl/3 - time.Since(asked.at)
		if err != nil {
			next = min(l.ttl/20, 250*time.Millisecond)
		}
		pause.Reset(max(next, 0))
	}
}

// ask sends one keepalive and waits for the answer; gone reports that there is no such lease. It waits for a broken
// connection to come back, where the client library would try again without a pause.
func (l *lease) ask(ctx context.Context) (gone bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := l.kv.leases.LeaseKeepAlive(ctx, grpc.WaitForReady(true))
	if err != nil {
		return false, err
	}
	if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
		return false, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return false, err
	}
	return resp.TTL <= 0, nil
}

// Until implements state.Lease.
func (l *lease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked.at.Add(l.ttl - state.Margin(l.ttl) - l.asked.suspended(now()))
}

// Done implements state.Lease.
func (l *lease) Done() <-chan struct{} { return l.done }

// Close implements state.Lease.
func (l *lease) Close() error {
	l.stop()
	l.keeper.Wait()
	if err := context.Cause(l.kv.life); err != nil {
		return nil // a closed backend has abandoned its leases
	}
	// Do not wait long for this: a lease that cannot be revoked runs out.
	call, cancel := context.WithTimeout(l.kv.life, min(l.ttl, openTimeout))
	defer cancel()
	err := l.kv.insist(call, func(ctx context.Context) error { // a lease that is already revoked is not found
		_, err := l.kv.client.Revoke(ctx, l.id)
		return err
	})
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke a lease: %w", l.kv.failed(call, err))
	}
	return nil
}
