package site_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/agent"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/trust"
)

// address is where the site of the tests listens, as nodes know it.
const address = "site.test:7443"

// A yard is a site whose nodes have agents, all in one process, connected by TLS. Each node has a world of its own.
type yard struct {
	*bed
	keys      *trust.Authority
	admission *trust.Admission
	storeless atomic.Bool // nobody can say whether a certificate counts
	dial      func(context.Context) (net.Conn, error)
	epoch     func(context.Context) (int64, error)
	changed   chan struct{}                                                       // has an element when a node has come or gone
	guard     func(schema.Site, *providers.Provider) (*providers.Provider, error) // optional; of agents that are started
	health    func(context.Context) error                                         // optional; of the providers of agents that are started
	look      func()                                                              // optional: called then, too

	mu     sync.Mutex
	worlds map[string]*fake.World
	dirs   map[string]string // of the identities
}

// newYard returns a site without nodes that listens in memory, or at l.
func newYard(t *testing.T, b *bed, o trust.Options, l net.Listener) *yard {
	t.Helper()
	y := &yard{bed: b, epoch: b.Store.Epoch, changed: make(chan struct{}, 1), worlds: map[string]*fake.World{}, dirs: map[string]string{}}
	var err error
	y.keys, err = trust.Init(filepath.Join(t.TempDir(), "trust"), schema.Site{Name: "test", ID: enginetest.SiteID}, 1, trust.NewRoots(1), o)
	if err != nil {
		t.Fatal(err)
	}
	if l == nil {
		memory := bufconn.Listen(1 << 20)
		l, y.dial = memory, memory.DialContext
	} else {
		y.dial = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, l.Addr().Network(), l.Addr().String())
		}
	}
	y.admission = trust.NewAdmission(b.Store)
	b.nodes = y.newNodes()
	b.nodes.Lead(true)
	port := reverse.Listen(l, reverse.Options{TLS: y.keys.TLS(y.admission.Check, "site.test"), Node: b.nodes.Attend, Logger: y.logger()})
	public := grpc.NewServer(grpc.Creds(reverse.Credentials()))
	trust.Serve(public, y.keys, b.Store, y.logger())
	b.nodes.Hear(public)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = public.Serve(port) })
	running.Go(func() {
		_ = y.admission.Run(ctx, func(node string, _ error) { b.nodes.Refuse(node) })
	})
	t.Cleanup(func() {
		stop()
		public.Stop()
		_ = port.Close()
		running.Wait()
	})
	return y
}

// newNodes returns those of a process that starts.
func (y *yard) newNodes() *site.Nodes {
	return site.NewNodes(site.NodesOptions{
		Site: enginetest.SiteID,
		Who: func(c tls.ConnectionState) (string, error) {
			node, err := trust.NodeOf(c)
			switch {
			case y.storeless.Load():
				err = errors.New("the store does not answer")
			case err == nil:
				err = y.admission.Check(node, c.PeerCertificates[0].SerialNumber)
			}
			return node, err
		},
		Replaced: func(c tls.ConnectionState) bool {
			node, err := trust.NodeOf(c)
			return err == nil && y.admission.Replaced(node, c.PeerCertificates[0].SerialNumber)
		},
		Keeps: func(string) bool { return true },
		Key: func() (ed25519.PrivateKey, int64, error) {
			key, _, err := y.keys.SignKey()
			return key, y.keys.Document().Version, err
		},
		Epoch: func(ctx context.Context) (int64, error) { return y.epoch(ctx) },
		Changed: func() {
			select {
			case y.changed <- struct{}{}:
			default:
			}
			y.bed.mu.Lock()
			look := y.look
			y.bed.mu.Unlock()
			if look != nil {
				look()
			}
		},
		Logger: y.logger(),
	})
}

