package state_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// nasty are invalid values for every decoder of the store.
var nasty = []string{
	``, `{}`, `null`, `[]`, `""`, `{"v":1}`, `{"v":0}`, `{"v":2}`, `{"v":-1}`, `{"v":"1"}`, `{"v":1e0}`, `{"v":1,}`, `{"v":1,"v":2}`, `{"v":1}{}`,
	`{ "v":1}`, "{\"v\":1,\"by\":\"\xff\"}", `{"V":1}`, `{"v":1,"ref":"a/b"}`, `{"v":1,"at":"yesterday"}`, `{"v":1,"nope":{}}`, `{"v":9223372036854775808}`,
}

// keep returns a store that holds one value under a key of the site; whole: with what the store puts in front of its own.
func keep(tb testing.TB, key string, value []byte, whole bool) *state.Store {
	tb.Helper()
	if whole {
		value = sealed("/converge/test/"+key, value)
	}
	kv := mem.New(mem.Options{})
	if _, err := kv.Commit(context.Background(), nil, []state.Op{{Key: "/converge/test/" + key, Value: value}}); err != nil {
		tb.Fatal(err)
	}
	return state.New(kv, "test")
}

// sealed returns a value with the version and the checksum that the store puts in front of what follows the first bracket,
// so that the decoder behind them is reached.
func sealed(key string, b []byte) []byte {
	rest, ok := bytes.CutPrefix(b, []byte(`{"v":1,`))
	if !ok {
		rest = bytes.TrimPrefix(b, []byte("{"))
	}
	sum := sha256.Sum256(append([]byte(key), rest...))
	return fmt.Appendf(nil, `{"v":1,"sum":"%x",%s`, sum[:8], rest)
}

// reread returns a value as read back after it was written by op.
func reread[T any](t *testing.T, op func(*state.Store) state.Op, read func(*state.Store) (T, error)) T {
	t.Helper()
	kv := mem.New(mem.Options{})
	s := state.New(kv, "test")
	if _, err := kv.Commit(context.Background(), nil, []state.Op{op(s)}); err != nil {
		t.Fatal(err)
	}
	v, err := read(s)
	if err != nil {
		t.Fatalf("what was written does not read: %v", err)
	}
	return v
}

// FuzzRecords reads arbitrary recorded resources; both readers agree, and what they read is written as it was read.
func FuzzRecords(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range append(nasty,
		`{"v":1,"ref":"site/carbide.vpc/prod","id":"i","incarnation":1,"spec":{"tenant":"acme","n":1,"x":1.5,"labels":{"a":"b"}},"run":"r","at":"2026-11-21T10:00:00Z"}`,
		`{"v":1,"ref":"gpu-01/ovs.port/p","id":"p","incarnation":3,"gone":true,"spec":{},"after":["gpu-01/ovs.bridge/b"],"protect":true,"on_remove":"forget","run":"r","at":"2026-11-21T10:00:00Z"}`,
		`{"v":1,"ref":"site/a.b/c","spec":{"n":1e400}}`, `{"v":1,"ref":"site/a.b/c","spec":{"n":9223372036854775808,"m":-0,"k":1e2}}`, `{"v":1,"ref":"site/a.b/c","spec":[]}`,
		`{"v":1,"ref":"site/a.b/c","spec":null}`, `{"v":1,"ref":"site/a.b/c","spec":{"a":{"a":{"a":[[[[]]]]}}}}`, `{"v":1,"ref":"site/a.b/c","spec":{"a":1,"a":2}}`,
		`{"v":1,"ref":"site/a.b/c","after":["x"]}`, `{"v":1,"ref":"site/a.b/c","incarnation":1.5}`, `{"v":1,"ref":"site/a.b/c","spec":{"\ud800":1}}`,
	) {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	seed := []byte(`{"ref":"site/carbide.vpc/prod","id":"i","incarnation":1,"spec":{"n":1},"run":"r","at":"2026-11-21T10:00:00Z"}`)
	if r, err := keep(f, "resource/site/carbide.vpc/prod", seed, true).Records(context.Background()); err != nil || len(r) != 1 {
		f.Fatalf("what this test writes is not what the store reads: %v", err)
	}
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if len(b) > budget.Largest {
			return
		}
		ref := schema.Ref{Scope: "site", Kind: "carbide.vpc", Name: "prod"}
		if whole {
			b = sealed("/converge/test/resource/"+ref.String(), b)
		}
		s := keep(t, "resource/"+ref.String(), b, false)
		var all []state.Record
		var one state.Record
		var err, oneErr error
		budget.Spend(t, func() { all, err = s.Records(context.Background()) })
		budget.Spend(t, func() { one, oneErr = s.Record(context.Background(), ref) })
		if (err == nil) != (oneErr == nil) || err == nil && !reflect.DeepEqual(all[0], one) {
			t.Fatalf("%q reads as %+v, %v and as %+v, %v", b, all, err, one, oneErr)
		}
		var plain state.Record // complete with numbers, as the reader of the standard library returns it
		if err == nil {
			if perr := json.Unmarshal(b, &plain); perr != nil || !reflect.DeepEqual(plain.Spec, one.Spec) {
				t.Errorf("%q has the spec %#v, and for package json %#v, %v", b, one.Spec, plain.Spec, perr)
			}
		}
		if err != nil || one.Ref.IsZero() || one.At.Year() > 9999 || one.At.Year() < 0 {
			return
		}
		again := reread(t, func(s *state.Store) state.Op { return s.RecordOp(one) },
			func(s *state.Store) (state.Record, error) { return s.Record(context.Background(), one.Ref) })
		same(t, one, again)
	})
}

