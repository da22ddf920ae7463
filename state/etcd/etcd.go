// Package etcd keeps a store in etcd: in a given cluster or, without one, in a single member inside this
// process with its data in a directory. Both are the same store with the same promises; a site that outgrows one machine
// changes an option and nothing else.
//
// The embedded member opens no port. The processes of one user share a directory: the first runs the member and serves the
// others at a socket in the directory, and when it ends, in whatever way, another takes over. Calls that were not yet sent
// wait for that; the outcome of those that were is unknown, as when the connection to a cluster breaks. Leases survive it,
// and those of a process that is gone end when the next one opens the store. A [NoAnswerError] names a process that holds
// the directory and is suspended. Every commit is on disk when it returns, in the files that are in the directory at that
// time: when they were removed, moved or covered meanwhile it fails with an [AwayError], and so does everything after it.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/state"
)

const (
	openTimeout = 5 * time.Second  // for any answer at all
	callTimeout = 30 * time.Second // for a single answer, whatever the caller allows
	pageSize    = 4096             // keys in one answer to List

	keepAliveTime    = 10 * time.Second // detects a dead connection
	keepAliveTimeout = 5 * time.Second
)

// Options say where the store is. Either Endpoints or Dir is required.
type Options struct {
	// Endpoints of a cluster: http://, https:// or unix:// URLs.
	Endpoints []string
	// CA, Cert and Key are PEM files for https endpoints. Without CA the system's roots are used. Cert and Key are read again
	// for each connection, so that a renewed certificate is used without a restart.
	CA, Cert, Key string
	// ServerName replaces the host of the endpoint in the check of the server's certificate.
	ServerName string
	// Place is what messages call the cluster; by default etcd at its endpoints.
	Place string
	// Username and Password log in where the cluster has authentication switched on.
	Username, Password string

	// Dir holds the data of the embedded member; it is created when it is missing. Used when there are no Endpoints.
	Dir string
	// Command is what other processes report while this one serves Dir, for example "converge apply site.cue".
	Command string

	// Logger receives the log of etcd, at lower levels than etcd's own: all but errors at debug and [Trace]; nil: no log.
	Logger *slog.Logger
}

// Open connects to a cluster, or to the process that serves Dir, or starts the embedded member. It fails when the cluster
// does not answer within a few seconds, and with a *NoAnswerError when the process that holds Dir does not.
func Open(ctx context.Context, o Options) (state.KV, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for i, e := range o.Endpoints {
		if strings.Contains(e, "@") && !strings.HasPrefix(e, "unix:") { // the part before it would be shown with the address
			return nil, fmt.Errorf("open etcd: endpoint %d contains a user or a password: remove it from the address", i+1)
		}
	}
	switch {
	case len(o.Endpoints) > 0:
		return connect(ctx, o)
	case o.Dir != "":
		return openShared(ctx, o)
	}
	return nil, errors.New("open the store: neither etcd endpoints nor a directory is set")
}

// kv implements state.KV.
type kv struct {
	client  *clientv3.Client
	leases  etcdserverpb.LeaseClient
	members *members // nil without several endpoints
	share   *share   // nil for a cluster
	place   string   // for messages
	log     *slog.Logger
	life    context.Context // ends, with a cause, when the backend is closed or has failed for good
	end     context.CancelCauseFunc
	close   func() error
	once    sync.Once
}

var (
	errClosed     = errors.New("the store is closed")
	errUnfollowed = errors.New("the watch ended")
)

// connect reaches a cluster.
func connect(ctx context.Context, o Options) (state.KV, error) {
	place := cmp.Or(o.Place, "etcd at "+strings.Join(o.Endpoints, ","))
	config := clientv3.Config{
		Endpoints:            o.Endpoints,
		DialTimeout:          openTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		Username:             o.Username,
		Password:             o.Password,
		Logger:               zap.New(logCore{o.Logger}),
	}
	var err error
	if config.TLS, err = tlsConfig(o); err != nil {
		return nil, fmt.Errorf("open %s: %w", place, err)
	}
	if err := reachable(ctx, o.Endpoints, config.TLS); err != nil {
		return nil, fmt.Errorf("open %s: no answer: %w", place, err)
	}
	if o.ServerName != "" && config.TLS != nil {
		// gRPC replaces the server name in a TLS configuration by the address that it dials.
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(named{credentials.NewTLS(config.TLS), o.ServerName}))
	}
	if len(o.Endpoints) > 1 {
		config.DialTimeout = 2 * hangs
	}
	several := &members{all: o.Endpoints, live: o.Endpoints, config: config}
	client, err := clientv3.New(config)
	if err != nil && silent(err) && len(o.Endpoints) > 1 { // it logs in at one member only, within DialTimeout
		if config.Endpoints = several.answering(ctx); len(config.Endpoints) > 0 {
			client, err = clientv3.New(config)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", place, explain(ctx, err))
	}
	kv := &kv{client: client, leases: etcdserverpb.NewLeaseClient(client.ActiveConnection()), place: place, log: o.Logger, close: client.Close}
	kv.life, kv.end = context.WithCancelCause(context.Background())
	if len(o.Endpoints) > 1 {
		several.set = client.SetEndpoints
		kv.members = several
	}
	// clientv3.New does not wait for a connection, so make a request. A refusal does not matter here: what this user
	// may read shows when it is read.
	wait, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := kv.insist(wait, func(ctx context.Context) error { return ask(ctx, client) }); err != nil {
		_ = kv.Close()
		return nil, fmt.Errorf("open %s: %w", place, explain(ctx, err))
	}
	return kv, nil
}

