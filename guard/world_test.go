package guard_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/guard"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

const (
	node   = "n1"
	site   = "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10"
	bridge = "net.bridge"
	port   = "net.port"
	note   = "net.note"
	within = time.Minute
)

var kinds = schema.Kinds{
	bridge: {Name: bridge, Node: true, Fields: []schema.Field{{Name: "mode", Type: schema.String}}},
	port: {Name: port, Node: true, Fields: []schema.Field{
		{Name: "bridge", Type: schema.String, Ref: bridge}, {Name: "tag", Type: schema.Int},
	}},
	note: {Name: note, Node: true, Fields: []schema.Field{{Name: "text", Type: schema.String}}},
}

// errCrash is what everything fails with that a program does after it was killed.
var errCrash = errors.New("the program was killed")

// A bench is a node: a world, the agent's provider, and the program, which can be killed and started again. It runs in a bubble.
type bench struct {
	*testing.T
	dir   string
	world *fake.World
	agent *providers.Provider // wrapped
	call  *guard.Client

	boot    string
	skew    time.Duration // of the uptime against the clock of the bubble
	began   time.Time
	options func(*guard.Options)
	around  func(*guard.Around)

	mu      sync.Mutex
	pipes   *pipes // of the program that runs; nil: none
	stop    context.CancelFunc
	ended   chan error
	crashed bool
	full    bool // the disk takes nothing more
	points  int
	cut     int // the point at which the program is killed; 0: never
	log     []string

	kept, undone bool // what settle has answered
}

// inside runs a test in a bubble.
func inside(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.kill()
		f(t, b)
	})
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: filepath.Join(memory(t), "guard"), world: fake.New(kinds), boot: "boot-1", began: time.Now(), skew: time.Hour}
	cutsOff := fake.NodeTraits()
	cutsOff.CutsOff = true
	b.world.Traits = map[string]providers.Traits{bridge: cutsOff, port: cutsOff}
	b.call = guard.DialWith(b.dial)
	return b
}

// memory returns a new directory, in memory where there is such a place: what is synced there is not slow.
func memory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "converge-guard-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (b *bench) uptime() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.began) + b.skew
}

// shift lets time pass for which timers stand still.
func (b *bench) shift(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skew += d
}

// dial connects to the program.
func (b *bench) dial(ctx context.Context) (net.Conn, error) {
	b.mu.Lock()
	p := b.pipes
	b.mu.Unlock()
	if p == nil {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start starts the program, and wraps the provider of the agent.
func (b *bench) start() {
	b.Helper()
	b.mu.Lock()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	b.pipes, b.crashed = p, false
	ctx, stop := context.WithCancel(context.Background())
	b.stop, b.ended = stop, make(chan error, 1)
	ended := b.ended
	b.mu.Unlock()
	o := guard.Options{
		Dir: b.dir,
		Open: func(context.Context, guard.Source) (*providers.Provider, error) {
			return b.cutting(b.world.Provider("net", node)), nil
		},
		Boot: func() (string, error) { return b.boot, nil }, Uptime: b.uptime, Logger: slog.New(slog.NewTextHandler(b, nil)),
	}
	if b.options != nil {
		b.options(&o)
	}
	o = o.Listening(p).Cutting(func(moment, op, name string) error { return b.point(moment + " " + op + " " + name) })
	go func() {
		defer p.Close()
		ended <- guard.Run(ctx, o)
	}()
	synctest.Wait()
	b.wrap()
}

func (b *bench) wrap() {
	a := guard.Around{Client: b.call, Source: guard.Source{Provider: "net", Scope: node, Site: schema.Site{Name: "lab", ID: site}}}
	if b.around != nil {
		b.around(&a)
	}
	b.agent = a.Wrap(b.world.Provider("net", node))
}

// Write takes the log.
func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, string(p))
	return len(p), nil
}

// kill ends the program at once: nothing that it does from here on has an effect.
func (b *bench) kill() {
	b.mu.Lock()
	b.crashed = true
	stop, ended := b.stop, b.ended
	b.stop, b.pipes = nil, nil
	b.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
}

// point is passed before and after everything that the program does to its directory and to the world.
func (b *bench) point(at string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full && (strings.HasPrefix(at, "before replace") || strings.HasPrefix(at, "before write") || strings.HasPrefix(at, "before link")) {
		return errors.New("no space left on device")
	}
	if b.points++; b.points == b.cut {
		b.crashed = true
		b.stop()
	}
	if b.crashed {
		return errCrash
	}
	return nil
}

// restart kills the program, starts the machine anew if another boot is given, and starts the program.
func (b *bench) restart(boot string) {
	b.kill()
	if boot != b.boot {
		b.boot, b.began, b.skew = boot, time.Now(), 10*time.Second
	}
	b.start()
}

// cutting returns a provider whose calls are points.
func (b *bench) cutting(p *providers.Provider) *providers.Provider {
	with := *p
	with.Kinds = slices.Clone(p.Kinds)
	for i, k := range with.Kinds {
		with.Kinds[i].Kind = cutting{k.Kind, b}
	}
	return &with
}

type cutting struct {
	providers.Kind
	b *bench
}

