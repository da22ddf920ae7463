// Package fake is a simulated far side that serves any kind, in memory or from a JSON file, for rehearsals and tests.
//
// A [World] holds things of all kinds and scopes; [World.Provider] serves the kinds of one provider in one scope. It
// knows only the descriptions of kinds, and keeps the contract of package providers to the letter: a taken or burned
// id, a stale version, an unknown field, a changed immutable field, a dangling reference and the deletion of what
// others refer to are all refused, so that wrong calls and wrong orders are detected.
//
// Failures are declared: a [Fault] in the world or in its file makes chosen calls fail before, after or long before
// their effect, makes things slow or broken, or makes a list lag. A fault hits once, from the nth time on, every second
// time, or for good. [World.Mend] ends them all. [World.Put] and [World.Remove] make changes behind the engine's back,
// with [World.Hook] at a chosen moment of a call. A [Control] makes them from outside, also while another process has the
// world open: see [World.Serve].
//
// # The file
//
// The file is JSON for people: things by scope, kind and id; burned ids; faults. Defaults of a thing need not be
// written: its name is its id, and it is ready.
//
//	{
//	  "faults": [{"op": "create", "ref": "site/carbide.vpc/prod", "class": "invalid"}],
//	  "things": {"site": {"carbide.tenant": {"acme": {"spec": {}}}}}
//	}
//
// Before a call returns, its effect is appended to the file PATH.journal, so a killed process loses nothing that
// was acknowledged; [Open] reads both, and [World.Close] merges the journal into the file. Only one process at a time may have a
// world open.
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// errClosed is the error of everything after [World.Close].
var errClosed = errors.New("the world is closed")

// A World is a far side. Its methods may be called concurrently; its fields must be set before first use.
type World struct {
	// Traits replace the traits of kinds, by name. Other kinds have those of [SiteTraits] or [NodeTraits].
	Traits map[string]providers.Traits

	// Hook is called when a verb begins (Before), and after its effect but before the caller gets the result (After),
	// even when it failed. It may block, or end the process. For an observation only the scope and kind of c.Ref are
	// set. Calls may be concurrent.
	Hook func(op string, at Moment, c providers.Call)

	// Now is the clock of delays; nil is time.Now.
	Now func() time.Time

	kinds schema.Kinds

	mu      sync.Mutex
	things  map[schema.Place]map[string]*thing // a thing is never modified, only replaced
	users   map[target]map[target]bool         // what is referred to, and by what; nil until usersOf is called
	burned  map[target]bool
	epochs  map[string]int64 // of the last holder, by scope
	passing map[target]bool  // things in a phase that ends by itself
	lags    map[target]*lag  // changes that are not shown yet; since the world was opened
	late    []late
	faults  []Fault
	serial  int64 // of the last version assigned
	watches map[*providers.Changes]schema.Place
	alarm   *time.Timer // completes what is in flight while somebody watches
	counts  map[string]int
	log     []Entry
	file    *file   // nil: in memory
	server  *server // nil: not served
	closed  bool
}

// Moment is a point in a call.
type Moment string

// The moments at which the hook is called.
const (
	Before Moment = "before"
	After  Moment = "after"
)

// An Entry of the log is one requested change.
type Entry struct {
	Op   string // create, update, delete
	Call providers.Call
	Err  error // what the caller received
}

type target struct {
	schema.Place
	id string
}

// A thing is a thing as in the world's file.
type thing struct {
	Name    string          `json:"name,omitempty"`
	UID     string          `json:"uid,omitempty"`
	Mark    string          `json:"mark,omitempty"`
	Version string          `json:"version,omitempty"`
	Spec    schema.Object   `json:"spec"`
	Status  schema.Object   `json:"status,omitempty"`
	Phase   providers.Phase `json:"phase,omitempty"`
	Detail  string          `json:"detail,omitempty"`
	Until   *time.Time      `json:"until,omitempty"` // when pending becomes ready, or leaving absent

	mark providers.Mark // Mark, parsed
}

// SiteTraits returns the traits of a kind on the site: ids are UUIDs that are used once, as with Carbide, so a deleted
// thing is recreated only under a new identity.
func SiteTraits() providers.Traits {
	t := NodeTraits()
	t.ID, t.IDsNotReusable, t.UndoDelete = "", true, providers.Replace
	return t
}

// NodeTraits returns the traits of a kind on a node: the name is the id, everything is checked, everything can be undone.
func NodeTraits() providers.Traits {
	return providers.Traits{
		ID: "{name}", Mark: true,
		Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Versioned,
		UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
	}
}

