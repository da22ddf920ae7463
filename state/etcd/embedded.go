package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3"

	"converge.dev/converge/state"
)

const (
	keepRevisions  = 1000     // of history; nothing reads an old one but a List that runs for long
	compactAfter   = 10000    // revisions of history beyond that before a start cleans up
	segmentBytes   = 4 << 20  // of the write-ahead log, set aside in advance; etcd's own 64 MB make a small site large
	quotaBytes     = 4 << 30  // of the data
	defragMiB      = 64       // of free space in the data file before a start gives it back
	freeSpaceBytes = 64 << 20 // that the disk must have; etcd cannot go on without
	tickMs         = 10       // an only member has nobody to wait for
	electionMs     = 50       // the least that etcd allows for such a tick
)

// embedded starts the member that lives in o.Dir.
func embedded(ctx context.Context, o Options) (state.KV, error) {
	lock, err := lockDir(ctx, o.Dir, o.Command, o.LockTimeout)
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	kv := &kv{place: "the store in " + o.Dir}
	kv.life, kv.end = context.WithCancelCause(context.Background())
	server, err := kv.start(ctx, o)
	if err != nil {
		kv.end(errClosed)
		if ctx.Err() == nil {
			err = advised(o.Dir, err)
		}
		return nil, errors.Join(fmt.Errorf("open %s: %w", kv.place, err), lock.Close())
	}
	kv.client = v3client.New(server.Server)
	kv.leases = adapter.LeaseServerToLeaseClient(v3rpc.NewQuotaLeaseServer(server.Server))
	kv.close = func() error {
		_ = kv.client.Close() // has no connection; says that it was cancelled, which is what closing does
		if errors.Is(context.Cause(kv.life), errClosed) {
			server.Close() // a member that failed would keep us waiting for ever
		}
		return lock.Close()
	}
	if err := kv.tidy(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", kv.place, err), kv.Close())
	}
	return kv, nil
}

// setSegment is done once, because etcd has the size of a segment in a variable of its package.
var setSegment = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// start runs etcd and waits until it answers.
func (kv *kv) start(ctx context.Context, o Options) (*embed.Etcd, error) {
	data := filepath.Join(o.Dir, "etcd")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(data, &disk); err == nil && disk.Bavail*uint64(disk.Bsize) < freeSpaceBytes {
		return nil, fmt.Errorf("%w: %d MiB must be free", unix.ENOSPC, freeSpaceBytes>>20)
	}
	if err := whole(data); err != nil {
		return nil, err
	}
	setSegment()

	c := embed.NewConfig()
	c.Dir = data
	// Nobody connects: no URL is listened to. The advertised one is a name that etcd insists on.
	c.ListenPeerUrls, c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil, nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "embedded:0"}}
	c.InitialCluster = c.Name + "=" + c.AdvertisePeerUrls[0].String()
	c.TickMs, c.ElectionMs = tickMs, electionMs
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModeRevision, fmt.Sprint(keepRevisions)
	c.QuotaBackendBytes = quotaBytes
	c.BootstrapDefragThresholdMegabytes = defragMiB
	c.SnapshotCount, c.SnapshotCatchUpEntries = 2000, 100 // nobody has to catch up
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(kv.logger(o.Logger))

	type result struct {
		server *embed.Etcd
		err    error
	}
	started := make(chan result, 1)
	go func() { // because etcd ends the goroutine that finds its data damaged; see fatal
		defer func() {
			if p := recover(); p != nil {
				kv.end(fmt.Errorf("it panicked: %v", p))
			}
		}()
		server, err := embed.StartEtcd(c)
		started <- result{server, err}
	}()
	var server *embed.Etcd
	select {
	case r := <-started:
		if r.err != nil {
			return nil, r.err
		}
		server = r.server
	case <-kv.life.Done():
		return nil, context.Cause(kv.life)
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err := <-server.Err():
		return nil, err
	case <-kv.life.Done():
		return nil, context.Cause(kv.life)
	case <-time.After(startTimeout):
		return nil, errSlow
	case <-ctx.Done():
		server.Close()
		return nil, context.Cause(ctx)
	}
}

// tidy brings what an earlier process left behind in order. It ends the leases, for whoever held them is gone, as the
// lock of the directory proves. It drops old history. It lifts the alarm that etcd raised when its space was used up: etcd
// says so again when that is still the case.
func (kv *kv) tidy(ctx context.Context) error {
	ctx, cancel := kv.call(ctx)
	defer cancel()
	status, err := kv.get(ctx, "/converge/", clientv3.WithCountOnly())
	if err != nil {
		return kv.failed(err)
	}
	leases, err := kv.client.Leases(ctx)
	if err != nil {
		return kv.failed(err)
	}
	for _, l := range leases.Leases {
		if _, err := kv.client.Revoke(ctx, l.ID); err != nil {
			return kv.failed(err)
		}
	}
	revision := status.Header.Revision
	if _, err := kv.client.Get(ctx, "/", clientv3.WithCountOnly(), clientv3.WithRev(max(1, revision-compactAfter))); err == nil && revision > compactAfter {
		if _, err := kv.client.Compact(ctx, revision-keepRevisions); err != nil {
			return kv.failed(err)
		}
	}
	alarms, err := kv.client.AlarmList(ctx)
	if err != nil {
		return kv.failed(err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_CORRUPT {
			return errors.New("its data are damaged: etcd raised the alarm CORRUPT")
		}
		if _, err := kv.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return kv.failed(err)
		}
	}
	return nil
}

// logger makes etcd's log. Where etcd would end the process or panic, it stops its goroutine for good and ends the life of the backend.
func (kv *kv) logger(to *slog.Logger) *zap.Logger {
	return zap.New(logCore{to}, zap.WithFatalHook(fatal{kv}), zap.WithPanicHook(fatal{kv}))
}

// fatal is what happens when etcd cannot go on: the disk is full, or the data are damaged. Every call fails from then on,
// so that the process may end in order.
//
// One thing it lets pass. A start applies the log, and when it was more than a hundred entries etcd drops them from memory
// before raft knows that they were applied: an election that comes in between looks among them for changes of the
// membership and finds them gone. It goes on then as if there were none, and there are none: the only member is not up for
// election before those that concern it were applied.
type fatal struct{ kv *kv }

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
	f.kv.end(fmt.Errorf("it cannot go on: %w", err))
	select {} // not Goexit: what etcd has deferred would close what its other goroutines still send to
}