func (y *yard) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(&locked{b: y.bed}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// keep starts the site agent, which is told of nodes that come and go.
func (y *yard) keep(mode site.Mode) *kept {
	y.t.Helper()
	k := y.bed.prepare(mode, func(o *engine.Options) { o.Retry = apply.Retry{} }) // as in service
	y.bed.mu.Lock()
	y.look = k.Look
	y.bed.mu.Unlock()
	k.begin()
	synctest.Wait()
	return k
}

// world returns the world of a node.
func (y *yard) world(node string) *fake.World {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.worlds[node] == nil {
		y.worlds[node] = fake.New(y.Kinds)
	}
	return y.worlds[node]
}

// enrol makes the identity of a node with a real token, and returns its directory.
func (y *yard) enrol(node string) string {
	y.t.Helper()
	token, err := y.keys.CreateToken(y.t.Context(), y.Store, node, trust.TokenOptions{By: "me@here"})
	if err != nil {
		y.t.Fatal(err)
	}
	dir := filepath.Join(y.t.TempDir(), node)
	if _, err := trust.Bootstrap(y.t.Context(), dir, token, address, trust.IdentityOptions{Dial: y.dialTo}); err != nil {
		y.t.Fatal(err)
	}
	y.dirs[node] = dir
	return dir
}

func (y *yard) dialTo(ctx context.Context, to string) (net.Conn, error) {
	if to != address {
		return nil, fmt.Errorf("nothing listens on %s", to)
	}
	y.bed.mu.Lock()
	dial := y.dial
	y.bed.mu.Unlock()
	return dial(ctx)
}

// redial makes the agents connect otherwise from now on.
func (y *yard) redial(dial func(context.Context) (net.Conn, error)) {
	y.bed.mu.Lock()
	defer y.bed.mu.Unlock()
	y.dial = dial
}

// attend starts the agent of a node, which enrols when it has not yet. The returned function ends it.
func (y *yard) attend(node string, names ...string) (end func()) {
	y.t.Helper()
	dir := y.dirs[node]
	if dir == "" {
		dir = y.enrol(node)
	}
	if len(names) == 0 {
		names = []string{"near"}
	}
	world := y.world(node)
	ctx, stop := context.WithCancelCause(context.Background())
	over, cause := make(chan error, 1), errors.New("the agent is stopped")
	go func() {
		over <- agent.Run(ctx, agent.Options{
			Dir: dir, Servers: []string{address}, Version: "v1", Logger: y.logger().With("agent", node), Dial: y.dialTo, Guard: y.guard,
			Offers: func(node string) (needs []providers.Need, err error) {
				for _, name := range names {
					needs = append(needs, providers.Need{Scope: node, Provider: name})
				}
				return needs, nil
			},
			Open: func(_ context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
				set, err := providers.NewSet()
				for _, n := range needs {
					y.bed.mu.Lock()
					why := y.away[n]
					y.bed.mu.Unlock()
					if why != "" {
						set.Fail(n.Scope, n.Provider, errors.New(why))
						continue
					}
					p := world.Provider(n.Provider, n.Scope)
					p.Health = y.health
					one, oerr := providers.NewSet(p)
					err = errors.Join(err, oerr, set.Join(one))
				}
				return set, err
			},
		})
	}()
	end = sync.OnceFunc(func() {
		stop(cause)
		if err := <-over; !errors.Is(err, cause) {
			y.t.Errorf("the agent of %s ended with: %v", node, err)
		}
	})
	y.t.Cleanup(end)
	return end
}

// node returns how a node stands.
func (y *yard) node(name string) site.NodeStatus {
	y.t.Helper()
	all := y.nodes.Status()
	i := slices.IndexFunc(all, func(s site.NodeStatus) bool { return s.Name == name })
	if i < 0 {
		y.t.Fatalf("node %s was never connected\n%s", name, y.logged())
	}
	return all[i]
}

// connected fails the test unless a node is, or is not, connected.
func (y *yard) connected(name string, want bool) {
	y.t.Helper()
	synctest.Wait()
	if y.node(name).Connected != want {
		y.t.Fatalf("node %s: connected %v, want %v\n%s", name, !want, want, y.logged())
	}
}

// on fails the test unless a bridge of a node has a size; nil: unless there is no such bridge.
func (y *yard) on(node, name string, want any) {
	y.t.Helper()
	th := thingOf(y.t, y.world(node), node, "near.bridge", name)
	if th == nil && want == nil {
		return
	}
	if th == nil || want == nil || fmt.Sprint(th.Spec["size"]) != fmt.Sprint(want) {
		y.t.Fatalf("bridge %s on %s is %+v, want the size %v\n%s", name, node, th, want, y.logged())
	}
}

// comeBack is how long it takes a node whose connection has ended to be connected again.
const comeBack = time.Minute

// yarded runs a test on a new yard in a bubble.
func yarded(t *testing.T, o trust.Options, test func(t *testing.T, y *yard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newYard(t, newBed(t), o, nil)) })
}
