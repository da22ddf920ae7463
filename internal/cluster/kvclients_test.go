package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// kvOutcomes are the possible outcomes of calls.
var kvOutcomes = []string{
	"get: found", "get: absent", "list", "read: failed", "commit: written", "commit: guard did not hold", "commit: unknown", "commit: refused",
}

// outcomes counts the outcomes of calls. Some that are possible need not occur.
type outcomes struct {
	must     *torture.Coverage
	optional []string
}

func countOutcomes(t *testing.T, what string, all []string, optional ...string) outcomes {
	must := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(optional, s) })
	return outcomes{torture.Cover(t, what, must), optional}
}

func (o outcomes) reach(name string) {
	if o.must != nil && !slices.Contains(o.optional, name) {
		o.must.Reach(name)
	}
}

// all waits until everything was reached: how much a slow machine achieves in a given time is chance.
func (o outcomes) all(t *testing.T) {
	poll(t, patience, func() bool { return len(o.must.Missing()) == 0 })
}

// A kvLoad is clients that read and write a few keys as fast as they can.
type kvLoad struct {
	history  *history
	outcomes outcomes
	limit    func() time.Duration // of each call

	prefix string
	done   chan struct{}
	all    sync.WaitGroup
}

// startKV starts a client for each backend.
func startKV(o outcomes, backends []state.KV, limit func() time.Duration) *kvLoad {
	l := &kvLoad{history: newHistory(300, 5), outcomes: o, limit: limit, done: make(chan struct{})}
	l.prefix = fmt.Sprintf("/linear/%d", time.Now().UnixNano())
	for i, kv := range backends {
		l.all.Go(func() { l.client(kv, i) })
	}
	return l
}

// end stops the clients. What they saw is in the history.
func (l *kvLoad) end() {
	close(l.done)
	l.all.Wait()
}

func (l *kvLoad) key(group, key int) string { return fmt.Sprintf("%s/%d/%d", l.prefix, group, key) }

// client calls until the load ends. It remembers what it last saw, for its guards.
func (l *kvLoad) client(kv state.KV, id int) {
	r := rand.New(rand.NewPCG(uint64(id), uint64(time.Now().UnixNano())))
	group, last := -1, [groupKeys]cell{}
	for n := 0; ; n++ {
		select {
		case <-l.done:
			return
		default:
		}
		if g := l.history.group(); g != group {
			group, last = g, [groupKeys]cell{}
		}
		ctx, cancel := within(l.limit())
		asked := l.history.now()
		switch r.IntN(5) {
		case 0, 1:
			k := r.IntN(groupKeys)
			it, err := kv.Get(ctx, l.key(group, k))
			if err != nil {
				l.outcomes.reach("read: failed")
				break
			}
			last[k] = seen(it)
			l.history.add(group, id, asked, call{keys: []int{k}}, answer{keys: []cell{last[k]}}, false)
			if it.Modified == 0 {
				l.outcomes.reach("get: absent")
			} else {
				l.outcomes.reach("get: found")
			}
		case 2:
			l.list(ctx, kv, group, id, asked, &last)
		default:
			l.commit(ctx, kv, group, id, asked, fmt.Sprint(id, "-", n), r, &last)
		}
		cancel()
	}
}

// list reads all keys of the group, as of one revision.
func (l *kvLoad) list(ctx context.Context, kv state.KV, group, id int, asked int64, last *[groupKeys]cell) {
	items, err := kv.List(ctx, fmt.Sprintf("%s/%d/", l.prefix, group))
	if err != nil {
		l.outcomes.reach("read: failed")
		return
	}
	var now [groupKeys]cell
	for _, it := range items {
		for k := range now {
			if it.Key == l.key(group, k) {
				now[k] = seen(it)
			}
		}
	}
	*last = now
	in, out := call{}, answer{}
	for k := range now {
		in.keys, out.keys = append(in.keys, k), append(out.keys, now[k])
	}
	l.history.add(group, id, asked, in, out, false)
	l.outcomes.reach("list")
}

// commit writes one or two keys, guarded by what was seen of one or two, or by nothing.
func (l *kvLoad) commit(ctx context.Context, kv state.KV, group, id int, asked int64, value string, r *rand.Rand, last *[groupKeys]cell) {
	var in call
	for _, k := range r.Perm(groupKeys)[:r.IntN(3)] {
		g := guard{key: k, created: r.IntN(4) == 0}
		if g.revision = last[k].modified; g.created {
			g.revision = last[k].created
		}
		in.guards = append(in.guards, g)
	}
	for _, k := range r.Perm(groupKeys)[:1+r.IntN(2)] {
		c := change{key: k, value: value}
		if r.IntN(6) == 0 {
			c.value = ""
		}
		in.changes = append(in.changes, c)
	}
	var guards []state.Guard
	for _, g := range in.guards {
		guards = append(guards, state.Guard{Key: l.key(group, g.key), Created: g.created, Revision: g.revision})
	}
	var ops []state.Op
	for _, c := range in.changes {
		ops = append(ops, state.Op{Key: l.key(group, c.key), Value: []byte(c.value), Delete: c.value == ""})
	}
	revision, err := kv.Commit(ctx, guards, ops)
	switch {
	case err == nil:
		l.history.add(group, id, asked, in, answer{revision: revision}, false)
		l.outcomes.reach("commit: written")
	case errors.Is(err, state.ErrUnknown):
		l.history.add(group, id, asked, in, answer{unknown: true}, true)
		l.outcomes.reach("commit: unknown")
	case errors.Is(err, state.ErrGuard):
		l.history.add(group, id, asked, in, answer{guarded: true}, false)
		l.outcomes.reach("commit: guard did not hold")
	default: // nothing was written, as if it had not been requested
		l.outcomes.reach("commit: refused")
	}
}
