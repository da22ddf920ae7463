package etcd_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"converge.dev/converge/internal/statetest"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

func open(t testing.TB, dir string) state.KV {
	t.Helper()
	kv, err := etcd.Open(t.Context(), etcd.Options{Dir: dir, Command: "go test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kv.Close(); err != nil {
			t.Error(err)
		}
	})
	return kv
}

func TestLaws(t *testing.T) {
	kv := open(t, t.TempDir())
	statetest.KV(t, func(*testing.T) state.KV { return kv })
	statetest.Store(t, func(*testing.T) state.KV { return kv })
	statetest.WatchClosed(t, open(t, t.TempDir()))
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
