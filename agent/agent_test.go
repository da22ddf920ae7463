package agent_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/agent"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
	"converge.dev/converge/trust"
)

const (
	siteID = "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"
	first  = "a.test:7443" // the addresses of two replicas
	second = "b.test:7443"
)

var kinds = schema.Kinds{
	"lab.switch": {Name: "lab.switch", Node: true, Fields: []schema.Field{{Name: "enabled", Type: schema.Bool}}},
	"odd.thing":  {Name: "odd.thing", Node: true},
}

// A place is a site without an engine, with two replicas, and one node. It lives in a bubble.
type place struct {
	t     *testing.T
	roots []ed25519.PrivateKey
	keys  *trust.Authority
	store *state.Store
	world *fake.World
	dir   string // of the agent

	mu     sync.Mutex
	lines  map[string]net.Listener
	conns  map[string]*reverse.Conn // the newest of the node, by replica
	count  int                      // how often the node has come
	away   map[string]string        // what cannot be opened
	bans   error                    // why the site refuses the node's certificate; nil: it does not
	closed func(provider string)    // optional; called when a provider is closed
}

func newPlace(t *testing.T, o trust.Options) *place {
	p := &place{
		t: t, roots: trust.NewRoots(1), store: state.New(mem.New(mem.Options{}), "test"), world: fake.New(kinds), dir: filepath.Join(t.TempDir(), "agent"),
		lines: map[string]net.Listener{}, conns: map[string]*reverse.Conn{}, away: map[string]string{},
	}
	var err error
	if p.keys, err = trust.Init(filepath.Join(t.TempDir(), "trust"), schema.Site{Name: "test", ID: siteID}, 1, p.roots, o); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{first, second} {
		host, _, _ := net.SplitHostPort(address)
		line := bufconn.Listen(1 << 20)
		p.lines[address] = line
		port := reverse.Listen(line, reverse.Options{
			TLS:  p.keys.TLS(p.check, host),
			Node: func(c *reverse.Conn) { p.attend(address, c) },
		})
		public := grpc.NewServer(grpc.Creds(reverse.Credentials()))
		trust.Serve(public, p.keys, p.store, slog.New(slog.DiscardHandler))
		var running sync.WaitGroup
		running.Go(func() { _ = public.Serve(port) })
		t.Cleanup(func() {
			public.Stop()
			_ = port.Close()
			running.Wait()
		})
	}
	return p
}

func (p *place) check(string, *big.Int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bans
}

// ban makes the site refuse the certificate of the node, or not, and ends its connections.
func (p *place) ban(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bans = why
	for _, c := range p.conns {
		c.Close()
	}
}

func (p *place) attend(address string, c *reverse.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[address] = c
	p.count++
}

func (p *place) dial(ctx context.Context, address string) (net.Conn, error) {
	line, ok := p.lines[address]
	if !ok {
		return nil, fmt.Errorf("nothing listens on %s", address)
	}
	return line.(*bufconn.Listener).DialContext(ctx)
}

// enrol makes the identity of the node.
func (p *place) enrol() {
	p.t.Helper()
	token, err := p.keys.CreateToken(p.t.Context(), p.store, "n1", trust.TokenOptions{By: "me@here"})
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := trust.Bootstrap(p.t.Context(), p.dir, token, first, trust.IdentityOptions{Dial: p.dial}); err != nil {
		p.t.Fatal(err)
	}
}

