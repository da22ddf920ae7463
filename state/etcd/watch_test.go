package etcd

import (
	"fmt"
	"testing"

	"converge.dev/converge/state"
)

// What was compacted before it was reported is reported as a whole, and the watch continues from there.
func TestWatchCompacted(t *testing.T) {
	opened, err := Open(t.Context(), Options{Dir: t.TempDir(), Command: "go test"})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	kv := opened.(*kv)
	var last int64
	put := func(value string) {
		if last, err = kv.Commit(t.Context(), nil, []state.Op{{Key: "/w/a", Value: []byte(value)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		put(fmt.Sprint(i))
	}
	if _, err := kv.client.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if again := kv.follow(t.Context(), "/w/", last-3, func(b state.Batch, err error) bool {
		t.Errorf("told of what was compacted: %+v, %v", b, err)
		return true
	}); !again {
		t.Error("it does not begin again")
	}
	n := 0
	for b, err := range kv.Watch(t.Context(), "/w/") {
		if err != nil {
			t.Fatal(err)
		}
		if n++; b.Revision != last || b.Whole != (n == 1) || string(b.Changes[0].Value) != fmt.Sprint(n+3) {
			t.Fatalf("%d: %+v", n, b)
		}
		if n == 2 {
			break
		}
		put("5")
	}
}