// FuzzValues reads the other values of the store: runs, holds, the freeze, the head of the document and the holder of the
// lock.
func FuzzValues(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range append(nasty,
		`{"v":1,"id":"20261121-100000.000-abcdef","op":"apply","status":"open","plan":"d","body":["x"],"serial":1,"by":"a@b","epoch":2,"started":"2026-11-21T10:00:00Z","steps":3,"done":1}`,
		`{"v":1,"id":"r","status":"partial","failed":"site/carbide.vpc/prod","remains":["site/carbide.tenant/acme"],"differences":["x"],"ended":"2026-11-21T10:00:00Z"}`,
		`{"v":1,"scope":"site","reason":"because","run":"r","at":"2026-11-21T10:00:00Z"}`, `{"v":1,"scope":"gpu-01/ovs.bridge/x","reason":""}`,
		`{"v":1,"serial":7,"digest":"00","size":10,"chunks":["aa"],"by":"inbox","at":"2026-11-21T10:00:00Z"}`, `{"v":1,"serial":-1,"size":-1,"chunks":null}`,
		`{"v":1,"id":"x","operation":"apply","who":"a@b","pid":1,"version":"x","created":"2026-11-21T10:00:00Z","epoch":9}`,
	) {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if len(b) > budget.Largest {
			return
		}
		ctx := context.Background()
		budget.Spend(t, func() {
			if r, err := keep(t, "run/r", b, whole).Run(ctx, "r"); err == nil && lasting(r.Started) && r.ID != "" {
				if r.Ended == nil || lasting(*r.Ended) {
					same(t, r, reread(t, func(s *state.Store) state.Op { return s.PutRunOp(r) }, func(s *state.Store) (state.Run, error) { return s.Run(ctx, r.ID) }))
				}
			}
			if all, err := keep(t, "run/r", b, whole).Runs(ctx); err == nil && len(all) != 1 {
				t.Errorf("%q is %d runs", b, len(all))
			}
			if hs, err := keep(t, "hold/x", b, whole).Holds(ctx); err == nil && lasting(hs[0].At) {
				same(t, hs, reread(t, func(s *state.Store) state.Op { return s.HoldOp(hs[0]) }, func(s *state.Store) ([]state.Hold, error) { return s.Holds(ctx) }))
			}
			if h, err := keep(t, "freeze", b, whole).Frozen(ctx); err == nil && h != nil && lasting(h.At) {
				same(t, h, reread(t, func(s *state.Store) state.Op { return s.FreezeOp(*h) }, func(s *state.Store) (*state.Hold, error) { return s.Frozen(ctx) }))
			}
			// A head refers to chunks, which do not exist: never a document.
			s := keep(t, "document/head", b, whole)
			h, err := s.Head(ctx)
			if _, body, derr := s.Document(ctx, 0); derr == nil && (err != nil || len(h.Chunks) > 0 || len(body) > 0) {
				t.Errorf("%q is the head of a document %q", b, body)
			}
			_, _ = keep(t, "document/log/0000000000000000001", b, whole).History(ctx)
			_, _, _ = keep(t, "spent/d", b, whole).Spent(ctx, "d")
			_, _ = keep(t, "leader", b, whole).LockInfo(ctx)
		})
	})
}

// FuzzBlob reads arbitrary chunks: only bytes that match their name come back, and what unpacks to more than a chunk holds
// is refused before that.
func FuzzBlob(tf *testing.F) {
	f := fuzzed.New(tf)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, plain := range [][]byte{nil, []byte("{}"), bytes.Repeat([]byte("x"), 1000), bytes.Repeat([]byte{0}, 1<<20)} {
		f.Add(enc.EncodeAll(plain, nil))
	}
	whole := enc.EncodeAll(bytes.Repeat([]byte("ab"), 300), nil)
	f.Add(whole[:len(whole)/2])
	f.Add(append(bytes.Clone(whole), whole...))
	bomb := enc.EncodeAll(make([]byte, 64<<20), nil)
	f.Add(bomb[:min(len(bomb), 4096)])
	f.Add([]byte("\x28\xb5\x2f\xfd\xa4\xff\xff\xff\xff"))
	f.Add([]byte("not zstd"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > budget.Largest {
			return
		}
		ctx := context.Background()
		wrong := hex.EncodeToString(make([]byte, 32))
		store := keep(t, "blob/"+wrong, b, false)
		budget.Spend(t, func() {
			if got, err := store.Blob(ctx, []string{wrong}); err == nil {
				t.Errorf("%q is given as what its name does not promise: %q", b, got)
			}
		})
		// The same bytes under the name of their content, if they have any.
		dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(1<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer dec.Close()
		if plain, err := dec.DecodeAll(b, nil); err == nil && len(plain) <= 512<<10 {
			sum := sha256.Sum256(plain)
			name := hex.EncodeToString(sum[:])
			if got, err := keep(t, "blob/"+name, b, false).Blob(ctx, []string{name}); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("a chunk of %d bytes comes back as %d, %v", len(plain), len(got), err)
			}
		}
		// And what is stored comes back.
		kv := mem.New(mem.Options{})
		s := state.New(kv, "test")
		digests, err := s.PutBlob(ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Blob(ctx, digests); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%q comes back as %q, %v", b, got, err)
		}
		if _, err := s.Blob(ctx, []string{wrong}); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a blob that is not there: %v", err)
		}
	})
}

// lasting reports whether JSON has a form for a time.
func lasting(t time.Time) bool {
	_, err := json.Marshal(t)
	return err == nil
}

// same compares what is written: two times that are the same moment may differ in memory.
func same(t *testing.T, a, b any) {
	t.Helper()
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	if err != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Errorf("%s comes back as %s (%v)", x, y, fmt.Sprint(err, err2))
	}
}
