package etcd

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"converge.dev/converge/state"
)

// LongestLease is the longest time to live that a gateway grants, in seconds.
const LongestLease = 600

// Gateway serves a part of a store that [Open] has opened to others, which [Open] it at the address of the server: the keys with a prefix,
// that ends with a slash, as if there were no others. Of more keys than these, those are listed and watched; a key elsewhere is refused, as
// is everything that [Open] does not need. Leases are those of the store itself. In a cluster they survive the gateway, and another one
// can keep them alive; in a directory they are those of the process that is the gateway, and end with it. The gateway ends with the store.
func Gateway(r grpc.ServiceRegistrar, store state.KV, prefix string) error {
	s, ok := store.(*kv)
	if !ok {
		return fmt.Errorf("%T is no store of etcd", store)
	}
	conn := s.client.ActiveConnection()
	if conn == nil { // the member runs in this process, or did so; another one may serve the directory when it ends
		var err error
		conn, err = grpc.NewClient("passthrough:///store", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.share.dial(ctx) }))
		if err != nil {
			return err
		}
		context.AfterFunc(s.life, func() { _ = conn.Close() })
	}
	g := &gateway{
		log: s.log, share: s.share, granted: map[int64]time.Time{}, from: []byte(prefix), to: []byte(clientv3.GetPrefixRangeEnd(prefix)),
		kv: etcdserverpb.NewKVClient(conn), watch: etcdserverpb.NewWatchClient(conn), leases: etcdserverpb.NewLeaseClient(conn),
	}
	etcdserverpb.RegisterKVServer(r, keysOf{gateway: g})
	etcdserverpb.RegisterWatchServer(r, watchesOf{gateway: g})
	etcdserverpb.RegisterLeaseServer(r, leasesOf{gateway: g})
	return nil
}

type gateway struct {
	log      *slog.Logger
	share    *share // nil for a cluster
	from, to []byte // the keys from from on, before to
	kv       etcdserverpb.KVClient
	watch    etcdserverpb.WatchClient
	leases   etcdserverpb.LeaseClient

	mu      sync.Mutex
	granted map[int64]time.Time // leases from here that may have no keys yet, and until when
}

// within returns what of a range is served, in the terms of etcd: no end is one key, an end of one zero byte is everything from key on.
func (g *gateway) within(key, end []byte) (from, to []byte, ok bool) {
	if len(end) == 0 {
		return key, nil, g.has(key)
	}
	if bytes.Compare(key, g.from) < 0 {
		key = g.from
	}
	if bytes.Equal(end, []byte{0}) || bytes.Compare(end, g.to) > 0 {
		end = g.to
	}
	return key, end, bytes.Compare(key, end) < 0
}

func (g *gateway) has(key []byte) bool {
	return bytes.Compare(key, g.from) > 0 && bytes.Compare(key, g.to) < 0 // the prefix itself is no key
}

// whole reports whether all of a range is served.
func (g *gateway) whole(key, end []byte) bool {
	from, to, ok := g.within(key, end)
	return ok && bytes.Equal(from, key) && bytes.Equal(to, end)
}

// foreign is the refusal of what concerns a key that is not served.
func (g *gateway) foreign(key []byte) error {
	return status.Errorf(codes.PermissionDenied, "%q is not below %s", key, g.from)
}

