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

// TestMain lets the test binary act as a member.
func TestMain(m *testing.M) {
	cluster.Main()
	os.Exit(m.Run())
}

// program requires a program of a Debian package. Without it the test is skipped, unless real systems are required.
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

// start starts a cluster that lasts as long as the test.
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

// open connects like a separate process.
func open(t *testing.T, c *cluster.Cluster) state.KV {
	t.Helper()
	kv, err := etcd.Open(t.Context(), etcd.Options{Endpoints: c.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kv.Close() })
	return kv
}

// within returns a context that limits a call.
func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// pause waits before a client that has failed tries again, or until done.
func pause(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
