package etcd

import (
	"context"
	"iter"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"converge.dev/converge/state"
)

// Watch implements state.KV. A member without a leader ends it, so that the caller's next watch reaches another one.
// When etcd has compacted what comes next, it begins with all keys again.
func (kv *kv) Watch(ctx context.Context, prefix string) iter.Seq2[state.Batch, error] {
	return func(yield func(state.Batch, error) bool) {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer cancel()
		defer context.AfterFunc(kv.life, cancel)()
		for {
			items, revision, err := kv.list(ctx, prefix)
			if ended := kv.ready(ctx); ended != nil {
				err = ended
			}
			if err != nil {
				yield(state.Batch{}, err)
				return
			}
			whole := state.Batch{Whole: true, Revision: revision, Changes: make([]state.Change, len(items))}
			for i, it := range items {
				whole.Changes[i].Item = it
			}
			if !yield(whole, nil) {
				return
			}
			if again := kv.follow(ctx, prefix, revision+1, yield); !again {
				return
			}
		}
	}
}

// follow yields the changes from a revision on. It reports whether etcd no longer has them.
func (kv *kv) follow(ctx context.Context, prefix string, from int64, yield func(state.Batch, error) bool) (again bool) {
	ctx, cancel := context.WithCancel(ctx) // ends the watch at the far side
	defer cancel()
	for resp := range kv.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithFragment()) {
		switch err := resp.Err(); {
		case resp.CompactRevision > 0:
			return true
		case err != nil && ctx.Err() == nil:
			yield(state.Batch{}, kv.failed(ctx, err))
			return false
		case err != nil:
			continue // until it ends with the context
		}
		for commit := range commits(resp.Events) {
			if !yield(commit, nil) {
				return false
			}
		}
	}
	err := kv.ready(ctx)
	if err == nil { // the client library never stops without an error
		err = kv.failed(ctx, errUnfollowed)
	}
	yield(state.Batch{}, err)
	return false
}

// commits groups the changes written at one revision.
func commits(events []*clientv3.Event) iter.Seq[state.Batch] {
	return func(yield func(state.Batch) bool) {
		for len(events) > 0 {
			b := state.Batch{Revision: events[0].Kv.ModRevision}
			for len(events) > 0 && events[0].Kv.ModRevision == b.Revision {
				e := events[0]
				events = events[1:]
				c := state.Change{Item: state.Item{Key: string(e.Kv.Key), Modified: e.Kv.ModRevision}, Gone: e.Type == mvccpb.DELETE}
				if !c.Gone {
					c.Value, c.Created = e.Kv.Value, e.Kv.CreateRevision
				}
				b.Changes = append(b.Changes, c)
			}
			slices.SortFunc(b.Changes, func(a, b state.Change) int { return strings.Compare(a.Key, b.Key) })
			if !yield(b) {
				return
			}
		}
	}
}