// rotate announces new keys, and the node CA that follows.
func (p *place) rotate() {
	p.t.Helper()
	next, err := p.keys.Proposal()
	if err != nil {
		p.t.Fatal(err)
	}
	envelope, err := trust.Sign(next, p.roots...)
	if err == nil {
		err = p.keys.Adopt(envelope)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) options(servers ...string) agent.Options {
	return agent.Options{
		Dir: p.dir, Servers: servers, Version: "v1", Logger: slog.New(slog.DiscardHandler), Dial: p.dial,
		Offers: func(node string) ([]providers.Need, error) {
			return []providers.Need{{Scope: node, Provider: "lab"}, {Scope: node, Provider: "odd"}}, nil
		},
		Open: func(_ context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			if site.ID != siteID {
				return nil, fmt.Errorf("asked for site %s", site.ID)
			}
			set, err := providers.NewSet()
			for _, n := range needs {
				p.mu.Lock()
				why := p.away[n.Provider]
				p.mu.Unlock()
				if why != "" {
					set.Fail(n.Scope, n.Provider, errors.New(why))
					continue
				}
				end := func() error {
					if p.closed != nil {
						p.closed(n.Provider)
					}
					return nil
				}
				one, oerr := providers.NewSet(providers.New(n.Provider, n.Scope, end, p.world.Provider(n.Provider, n.Scope).Kinds...))
				err = errors.Join(err, oerr, set.Join(one))
			}
			return set, err
		},
	}
}

// run starts the agent. The returned function ends it, and checks that it ends with the cause.
func (p *place) run(o agent.Options) (end func()) {
	ctx, stop := context.WithCancelCause(context.Background())
	cause, over := errors.New("it is over"), make(chan error, 1)
	go func() { over <- agent.Run(ctx, o) }()
	synctest.Wait()
	end = sync.OnceFunc(func() {
		stop(cause)
		if err := <-over; !errors.Is(err, cause) {
			p.t.Errorf("the agent ended with: %v", err)
		}
	})
	p.t.Cleanup(end)
	return end
}

// conn returns the newest connection of the node to a replica, and fails the test when it is gone.
func (p *place) conn(address string) *reverse.Conn {
	p.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[address]
	if c == nil || c.Err() != nil {
		p.t.Fatalf("the node is not connected to %s", address)
	}
	return c
}

// A line is one connection.
type line struct{ c *reverse.Conn }

func (l line) Conn(context.Context) (grpc.ClientConnInterface, ed25519.PublicKey, error) {
	return l.c, l.c.State().PeerCertificates[0].PublicKey.(ed25519.PublicKey), nil
}

// remote returns how the node is called over a connection.
func (p *place) remote(c *reverse.Conn) remote.Options {
	return remote.Options{
		Site: siteID, Node: "n1", Line: line{c}, Tasks: &remote.Sequence{},
		Key: func() (ed25519.PrivateKey, int64, error) {
			key, _, err := p.keys.SignKey()
			return key, p.keys.Document().Version, err
		},
	}
}

// serves returns what the node says over a connection: what it serves, what it lacks and why, and which trust document it has.
func (p *place) serves(c *reverse.Conn) string {
	p.t.Helper()
	s, err := remote.Beat(p.t.Context(), p.remote(c), 1)
	if err != nil {
		p.t.Fatal(err)
	}
	text := fmt.Sprintf("%s: %v", s.GetAgent(), s.GetProviders())
	for _, m := range s.GetMissing() {
		text += fmt.Sprintf(", not %s: %s", m.GetName(), m.GetWhy())
	}
	return fmt.Sprintf("%s, trust %d", text, s.GetTrust())
}

// placed runs a test in a bubble.
func placed(t *testing.T, o trust.Options, test func(t *testing.T, p *place)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newPlace(t, o)) })
}

// An agent serves every replica what could be opened, and says what could not; that is tried again.
func TestServes(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		p.away["odd"] = "no such device"
		end := p.run(p.options(first, second))
		for _, address := range []string{first, second} {
			if got := p.serves(p.conn(address)); got != "v1: [lab], not odd: no such device, trust 1" {
				t.Errorf("at %s: %s", address, got)
			}
		}
		time.Sleep(time.Minute)
		if p.count != 2 {
			t.Errorf("while nothing changed it has connected %d times", p.count)
		}
		p.mu.Lock()
		delete(p.away, "odd")
		p.mu.Unlock()
		time.Sleep(time.Minute)
		for _, address := range []string{first, second} {
			if got := p.serves(p.conn(address)); got != "v1: [lab odd], trust 1" {
				t.Errorf("at %s: %s", address, got)
			}
		}
		c := p.conn(first)
		end()
		<-c.Done()
		p.run(p.options(first)) // the next one takes over
		if p.conn(first) == c {
			t.Error("it has the connection of the one before")
		}
	})
}

// A replica that does not answer does not keep the agent from the others.
func TestReplicaIsAway(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		p.run(p.options("c.test:7443", second))
		time.Sleep(10 * time.Minute)
		if got := p.serves(p.conn(second)); !strings.HasPrefix(got, "v1: [lab odd]") {
			t.Error(got)
		}
	})
}

