package etcd_test

import (
	"fmt"
	"testing"

	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// BenchmarkOpenClose measures what the store adds to every command.
func BenchmarkOpenClose(b *testing.B) {
	for name, dir := range map[string]func() string{
		"fresh": b.TempDir,
		"again": func() func() string { dir := b.TempDir(); return func() string { return dir } }(),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				kv, err := etcd.Open(b.Context(), etcd.Options{Dir: dir()})
				if err != nil {
					b.Fatal(err)
				}
				if err := kv.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func record(i int) state.Record {
	ref := schema.Ref{Scope: "site", Kind: "carbide.network_segment", Name: fmt.Sprintf("segment-%05d", i)}
	return state.Record{
		Ref: ref, ID: fmt.Sprintf("5a2f0c1e-0000-5000-8000-%012d", i), Incarnation: 1, Run: "20261120-121537.042-9f3a01",
		Spec: schema.Object{
			"vpc": "prod", "mtu": int64(9000), "vni": int64(100000 + i),
			"labels":      map[string]any{"env": "prod", "team": "gpu", "rack": fmt.Sprint("r", i%40)},
			"prefixes":    []any{map[string]any{"prefix": fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255), "gateway": fmt.Sprintf("10.%d.%d.1", i>>8, i&255), "reserve": int64(4)}},
			"description": "the segment of one rack of a large site",
		},
		After: []schema.Ref{{Scope: "site", Kind: "carbide.vpc", Name: "prod"}},
	}
}

// BenchmarkCommit measures the cost of one step: guarded by the lock, on the disk when it returns.
func BenchmarkCommit(b *testing.B) {
	kv := open(b, b.TempDir())
	b.Run("put", func(b *testing.B) {
		value := make([]byte, 600)
		for b.Loop() {
			if _, err := kv.Commit(b.Context(), nil, []state.Op{{Key: "/a", Value: value}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	s := state.New(kv, "bench")
	l, err := s.Lock(b.Context(), state.LockInfo{}, state.LockOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for _, n := range []int{1, 20, 120} {
		ops := make([]state.Op, n)
		for i := range ops {
			ops[i] = s.RecordOp(record(i))
		}
		b.Run(fmt.Sprintf("fenced-%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := l.Commit(b.Context(), nil, ops); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/record")
		})
	}
	b.Run("fenced-parallel", func(b *testing.B) {
		b.SetParallelism(5)
		b.RunParallel(func(pb *testing.PB) {
			op := s.RecordOp(record(0))
			for pb.Next() {
				if _, err := l.Commit(b.Context(), nil, []state.Op{op}); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// BenchmarkRecords measures what a plan reads first.
func BenchmarkRecords(b *testing.B) {
	kv := open(b, b.TempDir())
	s := state.New(kv, "bench")
	const n = 10000
	var ops []state.Op
	for i := range n {
		ops = append(ops, s.RecordOp(record(i)))
		if len(ops) == 100 {
			if _, err := kv.Commit(b.Context(), nil, ops); err != nil {
				b.Fatal(err)
			}
			ops = nil
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		rs, err := s.Records(b.Context())
		if err != nil || len(rs) != n {
			b.Fatal(len(rs), err)
		}
	}
}

// BenchmarkLock takes and releases the lock.
func BenchmarkLock(b *testing.B) {
	s := state.New(open(b, b.TempDir()), "bench")
	for b.Loop() {
		l, err := s.Lock(b.Context(), state.LockInfo{}, state.LockOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDocument writes and reads a document of 5 MB of which a little changes.
func BenchmarkDocument(b *testing.B) {
	kv := open(b, b.TempDir())
	s := state.New(kv, "bench")
	body := []byte{}
	for i := 0; len(body) < 5<<20; i++ {
		body = fmt.Appendf(body, `"vpc-%d":{"tenant":"t-%d","vni":%d},`, i*7919, i%100, i*104729%1000003)
	}
	b.Run("put", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			copy(body[len(body)/2:], fmt.Sprintf("%08d", i))
			if _, err := s.PutDocument(b.Context(), body, digest(body), 0, "bench", state.AnyRevision); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := s.Document(b.Context(), 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
