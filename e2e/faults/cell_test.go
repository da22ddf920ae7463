package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// late is the time within which a call of unknown outcome may still have its effect. It is longer than all retries of a step
// together, which distinguishes a run that has waited for it from one that has not.
const late = 4 * time.Minute

// A cell is one site, with one fault at one method of one scene. It runs in a bubble of package synctest.
type cell struct {
	*testing.T
	*scene
	undo   bool // the fault is met while the run is undone
	method string
	nth    int // which call of the method in the step
	fault  fault

	options func(*carbidesim.Options)                              // optional: changes those of the world
	answer  func(method string, reply proto.Message) proto.Message // optional: returns what is sent instead of a reply

	world  *carbidesim.World
	server *carbidesim.Server
	line   *bufconn.Listener
	store  *state.Store
	eye    *providers.Provider // which no fault affects
	traits providers.Traits
	kinds  schema.Kinds

	token       bool   // the kind has versions
	first, last string // what is observed of the kind before, ? until that is known, and after
	ids         atomic.Int64
	met         atomic.Pointer[func(method string)] // what is done when a call arrives
	armed       atomic.Bool
	within      atomic.Bool // the step of x is in progress
	mu          sync.Mutex
	arrived     []string // changing calls during the step of x
	story       []string

	dark  atomic.Bool // nothing listens
	conns []net.Conn
}

// begin creates the site and brings it to the first document.
func (c *cell) begin() {
	options := worldOptions()
	if c.options != nil {
		c.options(&options)
	}
	world, err := carbidesim.New(options)
	if err != nil {
		c.Fatal(err)
	}
	known, err := compiled()
	if err != nil {
		c.Fatal(err)
	}
	c.world, c.kinds = world, known.Kinds()
	c.server, err = carbidesim.NewServer(world, carbidesim.ServerOptions{Answer: c.answer, Arrived: func(_ context.Context, method string) {
		if met := c.met.Load(); met != nil {
			(*met)(method)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.within.Load() && changing(method) {
			c.arrived = append(c.arrived, method)
		}
		if c.armed.Load() && len(c.story) < 80 {
			c.story = append(c.story, method)
		}
	}})
	if err != nil {
		c.Fatal(err)
	}
	c.line = bufconn.Listen(1 << 16)
	go c.server.Serve(c.line)
	c.store = state.New(mem.New(mem.Options{}), "grid")
	if c.eye, err = c.open(); err != nil {
		c.Fatal(err)
	}
	for _, k := range c.eye.Kinds {
		if k.Name == c.ref.Kind {
			c.traits = k.Traits
		}
	}
	c.first = "?"
	if got := c.apply(c.scene.first, nil); got.Run.Status != state.RunApplied {
		c.Fatalf("the beginning ended %s: %s", got.Run.Status, got.Run.Message)
	}
	c.first, c.arrived = c.see(), nil
}

// end stops everything.
func (c *cell) end() {
	if err := c.eye.Close(); err != nil {
		c.Error(err)
	}
	c.server.Stop()
	c.line.Close()
	if err := c.world.Close(); err != nil {
		c.Error(err)
	}
}

// open connects like a process.
func (c *cell) open() (*providers.Provider, error) {
	return carbide.Open(context.Background(), carbide.Options{
		Address: "127.0.0.1:1079", TLS: carbide.TLS{Mode: carbide.Off}, Late: late,
		Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			if c.dark.Load() {
				return nil, errors.New("connection refused")
			}
			conn, err := c.line.DialContext(ctx)
			if err == nil {
				c.mu.Lock()
				c.conns = append(c.conns, conn)
				c.mu.Unlock()
			}
			return conn, err
		},
	})
}

// process returns an engine like that of a separate process: one step at a time, at the real pace of retries. Runs are
// numbered, so that the delays are reproducible.
func (c *cell) process() *engine.Engine {
	return engine.New(engine.Options{
		Kinds: c.kinds, Store: c.store, Who: "test@here", Version: "test", Parallelism: 1, Emit: c.follow,
		Open: func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			p, err := c.open()
			if err != nil {
				return nil, err
			}
			return providers.NewSet(p)
		},
		NewID: func(now time.Time) string {
			return fmt.Sprintf("%s-%06d", now.UTC().Format("20060102-150405.000"), c.ids.Add(1))
		},
		Secrets: secret.Options{Source: secret.Source{Names: []string{"*"}, Lookup: func(string) (string, bool) { return "s3cret", true }}},
	})
}