// What an agent cannot do without is an error at once.
func TestFailsAtOnce(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		if err := agent.Run(t.Context(), p.options(first)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it has not enrolled: %v", err)
		}
		p.enrol()
		bad, o := errors.New("line 3: unknown provider"), p.options(first)
		o.Offers = func(string) ([]providers.Need, error) { return nil, bad }
		if err := agent.Run(t.Context(), o); !errors.Is(err, bad) {
			t.Errorf("its configuration is damaged: %v", err)
		}
		o = p.options(first)
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) { return nil, bad }
		if err := agent.Run(t.Context(), o); !errors.Is(err, bad) {
			t.Errorf("nothing can be opened: %v", err)
		}
		p.run(p.options(first))
		if err := agent.Run(t.Context(), p.options(first)); !errors.Is(err, files.ErrInUse) {
			t.Errorf("another one runs: %v", err)
		}
		p.conn(first)
	})
}

// When an agent ends, its tasks end first, and then their providers are closed.
func TestEndsInOrder(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		var mu sync.Mutex
		var order []string
		happens := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		begun := make(chan struct{})
		p.world.Hook = func(op string, at fake.Moment, _ providers.Call) {
			if op == "create" && at == fake.Before {
				close(begun)
				time.Sleep(time.Minute)
				happens("the task ends")
			}
		}
		p.closed = func(name string) { happens(name + " is closed") }
		end := p.run(p.options(first))
		o := p.remote(p.conn(first))
		if _, err := remote.Beat(t.Context(), o, 1); err != nil {
			t.Fatal(err)
		}
		set, err := remote.Open(t.Context(), o, []providers.Need{{Scope: "n1", Provider: "lab"}})
		if err != nil {
			t.Fatal(err)
		}
		served, _, ok := set.Find("n1", "lab.switch")
		if !ok {
			t.Fatal(set.Failure("n1", "lab"))
		}
		ref := schema.Ref{Scope: "n1", Kind: "lab.switch", Name: "s1"}
		ctx, stop := context.WithCancel(t.Context())
		made := make(chan error, 1)
		go func() {
			made <- served.Kind.Create(ctx, providers.Call{
				Ref: ref, ID: "s1", Want: schema.Object{}, Mark: providers.Mark{Site: siteID, Ref: ref, Incarnation: 1}, Key: "k", Epoch: 1,
			})
		}()
		<-begun
		end()
		stop()
		if err := <-made; providers.ClassOf(err) != providers.Unknown {
			t.Errorf("for the site the call ended with: %v", err)
		}
		if len(order) != 3 || order[0] != "the task ends" {
			t.Errorf("the order was %v", order)
		}
	})
}

// A new trust document is fetched as soon as a head names it.
func TestTrustIsUpdated(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		p.run(p.options(first))
		if got := p.serves(p.conn(first)); !strings.HasSuffix(got, "trust 1") {
			t.Fatal(got)
		}
		p.rotate()
		p.serves(p.conn(first)) // brings a head that names it
		time.Sleep(time.Minute)
		if got := p.serves(p.conn(first)); !strings.HasSuffix(got, "trust 2") {
			t.Error(got)
		}
	})
}

// The certificate is replaced in time, and the connections are made anew with it.
func TestRenews(t *testing.T) {
	placed(t, trust.Options{NodeLife: time.Hour}, func(t *testing.T, p *place) {
		p.enrol()
		p.run(p.options(first, second))
		before := p.conn(first).State().PeerCertificates[0]
		time.Sleep(50 * time.Minute)
		for _, address := range []string{first, second} {
			after := p.conn(address).State().PeerCertificates[0]
			if after.SerialNumber.Cmp(before.SerialNumber) == 0 || !after.NotAfter.After(before.NotAfter) {
				t.Errorf("at %s it still shows %s", address, before.NotAfter)
			}
		}
		time.Sleep(3 * time.Hour)
		if left := time.Until(p.conn(first).State().PeerCertificates[0].NotAfter); left <= 0 {
			t.Errorf("its certificate is over since %v", -left)
		}
	})
}

// A node that was off until its certificate had expired gets a new one, for some days.
func TestRenewsLate(t *testing.T) {
	placed(t, trust.Options{NodeLife: time.Hour}, func(t *testing.T, p *place) {
		p.enrol()
		time.Sleep(3 * 24 * time.Hour)
		p.run(p.options(first))
		time.Sleep(2 * time.Minute)
		p.serves(p.conn(first))
	})
}