// onwards is the context of a call to the store in place of one from a client: with what the client library says about it.
func onwards(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	out := metadata.MD{}
	for _, name := range []string{"hasleader", "client-api-version"} { // rpctypes.MetadataRequireLeaderKey and MetadataClientAPIVersionKey
		if v := md.Get(name); len(v) > 0 {
			out.Set(name, v...)
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// anySize lets answers be as large as those that the client library accepts.
var anySize = grpc.MaxCallRecvMsgSize(math.MaxInt32)

type keysOf struct {
	etcdserverpb.UnimplementedKVServer
	*gateway
}

// Range implements etcdserverpb.KVServer.
func (g keysOf) Range(ctx context.Context, q *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	if err := understood(q); err != nil {
		return nil, err
	}
	key, end, ok := g.within(q.Key, q.RangeEnd)
	if !ok && len(q.RangeEnd) == 0 && !bytes.HasPrefix(g.from, q.Key) { // a document may name another site: that is said, and not that it is empty
		return nil, g.foreign(q.Key)
	}
	if q.Key, q.RangeEnd = key, end; !ok { // nothing, at the revision at which it is read
		q.Key, q.RangeEnd = g.from, nil
	}
	return g.kv.Range(onwards(ctx), q, anySize)
}

// Txn implements etcdserverpb.KVServer.
func (g keysOf) Txn(ctx context.Context, q *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	if err := understood(q); err != nil {
		return nil, err
	}
	for _, c := range q.Compare {
		if !g.whole(c.Key, c.RangeEnd) {
			return nil, g.foreign(c.Key)
		}
	}
	for _, ops := range [][]*etcdserverpb.RequestOp{q.Success, q.Failure} {
		for _, op := range ops {
			err := g.permitted(op)
			if id := op.GetRequestPut().GetLease(); err == nil && id != 0 {
				err = g.own(ctx, id) // it would no longer be that of those who have it
			}
			if err != nil {
				return nil, err
			}
		}
	}
	a, err := g.kv.Txn(onwards(ctx), q, anySize)
	if c := status.Code(err); (c == codes.Canceled || c == codes.DeadlineExceeded) && ctx.Err() == nil {
		err = status.Error(codes.Unavailable, err.Error()) // which the client library does not repeat: it may have been written
	}
	return a, cmp.Or(err, g.proven())
}

// proven fails when what was written may be in files that are no longer there.
func (g *gateway) proven() error {
	if g.share == nil {
		return nil
	}
	if err := g.share.proven(); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// permitted refuses an operation of a transaction that is on other keys, or none that a store needs.
func (g *gateway) permitted(op *etcdserverpb.RequestOp) error {
	var key, end []byte
	switch {
	case op.GetRequestPut() != nil:
		key = op.GetRequestPut().Key
	case op.GetRequestDeleteRange() != nil:
		key, end = op.GetRequestDeleteRange().Key, op.GetRequestDeleteRange().RangeEnd
	default:
		return status.Error(codes.Unimplemented, "a transaction may put and delete, and nothing else")
	}
	if !g.whole(key, end) {
		return g.foreign(key)
	}
	return nil
}

type watchesOf struct {
	etcdserverpb.UnimplementedWatchServer
	*gateway
}

// Watch implements etcdserverpb.WatchServer.
func (g watchesOf) Watch(in etcdserverpb.Watch_WatchServer) error {
	return pass(in.Context(), g.log, in.Recv, in.Send, g.watch.Watch, func(_ context.Context, q *etcdserverpb.WatchRequest) error {
		create := q.GetCreateRequest()
		if err := understood(q); err != nil || create == nil {
			return err
		}
		var ok bool
		key := create.Key
		if create.Key, create.RangeEnd, ok = g.within(create.Key, create.RangeEnd); !ok {
			return g.foreign(key)
		}
		return nil
	})
}

type leasesOf struct {
	etcdserverpb.UnimplementedLeaseServer
	*gateway
}

// LeaseGrant implements etcdserverpb.LeaseServer.
func (g leasesOf) LeaseGrant(ctx context.Context, q *etcdserverpb.LeaseGrantRequest) (*etcdserverpb.LeaseGrantResponse, error) {
	if err := understood(q); err != nil {
		return nil, err
	}
	if q.ID != 0 || q.TTL <= 0 || q.TTL > LongestLease {
		return nil, status.Errorf(codes.InvalidArgument, "want a lease of 1 to %d s, and no ID", LongestLease)
	}
	q.ID = rand.Int64() // etcd would count, and others could guess it
	if g.share != nil { // whose leases say in their IDs whose they are
		id, err := g.share.lease()
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		q.ID = int64(id)
	}
	a, err := g.leases.LeaseGrant(onwards(ctx), q)
	if err == nil {
		g.keep(a.ID, time.Duration(a.TTL)*time.Second)
	}
	return a, err
}

// LeaseRevoke implements etcdserverpb.LeaseServer.
func (g leasesOf) LeaseRevoke(ctx context.Context, q *etcdserverpb.LeaseRevokeRequest) (*etcdserverpb.LeaseRevokeResponse, error) {
	err := understood(q)
	if err == nil {
		err = g.own(ctx, q.ID)
	}
	if err != nil {
		return nil, err
	}
	return g.leases.LeaseRevoke(onwards(ctx), q)
}

// LeaseKeepAlive implements etcdserverpb.LeaseServer.
func (g leasesOf) LeaseKeepAlive(in etcdserverpb.Lease_LeaseKeepAliveServer) error {
	return pass(in.Context(), g.log, in.Recv, in.Send, g.leases.LeaseKeepAlive, func(ctx context.Context, q *etcdserverpb.LeaseKeepAliveRequest) error {
		if err := understood(q); err != nil {
			return err
		}
		return g.own(ctx, q.ID)
	})
}

// keep notes a lease that was granted, or kept alive, here.
func (g *gateway) keep(id int64, ttl time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(g.granted, func(_ int64, until time.Time) bool { return now.After(until) })
	g.granted[id] = now.Add(ttl)
}

// own refuses a lease that other keys have, or none, unless it was granted here: IDs could be guessed.
func (g *gateway) own(ctx context.Context, id int64) error {
	l, err := g.leases.LeaseTimeToLive(onwards(ctx), &etcdserverpb.LeaseTimeToLiveRequest{ID: id, Keys: true}, anySize)
	if err != nil {
		return err
	}
	for _, key := range l.Keys {
		if !g.has(key) {
			return status.Errorf(codes.PermissionDenied, "lease %x has keys that are not below %s", id, g.from)
		}
	}
	g.mu.Lock()
	_, ours := g.granted[id]
	g.mu.Unlock()
	switch {
	case l.TTL <= 0: // there is none, which is found out next
		return nil
	case !ours && len(l.Keys) == 0:
		return status.Errorf(codes.PermissionDenied, "lease %x has no keys, and was not granted here", id)
	}
	g.keep(id, time.Duration(l.GrantedTTL)*time.Second)
	return nil
}

// understood refuses a message with fields that this version does not know, and so cannot judge.
func understood(m proto.Message) error {
	if strange(m.ProtoReflect()) {
		return status.Error(codes.Unimplemented, "the request has fields that this version does not know")
	}
	return nil
}

func strange(m protoreflect.Message) (is bool) {
	is = len(m.GetUnknown()) > 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				is = is || strange(v.List().Get(i).Message())
			}
		default:
			is = is || strange(v.Message())
		}
		return !is
	})
	return is
}

// pass passes the messages of a stream on, what is sent and what is answered, until one side ends it. Check may refuse and change what is sent.
func pass[Q, A any, Out interface {
	grpc.ClientStream
	Send(*Q) error
	Recv() (*A, error)
}](ctx context.Context, log *slog.Logger, recv func() (*Q, error), send func(*A) error, open func(context.Context, ...grpc.CallOption) (Out, error), check func(context.Context, *Q) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	out, err := open(onwards(ctx), anySize)
	if err != nil {
		return err
	}
	go func() { // it ends with the stream, once this function has returned
		defer func() {
			if p := recover(); p != nil { // it would end the program
				log.Error("a message made the program fail: this is a bug", "stack", string(debug.Stack()))
				end(status.Error(codes.Internal, "the program failed at this message; its log says how"))
			}
		}()
		for {
			q, err := recv()
			if err == io.EOF {
				_ = out.CloseSend() // what is still to come is sent on
				return
			}
			if err == nil {
				err = check(ctx, q)
			}
			if err == nil {
				if out.Send(q) != nil { // the reason is received
					return
				}
				continue
			}
			end(err)
			return
		}
	}()
	for {
		a, err := out.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = send(a)
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
}
