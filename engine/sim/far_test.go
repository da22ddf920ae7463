package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A connection is how a process reaches one kind of the far side.
type connection struct {
	p           *process
	scope, name string
	traits      providers.Traits
	providers.Kind
}

type target struct{ scope, kind, id string }

func (t target) String() string { return t.scope + "/" + t.kind + "/" + t.id }

func (c *connection) fail(op string, call providers.Call, class providers.Class, err error) error {
	return &providers.Error{Op: op, Ref: call.Ref, Kind: c.name, Class: class, Err: err}
}

// List observes the far side after a while. The result of a list that lags is older.
func (c *connection) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(c.Get).List(ctx)
}

func (c *connection) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	p, s := c.p, c.p.s
	if err := p.awake(); err != nil {
		return nil, c.fail("observe", providers.Call{}, providers.Unknown, err)
	}
	p.mu.Lock()
	flying := p.flying
	p.mu.Unlock()
	if ids != nil && flying > 0 { // otherwise nothing works at the same time, and the order of kinds is random
		sleep(ctx, s.pace(200*time.Millisecond, "%s observe %s %s %v %d", p.name, c.scope, c.name, ids, p.count(fmt.Sprint("observe", c.scope, c.name, ids))))
	}
	if err := p.awake(); err != nil {
		return nil, c.fail("observe", providers.Call{}, providers.Unknown, err)
	}
	if class := s.blinded(c.scope, c.name); class != "" {
		return nil, c.fail("observe", providers.Call{}, class, errors.New("drawn: it cannot be seen whole"))
	}
	things, err := providertest.Of(c.Kind)(ctx, ids)
	if err != nil {
		return nil, err
	}
	s.remember(c.scope, c.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moment++
	for _, id := range ids {
		s.looked[target{c.scope, c.name, id}] = s.moment
	}
	if c.traits.Eventual {
		things = s.older(c.scope, c.name, ids)
	}
	return things, nil
}

func (c *connection) Create(ctx context.Context, call providers.Call) error {
	return c.change(ctx, "create", call, c.Kind.Create)
}

func (c *connection) Update(ctx context.Context, call providers.Call) error {
	return c.change(ctx, "update", call, c.Kind.Update)
}

func (c *connection) Delete(ctx context.Context, call providers.Call) error {
	return c.change(ctx, "delete", call, c.Kind.Delete)
}

// change passes a change to the far side at once, so that nothing comes between its intent and its effect, and delays the
// reply.
func (c *connection) change(ctx context.Context, op string, call providers.Call, verb func(context.Context, providers.Call) error) error {
	p, s := c.p, c.p.s
	at := target{c.scope, c.name, call.ID}
	n := p.count("change")
	fault := p.farFaults[n]
	if err := p.awake(); err != nil {
		return c.fail(op, call, providers.Unknown, err)
	}
	if fault != "" {
		s.reach(fault)
	}
	switch fault {
	case "die before call":
		p.die()
		return c.fail(op, call, providers.Unknown, errDead)
	case "stand still before call":
		p.standStill()
		if err := p.awake(); err != nil {
			return c.fail(op, call, providers.Unknown, err)
		}
		sleep(ctx, 2*time.Millisecond) // its timers fire before its client sends
	case "panic before call":
		panic("drawn: before the call")
	}
	if ctx.Err() != nil { // a call with a cancelled context changes nothing
		return c.fail(op, call, providers.Transient, ctx.Err())
	}
	s.remember(c.scope, c.name)
	err := verb(ctx, call)
	s.remember(c.scope, c.name)
	s.mu.Lock()
	s.moment++
	s.changed[at] = s.moment
	s.mu.Unlock()
	class := "done"
	if err != nil {
		class = string(providers.ClassOf(err))
	}
	s.log("%s calls %s %s %s key %s epoch %d: %s", p.name, op, call.Ref, call.ID, call.Key, call.Epoch, class)
	switch fault {
	case "die after call":
		p.die()
		return c.fail(op, call, providers.Unknown, errDead)
	case "panic after call":
		panic("drawn: after the call")
	case "ctrl-c":
		p.ctrlC()
	case "stopped after call":
		s.stop(1000*s.processes + n)
	case "blinded":
		s.blind(n)
	case "stand still after call":
		p.standStill()
	case "lapse after call":
		p.doom()
		p.kv.KV.Lapse()
	case "third party edits", "third party deletes", "third party makes":
		s.third(fault, n)
	}
	sleep(ctx, s.pace(500*time.Millisecond, "%s %s %s %s %d", p.name, op, call.Ref, call.Key, p.count(op+call.Key)))
	if perr := p.awake(); perr != nil {
		return c.fail(op, call, providers.Unknown, perr)
	}
	if err == nil && ctx.Err() != nil {
		return c.fail(op, call, providers.Unknown, fmt.Errorf("the reply did not come in time: %w", ctx.Err()))
	}
	return err
}

