package reverse_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"

	"converge.dev/converge/internal/reverse"
)

var manyNodes = flag.Int("nodes", 500, "the number of nodes in BenchmarkIdleNodes")

// perNode is what a node may cost a replica of the site at rest.
const perNode = 60 << 10

// A crowd is what the process of the nodes is told.
type crowd struct {
	Address string
	Nodes   int
	Cert    []byte // of the authority
	Key     []byte
}

// TestMain is the process of the nodes when a benchmark started it.
func TestMain(m *testing.M) {
	if told := os.Getenv("REVERSE_TEST_CROWD"); told != "" {
		var c crowd
		if err := json.Unmarshal([]byte(told), &c); err != nil {
			panic(err)
		}
		c.run()
	}
	os.Exit(m.Run())
}

// run keeps nodes until the process is killed. Each has a certificate of its own: equal ones would be shared at the site.
func (c crowd) run() {
	cert, err := x509.ParseCertificate(c.Cert)
	if err != nil {
		panic(err)
	}
	a := &authority{cert: cert, key: ed25519.PrivateKey(c.Key)}
	dial := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", c.Address) }
	for i := range c.Nodes {
		name := fmt.Sprintf("gpu-%05d", i)
		config := a.client(name)
		go func() { _ = reverse.Keep(context.Background(), name, dial, config, newCalls().maker, quiet) }()
	}
	select {}
}

// BenchmarkIdleNodes measures what idle nodes cost the site: bytes/node is heap and stacks in use. With -nodes=5000 for the real
// thing. "fresh" have connected, "used" have also answered a call with 1 MiB in each direction.
func BenchmarkIdleNodes(b *testing.B) {
	for _, used := range []bool{false, true} {
		b.Run(map[bool]string{false: "fresh", true: "used"}[used], func(b *testing.B) {
			for b.Loop() {
				idleNodes(b, *manyNodes, used)
			}
		})
	}
}

func idleNodes(b *testing.B, n int, used bool) {
	a := newAuthority()
	nodes := make(chan *reverse.Conn, n)
	site := reverse.Listen(listen(b), reverse.Options{TLS: a.site(), Node: func(c *reverse.Conn) { nodes <- c }, Logger: quiet})
	defer site.Close()
	told, err := json.Marshal(crowd{site.Addr().String(), n, a.cert.Raw, a.key})
	if err != nil {
		b.Fatal(err)
	}
	all := make([]*reverse.Conn, 0, n)
	heap, stacks, goroutines := inUse()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "REVERSE_TEST_CROWD="+string(told))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	limit := time.After(5 * time.Minute)
	for len(all) < n {
		select {
		case c := <-nodes:
			all = append(all, c)
		case <-limit:
			b.Fatalf("only %d of %d nodes have connected", len(all), n)
		}
	}
	if used {
		for _, c := range all {
			if _, err := repeat(b.Context(), c, make([]byte, 1<<20), grpc.MaxCallRecvMsgSize(8<<20)); err != nil {
				b.Fatal(err)
			}
		}
	}
	heap2, stacks2, goroutines2 := inUse()
	for _, c := range all {
		if c.Err() != nil {
			b.Fatalf("a node is gone: %v", c.Err())
		}
	}
	each := func(from, to uint64) float64 { return float64(int64(to)-int64(from)) / float64(n) }
	total := each(heap+stacks, heap2+stacks2)
	b.ReportMetric(total, "bytes/node")
	b.ReportMetric(each(heap, heap2), "heap/node")
	b.ReportMetric(each(stacks, stacks2), "stack/node")
	b.ReportMetric(float64(goroutines2-goroutines)/float64(n), "goroutines/node")
	if total > perNode {
		b.Errorf("a node costs %.0f bytes at rest, more than %d", total, perNode)
	}
	runtime.KeepAlive(all)
}

// inUse collects the garbage more than once: what pools keep survives the first time, and stacks shrink as they are scanned.
func inUse() (heap, stacks uint64, goroutines int) {
	for range 4 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse, m.StackInuse, runtime.NumGoroutine()
}