// follow watches the run: the fault begins with the step of x.
func (c *cell) follow(ev event.Event) {
	switch e := ev.(type) {
	case event.StepStarted:
		if e.Step.Ref == c.ref {
			c.within.Store(true)
			if c.first != "?" && e.Undo == c.undo && c.armed.CompareAndSwap(false, true) {
				c.arm()
			}
		}
	case event.StepDone:
		c.within.Store(false)
	case event.StepFailed:
		c.within.Store(false)
		if c.armed.Load() {
			c.say("step failed, %s: %v", e.Class, e.Err)
		}
	case event.StepProgress:
		if c.armed.Load() {
			c.say("%s: %s", e.Phase, e.Detail)
		}
	}
}

func (c *cell) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.story) < 200 {
		c.story = append(c.story, fmt.Sprintf(format, args...))
	}
}

// arm begins the fault.
func (c *cell) arm() {
	for _, f := range c.fault.inject {
		methods := []string{cmp.Or(f.Method, c.method)}
		switch f.Method {
		case "reads":
			methods = c.fault.reads
		case "":
			f.Nth = c.nth
		}
		for _, m := range methods {
			f.Method = m
			if err := c.world.Inject(f); err != nil {
				c.Error(err)
			}
		}
	}
	if c.fault.dark {
		c.dark.Store(true)
		c.cut()
		synctest.Wait() // until the process has noticed
	}
}

func (c *cell) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns[1:] { // the first is the eye's
		conn.Close()
	}
}

// mend ends the faults of the far side.
func (c *cell) mend() {
	c.world.ClearFaults()
	c.dark.Store(false)
}

// apply plans and applies a document; between, when it is not nil, is called between the two.
func (c *cell) apply(d *schema.Document, between func()) engine.Result {
	e := c.process()
	defer e.Close()
	p, err := e.Plan(context.Background(), d, plan.Options{})
	if err != nil {
		c.Fatal(err)
	}
	if between != nil {
		between()
	}
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	if err != nil && res.Run.Status != state.RunOpen {
		c.Fatalf("the run did not begin: %v", err)
	}
	return res
}

// rollback undoes the run.
func (c *cell) rollback() engine.Result {
	e := c.process()
	defer e.Close()
	res, err := e.Rollback(context.Background(), "", engine.ApplyOptions{})
	if err != nil && res.Run.Status != state.RunOpen {
		c.Fatalf("the undo did not begin: %v", err)
	}
	return res
}

// play carries the scene out, with the fault, and returns its end.
func (c *cell) play() ending {
	var res engine.Result
	begin := time.Now()
	if c.undo {
		before := c.fault.forward
		if before != nil {
			c.armed.Store(true)
		}
		res = c.apply(c.scene.last, func() {
			if before != nil {
				f := *before
				f.Method, f.Nth = c.method, c.nth
				if err := c.world.Inject(f); err != nil {
					c.Error(err)
				}
			}
		})
		if res.Run.Status != state.RunApplied {
			c.Fatalf("the run ended %s: %s", res.Run.Status, res.Run.Message)
		}
		c.last = c.see()
		begin = time.Now()
		res = c.rollback()
	} else {
		res = c.apply(c.scene.last, nil)
	}
	took := time.Since(begin)
	if !c.armed.Load() {
		c.Error("nothing was injected")
	}
	if n := len(c.world.Faults()); n > 0 && len(c.fault.inject) > 0 && c.fault.inject[0].Times == 0 && c.fault.inject[0].Method == "" {
		c.Errorf("%d faults were not met", n)
	}
	c.mend()
	got := ending{status: string(res.Run.Status), step: c.standing(), world: c.word(c.see()), holds: enginetest.Holds(c.T, c.store), waited: took >= late && !c.fault.patient}
	got.next = c.afterwards(res.Run)
	return got
}

