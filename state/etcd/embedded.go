package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3"

	_ "converge.dev/converge/state/etcd/unmeasured" // must be initialized before those above: see there
)

const (
	keepRevisions  = 1000     // of history; only a long-running List reads an old one
	compactAfter   = 10000    // revisions of history beyond that before a start compacts it
	segmentBytes   = 4 << 20  // of the write-ahead log, preallocated; etcd's own 64 MB make a small site large
	quotaBytes     = 4 << 30  // of the data
	defragMiB      = 64       // of free space in the data file before a start defragments it
	freeSpaceBytes = 64 << 20 // that the disk must have; etcd cannot run without
	tickMs         = 10       // a single member has no others to wait for
	electionMs     = 50       // the minimum that etcd allows for such a tick

	graceful = time.Second // for pending requests of others when the member ends; otherwise they repeat them at the next one
)

// A member is the etcd that runs in this process.
type member struct {
	server *embed.Etcd
	grpc   *grpc.Server
	life   context.Context // ends, with a cause, when etcd cannot go on
	end    func(error)
}

// startMember runs etcd on the data of a directory that the caller has locked, and serves it at its socket. It also
// reports to failed what ends the member unexpectedly. A member that takes over from another does not keep its users
// waiting for a cleanup that can be done another time.
func startMember(ctx context.Context, o Options, d *directory, takeover bool, failed func(error)) (*member, error) {
	m := &member{}
	var end context.CancelCauseFunc
	m.life, end = context.WithCancelCause(context.Background())
	m.end = func(err error) { end(err); failed(err) }
	if err := d.begin(); err != nil {
		return nil, err
	}
	if err := m.start(ctx, o, takeover); err != nil {
		switch {
		case held(err):
			err = d.holder()
		case ctx.Err() == nil:
			err = advised(o.Dir, err)
		}
		return nil, err
	}
	err := tidy(ctx, v3client.New(m.server.Server))
	if err == nil {
		err = d.begun()
	}
	if err == nil {
		err = d.remember(dbName)
	}
	if err == nil {
		err = m.serve(d)
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// serve answers the other processes that use the directory.
func (m *member) serve(d *directory) error {
	listener, err := d.listen()
	if err != nil {
		return fmt.Errorf("listen on its socket: %w", err)
	}
	// An answer to a write guarantees that what was written is in the directory, even where the client cannot check that itself.
	prove := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
		resp, err := do(ctx, req)
		if _, writes := req.(*etcdserverpb.TxnRequest); writes && err == nil {
			if err := d.kept(); err != nil {
				m.end(err)
				return nil, err
			}
		}
		return resp, err
	}
	m.grpc = v3rpc.Server(m.server.Server, nil, prove,
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepAliveTime / 2}))
	context.AfterFunc(m.life, m.grpc.Stop) // clients look for another member, which cannot start before this process has ended
	go func() { _ = m.grpc.Serve(listener) }()
	return nil
}

// close answers pending requests, for as long as that may be expected to take, and ends etcd. The socket is removed first, and the
// others try to take over from then on.
func (m *member) close() {
	if m.grpc != nil {
		stop := time.AfterFunc(graceful, m.grpc.Stop)
		m.grpc.GracefulStop()
		stop.Stop()
	}
	if m.life.Err() == nil {
		m.server.Close() // a failed member would keep us waiting for ever
	}
}