func (c cutting) List(context.Context) iter.Seq2[providers.Thing, error] {
	panic("the guard lists nothing")
}

func (c cutting) Create(ctx context.Context, q providers.Call) error {
	return c.change("create", func() error { return c.Kind.Create(context.WithoutCancel(ctx), q) })
}

func (c cutting) Update(ctx context.Context, q providers.Call) error {
	return c.change("update", func() error { return c.Kind.Update(context.WithoutCancel(ctx), q) })
}

func (c cutting) Delete(ctx context.Context, q providers.Call) error {
	return c.change("delete", func() error { return c.Kind.Delete(context.WithoutCancel(ctx), q) })
}

func (c cutting) change(op string, call func() error) error {
	if err := c.b.point("before " + op); err != nil {
		return &providers.Error{Op: op, Kind: "cut", Class: providers.Transient, Err: err}
	}
	err := call()
	if perr := c.b.point("after " + op); perr != nil {
		return &providers.Error{Op: op, Kind: "cut", Class: providers.Unknown, Err: perr}
	}
	return err
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// kind returns a kind of the agent.
func (b *bench) kind(name string) providers.Kind {
	b.Helper()
	for _, k := range b.agent.Kinds {
		if k.Name == name {
			return k.Kind
		}
	}
	b.Fatalf("no kind %s", name)
	return nil
}

func mark(kind, name string) providers.Mark {
	return providers.Mark{Site: site, Ref: schema.Ref{Scope: node, Kind: kind, Name: name}, Incarnation: 1}
}

// do makes a change under a guard, as the engine would: it looks, and then calls.
func (b *bench) do(op, kind, name string, want schema.Object, change func(*providers.Call)) (armed bool, err error) {
	b.Helper()
	var answer providers.Answer
	c := providers.Call{
		Ref: schema.Ref{Scope: node, Kind: kind, Name: name}, ID: name, Mark: mark(kind, name), Want: want, Key: op + name, Epoch: 5,
		Guard: providers.Guard{ID: "run/1", Within: within}, Answer: &answer,
	}
	k := b.kind(kind)
	if op != "create" {
		things, err := k.Get(b.Context(), []string{name})
		if err != nil {
			b.Fatal(err)
		}
		for _, th := range things {
			c.Have, c.UID, c.Version = th.Spec, th.UID, th.Version
		}
	}
	if change != nil {
		change(&c)
	}
	switch op {
	case "create":
		err = k.Create(context.Background(), c)
	case "update":
		err = k.Update(context.Background(), c)
	case "delete":
		err = k.Delete(context.Background(), c)
	}
	return answer.Armed, err
}

// must makes a change that has to be armed.
func (b *bench) must(op, kind, name string, want schema.Object) {
	b.Helper()
	if armed, err := b.do(op, kind, name, want, nil); err != nil || !armed {
		b.Fatalf("%s %s: armed %v, %v", op, name, armed, err)
	}
}

func (b *bench) put(kind, name string, spec schema.Object) {
	b.Helper()
	if err := b.world.Put(node, kind, providers.Thing{ID: name, Name: name, Mark: mark(kind, name), Spec: spec}); err != nil {
		b.Fatal(err)
	}
}

// settle asks to keep what run/1 changed, or to undo it.
func (b *bench) settle(keep bool) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	kept, err := b.agent.Settle(ctx, providers.Settling{ID: "run/1", Epoch: 5, Keep: keep})
	if err == nil {
		b.kept, b.undone = kept, !kept
	}
	return kept, err
}

// as fails unless the world is as dump says.
func (b *bench) as(dump, what string) {
	b.Helper()
	if now := b.world.Dump(); now != dump {
		b.Fatalf("%s: the world is not as expected; it is\n%s\nshould be\n%s\nthe log:\n%s", what, now, dump, strings.Join(b.log, ""))
	}
}

func (b *bench) settled(keep, kept bool) {
	b.Helper()
	if is, err := b.settle(keep); err != nil || is != kept {
		b.Fatalf("settle with keep %v: kept %v, %v; want kept %v", keep, is, err, kept)
	}
}

func (b *bench) class(err error, class providers.Class) {
	b.Helper()
	if err == nil || providers.ClassOf(err) != class {
		b.Fatalf("the error is %v, of class %s; want class %s", err, providers.ClassOf(err), class)
	}
}

func (b *bench) files() []string {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "guard.lock" && e.Name() != "guard.sock" {
			names = append(names, e.Name())
		}
	}
	return names
}

// three changes things in every way: what is there before is a bridge, and a port that goes.
func (b *bench) three() (before, after string) {
	b.Helper()
	b.put(bridge, "br", schema.Object{"mode": "secure"})
	b.put(port, "old", schema.Object{"bridge": "br", "tag": int64(1)})
	before = b.world.Dump()
	b.must("delete", port, "old", nil)
	b.must("create", bridge, "br2", schema.Object{})
	b.must("create", port, "new", schema.Object{"bridge": "br2"})
	b.must("update", bridge, "br", schema.Object{"mode": "standalone"})
	b.must("update", port, "new", schema.Object{"bridge": "br2", "tag": int64(7)})
	return before, b.world.Dump()
}
