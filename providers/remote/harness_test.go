package remote_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/agent/ledger"
	"converge.dev/converge/agent/task"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/providers/remote/remotepb"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

const (
	siteID   = "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10"
	nodeName = "gpu-01"
)

// kinds are those of the far side.
var kinds = schema.Kinds{
	"lab.switch": {Name: "lab.switch", Node: true, Fields: []schema.Field{
		{Name: "attach", Type: schema.Struct, Fields: []schema.Field{{Name: "type", Type: schema.String, Immutable: true, Default: "soft"}}},
		{Name: "enabled", Type: schema.Bool},
		{Name: "extra", Type: schema.Any},
		{Name: "note", Type: schema.String},
	}},
	"lab.cable": {Name: "lab.cable", Node: true, Fields: []schema.Field{
		{Name: "ends", Type: schema.List, Set: true, Required: true, Elem: &schema.Field{Type: schema.String, Ref: "lab.switch"}},
	}},
	"lab.disk": {Name: "lab.disk", Node: true, Fields: []schema.Field{{Name: "size", Type: schema.Int, Required: true}}},
	"lab.page": {Name: "lab.page", Node: true, Fields: []schema.Field{{Name: "count", Type: schema.Int, Default: int64(0)}}},
}

// traits are those of kinds that differ from a node's usual ones.
func traits() map[string]providers.Traits {
	disk, page := fake.SiteTraits(), fake.NodeTraits()
	page.Create, page.Delete, page.Update = providers.Never, providers.Never, providers.Blind
	return map[string]providers.Traits{"lab.disk": disk, "lab.page": page}
}

func newWorld() *fake.World {
	w := fake.New(kinds)
	w.Traits = traits()
	return w
}

