package cluster_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"converge.dev/converge/state"
)

// seldom reports whether a broken backend does the wrong thing this time.
func seldom() bool { return rand.IntN(20) == 0 }

// broken is a backend with some broken methods.
type broken struct {
	state.KV
	get    func(ctx context.Context, key string) (state.Item, error)
	list   func(ctx context.Context, prefix string) ([]state.Item, error)
	commit func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error)
}

func (b broken) Get(ctx context.Context, key string) (state.Item, error) {
	if b.get != nil {
		return b.get(ctx, key)
	}
	return b.KV.Get(ctx, key)
}

func (b broken) List(ctx context.Context, prefix string) ([]state.Item, error) {
	if b.list != nil {
		return b.list(ctx, prefix)
	}
	return b.KV.List(ctx, prefix)
}

func (b broken) Commit(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
	if b.commit != nil {
		return b.commit(ctx, guards, ops)
	}
	return b.KV.Commit(ctx, guards, ops)
}

// brokenKeys are ways in which a backend may break the promises of state.KV.
var brokenKeys = map[string]func(state.KV) state.KV{
	"sound": func(kv state.KV) state.KV { return kv },
	"stale read": func(kv state.KV) state.KV {
		var old sync.Map
		return broken{KV: kv, get: func(ctx context.Context, key string) (state.Item, error) {
			if it, ok := old.Load(key); ok && seldom() {
				return it.(state.Item), nil
			}
			it, err := kv.Get(ctx, key)
			if err == nil {
				old.Store(key, it)
			}
			return it, err
		}}
	},
	"torn list": func(kv state.KV) state.KV {
		return broken{KV: kv, list: func(ctx context.Context, prefix string) ([]state.Item, error) {
			items, err := kv.List(ctx, prefix)
			for i := range items {
				runtime.Gosched()
				if it, err := kv.Get(ctx, items[i].Key); err == nil && it.Modified != 0 {
					items[i] = it
				}
			}
			return items, err
		}}
	},
	"lost guard": func(kv state.KV) state.KV {
		return broken{KV: kv, commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
			if seldom() {
				guards = nil
			}
			return kv.Commit(ctx, guards, ops)
		}}
	},
	"lost write": func(kv state.KV) state.KV {
		return broken{KV: kv, commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
			if seldom() {
				ops = nil
			}
			return kv.Commit(ctx, guards, ops)
		}}
	},
	"half a write": func(kv state.KV) state.KV {
		return broken{KV: kv, commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
			if seldom() {
				ops = ops[:1]
			}
			return kv.Commit(ctx, guards, ops)
		}}
	},
	"written and refused": func(kv state.KV) state.KV {
		return broken{KV: kv, commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
			revision, err := kv.Commit(ctx, guards, ops)
			if err == nil && seldom() {
				return 0, errors.New("refused")
			}
			return revision, err
		}}
	},
	"written twice": func(kv state.KV) state.KV { // as by a client that retries without checking
		return broken{KV: kv, commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
			revision, err := kv.Commit(ctx, guards, ops)
			if err == nil && len(guards) == 0 && seldom() {
				runtime.Gosched()
				_, err = kv.Commit(ctx, guards, ops)
			}
			return revision, err
		}}
	},
}

// brokenLocks are ways in which a backend may break the lock that is built on it.
var brokenLocks = map[string]func(state.KV) state.KV{
	"sound": func(kv state.KV) state.KV { return kv },
	"no fence": func(kv state.KV) state.KV { // a former holder may write
		return broken{KV: kv, commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
			if strings.HasSuffix(ops[0].Key, "/turn") {
				guards = nil
			}
			return kv.Commit(ctx, guards, ops)
		}}
	},
	"no mutual exclusion": func(kv state.KV) state.KV { // a lock that is held looks free
		return broken{KV: kv,
			get: func(ctx context.Context, key string) (state.Item, error) {
				if strings.HasSuffix(key, "/leader") && seldom() {
					return state.Item{}, nil
				}
				return kv.Get(ctx, key)
			},
			commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
				if len(guards) == 1 && guards[0].Revision == 0 && strings.HasSuffix(ops[0].Key, "/leader") {
					guards = nil
				}
				return kv.Commit(ctx, guards, ops)
			}}
	},
	"an epoch that stays": func(kv state.KV) state.KV { // breaking the lock does not raise it
		return broken{KV: kv, commit: func(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
			var rest []state.Op
			for _, op := range ops {
				if !strings.HasSuffix(op.Key, "/epoch") || len(ops) == 2 {
					rest = append(rest, op)
				}
			}
			return kv.Commit(ctx, guards, rest)
		}}
	},
	"an epoch that is forgotten": func(kv state.KV) state.KV { // the first value comes back as if it were the newest
		var first sync.Map
		return broken{KV: kv, get: func(ctx context.Context, key string) (state.Item, error) {
			it, err := kv.Get(ctx, key)
			if err != nil || it.Modified == 0 || !strings.HasSuffix(key, "/epoch") {
				return it, err
			}
			if value, had := first.LoadOrStore(key, it.Value); had && seldom() {
				it.Value = value.([]byte)
			}
			return it, nil
		}}
	},
}

// TestTortureCheckers proves that the checkers find defects: backends that occasionally break one promise.
func TestTortureCheckers(t *testing.T) {
	const patience = 20 * time.Second
	judge := func(t *testing.T, sound bool, try func() (porcupine.CheckResult, string)) {
		deadline := time.Now().Add(patience)
		for {
			result, why := try()
			switch {
			case sound && result == porcupine.Ok:
				return
			case sound || result == porcupine.Unknown:
				t.Fatalf("%s: %s", result, why)
			case result == porcupine.Illegal:
				return
			case time.Now().After(deadline):
				t.Fatal("nothing wrong was found")
			}
		}
	}
	backends := func(wrap func(state.KV) state.KV) (all []state.KV) {
		for _, kv := range lossy(clients) {
			all = append(all, wrap(kv))
		}
		return all
	}
	for name, wrap := range brokenKeys {
		t.Run("keys/"+name, func(t *testing.T) {
			judge(t, name == "sound", func() (porcupine.CheckResult, string) {
				l := startKV(outcomes{}, backends(wrap), patient)
				poll(t, patience, func() bool { return l.history.size() > 2000 })
				l.end()
				return l.history.verdict(kvModel)
			})
		})
	}
	for name, wrap := range brokenLocks {
		t.Run("locks/"+name, func(t *testing.T) {
			judge(t, name == "sound", func() (porcupine.CheckResult, string) {
				l := startLocks(outcomes{}, backends(wrap), time.Minute, false)
				poll(t, patience, func() bool { return l.history.size() > 1000 })
				l.end()
				return l.history.verdict(lockModel(false))
			})
		})
	}
}