// A node that was off while the node CA was replaced learns that first, and then gets its new certificate.
func TestRenewsAfterRotation(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		time.Sleep(22 * 24 * time.Hour)
		p.enrol()
		time.Sleep(36 * time.Hour) // off, from here on
		p.rotate()
		time.Sleep(4 * 24 * time.Hour) // the site shows a certificate of the new one
		p.run(p.options(first))
		time.Sleep(2 * time.Minute)
		p.serves(p.conn(first))
	})
}

// Without a site that answers, the agent goes on trying.
func TestSiteIsAway(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o, off := p.options(first), true
		var mu sync.Mutex
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if off {
				return nil, errors.New("no route to host")
			}
			return p.dial(ctx, address)
		}
		o.Log = agent.NewLog(1000)
		o.Logger = slog.New(o.Log.Handler(slog.LevelInfo))
		d := p.door(&o)
		p.run(o)
		time.Sleep(time.Hour)
		text, _ := d.ask("GET", "/logs?n=1000", nil)
		if n := strings.Count(text, "could not be renewed"); n != 1 {
			t.Errorf("%d times in an hour the log has that nothing could be renewed", n)
		}
		mu.Lock()
		off = false
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		p.conn(first)
	})
}

// A node whose certificate the site refuses says once what that may mean and what can be done, and is not connected before the site has
// accepted it.
func TestIsRefused(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		p.ban(&trust.BannedError{Node: "n1", Reason: "lost"})
		o := p.options(first, second)
		o.Log = agent.NewLog(1000)
		o.Logger = slog.New(o.Log.Handler(slog.LevelInfo))
		d := p.door(&o)
		p.run(o)
		logged := func(said, connected int) {
			t.Helper()
			time.Sleep(time.Minute)
			text, _ := d.ask("GET", "/logs?n=1000", nil)
			for what, want := range map[string]int{
				`msg="the site refuses the certificate of this node: it may have been revoked`: said,
				"converge agent revoke -undo there":                                            said,
				`msg="connected to the site"`:                                                  connected,
			} {
				if n := strings.Count(text, what); n != want {
					t.Errorf("the log has %d times %s, want %d:\n%s", n, what, want, text)
				}
			}
		}
		logged(1, 0)
		s := d.status()
		if got := strings.Join(s.Problems, "; "); s.Health != agent.Degraded || !strings.Contains(got, "bad certificate") || !strings.Contains(got, "may have been revoked") {
			t.Errorf("%s: %s", s.Health, got)
		}
		if a := s.Servers[0]; a.Connected || a.Since == nil {
			t.Errorf("%+v", a)
		}
		p.ban(nil)
		logged(1, 2)
		if s := d.status(); s.Health != agent.OK {
			t.Errorf("%v", s.Problems)
		}
		p.ban(&trust.BannedError{Node: "n1", Reason: "lost again"})
		logged(2, 2)
	})
}

// A held connection delivers nothing from the end of its handshake until the gate opens.
type held struct {
	net.Conn
	heard, shaken atomic.Bool
	gate          <-chan struct{}
}

func (c *held) Read(b []byte) (int, error) {
	if c.shaken.Load() {
		<-c.gate
	}
	n, err := c.Conn.Read(b)
	c.heard.Store(true)
	return n, err
}

func (c *held) Write(b []byte) (int, error) {
	if c.heard.Load() && len(b) > 64 { // its certificate; a record before it is smaller
		c.shaken.Store(true)
	}
	return c.Conn.Write(b)
}

// A connection that was on its way when the certificate was renewed is made anew, too.
func TestRenewsMeanwhile(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o, gate, holds := p.options(first), make(chan struct{}), atomic.Bool{}
		holds.Store(true)
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			c, err := p.dial(ctx, address)
			if err == nil && holds.Load() {
				c = &held{Conn: c, gate: gate}
			}
			return c, err
		}
		d := p.door(&o)
		p.run(o)
		before := d.status()
		if before.Servers[0].Connected {
			t.Error("it is connected before the site has said anything")
		}
		holds.Store(false)
		text, code := d.ask("POST", "/renew", nil)
		close(gate)
		if code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		time.Sleep(5 * time.Second)
		if got := p.conn(first).State().PeerCertificates[0].SerialNumber.Text(16); got == before.Certificate.Serial {
			t.Errorf("it is still connected with %s", got)
		}
	})
}
