package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// E: every fault of a provider is tried at every gridMethod, forward and as an undo, of kinds of every profile. The results
// are in the tables of grid_table_test.go.
func TestTortureGrid(t *testing.T) {
	var names, ways, met []string
	for _, f := range gridFaults() {
		names = append(names, f.name)
		for _, m := range gridMethods {
			if slices.ContainsFunc(gridProfiles(), func(p gridProfile) bool { return f.possible(p, m) }) {
				met = append(met, f.name+" × "+m.String())
			}
		}
	}
	for _, m := range gridMethods {
		ways = append(ways, m.String())
	}
	coverFaults, coverMethods := torture.Cover(t, "faults", names), torture.Cover(t, "methods", ways)
	coverMet, coverEnds := torture.Cover(t, "faults × methods", met), torture.Cover(t, "ends", slices.Sorted(maps.Keys(gridEnds)))
	var cells int
	var wrong atomic.Int64
	begin := time.Now()
	t.Cleanup(func() { // when all cells have ended
		torture.Report(t, "E", "%d cells (%d faults, %d methods, %d profiles), %d ends, %d wrong, in %s",
			cells, len(names), len(ways), len(gridProfiles()), len(gridEnds), wrong.Load(), time.Since(begin).Round(time.Millisecond))
	})
	for _, p := range gridProfiles() {
		rows := gridRows(t, p.name)
		for _, f := range gridFaults() {
			for _, m := range gridMethods {
				want := cmp.Or(rows[f.name][m.String()], "-") // a fault that no method can meet has no row
				if possible := f.possible(p, m); possible != (want != "-") {
					t.Errorf("%s, %s, %s: the table says %q, and whether that can be is %t", p.name, f.name, m, want, possible)
				}
				if want == "-" {
					continue
				}
				cells++
				t.Run(strings.ReplaceAll(p.name+"/"+f.name+"/"+m.String(), " ", "-"), func(t *testing.T) {
					t.Parallel()
					coverFaults.Reach(f.name)
					coverMethods.Reach(m.String())
					coverMet.Reach(f.name + " × " + m.String())
					exact := gridEndOf(t, want)
					t.Cleanup(func() {
						if t.Failed() {
							wrong.Add(1)
						}
					})
					synctest.Test(t, func(t *testing.T) {
						c := &gridCell{T: t, profile: p, method: m, fault: f, Site: enginetest.New()}
						if got := c.run(); got != exact {
							t.Errorf("got:  %s\nwant: %s (%s)\n%s", got, exact, want, c.story())
						}
					})
					if !t.Failed() {
						name, _, _ := strings.Cut(want, "/")
						coverEnds.Reach(name)
					}
				})
			}
		}
	}
}

// A gridCell is one fault at one method of one gridProfile, on a site of its own.
//
// The site has a guard, keep, so that no document is empty. Every revision creates another guard, lead, before anything
// happens to the host x; one that is to fail creates a net, trip, after it.
type gridCell struct {
	*testing.T
	*enginetest.Site
	profile gridProfile
	method  gridMethod
	fault   gridFault

	before, wanted gridFar // of x
	ids            atomic.Int64
	acted          atomic.Bool
	armed          atomic.Bool
	died           atomic.Bool
	calls          map[string]int // of one process, by key and verb
}

var gridHost = schema.Ref{Scope: schema.ScopeSite, Kind: "far.host", Name: "x"}

const (
	gridLead = "site/far.guard/lead"
	gridTrip = "site/far.net/trip"
	gridKeep = "site/far.guard/keep"
)