// New creates an empty world in memory.
func New(kinds schema.Kinds) *World {
	return &World{
		kinds:   kinds,
		things:  map[schema.Place]map[string]*thing{},
		burned:  map[target]bool{},
		epochs:  map[string]int64{},
		passing: map[target]bool{},
		lags:    map[target]*lag{},
		watches: map[*providers.Changes]schema.Place{},
		counts:  map[string]int{},
	}
}

// Provider returns a provider of the kinds whose names begin with name and a dot and that belong in the scope. Closing
// the provider does not close the world.
func (w *World) Provider(name, scope string) *providers.Provider {
	var served []providers.Served
	for _, k := range w.kinds.Names() {
		if !strings.HasPrefix(k, name+".") || w.kinds[k].Node != (scope != schema.ScopeSite) {
			continue
		}
		traits := w.traits(k)
		far := &kind{world: w, at: schema.Place{Scope: scope, Kind: k}, schema: w.kinds[k], traits: traits}
		served = append(served, providers.Served{Name: k, Traits: traits, Kind: far, Watch: far.watch})
	}
	p := providers.New(name, scope, nil, served...)
	if scope != schema.ScopeSite { // as nodes do, unlike Carbide
		p.Fence = func(ctx context.Context, epoch int64) error { return w.fence(ctx, scope, epoch) }
	}
	return p
}

// fence stores the epoch of the lock holder that works in a scope.
func (w *World) fence(ctx context.Context, scope string, epoch int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.outdated(scope, epoch); err != nil {
		return err
	}
	if w.epochs[scope] == epoch {
		return nil
	}
	return w.commit(record{Scope: scope, Epoch: epoch})
}

// outdated refuses a lock holder that was replaced.
func (w *World) outdated(scope string, epoch int64) error {
	if stored := w.epochs[scope]; stored > epoch {
		return &providers.OutdatedError{On: scope, Stored: stored, Epoch: epoch}
	}
	return nil
}

func (w *World) traits(kind string) providers.Traits {
	if t, ok := w.Traits[kind]; ok {
		return t
	}
	if w.kinds[kind].Node {
		return NodeTraits()
	}
	return SiteTraits()
}

// Fail adds a fault.
func (w *World) Fail(f Fault) error {
	if err := f.check(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	faults := append(slices.Clone(w.faults), f)
	return w.commit(record{Faults: &faults})
}

// Mend ends all faults: from here on every call works. Effects in flight still come.
func (w *World) Mend() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := range w.lags {
		w.shows(at)
	}
	clear(w.lags)
	return w.commit(record{Faults: &[]Fault{}})
}

// Put creates or replaces a thing as somebody else would, behind the engine's back. Only its shape is checked. The
// world assigns the version, whatever t.Version says.
func (w *World) Put(scope, kind string, t providers.Thing) error {
	th := &thing{Name: t.Name, Mark: t.Mark.String(), Spec: t.Spec.Clone(), Status: t.Status.Clone(), Phase: t.Phase, Detail: t.Detail}
	if err := w.checkThing(target{schema.Place{Scope: scope, Kind: kind}, t.ID}, th); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.put(target{schema.Place{Scope: scope, Kind: kind}, t.ID}, th)
}

// Remove removes a thing as somebody else would. Removing what is absent succeeds.
func (w *World) Remove(scope, kind, id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.remove(target{schema.Place{Scope: scope, Kind: kind}, id}, false)
}

// Spec returns what a thing is at this moment, whatever faults make an observation show; ok is false when there is no such thing. It is
// not to be changed.
func (w *World) Spec(scope, kind, id string) (spec schema.Object, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	th := w.things[schema.Place{Scope: scope, Kind: kind}][id]
	if th == nil {
		return nil, false
	}
	return th.Spec, true
}

// Land completes everything in flight now, whatever its delay: late effects arrive, pending things become
// ready, leaving ones absent.
func (w *World) Land() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pass(func(time.Time) bool { return true })
}

// Count returns how often a verb was called: observe, create, update or delete. Refused calls count, cancelled ones
// do not.
func (w *World) Count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[op]
}

// Log returns all requested changes, in the order in which they ended.
func (w *World) Log() []Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

// Dump returns all things as JSON, without versions and burned ids. Worlds with equal contents return equal text.
func (w *World) Dump() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.content()
	c.Serial, c.Burned, c.Late, c.Faults, c.Epochs = 0, nil, nil, nil, nil
	for _, kinds := range c.Things {
		for _, things := range kinds {
			for id, th := range things {
				plain := *th
				plain.Version, plain.UID = "", ""
				things[id] = &plain
			}
		}
	}
	return string(encode(c))
}

// Snapshot returns the whole world in the form of its file.
func (w *World) Snapshot() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(encode(w.content()))
}

func encode(c content) []byte { return toJSON(c) }