// blind makes the observations of some kind fail for a while.
func (s *sim) blind(n int) {
	names := []string{"far.net", "far.host", "far.guard", "near.bridge", "near.port"}
	name := names[s.chance("blind %d", n)%5]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blindness[name] = 1 + int(s.chance("blindness %d", n)%12)
}

func (s *sim) blinded(scope, kind string) providers.Class {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blindness[kind] == 0 || s.calm.Load() {
		return ""
	}
	s.blindness[kind]--
	return []providers.Class{providers.Transient, providers.Unknown, providers.Busy, providers.Denied}[s.chance("class %s", kind)%4]
}

// third makes another client change the far side.
func (s *sim) third(what string, n int) {
	now := s.things()
	var keys []target
	for at, th := range now {
		movable := at.kind == "far.host" || at.kind == "near.port" // nothing refers to them
		if th.Phase == "" && (what == "third party edits" || what == "third party deletes" && movable) && !s.foreign[at] {
			keys = append(keys, at)
		}
	}
	if what == "third party makes" {
		id := fmt.Sprintf("foreign-%d", n)
		at := target{"n1", "near.bridge", id}
		s.put(at, providers.Thing{ID: id, Name: id, Spec: schema.Object{"mode": "theirs"}})
		s.mu.Lock()
		s.foreign[at] = true
		s.mu.Unlock()
		return
	}
	if len(keys) == 0 {
		return
	}
	slices.SortFunc(keys, func(a, b target) int { return slices.Compare([]string{a.String()}, []string{b.String()}) })
	at := keys[s.chance("third %d", n)%uint64(len(keys))]
	s.mu.Lock()
	s.touched[at] = s.moment
	s.mu.Unlock()
	s.log("%s: %s", what, at)
	s.remember(at.scope, at.kind)
	defer s.remember(at.scope, at.kind)
	if what == "third party deletes" {
		if err := s.far.Remove(at.scope, at.kind, at.id); err != nil {
			s.t.Error(err)
		}
		return
	}
	th := now[at]
	spec := th.Spec.Clone()
	field := "size"
	if at.kind == "near.port" {
		field = "tag"
	}
	spec[field] = int64(70 + n)
	s.put(at, providers.Thing{ID: at.id, Name: th.Name, Mark: providers.ParseMark(th.Mark), Spec: spec})
}

func (s *sim) put(at target, th providers.Thing) {
	if err := s.far.Put(at.scope, at.kind, th); err != nil {
		s.t.Error(err)
	}
}

// A thing is as the far side dumps it.
type thing struct {
	Name  string          `json:"name"`
	Mark  string          `json:"mark"`
	Phase providers.Phase `json:"phase"`
	Spec  schema.Object   `json:"spec"`
}

// things returns everything on the far side, without asking it in a way that counts.
func (s *sim) things() map[target]thing {
	var dump struct {
		Things map[string]map[string]map[string]thing `json:"things"`
	}
	if err := json.Unmarshal([]byte(s.far.Dump()), &dump); err != nil {
		s.t.Fatal(err)
	}
	all := map[target]thing{}
	for scope, kinds := range dump.Things {
		for kind, things := range kinds {
			for id, th := range things {
				s.kinds[kind].Normalize(th.Spec)
				all[target{scope, kind, id}] = th
			}
		}
	}
	return all
}

// peek returns the current state of one thing; nil when it does not exist.
func (s *sim) peek(scope, kind, id string) *providers.Thing {
	served, _, _ := s.direct.Find(scope, kind)
	things, err := served.Kind.Get(context.Background(), []string{id})
	if err != nil {
		s.t.Error(err)
	}
	if len(things) == 0 {
		return nil
	}
	s.kinds[kind].Normalize(things[0].Spec)
	return &things[0]
}

// A view is what a list that lags remembers of one kind.
type view struct {
	at     time.Time
	things []providers.Thing
}

// remember records the state of a kind, for lists that lag.
func (s *sim) remember(scope, kind string) {
	served, _, _ := s.direct.Find(scope, kind)
	if !served.Traits.Eventual {
		return
	}
	things, err := providers.Collect(served.Kind.List(context.Background()))
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := target{scope: scope, kind: kind}
	s.views[at] = append(s.views[at], view{time.Now(), things})
}

// older returns the things with the given ids as they were a while ago. The caller holds the lock.
func (s *sim) older(scope, kind string, ids []string) []providers.Thing {
	at := target{scope: scope, kind: kind}
	var last []providers.Thing
	for _, v := range s.views[at] {
		if time.Since(v.at) < lag {
			break
		}
		last = v.things
	}
	var found []providers.Thing
	for _, th := range last {
		if ids == nil || slices.Contains(ids, th.ID) {
			th.Spec = th.Spec.Clone()
			found = append(found, th)
		}
	}
	return found
}