// key returns the key with a name.
func key(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// A node is an agent with its far side, and the site's line to it.
type node struct {
	t      testing.TB
	world  *fake.World
	path   string                     // of the ledger
	calls  calls                      // what comes between the site and the node
	logs   logs                       // of both
	serve  func() *providers.Provider // what the agent serves
	memory *wire.Memory               // of the site; the same for all that lead

	mu     sync.Mutex
	shows  ed25519.PrivateKey // the key of the certificate of the present connection
	key    ed25519.PrivateKey // with which the node signs
	conn   *grpc.ClientConn   // nil: there is no connection
	server *grpc.Server
	ledger *ledger.Ledger
	agent  *remote.Node
	wait   func()             // called by Conn before it returns
	trust  int64              // version that heads and tasks name
	signer ed25519.PrivateKey // of the site
	behind int
}

// newNode returns a node that is connected and has a head of epoch 1.
func newNode(t testing.TB, w *fake.World) *node {
	t.Helper()
	n := &node{t: t, world: w, path: filepath.Join(t.TempDir(), "ledger"), shows: key("node"), key: key("node"), signer: key("site"), trust: 1, memory: wire.NewMemory(func(string) bool { return true })}
	n.serve = func() *providers.Provider { return w.Provider("lab", nodeName) }
	n.start()
	n.connect()
	t.Cleanup(n.stop)
	n.beat(1)
	return n
}

// start starts the agent.
func (n *node) start() {
	n.t.Helper()
	l, err := ledger.Open(n.path, ledger.Options{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ledger = l
	checker := &task.Checker{
		Site: siteID, Node: nodeName, Now: time.Now,
		Keys: func() []task.Key {
			from := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
			return []task.Key{{ID: "1", Public: public(key("site")), NotBefore: from, NotAfter: from.AddDate(100, 0, 0)}}
		},
		Floor: func() time.Time { return l.Standing().Floor },
	}
	n.agent = remote.NewNode(remote.NodeOptions{
		Name: nodeName, Tasks: checker, Ledger: l, Version: "test", Trust: func() int64 { return 1 },
		Key:    func() ed25519.PrivateKey { n.mu.Lock(); defer n.mu.Unlock(); return n.key },
		Behind: func() { n.mu.Lock(); defer n.mu.Unlock(); n.behind++ },
		Logger: n.logs.logger(),
	})
}

// connect makes a new connection, which shows the present key of the node.
func (n *node) connect() {
	n.t.Helper()
	n.cut()
	n.mu.Lock()
	defer n.mu.Unlock()
	pipe := bufconn.Listen(1 << 16)
	n.server = grpc.NewServer()
	if err := n.agent.Serve(n.server, []*providers.Provider{n.serve()}, map[string]error{"ovs": errors.New("not installed")}, nil); err != nil {
		n.t.Fatal(err)
	}
	server := n.server
	go func() { _ = server.Serve(pipe) }()
	conn, err := grpc.NewClient("passthrough:pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		n.t.Fatal(err)
	}
	n.conn, n.shows = conn, n.key
}

// cut ends the connection.
func (n *node) cut() {
	n.mu.Lock()
	conn, server := n.conn, n.server
	n.conn, n.server = nil, nil
	n.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
		server.Stop()
	}
}

// stop ends the agent in good order.
func (n *node) stop() {
	n.cut()
	n.agent.Close()
	_ = n.ledger.Close()
}

// restart ends the agent in good order and starts it again, connected.
func (n *node) restart() {
	n.stop()
	n.start()
	n.connect()
}

// crash ends the agent as a crash does: nothing that runs can be finished. The caller ends what runs.
func (n *node) crash() {
	n.cut()
	_ = n.ledger.Close()
}

// lose removes the ledger of an agent that is not running.
func (n *node) lose() {
	n.t.Helper()
	if err := os.Remove(n.path); err != nil {
		n.t.Fatal(err)
	}
}

// Conn implements remote.Line.
func (n *node) Conn(context.Context) (grpc.ClientConnInterface, ed25519.PublicKey, error) {
	n.mu.Lock()
	wait := n.wait
	n.mu.Unlock()
	if wait != nil {
		wait()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn == nil {
		return nil, nil, errors.New("node gpu-01 is not connected")
	}
	return &meddled{n.conn, &n.calls}, public(n.shows), nil
}

// renew gives the node another key; the connection still shows the old one.
func (n *node) renew(k ed25519.PrivateKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.key = k
}

// options are those of a site.
func (n *node) options(s *remote.Sequence) remote.Options {
	return remote.Options{
		Site: siteID, Node: nodeName, Line: n, Tasks: s, Memory: n.memory, Logger: n.logs.logger(),
		Key: func() (ed25519.PrivateKey, int64, error) { return n.signer, n.trust, nil },
	}
}

// A site is one process that leads.
type site struct {
	*node
	options remote.Options
	set     *providers.Set
	p       *providers.Provider
}

// site returns a new process of the site.
func (n *node) site() *site { return n.siteWith(n.options(&remote.Sequence{})) }

func (n *node) siteWith(o remote.Options) *site {
	n.t.Helper()
	set, err := remote.Open(n.t.Context(), o, []providers.Need{{Scope: nodeName, Provider: "lab"}})
	if err != nil || set.Failure(nodeName, "lab") != nil {
		n.t.Fatal(err, set.Failure(nodeName, "lab"))
	}
	return &site{n, o, set, set.All()[0]}
}

// beat brings the node a head of a site that has used no sequence number yet.
func (n *node) beat(epoch int64) {
	n.t.Helper()
	if _, err := remote.Beat(n.t.Context(), n.options(&remote.Sequence{}), epoch); err != nil {
		n.t.Fatal(err)
	}
}

// beat brings the node a head.
func (s *site) beat(epoch int64) error {
	_, err := remote.Beat(s.t.Context(), s.options, epoch)
	return err
}

// beating brings heads as often as a site does, until ctx ends, whenever there is a connection.
func (s *site) beating(ctx context.Context, epoch int64) {
	go func() {
		for tick := time.NewTicker(20 * time.Second); ; {
			select {
			case <-tick.C:
				_ = s.beat(epoch)
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
}

func (s *site) kind(name string) providers.Kind {
	s.t.Helper()
	for _, k := range s.p.Kinds {
		if k.Name == name {
			return k.Kind
		}
	}
	s.t.Fatalf("%s is not served", name)
	return nil
}

func refTo(name string) schema.Ref {
	return schema.Ref{Scope: nodeName, Kind: "lab.switch", Name: name}
}

// put makes the thing that the calls of updates and deletes mean.
func (n *node) put() {
	n.t.Helper()
	mark := providers.Mark{Site: siteID, Ref: refTo("s1"), Incarnation: 1}
	if err := n.world.Put(nodeName, "lab.switch", providers.Thing{ID: "s1", Name: "s1", Mark: mark, Spec: schema.Object{"enabled": true}}); err != nil {
		n.t.Fatal(err)
	}
}

// prepare returns the call of a verb that has an effect now.
func (s *site) prepare(op, key string) providers.Call {
	s.t.Helper()
	c := providers.Call{
		Ref: refTo("s1"), ID: "s1", Mark: providers.Mark{Site: siteID, Ref: refTo("s1"), Incarnation: 1}, Key: key, Epoch: 1,
		Want: schema.Object{"enabled": false},
	}
	if op == task.Create {
		return c
	}
	s.put()
	th, err := s.kind("lab.switch").Get(s.t.Context(), []string{"s1"})
	if err != nil || len(th) != 1 {
		s.t.Fatal(th, err)
	}
	c.Have, c.Version, c.UID = th[0].Spec, th[0].Version, th[0].UID
	if op == task.Delete {
		c.Want = nil
	}
	return c
}

// do makes a call.
func (s *site) do(ctx context.Context, op string, c providers.Call) error {
	k := s.kind("lab.switch")
	switch op {
	case task.Create:
		return k.Create(ctx, c)
	case task.Update:
		return k.Update(ctx, c)
	}
	return k.Delete(ctx, c)
}

// requests returns how often the far side was asked for changes, and how many of them it has made.
func (n *node) requests() (asked, made int) {
	for _, e := range n.world.Log() {
		if asked++; e.Err == nil {
			made++
		}
	}
	return asked, made
}

// logs collects what is logged, at all levels.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// calls is what happens to the calls of a node between the site and it.
type calls struct {
	mu    sync.Mutex
	next  []fault // of the calls of Do, in order; later ones get through
	sent  []*remotepb.DoRequest
	forge func(task []byte) *remotepb.DoResponse // answers instead of the node; nil: it does
}

// A fault carries a call to the node, or not. deliver may be called any number of times.
type fault func(ctx context.Context, deliver func(context.Context) error) error

func (c *calls) fail(fs ...fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = append(c.next, fs...)
}

// last returns the last task that was sent, and how many were.
func (c *calls) last() (*remotepb.DoRequest, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 0 {
		return nil, 0
	}
	return c.sent[len(c.sent)-1], len(c.sent)
}

var errCut = status.Error(codes.Unavailable, "the connection was cut")

// lost loses a request.
func lost(context.Context, func(context.Context) error) error { return errCut }

// unanswered loses an answer.
func unanswered(ctx context.Context, deliver func(context.Context) error) error {
	_ = deliver(ctx)
	return errCut
}

// silent delivers a request and never answers.
func silent(ctx context.Context, deliver func(context.Context) error) error {
	_ = deliver(ctx)
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// twice delivers a request two times at the same time.
func twice(ctx context.Context, deliver func(context.Context) error) error {
	first := make(chan error, 1)
	go func() { first <- deliver(ctx) }()
	return errors.Join(deliver(ctx), <-first)
}

// after delivers a request when some time has passed.
func after(d time.Duration) fault {
	return func(ctx context.Context, deliver func(context.Context) error) error {
		time.Sleep(d)
		return deliver(ctx)
	}
}

// meddled is a connection on which calls break.
type meddled struct {
	grpc.ClientConnInterface
	calls *calls
}

func (m *meddled) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method != remotepb.Node_Do_FullMethodName {
		return m.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	c := m.calls
	c.mu.Lock()
	c.sent = append(c.sent, proto.CloneOf(args.(*remotepb.DoRequest)))
	var f fault
	if len(c.next) > 0 {
		f, c.next = c.next[0], c.next[1:]
	}
	forge := c.forge
	c.mu.Unlock()
	if forge != nil {
		proto.Merge(reply.(proto.Message), forge(args.(*remotepb.DoRequest).GetTask()))
		return nil
	}
	if f == nil {
		return m.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	var mu sync.Mutex
	return f(ctx, func(ctx context.Context) error {
		r := &remotepb.DoResponse{}
		err := m.ClientConnInterface.Invoke(ctx, method, args, r, opts...)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			proto.Reset(reply.(proto.Message))
			proto.Merge(reply.(proto.Message), r)
		}
		return err
	})
}

// raw delivers a task to the node, past the site's side of this package.
func (n *node) raw(envelope []byte) (*remotepb.DoResponse, error) {
	n.mu.Lock()
	conn := n.conn
	n.mu.Unlock()
	return remotepb.NewNodeClient(conn).Do(n.t.Context(), &remotepb.DoRequest{Task: envelope})
}

// forged returns a good task, changed, with the parameters of a good call, changed.
func forged(t testing.TB, signer ed25519.PrivateKey, params func(*wirepb.CallRequest) []byte, change func(*task.Task)) []byte {
	t.Helper()
	call := &wirepb.CallRequest{Ref: nodeName + "/lab.switch/s1", Id: "s1", Want: []byte(`{"enabled":true}`), Key: "k", Epoch: 1}
	now := time.Now().UTC()
	tk := task.Task{
		ID: uuid.NewString(), Action: task.Create, Site: siteID, Node: nodeName, Epoch: 1, Seq: 1000, Key: "k",
		NotBefore: now, Expires: now.Add(remote.Start), Nonce: make([]byte, 16), Trust: 1,
	}
	if params == nil {
		tk.Params = marshal(t, call)
	} else {
		tk.Params = params(call)
	}
	if change != nil {
		change(&tk)
	}
	e, err := tk.Sign(signer)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