func toJSON(v any) []byte {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil { // the world holds JSON values only
		panic(fmt.Sprintf("fake: the world is not JSON: %v", err))
	}
	return append(b, '\n')
}

// put creates or replaces a thing under a new version, a new one also under a new uid. The thing belongs to the world from here on.
func (w *World) put(at target, th *thing) error {
	th.Version = strconv.FormatInt(w.serial+1, 10)
	if old := w.things[at.Place][at.id]; old != nil {
		th.UID = old.UID
	} else if t := w.traits(at.Kind); t.ID != "" && !t.Vanishes {
		th.UID = "uid-" + th.Version
	}
	return w.commit(record{At: at.names(), Thing: th, Serial: w.serial + 1})
}

// remove removes a thing, and burns its id if burn is set.
func (w *World) remove(at target, burn bool) error {
	if w.things[at.Place][at.id] == nil {
		return nil
	}
	return w.commit(record{At: at.names(), Burned: burn})
}

// pass completes what is due: late effects arrive and passing phases end.
func (w *World) pass(due func(time.Time) bool) error {
	for i := 0; i < len(w.late); {
		l := w.late[i]
		if !due(l.Due) {
			i++
			continue
		}
		rest := slices.Delete(slices.Clone(w.late), i, i+1)
		if err := w.commit(record{Late: &rest}); err != nil {
			return err
		}
		// The far side carries it out or refuses it as always; no caller receives the result.
		k := &kind{world: w, at: l.Ref.Place(), schema: w.kinds[l.Ref.Kind], traits: w.traits(l.Ref.Kind)}
		_ = k.effect(l.Op, l.call(), outcome{})
	}
	for _, at := range slices.SortedFunc(maps.Keys(w.passing), target.compare) {
		th := w.things[at.Place][at.id]
		if th.Until != nil && !due(*th.Until) {
			continue
		}
		var err error
		if th.Phase == providers.Deleting {
			err = w.remove(at, w.traits(at.Kind).IDsNotReusable)
		} else {
			ready := *th
			ready.Phase, ready.Detail, ready.Until = "", "", nil
			err = w.commit(record{At: at.names(), Thing: &ready})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *World) now() time.Time {
	if w.Now != nil {
		return w.Now()
	}
	return time.Now()
}

// set adds a thing to the maps, or removes it when th is nil.
func (w *World) set(at target, th *thing) {
	if w.users != nil {
		if old := w.things[at.Place][at.id]; old != nil {
			w.use(at, old, false)
		}
		if th != nil {
			w.use(at, th, true)
		}
	}
	delete(w.passing, at)
	if th == nil {
		delete(w.things[at.Place], at.id)
		return
	}
	if w.things[at.Place] == nil {
		w.things[at.Place] = map[string]*thing{}
	}
	w.things[at.Place][at.id] = th
	w.note(at, th)
}

// note completes what is known of a thing.
func (w *World) note(at target, th *thing) {
	th.mark = providers.ParseMark(th.Mark)
	if th.Phase == providers.Pending || th.Phase == providers.Deleting {
		w.passing[at] = true
	}
}

// usersOf returns what refers to a thing. That is found out the first time that it is asked for, because most worlds that are
// opened are only looked at.
func (w *World) usersOf(at target) map[target]bool {
	if w.users == nil {
		w.users = map[target]map[target]bool{}
		for p, things := range w.things {
			for id, th := range things {
				w.use(target{p, id}, th, true)
			}
		}
	}
	return w.users[at]
}

// use notes that a thing refers to others, or no longer does.
func (w *World) use(at target, th *thing, does bool) {
	for _, to := range w.refs(at.Place, th.Spec) {
		if !does {
			if delete(w.users[to], at); len(w.users[to]) == 0 {
				delete(w.users, to)
			}
			continue
		}
		if w.users[to] == nil {
			w.users[to] = map[target]bool{}
		}
		w.users[to][at] = true
	}
}

// refs returns what a spec refers to. A thing on a node refers to things of its node and of the site.
func (w *World) refs(from schema.Place, spec schema.Object) []target {
	var to []target
	for kind, id := range w.kinds[from.Kind].Refs(spec) {
		if d := w.kinds[kind]; d != nil {
			at := schema.Place{Scope: schema.ScopeSite, Kind: kind}
			if d.Node {
				at.Scope = from.Scope
			}
			to = append(to, target{at, id})
		}
	}
	return to
}

// Scopes lists the scopes with any thing, in order.
func (w *World) Scopes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	scopes := map[string]bool{}
	for at, things := range w.things {
		if len(things) > 0 {
			scopes[at.Scope] = true
		}
	}
	return slices.Sorted(maps.Keys(scopes))
}