// run carries the scenario out and returns its end.
func (c *gridCell) run() gridEnd {
	traits := c.profile.traits
	traits.Eventual = c.fault.eventual
	// Guards and nets are simple: nothing about them is unknown.
	c.World.Traits = map[string]providers.Traits{gridHost.Kind: traits, "far.guard": fake.NodeTraits(), "far.net": fake.NodeTraits()}
	first, last := c.documents()
	c.apply(c.Site.Document(c, first), "the beginning")
	c.before, c.calls = c.x(), map[string]int{}

	c.World.Hook = c.hook
	store, kv := c.mortal()
	e := c.process(store)
	p, err := e.Plan(context.Background(), c.Site.Document(c, last), plan.Options{})
	if err != nil {
		c.Fatal(err)
	}
	begin := time.Now()
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	e.Close()
	if c.fault.killed != "" {
		if !c.died.Load() || err == nil {
			c.Fatalf("the process was to die in the call: %v", err)
		}
		if open := c.standing(); !strings.HasSuffix(open, "open") {
			c.Errorf("after the death of the process the step is %s", open)
		}
		kv.Lapse()
		c.mend()
		clear(c.calls)
		begin = time.Now()
		res, err = c.resume()
	}
	if err != nil && res.Run.Status != state.RunOpen {
		c.Fatalf("the run did not begin: %v\n%s", err, enginetest.Text(p))
	}
	if !c.armed.Load() && c.fault.name != "none" {
		c.Error("nothing was injected")
	}
	got := gridEnd{status: string(res.Run.Status), step: c.standing(), world: c.see(), holds: enginetest.Holds(c.T, c.Store), waited: time.Since(begin) >= gridLate}
	got.next = c.follow(c.Site.Document(c, last), res.Run)
	got.incarnation = c.incarnation()
	c.usedOnce()
	return got
}

// documents returns the site before, and as it is to become.
func (c *gridCell) documents() (first, last map[string]string) {
	first = map[string]string{gridKeep: `{}`}
	last = map[string]string{gridKeep: `{}`, gridLead: `{}`}
	const one, two = `{"size":1,"labels":{"a":"b"}}`, `{"size":2,"labels":{"a":"b"}}`
	switch c.method.name {
	case "create":
		last[gridHost.String()] = one
	case "update":
		first[gridHost.String()], last[gridHost.String()] = one, two
	case "delete":
		first[gridHost.String()] = one
	case "mark":
		found := providers.Thing{ID: c.idOf(1), Name: gridHost.Name, Spec: schema.Object{"size": int64(1), "labels": map[string]any{"a": "b"}}}
		if err := c.World.Put(gridHost.Scope, gridHost.Kind, found); err != nil {
			c.Fatal(err)
		}
		last[gridHost.String()] = `{"size":1,"labels":{"a":"b"},"lifecycle":{"adopt":"match"}}`
	}
	switch c.method.name { // what x is to be like in the end
	case "delete":
	case "update":
		c.wanted = gridFar{size: "2", mark: "ours"}
	default:
		c.wanted = gridFar{size: "1", mark: "ours"}
	}
	if !c.profile.traits.Mark && c.wanted.mark != "" {
		c.wanted.mark = "none"
	}
	if c.method.undo {
		last[gridTrip] = `{"cidr":"10.0.0.0/24"}`
	}
	return first, last
}

// idOf returns the external id of an incarnation of x.
func (c *gridCell) idOf(incarnation int) string {
	return plan.ExternalID(enginetest.SiteID, c.profile.traits, gridHost, incarnation, schema.Object{})
}

// process returns an engine like that of a separate process: with the real pace of retries, one step at a time.
func (c *gridCell) process(store *state.Store) *engine.Engine {
	return c.Engine(c.options(store, 1))
}

// options returns those of a process. Runs are numbered, so that the delays of a retry are reproducible.
func (c *gridCell) options(store *state.Store, parallelism int) func(*engine.Options) {
	return func(o *engine.Options) {
		o.Store, o.Parallelism, o.Retry = store, parallelism, apply.Retry{}
		o.NewID = func(now time.Time) string {
			return fmt.Sprintf("%s-%06d", now.UTC().Format("20060102-150405.000"), c.ids.Add(1))
		}
	}
}

