package cluster_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"converge.dev/converge/internal/cluster"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// TestMain lets the test binary be a member.
func TestMain(m *testing.M) {
	cluster.Main()
	os.Exit(m.Run())
}

// program demands a program of a Debian package. Without it the test is skipped, unless real systems were promised.
func program(t *testing.T, name, pkg string) {
	t.Helper()
	_, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("CONVERGE_REAL") == "1":
		t.Fatalf("%s is missing: install the package %s", name, pkg)
	default:
		t.Skipf("%s is missing: install the package %s", name, pkg)
	}
}

// start makes a cluster that lasts as long as the test.
func start(t *testing.T) *cluster.Cluster {
	t.Helper()
	program(t, "ip", "iproute2")
	program(t, "nft", "nftables")
	if os.Getuid() != 0 {
		if os.Getenv("CONVERGE_REAL") == "1" {
			t.Fatal("network namespaces need root")
		}
		t.Skip("network namespaces need root")
	}
	c, err := cluster.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the members said:\n%s", c.Log())
		}
	})
	return c
}

// open connects as a process of its own would.
func open(t *testing.T, c *cluster.Cluster) state.KV {
	t.Helper()
	kv, err := etcd.Open(t.Context(), etcd.Options{Endpoints: c.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kv.Close() })
	return kv
}

// within bounds a call.
func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// pause waits for the next try of a client that has failed, or until done.
func pause(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
