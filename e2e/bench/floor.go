package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// floors are the minimum cost of some work: plain code that does only what is indispensable, with none of our code but the
// generated calls. Each runs in a process of its own, as converge does.
var floors = map[string]func(ctx context.Context, args []string) (done, error){
	"decode": func(_ context.Context, args []string) (done, error) {
		return timed(func() error { return decode(args[0]) })
	},
	"open": func(ctx context.Context, args []string) (done, error) {
		return timed(func() error {
			for _, file := range args[1:] {
				if err := decode(file); err != nil {
					return err
				}
			}
			return read(ctx, args[0])
		})
	},
	"commit": commit,
	"carry":  carry,
	"look":   look,
	"make":   create,

	"define":  define, // these of libvirt
	"remove":  remove,
	"observe": observe,
}

// recorded is the prefix of the recorded resources.
const recorded = "/converge/bench/resource/"

// done is what a floor reports at its end.
type done struct {
	Took     time.Duration // without the start of the process
	Stored   int64         // bytes of keys and values that commit has written
	Revision int64         // of the store that commit has copied
}

func timed(do func() error) (done, error) {
	begin := time.Now()
	err := do()
	return done{Took: time.Since(begin)}, err
}

// decode decodes a file into maps and slices.
func decode(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc any
	return json.Unmarshal(text, &doc)
}

// etcd starts one on the data in a directory, without peers and without a port.
func etcd(dir string) (*clientv3.Client, func(), error) {
	c := embed.NewConfig()
	c.Dir = dir
	c.ListenPeerUrls, c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil, nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "embedded:0"}}
	c.InitialCluster = c.Name + "=" + c.AdvertisePeerUrls[0].String()
	c.TickMs, c.ElectionMs = 10, 50
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	server, err := embed.StartEtcd(c)
	if err != nil {
		return nil, nil, err
	}
	<-server.Server.ReadyNotify()
	return v3client.New(server.Server), server.Close, nil
}

// read opens a store, decodes the recorded resources in it, and closes it.
func read(ctx context.Context, dir string) error {
	client, end, err := etcd(dir)
	if err != nil {
		return err
	}
	defer end()
	return records(ctx, client)
}

// records decodes the recorded resources in a store.
func records(ctx context.Context, client *clientv3.Client) error {
	found, err := client.Get(ctx, recorded, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range found.Kvs {
		var record any
		if err := json.Unmarshal(kv.Value, &record); err != nil {
			return err
		}
	}
	return nil
}

// commit repeats the transactions of one store after a revision in another, each when the previous one is on the disk.
func commit(ctx context.Context, args []string) (done, error) {
	return replay(ctx, args, func(client *clientv3.Client, txns [][]clientv3.Op) error {
		for _, ops := range txns {
			if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
		}
		return nil
	})
}

// carry decodes a document, the file of a world and the records in a store. Then it commits, writes a line for each change of a
// record, as it happens, and in the end the world as it became.
func carry(ctx context.Context, args []string) (done, error) {
	document, was, becomes := args[3], args[4], args[5]
	text, err := os.ReadFile(becomes)
	if err != nil {
		return done{}, err
	}
	var world any
	if err := json.Unmarshal(text, &world); err != nil {
		return done{}, err
	}
	return replay(ctx, args, func(client *clientv3.Client, txns [][]clientv3.Op) error {
		if err := errors.Join(decode(document), decode(was), records(ctx, client)); err != nil {
			return err
		}
		journal, err := os.Create(was + ".journal")
		if err != nil {
			return err
		}
		defer journal.Close()
		for _, ops := range txns {
			if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
			for _, op := range ops {
				if !bytes.HasPrefix(op.KeyBytes(), []byte(recorded)) {
					continue
				}
				if _, err := journal.Write(slices.Concat(op.KeyBytes(), op.ValueBytes())); err != nil {
					return err
				}
			}
		}
		text, err := json.MarshalIndent(world, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(was, text, 0o600)
	})
}

// replay starts etcd on the store args[1], and does something with the transactions of the store args[0] after revision args[2].
func replay(ctx context.Context, args []string, do func(*clientv3.Client, [][]clientv3.Op) error) (done, error) {
	since, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return done{}, err
	}
	txns, last, err := history(args[0], since)
	if err != nil {
		return done{}, err
	}
	d, err := timed(func() error {
		client, end, err := etcd(args[1])
		if err != nil {
			return err
		}
		defer end()
		return do(client, txns)
	})
	d.Revision = last
	for _, ops := range txns {
		for _, op := range ops {
			d.Stored += int64(len(op.KeyBytes()) + len(op.ValueBytes()))
		}
	}
	return d, err
}

// history returns the transactions of a store after a revision, and the last revision. The store must not be open elsewhere.
func history(dir string, since int64) (txns [][]clientv3.Op, last int64, err error) {
	db, err := bbolt.Open(dir+"/member/snap/db", 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return nil, 0, err
	}
	defer db.Close()
	last = max(since, 1) // the first is 2
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(at, value []byte) error {
			revision := mvcc.BytesToBucketKey(at).Main
			if revision <= since {
				return nil
			}
			var kv mvccpb.KeyValue
			if err := proto.Unmarshal(value, &kv); err != nil {
				return err
			}
			op := clientv3.OpPut(string(kv.Key), string(kv.Value))
			if mvcc.IsTombstone(at) {
				op = clientv3.OpDelete(string(kv.Key))
			}
			switch {
			case revision == last && len(txns) > 0:
				txns[len(txns)-1] = append(txns[len(txns)-1], op)
			case revision == last+1:
				txns = append(txns, []clientv3.Op{op})
			default:
				return fmt.Errorf("revision %d follows %d: a part of the history is gone", revision, last)
			}
			last = revision
			return nil
		})
	})
	return txns, last, err
}