// setSegment runs once, because etcd keeps the size of a segment in a package variable.
var setSegment = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// start runs etcd and waits until it answers.
func (m *member) start(ctx context.Context, o Options, takeover bool) error {
	data := filepath.Join(o.Dir, dataName)
	var disk unix.Statfs_t
	if err := unix.Statfs(data, &disk); err == nil && disk.Bavail*uint64(disk.Bsize) < freeSpaceBytes {
		return fmt.Errorf("%w: %d MiB must be free", unix.ENOSPC, freeSpaceBytes>>20)
	}
	if err := whole(ctx, data); err != nil {
		return err
	}
	setSegment()

	c := embed.NewConfig()
	c.Dir = data
	// It listens on no URL; serve has its own socket. The advertised URL is a name that etcd insists on.
	c.ListenPeerUrls, c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil, nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "embedded:0"}}
	c.InitialCluster = c.Name + "=" + c.AdvertisePeerUrls[0].String()
	c.TickMs, c.ElectionMs = tickMs, electionMs
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModeRevision, fmt.Sprint(keepRevisions)
	c.QuotaBackendBytes = quotaBytes
	if !takeover {
		c.BootstrapDefragThresholdMegabytes = defragMiB
	}
	c.SnapshotCount, c.SnapshotCatchUpEntries = 2000, 100 // no other member has to catch up
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcdLogger(o.Logger, m.end))

	type result struct {
		server *embed.Etcd
		err    error
	}
	started := make(chan result, 1)
	go func() { // because the goroutine in which etcd finds its data damaged is stopped; see fatal
		defer func() {
			if p := recover(); p != nil {
				m.end(fmt.Errorf("it panicked: %v", p))
			}
		}()
		server, err := embed.StartEtcd(c)
		started <- result{server, err}
	}()
	select {
	case r := <-started:
		if r.err != nil {
			return r.err
		}
		m.server = r.server
	case <-m.life.Done():
		return context.Cause(m.life)
	}
	select {
	case <-m.server.Server.ReadyNotify():
		return nil
	case err := <-m.server.Err():
		return err
	case <-m.life.Done():
		return context.Cause(m.life)
	case <-time.After(startTimeout):
		return errSlow
	case <-ctx.Done():
		m.server.Close()
		return context.Cause(ctx)
	}
}

// tidy cleans up what an earlier member left. It drops old history, and clears the alarm that etcd raised when its space was
// used up: etcd raises it again if that is still the case.
func tidy(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := client.Get(ctx, "/converge/", clientv3.WithCountOnly())
	for errors.Is(err, rpctypes.ErrLeaderChanged) { // the member itself has only just become the leader
		status, err = client.Get(ctx, "/converge/", clientv3.WithCountOnly())
	}
	if err != nil {
		return explain(ctx, err)
	}
	revision := status.Header.Revision
	if _, err := client.Get(ctx, "/", clientv3.WithCountOnly(), clientv3.WithRev(max(1, revision-compactAfter))); err == nil && revision > compactAfter {
		if _, err := client.Compact(ctx, revision-keepRevisions); err != nil {
			return explain(ctx, err)
		}
	}
	alarms, err := client.AlarmList(ctx)
	if err != nil {
		return explain(ctx, err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_CORRUPT {
			return errors.New("its data is corrupt: etcd raised the CORRUPT alarm")
		}
		if _, err := client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return explain(ctx, err)
		}
	}
	return nil
}

// etcdLogger returns the logger for etcd. Where etcd would end the process or panic, it stops that goroutine for good
// and calls end.
func etcdLogger(to *slog.Logger, end func(error)) *zap.Logger {
	return zap.New(logCore{to}, zap.WithFatalHook(fatal{end}), zap.WithPanicHook(fatal{end}))
}

// fatal handles the case that etcd cannot go on: the disk is full, or the data are damaged. Every call fails from then
// on, so that the process can end in order.
//
// There is one exception. A start applies the log, and when that is more than a hundred entries, etcd drops them from
// memory before raft knows that they were applied: an election in between looks among them for membership changes and
// finds them gone. It then goes on as if there were none, which is right: the only member does not stand for
// election before those that concern it were applied.
type fatal struct{ end func(error) }

// OnWrite implements zapcore.CheckWriteHook.
func (f fatal) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	if strings.HasPrefix(e.Message, "error scanning unapplied entries") && strings.HasSuffix(e.Message, raft.ErrCompacted.Error()) {
		return
	}
	err := errors.New(e.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", e.Message, cause)
		}
	}
	f.end(fmt.Errorf("it cannot continue: %w", err))
	select {} // not Goexit: etcd's deferred calls would close channels that its other goroutines still send to
}