// mortal returns a connection to the store that dies with its process.
func (c *gridCell) mortal() (*state.Store, *mem.KV) {
	if c.fault.killed == "" {
		return c.Store, c.KV
	}
	kv := c.KV.Connect(mem.Options{Fault: func(mem.Call) error {
		if c.died.Load() {
			return fmt.Errorf("%w: the process is dead", state.ErrUnknown)
		}
		return nil
	}})
	return state.New(kv, "test"), kv
}

// apply brings the site to a document without any fault.
func (c *gridCell) apply(d *schema.Document, what string) state.RunStatus {
	e := c.process(c.Store)
	defer e.Close()
	p, err := e.Plan(context.Background(), d, plan.Options{})
	if err != nil {
		c.Fatal(err)
	}
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	if err != nil {
		c.Fatalf("%s: %v\n%s", what, err, enginetest.Text(p))
	}
	return res.Run.Status
}

func (c *gridCell) resume() (engine.Result, error) {
	e := c.process(c.Store)
	defer e.Close()
	return e.Resume(context.Background(), "", engine.ApplyOptions{})
}

// hook watches the far side: it begins the fault at its time, does what others do, kills the process, and finds calls that
// were not recorded before.
func (c *gridCell) hook(op string, at fake.Moment, call providers.Call) {
	start := gridLead
	if c.method.undo {
		start = gridTrip
	}
	if c.fault.first != nil && call.Ref.String() == gridLead && at == fake.Before && c.acted.CompareAndSwap(false, true) {
		f := *c.fault.first
		f.Op, f.Ref = gridMethod{c.method.name, false}.verb(), gridHost.String()
		if err := c.World.Fail(f); err != nil {
			c.Error(err)
		}
	}
	if op == "create" && at == fake.Before && call.Ref.String() == start && c.armed.CompareAndSwap(false, true) {
		c.arm()
	}
	if op == "observe" || call.Ref != gridHost {
		return
	}
	if at == fake.Before {
		if c.calls[call.Key+" "+op]++; c.calls[call.Key+" "+op] > 5 && !strings.HasPrefix(c.fault.name, "busy") {
			c.Errorf("S2: %s was called %d times", op, c.calls[call.Key+" "+op])
		}
		if open := openIntent(c.T, c.Site, call.Ref); open == nil || open.ExternalID != call.ID || open.Key != call.Key {
			c.Errorf("W1: %s of id %s was called, and the journal says %+v", op, call.ID, open)
		}
	}
	if !c.armed.Load() || op != c.method.verb() {
		return
	}
	if at == fake.Before && c.fault.just != "" && c.acted.CompareAndSwap(false, true) {
		c.act(c.fault.just)
	}
	if at == c.fault.killed && c.acted.CompareAndSwap(false, true) {
		c.died.Store(true)
	}
}

// arm begins the fault.
func (c *gridCell) arm() {
	for _, f := range c.fault.inject {
		if f.Op == "" {
			f.Op, f.Ref = c.method.verb(), gridHost.String()
		}
		if err := c.World.Fail(f); err != nil {
			c.Error(err)
		}
	}
	if c.method.undo {
		if err := c.World.Fail(fake.Fault{Op: "create", Ref: gridTrip, Class: providers.Invalid}); err != nil {
			c.Error(err)
		}
	}
	if c.fault.early != "" {
		c.act(c.fault.early)
	}
}

