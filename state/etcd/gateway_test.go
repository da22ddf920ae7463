package etcd_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"converge.dev/converge/internal/statetest"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// gateway serves the keys with a prefix of a store, and returns where.
func gateway(t *testing.T, kv state.KV, prefix string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(2 << 20))
	if err := etcd.Gateway(s, kv, prefix); err != nil {
		t.Fatal(err)
	}
	for name := range s.GetServiceInfo() {
		if !slices.Contains([]string{"etcdserverpb.KV", "etcdserverpb.Watch", "etcdserverpb.Lease"}, name) {
			t.Errorf("the gateway also serves %s", name)
		}
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return "http://" + l.Addr().String()
}

// A store behind a gateway keeps all promises of a store.
func TestGatewayLaws(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) state.KV{
		"directory": func(t *testing.T) state.KV { return open(t, t.TempDir()) },
		"server": func(t *testing.T) state.KV {
			return connect(t, etcd.Options{Endpoints: []string{serve(t, "http", etcd.Options{}).url}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := gateway(t, store(t), "/")
			kv := connect(t, etcd.Options{Endpoints: []string{url}})
			statetest.KV(t, func(*testing.T) state.KV { return kv })
			statetest.WatchClosed(t, connect(t, etcd.Options{Endpoints: []string{url}}))
		})
	}
}

