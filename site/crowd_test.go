package site_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"converge.dev/converge/agent"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/trust"
)

var (
	manyNodes  = flag.Int("nodes", 200, "the number of nodes in BenchmarkCrowd")
	manyEvents = flag.Int("events", 200, "the number of changes in BenchmarkCrowd")
)

// What BenchmarkCrowd promises.
const (
	crowdPerNode = 60 << 10        // bytes that a node costs a replica at rest
	crowdSeen    = time.Second     // from a change on a node until the site is told of it
	crowdTaken   = 5 * time.Second // from the lock until a new leader has changed something
)

// A member is a node of the crowd that is to enrol.
type member struct{ Node, Token string }

// A muster is what the process of the agents is told.
type muster struct {
	Address string
	Dir     string // for identities and ledgers
	Empty   bool   // there is nothing on the nodes yet
	Members []member
}

// TestMain is the process of the agents when BenchmarkCrowd started it.
func TestMain(m *testing.M) {
	if os.Getenv("SITE_TEST_CROWD") != "" {
		if err := attendAll(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "crowd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// attendAll enrols nodes and says so, starts their agents when it is told to, and then changes something on each node that it is told
// of, and says when. It ends with its input.
func attendAll(in io.Reader, out io.Writer) error {
	orders := bufio.NewScanner(in)
	orders.Buffer(nil, 64<<20)
	if !orders.Scan() {
		return orders.Err()
	}
	var all muster
	if err := json.Unmarshal(orders.Bytes(), &all); err != nil {
		return err
	}
	dir := func(m member) string { return filepath.Join(all.Dir, m.Node) }
	var enrolling errgroup.Group
	enrolling.SetLimit(8)
	for _, m := range all.Members {
		enrolling.Go(func() error {
			_, err := trust.Bootstrap(context.Background(), dir(m), m.Token, all.Address, trust.IdentityOptions{})
			return err
		})
	}
	if err := enrolling.Wait(); err != nil {
		return err
	}
	fmt.Fprintln(out, "enrolled")
	if !orders.Scan() {
		return orders.Err()
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	worlds := map[string]*fake.World{}
	kinds := enginetest.Kinds()
	for _, m := range all.Members {
		w := fake.New(kinds)
		if !all.Empty {
			if err := w.Put(m.Node, "near.bridge", providers.Thing{ID: "b", Name: "b", Spec: schema.Object{"size": int64(0)}}); err != nil {
				return err
			}
		}
		worlds[m.Node] = w
		running.Go(func() {
			err := agent.Run(ctx, agent.Options{
				Dir: dir(m), Servers: []string{all.Address}, Version: "v1", Logger: slog.New(slog.DiscardHandler),
				Offers: func(node string) ([]providers.Need, error) {
					return []providers.Need{{Scope: node, Provider: "near"}}, nil
				},
				Open: func(_ context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
					if len(needs) == 0 {
						return providers.NewSet()
					}
					return providers.NewSet(w.Provider("near", m.Node))
				},
			})
			if ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "crowd:", m.Node, err)
			}
		})
	}
	for size := int64(1); orders.Scan(); size++ {
		node := orders.Text()
		fmt.Fprintln(out, node, time.Now().UnixNano())
		if err := worlds[node].Change(node, "near.bridge", "b", schema.Object{"size": size}); err != nil {
			return err
		}
	}
	return orders.Err()
}

// A front is what of a site agent the nodes see, made as converge serve makes it.
type front struct {
	nodes  *site.Nodes
	port   *reverse.Listener
	public *grpc.Server
	stop   context.CancelFunc
	over   sync.WaitGroup
	came   chan struct{} // has an element when a node has come or gone
}

func openFront(b *testing.B, s *enginetest.Site, keys *trust.Authority, address string) *front {
	b.Helper()
	var l net.Listener
	var err error
	for range 100 { // the kernel may still hold the address of the one before
		if l, err = net.Listen("tcp", address); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	admission := trust.NewAdmission(s.Store)
	f := &front{came: make(chan struct{}, 1)}
	f.nodes = site.NewNodes(site.NodesOptions{
		Site: enginetest.SiteID, Epoch: s.Store.Epoch, Logger: log,
		Who: func(c tls.ConnectionState) (string, error) {
			node, err := trust.NodeOf(c)
			if err == nil {
				err = admission.Check(node, c.PeerCertificates[0].SerialNumber)
			}
			return node, err
		},
		Replaced: func(c tls.ConnectionState) bool {
			node, err := trust.NodeOf(c)
			return err == nil && admission.Replaced(node, c.PeerCertificates[0].SerialNumber)
		},
		Keeps: func(string) bool { return true },
		Key: func() (ed25519.PrivateKey, int64, error) {
			key, _, err := keys.SignKey()
			return key, keys.Document().Version, err
		},
		Changed: func() {
			select {
			case f.came <- struct{}{}:
			default:
			}
		},
	})
	f.nodes.Lead(true)
	f.port = reverse.Listen(l, reverse.Options{TLS: keys.TLS(admission.Check, "127.0.0.1"), Node: f.nodes.Attend, Logger: log})
	f.public = grpc.NewServer(grpc.Creds(reverse.Credentials()), grpc.ConnectionTimeout(20*time.Second), grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(4),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 30 * time.Second, MaxConnectionAge: 2 * time.Minute}))
	trust.Serve(f.public, keys, s.Store, log)
	f.nodes.Hear(f.public)
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.over.Go(func() { _ = f.public.Serve(f.port) })
	f.over.Go(func() { _ = admission.Run(ctx, func(node string, _ error) { f.nodes.Refuse(node) }) })
	return f
}

func (f *front) close() {
	f.stop()
	f.public.Stop()
	_ = f.port.Close()
	f.over.Wait()
}

// all waits until so many nodes are connected, and returns how long that took, and when half of them were.
func (f *front) all(b *testing.B, n int) (half, whole time.Duration) {
	b.Helper()
	begin, limit := time.Now(), time.After(10*time.Minute)
	for connected := 0; ; {
		select {
		case <-f.came:
		case <-limit:
			b.Fatalf("only %d of %d nodes are connected", connected, n)
		}
		connected = 0
		for _, s := range f.nodes.Status() {
			if s.Connected {
				connected++
			}
		}
		if half == 0 && connected >= n/2 {
			half = time.Since(begin)
		}
		if connected == n {
			return half, time.Since(begin)
		}
	}
}

// settle waits until the connections by which agents look for trust documents are gone.
func settle() {
	for last := 0; ; {
		now := runtime.NumGoroutine()
		if now == last {
			return
		}
		last = now
		time.Sleep(2 * time.Second)
	}
}

// A footprint is what a process has in use.
type footprint struct {
	heap, stacks, live, resident uint64 // bytes: live are those of objects, heap those that they lie in, resident all that are in no file
	goroutines                   int
}

func (f footprint) since(b *testing.B, was footprint, n int, what string) (total float64) {
	each := func(from, to uint64) float64 { return (float64(to) - float64(from)) / float64(n) }
	total = each(was.heap+was.stacks, f.heap+f.stacks)
	b.Logf("%s: heap %.0f, of it objects %.0f, stacks %.0f, resident %.0f bytes, and %.1f goroutines for each node", what, each(was.heap, f.heap),
		each(was.live, f.live), each(was.stacks, f.stacks), each(was.resident, f.resident), float64(f.goroutines-was.goroutines)/float64(n))
	b.ReportMetric(total, what+"-bytes/node")
	b.ReportMetric(each(was.resident, f.resident), what+"-resident/node")
	b.ReportMetric(float64(f.goroutines-was.goroutines)/float64(n), what+"-goroutines/node")
	return total
}

func measured(b *testing.B) (f footprint) {
	b.Helper()
	for range 4 { // what pools keep survives the first time, and stacks shrink as they are scanned
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.heap, f.live, f.stacks, f.goroutines = m.HeapInuse, m.HeapAlloc, m.StackInuse, runtime.NumGoroutine()
	self, err := procfs.Self()
	if err != nil {
		b.Fatal(err)
	}
	status, err := self.NewStatus()
	if err != nil {
		b.Fatal(err)
	}
	f.resident = status.RssAnon
	return f
}

// BenchmarkCrowd measures what many real agents, in a process of their own, cost the site, and how soon it is told of what changes on
// them. Each has enrolled, and has an identity, a ledger and a provider with two kinds of its own. With -nodes=5000 for the real thing,
// for which TMPDIR should be in memory: agents write 5 000 ledgers. "idle" nodes are connected; "watched" ones are watched by an
// engine as well, as the one that leads does. "seen" is the time from a change on a node until the engine yields its place. At last a new leader, to
// which the nodes are connected and which knows nothing of them, makes a change.
func BenchmarkCrowd(b *testing.B) {
	for b.Loop() {
		crowd(b, *manyNodes, *manyEvents)
	}
}

func newKeys(b *testing.B) *trust.Authority {
	b.Helper()
	keys, err := trust.Init(filepath.Join(b.TempDir(), "trust"), schema.Site{Name: "test", ID: enginetest.SiteID}, 1, trust.NewRoots(1), trust.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return keys
}

// enlist makes the tokens of n nodes that are to enrol at f.
func enlist(b *testing.B, s *enginetest.Site, keys *trust.Authority, f *front, n int) muster {
	b.Helper()
	told := muster{Dir: filepath.Join(b.TempDir(), "nodes"), Address: f.port.Addr().String()}
	for i := range n {
		name := nameOf(i)
		token, err := keys.CreateToken(b.Context(), s.Store, name, trust.TokenOptions{By: "me@here", TTL: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		told.Members = append(told.Members, member{name, token})
	}
	return told
}

func nameOf(i int) string { return fmt.Sprintf("gpu-%05d", i) }

func crowd(b *testing.B, n, events int) {
	s := enginetest.New()
	keys := newKeys(b)
	first := openFront(b, s, keys, "127.0.0.1:0")
	told := enlist(b, s, keys, first, n)
	begin := time.Now()
	far := startCrowd(b, told)
	far.heard(b, "enrolled")
	b.ReportMetric(float64(n)/time.Since(begin).Seconds(), "enrolments/s")
	first.close()
	settle()
	none := measured(b)

	f := openFront(b, s, keys, told.Address)
	far.order(b, "go")
	_, took := f.all(b, n)
	b.Logf("connected after %v", took)
	b.ReportMetric(took.Seconds(), "s-to-connect")
	settle()
	idle := measured(b).since(b, none, n, "idle")
	if idle > crowdPerNode {
		b.Errorf("a node costs %.0f bytes at rest, more than %d", idle, crowdPerNode)
	}
	watched(b, s, f, far, none, n, events)

	f.close() // as when the process ends
	f = openFront(b, s, keys, told.Address)
	half, whole := f.all(b, n)
	b.Logf("connected again after %v, half of them after %v", whole, half)
	b.ReportMetric(half.Seconds(), "s-to-reconnect-half")
	b.ReportMetric(whole.Seconds(), "s-to-reconnect")
	taken(b, s, f, n)
	far.stop(b)
	f.close()
}

// watched has an engine watch all nodes, and measures how soon it is told.
func watched(b *testing.B, s *enginetest.Site, f *front, far *crowded, none footprint, n, events int) {
	b.Helper()
	e := s.Engine(func(o *engine.Options) {
		o.Open = func(ctx context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
			return f.nodes.Open(ctx, needs)
		}
	})
	type sight struct {
		place schema.Place
		at    time.Time
	}
	sights, began := make(chan sight, n), make(chan time.Duration, 1)
	ctx, stop := context.WithCancelCause(b.Context())
	over := make(chan error, 1)
	var fell error
	go func() {
		begin, first := time.Now(), true
		for places, err := range e.Watch(ctx, schema.Site{Name: "test", ID: enginetest.SiteID}, engine.Watching{Needs: f.nodes.Reached, Full: time.Hour}) {
			if err != nil {
				fell = err
				break
			}
			if first { // all of them
				first = false
				began <- time.Since(begin)
				continue
			}
			now := time.Now()
			for _, p := range places {
				sights <- sight{p.Place, now}
			}
		}
		over <- errors.Join(fell, e.Close())
	}()
	select {
	case d := <-began:
		b.ReportMetric(d.Seconds(), "s-to-watch")
	case err := <-over:
		b.Fatal(err)
	}
	settle()
	for drained := false; !drained; { // watches that began late
		select {
		case <-sights:
		default:
			drained = true
		}
	}
	measured(b).since(b, none, n, "watched")
	var took []time.Duration
	for range events {
		node := nameOf(rand.IntN(n))
		far.order(b, node)
		at := far.heard(b, node+" ")
		nanos, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		for limit, seen := time.After(time.Minute), false; !seen; {
			select {
			case got := <-sights:
				if seen = got.place.Scope == node; seen {
					took = append(took, got.at.Sub(time.Unix(0, nanos)))
				}
			case <-limit:
				b.Fatalf("a change on %s was not seen", node)
			}
		}
	}
	cause := errors.New("it is over")
	stop(cause)
	for ended := false; !ended; {
		select {
		case <-sights:
		case err := <-over:
			if ended = true; !errors.Is(err, cause) {
				b.Fatal(err)
			}
		}
	}
	slices.SortFunc(took, cmp.Compare)
	most := took[len(took)-1]
	b.Logf("seen after %v at the median, %v at the 99th percentile, %v at most", took[len(took)/2], took[len(took)*99/100], most)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "ms-seen-p50")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "ms-seen-p99")
	b.ReportMetric(most.Seconds()*1e3, "ms-seen-max")
	if most > crowdSeen {
		b.Errorf("a change was seen after %v, later than %v", most, crowdSeen)
	}
}

// taken measures how soon a process that has begun to lead has its first effect: it has the nodes' connections, as every replica does, and
// knows nothing of them yet.
func taken(b *testing.B, s *enginetest.Site, f *front, n int) {
	b.Helper()
	resources := map[string]string{}
	for i := range n {
		resources[nameOf(i)+"/near.bridge/br"] = `{"size": 1}`
	}
	lead := func() (took time.Duration, steps int) {
		e := s.Engine(func(o *engine.Options) {
			o.Open = func(ctx context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
				return f.nodes.Open(ctx, needs)
			}
		})
		defer e.Close()
		begin := time.Now()
		p, err := e.Plan(b.Context(), s.Document(b, resources), plan.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := e.Apply(b.Context(), p, engine.ApplyOptions{}); err != nil {
			b.Fatal(err)
		}
		return time.Since(begin), len(p.Steps)
	}
	took, steps := lead()
	b.Logf("%d things were created in %v", steps, took)
	resources[nameOf(n/2)+"/near.bridge/br"] = `{"size": 2}`
	if took, steps = lead(); steps != 1 {
		b.Fatalf("%d steps, not one", steps)
	}
	b.Logf("a new leader has ended its first change after %v", took)
	b.ReportMetric(took.Seconds(), "s-first-effect")
	if took > crowdTaken {
		b.Errorf("a new leader has its first effect after %v, later than %v", took, crowdTaken)
	}
}

// A crowded is the process of the agents.
type crowded struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startCrowd(b *testing.B, m muster) *crowded {
	b.Helper()
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		b.Fatal(err)
	}
	c := &crowded{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), "SITE_TEST_CROWD=1")
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.cmd.Process.Kill() })
	text, err := json.Marshal(m)
	if err != nil {
		b.Fatal(err)
	}
	c.order(b, string(text))
	return c
}

func (c *crowded) order(b *testing.B, line string) {
	b.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		b.Fatal(err)
	}
}

// heard waits for a line with a prefix, and returns the rest of it.
func (c *crowded) heard(b *testing.B, prefix string) string {
	b.Helper()
	if !c.out.Scan() {
		b.Fatalf("the agents have ended: %v", c.out.Err())
	}
	rest, ok := strings.CutPrefix(c.out.Text(), prefix)
	if !ok {
		b.Fatalf("the agents say %q, want %q", c.out.Text(), prefix)
	}
	return rest
}

func (c *crowded) stop(b *testing.B) {
	b.Helper()
	_ = c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		b.Error(err)
	}
}