// act does to x what others do.
func (c *gridCell) act(a gridAct) {
	id := c.idOf(1)
	at := c.things()[id]
	th := providers.Thing{ID: id, Name: gridHost.Name, Mark: at.mark(), Spec: at.Spec}
	var err error
	switch a {
	case gridTouch:
		err = c.World.Put(gridHost.Scope, gridHost.Kind, th)
	case gridEdit:
		th.Spec["labels"] = map[string]any{"a": "b", "by": "others"}
		err = c.World.Put(gridHost.Scope, gridHost.Kind, th)
	case gridVanish:
		err = c.World.Remove(gridHost.Scope, gridHost.Kind, id)
	case gridIntrude:
		th.Mark, th.Spec = providers.Mark{}, schema.Object{"size": int64(9), "labels": map[string]any{"a": "b"}}
		err = c.World.Put(gridHost.Scope, gridHost.Kind, th)
	case gridSeize:
		th.Mark.Site = "0c5b6f1e-0000-4000-8000-000000000000"
		th.Mark.Ref, th.Mark.Incarnation = gridHost, 1
		err = c.World.Put(gridHost.Scope, gridHost.Kind, th)
	case gridBurn:
		k, _, _ := c.set().Find(gridHost.Scope, gridHost.Kind)
		call := providers.Call{Ref: schema.Ref{Scope: gridHost.Scope, Kind: gridHost.Kind, Name: "earlier"}, ID: id, Want: schema.Object{}}
		err = errors.Join(k.Kind.Create(context.Background(), call), k.Kind.Delete(context.Background(), call))
	}
	if err != nil {
		c.Error(err)
	}
}

func (c *gridCell) set() *providers.Set {
	set, err := providers.NewSet(c.World.Provider("far", schema.ScopeSite))
	if err != nil {
		c.Fatal(err)
	}
	return set
}

// A gridThing is one thing in the dump of the world.
type gridThing struct {
	Mark  string          `json:"mark"`
	Spec  schema.Object   `json:"spec"`
	Phase providers.Phase `json:"phase"`
}

func (d gridThing) mark() providers.Mark { return providers.ParseMark(d.Mark) }

// things returns all hosts, without an observation that a fault could affect.
func (c *gridCell) things() map[string]gridThing {
	var dump struct {
		Things map[string]map[string]map[string]gridThing `json:"things"`
	}
	if err := json.Unmarshal([]byte(c.World.Dump()), &dump); err != nil {
		c.Fatal(err)
	}
	return dump.Things[gridHost.Scope][gridHost.Kind]
}

// gridFar is what exists of x.
type gridFar struct {
	size   string // empty: it does not exist
	mark   string // ours, none, theirs
	edited bool
	phase  string
}

// x returns what exists of x; more than one thing is a mistake by itself.
func (c *gridCell) x() gridFar {
	all := c.things()
	if len(all) > 1 {
		c.Errorf("there are %d things: %v", len(all), all)
	}
	for _, th := range all {
		f := gridFar{size: fmt.Sprint(th.Spec["size"]), mark: "none", phase: string(th.Phase)}
		switch m := th.mark(); {
		case m.IsZero(), !c.profile.traits.Mark:
		case m.Site == enginetest.SiteID && m.Ref == gridHost:
			f.mark = "ours"
		default:
			f.mark = "theirs"
		}
		if labels, ok := th.Spec["labels"].(map[string]any); ok {
			f.edited = labels["by"] == "others"
		}
		return f
	}
	return gridFar{}
}

// see describes what exists of x in a word.
func (c *gridCell) see() string {
	is := c.x()
	suffix := ""
	if is.edited {
		suffix = "+edit"
	}
	if is.phase != "" {
		suffix += " " + is.phase
	}
	is.edited, is.phase = false, ""
	switch {
	case is.size == "9":
		return "theirs" + suffix
	case is.mark == "theirs":
		return "theirs" + suffix
	case is == c.wanted:
		return "wanted" + suffix
	case is == c.before:
		return "before" + suffix
	case is == gridFar{}:
		return "nothing"
	}
	return fmt.Sprintf("%+v", is)
}

// standing returns how far the step of x has come.
func (c *gridCell) standing() string {
	word, ok := enginetest.Standing(c.T, c.Store, gridHost)
	if !ok {
		c.Fatal("the plan has no step for x")
	}
	return word
}

func (c *gridCell) mend() {
	if err := c.World.Mend(); err != nil {
		c.Fatal(err)
	}
}