// tlsConfig returns nil when no endpoint uses TLS.
func tlsConfig(o Options) (*tls.Config, error) {
	secure := 0
	for _, e := range o.Endpoints {
		if strings.HasPrefix(e, "https://") || strings.HasPrefix(e, "unixs://") {
			secure++
		}
	}
	if secure == 0 {
		if o.CA != "" || o.Cert != "" || o.Key != "" {
			return nil, errors.New("certificates are set, but no endpoint starts with https://")
		}
		return nil, nil
	}
	if secure < len(o.Endpoints) {
		return nil, errors.New("either all endpoints start with https:// or none")
	}
	config, err := files.ClientTLS(o.CA, o.Cert, o.Key)
	if err != nil {
		return nil, err
	}
	config.ServerName = o.ServerName
	return config, nil
}

// named are credentials that expect the same name of every server.
type named struct {
	credentials.TransportCredentials
	name string
}

// ClientHandshake implements credentials.TransportCredentials.
func (n named) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return n.TransportCredentials.ClientHandshake(ctx, n.name, conn)
}

// Clone implements credentials.TransportCredentials.
func (n named) Clone() credentials.TransportCredentials {
	return named{n.TransportCredentials.Clone(), n.name}
}

// call bounds one call: by the caller's context, by the life of the backend and by callTimeout. A member without a leader
// reports so at once, so that the call goes to another one.
func (kv *kv) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), callTimeout)
	stop := context.AfterFunc(kv.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// get reads a key, from another member when one hangs. A single member that has just become the leader returns
// ErrLeaderChanged to the first read, which is then repeated.
func (kv *kv) get(ctx context.Context, key string, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	ctx, cancel := kv.call(ctx)
	defer cancel()
	return resp, kv.insist(ctx, func(ctx context.Context) (err error) {
		resp, err = kv.client.Get(ctx, key, opts...)
		return err
	}, rpctypes.ErrLeaderChanged)
}

// failed returns the error of a failed call, with an explanation.
func (kv *kv) failed(ctx context.Context, err error) error {
	if cause := context.Cause(kv.life); cause != nil {
		return fmt.Errorf("%s: %w", kv.place, cause)
	}
	return fmt.Errorf("%s: %w", kv.place, kv.unanswered(ctx, err))
}

// Get implements state.KV.
func (kv *kv) Get(ctx context.Context, key string) (state.Item, error) {
	if err := kv.ready(ctx); err != nil {
		return state.Item{}, err
	}
	resp, err := kv.get(ctx, key)
	if err != nil {
		return state.Item{}, kv.failed(ctx, err)
	}
	if len(resp.Kvs) == 0 {
		return state.Item{}, nil
	}
	p := resp.Kvs[0]
	return state.Item{Key: key, Value: p.Value, Created: p.CreateRevision, Modified: p.ModRevision}, nil
}

// List implements state.KV.
func (kv *kv) List(ctx context.Context, prefix string) ([]state.Item, error) {
	if err := kv.ready(ctx); err != nil {
		return nil, err
	}
	items, _, err := kv.list(ctx, prefix)
	return items, err
}

// list returns the keys with a prefix, and the revision as of which they were read.
func (kv *kv) list(ctx context.Context, prefix string) (items []state.Item, revision int64, err error) {
	for {
		items, revision, err = kv.pages(ctx, prefix)
		if !compacted(err) { // between two pages; start over
			return items, revision, err
		}
	}
}

func (kv *kv) pages(ctx context.Context, prefix string) (items []state.Item, revision int64, err error) {
	from := prefix
	for {
		resp, err := kv.get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)),
			clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		if err != nil {
			return nil, 0, kv.failed(ctx, err)
		}
		if revision == 0 { // of the first page; the others are read at the same one
			revision = resp.Header.Revision
			items = make([]state.Item, 0, resp.Count)
		}
		for _, p := range resp.Kvs {
			items = append(items, state.Item{Key: string(p.Key), Value: p.Value, Created: p.CreateRevision, Modified: p.ModRevision})
		}
		if !resp.More {
			return items, revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Below implements state.KV.
func (kv *kv) Below(ctx context.Context, prefix string) ([]string, error) {
	if err := kv.ready(ctx); err != nil {
		return nil, err
	}
	var words []string
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		resp, err := kv.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil {
			return nil, kv.failed(ctx, err)
		}
		if len(resp.Kvs) == 0 {
			slices.Sort(words) // "a-b" comes before "a" as a key, because of the slash
			return slices.Compact(words), nil
		}
		key := string(resp.Kvs[0].Key)
		word, _, deeper := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		words = append(words, word)
		if from = key + "\x00"; deeper {
			from = prefix + word + "0" // the character after the slash: beyond everything below the word
		}
	}
}

// Commit implements state.KV.
func (kv *kv) Commit(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
	start := time.Now()
	revision, err := kv.commit(ctx, guards, ops)
	if kv.log.Enabled(ctx, slog.LevelDebug) && len(ops) > 0 {
		args := []any{"first", ops[0].Key, "ops", len(ops), "guards", len(guards), "took", time.Since(start)}
		if err != nil {
			kv.log.Debug("commit failed", append(args, "error", err)...)
		} else {
			kv.log.Debug("commit", append(args, "revision", revision)...)
		}
	}
	return revision, err
}

func (kv *kv) commit(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
	if err := state.Check(guards, ops); err != nil {
		return 0, err
	}
	if err := kv.ready(ctx); err != nil {
		return 0, err
	}
	cmps := make([]clientv3.Cmp, len(guards))
	for i, g := range guards {
		revision := clientv3.ModRevision(g.Key)
		if g.Created {
			revision = clientv3.CreateRevision(g.Key)
		}
		cmps[i] = clientv3.Compare(revision, "=", g.Revision)
	}
	thens := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		switch {
		case op.Delete && op.Prefix:
			thens[i] = clientv3.OpDelete(op.Key, clientv3.WithPrefix())
		case op.Delete:
			thens[i] = clientv3.OpDelete(op.Key)
		default:
			var opts []clientv3.OpOption
			if l, ok := op.Lease.(*lease); ok {
				opts = append(opts, clientv3.WithLease(l.id))
			}
			thens[i] = clientv3.OpPut(op.Key, string(op.Value), opts...)
		}
	}
	ctx, cancel := kv.call(ctx)
	defer cancel()
	var resp *clientv3.TxnResponse
	var err error
	_ = anew.Do(ctx, func() (over bool, _ error) {
		_, err = kv.try(ctx, func(ctx context.Context) (err error) { // when it hangs, its outcome is unknown
			resp, err = kv.client.Txn(ctx).If(cmps...).Then(thens...).Commit()
			return err
		})
		// Without a leader the member has not even tried. The client library turns to another member for reads only.
		return !errors.Is(err, rpctypes.ErrNoLeader), nil
	})
	switch {
	case err != nil && refused(err):
		return 0, kv.failed(ctx, err)
	case err != nil:
		return 0, fmt.Errorf("%w: %w", state.ErrUnknown, kv.failed(ctx, err))
	case !resp.Succeeded:
		return 0, state.ErrGuard
	}
	if kv.share != nil {
		if err := kv.share.proven(); err != nil {
			return 0, fmt.Errorf("%w: %w", state.ErrUnknown, kv.failed(ctx, err))
		}
	}
	return resp.Header.Revision, nil
}

// ready fails when nothing can or should be sent any more, so that a call made after it was certainly sent.
func (kv *kv) ready(ctx context.Context) error {
	if err := context.Cause(kv.life); err != nil {
		return fmt.Errorf("%s: %w", kv.place, err)
	}
	return context.Cause(ctx)
}

// Close implements state.KV.
func (kv *kv) Close() error {
	var err error
	kv.once.Do(func() {
		kv.end(errClosed)
		err = kv.close()
		if kv.members != nil {
			kv.members.watching.Wait()
		}
	})
	if err != nil {
		return fmt.Errorf("close %s: %w", kv.place, err)
	}
	return nil
}