// see returns what exists of the kind, without external ids: those of a recreated thing are different.
func (c *cell) see() string {
	var kind providers.Kind
	for _, k := range c.eye.Kinds {
		if k.Name == c.ref.Kind {
			kind = k.Kind
		}
	}
	things, err := providers.Collect(kind.List(context.Background()))
	if err != nil {
		c.Fatal(err)
	}
	lines := []string{}
	for _, th := range things {
		c.kinds[c.ref.Kind].Normalize(th.Spec)
		spec, err := json.Marshal(th.Spec)
		if err != nil {
			c.Fatal(err)
		}
		c.token = c.token || th.Version != ""
		lines = append(lines, fmt.Sprintf("%s %s %s %s", th.Name, spec, th.Mark.Ref, th.Phase))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// word returns the meaning of that.
func (c *cell) word(now string) string {
	for _, phase := range []string{"", " " + string(providers.Pending), " " + string(providers.Deleting), " " + string(providers.Failed)} {
		as := now
		if phase != "" {
			as = strings.ReplaceAll(now, phase, " "+string(providers.Ready))
		}
		switch {
		case as == c.first:
			return "before" + phase
		case as == c.last:
			return "wanted" + phase
		}
	}
	c.say("before:\n%s\nnow:\n%s\nwanted:\n%s", c.first, now, c.last)
	return "between"
}

// standing returns how far the step of x has come.
func (c *cell) standing() string {
	word, ok := enginetest.Standing(c.T, c.store, c.ref)
	if !ok {
		return "none"
	}
	return word
}

// afterwards does what an operator does once the far side is well: an open or partial run is resumed, holds are released, and
// the document is applied again. It returns the result. What exists must stay unchanged when all that was late has come, and
// in the end nothing may be left to do.
func (c *cell) afterwards(run state.Run) string {
	if run.Status == state.RunReverted || run.Status == state.RunApplied {
		was := c.see()
		time.Sleep(2 * late)
		if is := c.see(); is != was {
			c.say("at the end of the run:\n%s\nlater:\n%s", was, is)
			return "not for long"
		}
	}
	var said []string
	say := func(s string) string {
		said = append(said, s)
		return strings.Join(said, ", ")
	}
	resume := func() (engine.Result, error) {
		e := c.process()
		defer e.Close()
		return e.Resume(context.Background(), "", engine.ApplyOptions{})
	}
	if run.Status == state.RunOpen || run.Status == state.RunPartial {
		res, err := resume()
		if err != nil {
			return say("resume: " + err.Error())
		}
		say("resume " + string(res.Run.Status))
		if res.Run.Status == state.RunPartial { // late effects have come, and the operator has checked
			time.Sleep(2 * late)
			enginetest.Release(c.T, c.store)
			if res, err = resume(); err != nil {
				return say("resume: " + err.Error())
			}
			if say("later " + string(res.Run.Status)); res.Run.Status == state.RunPartial {
				return strings.Join(said, ", ")
			}
		}
	}
	enginetest.Release(c.T, c.store)
	for range 2 {
		e := c.process()
		p, err := e.Plan(context.Background(), c.scene.last, plan.Options{})
		e.Close()
		switch {
		case err != nil:
			return say("plan: " + err.Error())
		case len(p.Refusals) > 0:
			return say(fmt.Sprint("refused: ", p.Refusals))
		case p.Empty():
			time.Sleep(2 * late)
			return say(c.settled())
		}
		if status := c.apply(c.scene.last, nil).Run.Status; say("again "+string(status)) != "" && status != state.RunApplied {
			return strings.Join(said, ", ")
		}
	}
	return say("it does not converge")
}

// settled returns whether in the very end the site is as wanted, with nothing beside it that bears our mark or the name of x.
func (c *cell) settled() string {
	e := c.process()
	defer e.Close()
	r, err := e.Drift(context.Background(), c.scene.last.Site)
	if err != nil {
		return "drift: " + err.Error()
	}
	if len(r.Strays) > 0 || len(r.Drifted) > 0 {
		return fmt.Sprintf("strays %v, drifted %v", r.Strays, r.Drifted)
	}
	if is := c.see(); is != c.last {
		return c.word(is)
	}
	return "clean"
}