// follow does what operators do afterwards, once the far side is well: an open or partial run is resumed, holds are released,
// and the document is applied again. It returns the result. In the end nothing may be left to do, not even when all late
// effects have come.
func (c *gridCell) follow(d *schema.Document, run state.Run) string {
	c.World.Hook = nil
	c.mend()
	if c.fault.patient {
		was := c.see()
		time.Sleep(gridLate)
		if err := c.World.Land(); err != nil {
			c.Fatal(err)
		}
		if is := c.see(); is != was {
			return "not for long: " + is
		}
	}
	var said []string
	say := func(s string) string {
		said = append(said, s)
		return strings.Join(said, ", ")
	}
	if run.Status == state.RunOpen || run.Status == state.RunPartial {
		res, err := c.resume()
		if err != nil {
			return say("resume: " + err.Error())
		}
		say("resume " + string(res.Run.Status))
		if res.Run.Status == state.RunPartial { // late effects have come, and the operator has checked
			time.Sleep(gridLate)
			c.Release(c)
			if res, err = c.resume(); err != nil {
				return say("resume: " + err.Error())
			}
			say("later " + string(res.Run.Status))
			if res.Run.Status == state.RunPartial {
				return strings.Join(said, ", ")
			}
		}
	}
	c.Release(c)
	for range 2 {
		e := c.process(c.Store)
		p, err := e.Plan(context.Background(), d, plan.Options{})
		e.Close()
		switch {
		case err != nil:
			return say("plan: " + err.Error())
		case len(p.Refusals) > 0:
			return say("refused")
		case p.Empty():
			time.Sleep(2 * gridLate)
			e := c.process(c.Store)
			p, err := e.Plan(context.Background(), d, plan.Options{})
			e.Close()
			if err != nil || !p.Empty() || slices.ContainsFunc(p.Unmanaged, func(f plan.Unmanaged) bool { return f.Stray }) {
				return say(fmt.Sprintf("not for long: %v\n%s", err, enginetest.Text(p)))
			}
			if err := c.World.Land(); err != nil {
				c.Fatal(err)
			}
			if is := c.see(); strings.TrimSuffix(is, "+edit") != "wanted" {
				return say("not for long: " + is)
			}
			return say("clean")
		}
		say("again " + string(c.apply(d, "again")))
	}
	return say("it does not converge")
}

// incarnation returns the one that is remembered; 0: none.
func (c *gridCell) incarnation() int {
	records, err := c.Store.Records(context.Background())
	if err != nil {
		c.Fatal(err)
	}
	for _, r := range records {
		if r.Ref == gridHost {
			return r.Incarnation
		}
	}
	return 0
}

// usedOnce fails the test when an id of a kind whose ids are used once was used for a second thing: when it was accepted
// twice, or requested again after its thing was deleted.
func (c *gridCell) usedOnce() {
	if !c.profile.traits.IDsNotReusable {
		return
	}
	made, gone := map[string]bool{}, map[string]bool{}
	for _, e := range c.World.Log() {
		id := e.Call.ID
		switch {
		case e.Call.Ref != gridHost:
		case e.Op == "create":
			if gone[id] || made[id] && e.Err == nil {
				c.Errorf("the id %s was used twice", id)
			}
			made[id] = made[id] || e.Err == nil
		case e.Op == "delete" && e.Err == nil:
			gone[id] = true
		}
	}
}

// story returns what happened to x, for people.
func (c *gridCell) story() string {
	var b strings.Builder
	for _, e := range c.World.Log() {
		if e.Call.Ref == gridHost {
			fmt.Fprintf(&b, "  %s %.8s %s version %q: %v\n", e.Op, e.Call.ID, e.Call.Key, e.Call.Version, e.Err)
		}
	}
	runs, _ := c.Store.Runs(context.Background())
	for _, r := range runs {
		fmt.Fprintf(&b, "  run %s %s: %s %v\n", r.ID, r.Status, r.Message, r.Partial)
	}
	b.WriteString("  " + c.World.Dump())
	return b.String()
}