// Through a gateway there is one site, and nothing else can be read, changed, kept or ended.
func TestGatewayLimits(t *testing.T) {
	store := open(t, t.TempDir())
	for _, key := range []string{"/converge/one/a", "/converge/one/b", "/converge/one-b/a", "/converge/two/a", "/else"} {
		if _, err := store.Commit(t.Context(), nil, []state.Op{{Key: key, Value: []byte("is")}}); err != nil {
			t.Fatal(err)
		}
	}
	lease, err := store.Lease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(t.Context(), nil, []state.Op{{Key: "/converge/two/leader", Lease: lease}}); err != nil {
		t.Fatal(err)
	}
	all, err := clientv3.New(clientv3.Config{Endpoints: []string{gateway(t, store, "/")}, DialTimeout: time.Minute, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	held, err := all.Get(t.Context(), "/converge/two/leader")
	if err != nil || len(held.Kvs) != 1 {
		t.Fatalf("%v, %v", held, err)
	}
	foreign := clientv3.LeaseID(held.Kvs[0].Lease)
	bare, err := all.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}

	url := gateway(t, store, "/converge/one/")
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: time.Minute, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	for name, q := range map[string]struct {
		key  string
		opts []clientv3.OpOption
		want string
	}{
		"everything":       {"\x00", []clientv3.OpOption{clientv3.WithFromKey()}, "/converge/one/a /converge/one/b"},
		"all sites":        {"/converge/", []clientv3.OpOption{clientv3.WithPrefix()}, "/converge/one/a /converge/one/b"},
		"one of it":        {"/converge/one/a", nil, "/converge/one/a"},
		"a part of it":     {"/converge/one/b", []clientv3.OpOption{clientv3.WithFromKey()}, "/converge/one/b"},
		"another site":     {"/converge/two/", []clientv3.OpOption{clientv3.WithPrefix()}, ""},
		"the folder":       {"/converge/", nil, ""},
		"the folder of it": {"/converge/one/", nil, ""},
		"below":            {"/converge/on", []clientv3.OpOption{clientv3.WithRange("/converge/one/")}, ""},
		"what is before":   {"/a", []clientv3.OpOption{clientv3.WithRange("/b")}, ""},
		"upside down":      {"/z", []clientv3.OpOption{clientv3.WithRange("/a")}, ""},
	} {
		got, err := c.Get(ctx, q.key, q.opts...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var keys []string
		for _, kv := range got.Kvs {
			keys = append(keys, string(kv.Key))
		}
		if strings.Join(keys, " ") != q.want || got.Count != int64(len(keys)) || got.Header.GetRevision() == 0 {
			t.Errorf("%s: read %d: %q at %d, want %q", name, got.Count, keys, got.Header.GetRevision(), q.want)
		}
	}
	sites, err := connect(t, etcd.Options{Endpoints: []string{url}}).Below(ctx, "/converge/")
	if err != nil || !slices.Equal(sites, []string{"one"}) {
		t.Errorf("the sites are %q, %v", sites, err)
	}

	raw := etcdserverpb.NewKVClient(c.ActiveConnection())
	leases := etcdserverpb.NewLeaseClient(c.ActiveConnection())
	is := clientv3.Compare(clientv3.ModRevision("/converge/one/a"), ">", 0)
	txn := func(cmp clientv3.Cmp, ops ...clientv3.Op) func() error {
		return func() error { _, err := c.Txn(ctx).If(cmp).Then(ops...).Commit(); return err }
	}
	for name, w := range map[string]struct {
		do   func() error
		want codes.Code
	}{
		"put elsewhere":            {txn(is, clientv3.OpPut("/converge/two/a", "x")), codes.PermissionDenied},
		"put the folder":           {txn(is, clientv3.OpPut("/converge/one", "x")), codes.PermissionDenied},
		"one right, one wrong":     {txn(is, clientv3.OpPut("/converge/one/a", "x"), clientv3.OpPut("/else", "x")), codes.PermissionDenied},
		"put with another's lease": {txn(is, clientv3.OpPut("/converge/one/a", "x", clientv3.WithLease(foreign))), codes.PermissionDenied},
		"delete elsewhere":         {txn(is, clientv3.OpDelete("/converge/two/a")), codes.PermissionDenied},
		"delete more":              {txn(is, clientv3.OpDelete("/converge/", clientv3.WithPrefix())), codes.PermissionDenied},
		"delete from there on":     {txn(is, clientv3.OpDelete("/converge/one/", clientv3.WithFromKey())), codes.PermissionDenied},
		"guess a value elsewhere":  {txn(clientv3.Compare(clientv3.Value("/converge/two/a"), "=", "is"), clientv3.OpPut("/converge/one/a", "x")), codes.PermissionDenied},
		"guess in a range":         {txn(clientv3.Compare(clientv3.Value("/converge/one/"), "=", "is").WithRange("/d"), clientv3.OpPut("/converge/one/a", "x")), codes.PermissionDenied},
		"read in a transaction":    {txn(is, clientv3.OpGet("/converge/two/a")), codes.Unimplemented},
		"nested":                   {txn(is, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("/else", "x")}, nil)), codes.Unimplemented},
		"otherwise": {func() error {
			_, err := c.Txn(ctx).If(is).Then(clientv3.OpPut("/converge/one/a", "is")).Else(clientv3.OpPut("/else", "x")).Commit()
			return err
		}, codes.PermissionDenied},
		"put alone": {func() error {
			_, err := raw.Put(ctx, &etcdserverpb.PutRequest{Key: []byte("/converge/one/a"), Value: []byte("x")})
			return err
		}, codes.Unimplemented},
		"delete alone": {func() error {
			_, err := raw.DeleteRange(ctx, &etcdserverpb.DeleteRangeRequest{Key: []byte("/else")})
			return err
		}, codes.Unimplemented},
		"compact": {func() error { _, err := raw.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: 1}); return err }, codes.Unimplemented},
		"end another's lease": {func() error {
			_, err := leases.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: int64(foreign)})
			return err
		}, codes.PermissionDenied},
		"keep another's lease": {func() error {
			stream, err := leases.LeaseKeepAlive(ctx)
			if err == nil {
				err = stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(foreign)})
			}
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}, codes.PermissionDenied},
		"keep one without keys": {func() error {
			_, err := leases.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: int64(bare.ID)})
			return err
		}, codes.PermissionDenied},
		"what is not known yet": {func() error {
			q := &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{RequestPut: &etcdserverpb.PutRequest{Key: []byte("/converge/one/a")}}}}}
			q.Success[0].GetRequestPut().ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01}) // field 127
			_, err := raw.Txn(ctx, q)
			return err
		}, codes.Unimplemented},
		"look at a lease": {func() error {
			_, err := leases.LeaseTimeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: int64(foreign), Keys: true})
			return err
		}, codes.Unimplemented},
		"list leases": {func() error { _, err := leases.LeaseLeases(ctx, &etcdserverpb.LeaseLeasesRequest{}); return err }, codes.Unimplemented},
		"take a lease": {func() error {
			_, err := leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: 7, TTL: 5})
			return err
		}, codes.InvalidArgument},
		"a lease for ever": {func() error {
			_, err := leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: etcd.LongestLease + 1})
			return err
		}, codes.InvalidArgument},
		"watch elsewhere": {func() error {
			w, err := etcdserverpb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
			if err == nil {
				err = w.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
					CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("/converge/two/a")},
				}})
			}
			if err == nil {
				_, err = w.Recv()
			}
			return err
		}, codes.PermissionDenied},
		"members": {func() error {
			_, err := etcdserverpb.NewClusterClient(c.ActiveConnection()).MemberList(ctx, &etcdserverpb.MemberListRequest{})
			return err
		}, codes.Unimplemented},
	} {
		if err := w.do(); codeOf(err) != w.want {
			t.Errorf("%s: %v, want %v", name, err, w.want)
		}
	}
	for key, want := range map[string]string{"/converge/one/a": "is", "/converge/two/a": "is", "/else": "is"} {
		if it, err := store.Get(ctx, key); err != nil || string(it.Value) != want {
			t.Errorf("%s is %q, %v", key, it.Value, err)
		}
	}
	if it, err := store.Get(ctx, "/converge/two/leader"); err != nil || it.Key == "" {
		t.Errorf("the lock of the other site is gone: %v", err)
	}

	watching, stop := context.WithCancel(ctx)
	defer stop()
	events := c.Watch(watching, "/converge/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	for i, key := range []string{"/converge/two/a", "/converge/one-b/a", "/converge/one/a"} {
		if _, err := store.Commit(ctx, nil, []state.Op{{Key: key, Value: fmt.Append(nil, i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if seen := <-events; seen.Err() != nil || len(seen.Events) != 1 || string(seen.Events[0].Kv.Key) != "/converge/one/a" {
		t.Errorf("a watch of all sites tells %v, %v", seen.Events, seen.Err())
	}
}

// codeOf returns the code of an error of the client library, or of gRPC.
func codeOf(err error) codes.Code {
	if c, ok := err.(interface{ Code() codes.Code }); ok {
		return c.Code()
	}
	return status.Code(err)
}
