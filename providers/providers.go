// Package providers is the contract with the outside world.
//
// A [Provider] is one external system in one scope: Carbide for the site, Open vSwitch on a node. It serves kinds; each
// [Kind] can be read, created, updated and deleted, and has [Traits], which are data. The engine does everything else: it
// matches, compares, orders, retries, waits, journals and reverts. A provider translates.
//
// # Adding a kind
//
// Write schema/PROVIDER/NOUN.cue, which describes the fields, and providers/PROVIDER/NOUN.go, which implements [Kind];
// add one line to the provider's list of kinds. The laws in package providertest say what a kind must obey; run them
// in the kind's test. See docs/adding-a-kind.md.
//
// # What a kind sees
//
// Specs have the shape of the kind's CUE file, with two differences. Where a document has the name of another resource
// (@ref), a spec at this boundary has that thing's external id. Where it has the place of a secret (#Secret), a spec at
// this boundary has the secret itself, as text. Both hold in both directions, and the engine translates. A kind leaves
// out of what it observes the secrets that its far side never returns; where it knows that none is set, it
// reports the empty text.
package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/schema"
)

// A Kind observes and changes one kind of real thing in one scope. Methods may be called at the same time for
// different things. A call made with a cancelled context changes nothing. Errors are of type [*Error].
//
// No call waits for what takes long on the far side. A change returns once the far side has accepted it; the thing is
// Pending or Deleting until it is done, and the engine waits without blocking other steps. Fields that can be set only after
// that are set by another call: see Traits.Later.
type Kind interface {
	// List yields the things of this kind in the scope, each of them once, in as few calls as the far side allows. An error ends
	// the list: what was yielded before it does not show what is absent. A list that ends without an error is complete. It
	// changes nothing.
	List(ctx context.Context) iter.Seq2[Thing, error]

	// Get returns the things with the given external ids, which are distinct; things that do not exist are left out. It never
	// returns only a part of what exists: then it fails. It changes nothing.
	Get(ctx context.Context, ids []string) ([]Thing, error)

	// Create makes the thing with id c.ID as c.Want says. When the id or a unique name is taken it fails with Exists.
	// It returns once the far side has accepted; the engine waits until the thing is Ready. When the far side's answer names
	// another id than c.ID, Create calls c.Chose with it: that is the thing's id from then on.
	Create(ctx context.Context, c Call) error

	// Update turns c.Have into c.Want in place. Only fields that are not immutable differ; both are whole specs, so
	// that a far side that replaces everything keeps what the document does not mention. With a version token that
	// has moved, or the uid of another thing, it fails with Conflict.
	Update(ctx context.Context, c Call) error

	// Delete removes the thing. Deleting what is absent, or already being deleted, succeeds. With a version token that has moved, or
	// the uid of another thing, it fails with Conflict.
	Delete(ctx context.Context, c Call) error
}

// A Call is the context of one change.
type Call struct {
	Ref     schema.Ref    // for messages
	ID      string        // external id
	Name    string        // Create, Update: the desired name of the thing, where it has a name besides its id; empty: that of its ref
	Mark    Mark          // to be written on the thing where the kind has a place for it; zero in Update: to be removed
	Want    schema.Object // Create, Update: the desired spec; read only
	Have    schema.Object // Update, Delete: the spec observed right before, with secrets that are set sealed; read only
	UID     string        // Update, Delete: the uid of the thing that is ours: with another it is somebody else's, with this one it is ours also without a mark; empty: unknown
	Version string        // Update, Delete: the version token observed right before; empty when the kind has none
	Key     string        // idempotency key: the same for every attempt of one step
	Epoch   int64         // fencing epoch of the caller
	Guard   Guard         // how the far side undoes the change by itself; zero: not at all
	Answer  *Answer       // receives the answer of the far side; nil when the caller does not need it
}

// An Answer is what the far side returned about a change.
type Answer struct {
	ID    string // Create: the id that it chose instead of the caller's; empty: none
	Armed bool   // the change is undone by its guard unless it is kept: see [Provider.Settle]
}

// A Guard makes the far side undo a change by itself, unless it is told in time to keep it: a change that cuts the far side off
// undoes itself. The far side stores durably how to undo the change before it makes it; when it cannot, the call fails as Transient.
// Of a change that cannot cut it off it may decide not to guard it: Answer.Armed says that.
type Guard struct {
	ID     string        // changes with the same id, of a step or a run, are kept together or undone together
	Within time.Duration // how long after the first of them they are undone
}

// IsZero reports whether there is no guard.
func (g Guard) IsZero() bool { return g.ID == "" }

// A Settling ends a guard.
type Settling struct {
	ID    string
	Epoch int64 // fencing epoch of the caller
	Keep  bool  // what was changed is kept, if the far side can be reached anew; otherwise it is undone now
}

// Called returns the desired name of the thing of a Create or Update.
func (c *Call) Called() string { return cmp.Or(c.Name, c.Ref.Name) }

// Armed records that a guard undoes the change unless it is kept.
func (c *Call) Armed() {
	if c.Answer != nil {
		c.Answer.Armed = true
	}
}

// Chose records that the far side made the thing of a Create under another id than c.ID. An empty id, or c.ID, has no effect.
func (c *Call) Chose(id string) {
	if c.Answer != nil && id != "" && id != c.ID {
		c.Answer.ID = id
	}
}

// A Thing is what a provider observed.
type Thing struct {
	ID      string        // external id
	UID     string        // tells it from what had its id before or has it later, where ids are names; no update changes it; empty: the far side has nothing like it
	Name    string        // its name on the far side: the natural key, or a name for people
	Mark    Mark          // who made it; zero when unmarked or made by others
	Version string        // version token; empty when the kind has none
	Spec    schema.Object // all settable fields, in the shape of the kind's CUE file
	Status  schema.Object // computed fields
	Phase   Phase
	Detail  string // why it is not ready, or what is wrong although it is, for people
	Derived bool   // made by the far side itself as a part of something else, and created and deleted with that
	Passing string // why it is somebody else's for as long as that lasts, such as the port of a running machine, so that an import leaves it out

	// Unfilled names the fields of the spec that this far side does not report, for example because of its version. They
	// are absent from Spec, and unknown: no difference, no replacement, no drift.
	Unfilled []string
}

// Collect reads a list to its end. When that is an error, it returns no things.
func Collect(list iter.Seq2[Thing, error]) ([]Thing, error) {
	var things []Thing
	for th, err := range list {
		if err != nil {
			return nil, err
		}
		things = append(things, th)
	}
	return things, nil
}

// Listed returns a list of what read returns; read is called when the list is ranged over.
func Listed(read func() ([]Thing, error)) iter.Seq2[Thing, error] {
	return func(yield func(Thing, error) bool) {
		things, err := read()
		if err != nil {
			yield(Thing{}, err)
			return
		}
		for _, th := range things {
			if !yield(th, nil) {
				return
			}
		}
	}
}

// Phase is how far a thing has got.
type Phase string

// The phases. A deleted thing is Deleting for as long as it is listed.
const (
	Ready    Phase = "ready"
	Pending  Phase = "pending"
	Failed   Phase = "failed" // will not become ready by waiting
	Deleting Phase = "leaving"
)

// A Mark on a thing says which resource of which site it is. Where a kind has a place for it (Carbide labels, OVSDB
// external_ids) it is written at creation; a lost store can be rebuilt from marks.
type Mark struct {
	Site        string     `json:"site"` // the site's UUID
	Ref         schema.Ref `json:"ref"`
	Incarnation int        `json:"incarnation"` // 1, 2, …: grows each time that the resource is created anew
}

// MarkKey is the label or external_ids key under which a mark is kept.
const MarkKey = "converge.dev/mark"

// IsZero reports whether there is no mark.
func (m Mark) IsZero() bool { return m == Mark{} }

// String packs the mark into one value: SITE/SCOPE/KIND/NAME#INCARNATION.
func (m Mark) String() string {
	if m.IsZero() {
		return ""
	}
	return m.Site + "/" + m.Ref.String() + "#" + strconv.Itoa(m.Incarnation)
}

// ParseMark is the inverse of [Mark.String]. It returns the zero Mark for other text.
func ParseMark(s string) Mark {
	site, rest, ok := strings.Cut(s, "/")
	if !ok || site == "" {
		return Mark{}
	}
	i := strings.LastIndexByte(rest, '#')
	if i < 0 {
		return Mark{}
	}
	n, err := strconv.Atoi(rest[i+1:])
	ref, rerr := schema.ParseRef(rest[:i])
	if err != nil || rerr != nil || n < 1 {
		return Mark{}
	}
	return Mark{Site: site, Ref: ref, Incarnation: n}
}

// Class says what an error means. Nothing else about an error is ever examined.
type Class string

// The classes. For all but Unknown the failed call had no effect.
const (
	Transient   Class = "transient"   // the far side was not reached or was overloaded: try again
	Busy        Class = "busy"        // it is not ready for this yet: try again
	Conflict    Class = "conflict"    // the thing changed since it was observed
	Exists      Class = "exists"      // the id or name is taken
	Absent      Class = "absent"      // the thing, or one that it refers to, does not exist
	Denied      Class = "denied"      // not allowed
	Invalid     Class = "invalid"     // the far side refuses the values
	Unsupported Class = "unsupported" // the far side does not know the kind or verb
	Unknown     Class = "unknown"     // the call may have had its effect, or may have it later
)

// Retryable reports whether the same call may be repeated without observing first.
func (c Class) Retryable() bool { return c == Transient || c == Busy }

// An Error is the error of a kind's verb.
type Error struct {
	Op    string     // observe, create, update, delete, watch
	Ref   schema.Ref // zero for an observation of many
	Kind  string     // when Ref is zero
	Class Class
	Code  string // optional: the far side's own code, from a fixed list, such as InvalidArgument; never free text
	Err   error

	// Over tells more of an Unknown error: everything that was sent is answered, and the far side has refused a later part of the
	// call. So nothing more will come of it, and one look shows what was done. Of an Exists error it says that the far side has refused
	// the call for another reason, and that a look then showed the thing: the call may have made it all the same.
	Over bool
}

// Error names the operation, the thing and the cause.
func (e *Error) Error() string {
	on := e.Kind
	if !e.Ref.IsZero() {
		on = e.Ref.String()
	}
	return fmt.Sprintf("%s: %v", strings.TrimSpace(e.Op+" "+on), e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of an error. An error without a class is Unknown: it is never safe to guess.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Unknown
}

// Over reports whether nothing more will come of a call of unknown outcome; see [Error].
func Over(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Class == Unknown && e.Over
}

// Taken reports whether the far side has refused a create because the id or name is taken, so that the call has made nothing.
func Taken(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Class == Exists && !e.Over
}

// An OutdatedError reports that the far side has obeyed a holder of the site lock with a higher epoch.
type OutdatedError struct {
	On            string
	Stored, Epoch int64
}

// Error implements error.
func (e *OutdatedError) Error() string {
	return fmt.Sprintf("the lock holder with epoch %d has taken over %s; this one has epoch %d", e.Stored, e.On, e.Epoch)
}

// Traits describe as data how a kind behaves; the engine reads them instead of requiring more methods.
type Traits struct {
	// ID says how external ids are formed. Empty: the engine chooses a UUID for each incarnation. Otherwise it is a
	// template over the resource's name and immutable string fields, such as "{name}" or "{tenant}/{name}": the
	// natural key.
	ID string

	Create Mode // Conditional: a second create of the same id fails with Exists. Never: things appear by themselves
	Update Mode // Versioned: refused when the version token has moved
	Delete Mode // Versioned, or Blind where the far side checks nothing

	Mark            bool          // the kind has a place for our mark
	DeleteUnchecked bool          // Delete does not check whether anything still refers to the thing, and would leave it dangling
	IDsNotReusable  bool          // the far side refuses an id whose thing was deleted
	Eventual        bool          // a list may lag behind a change
	EffectWithin    time.Duration // longest time after which a call of unknown outcome may still have its effect
	Fixed           bool          // no call changes an immutable field: one that is no longer reported, or reported as its default, is as recorded
	SelfChanging    []string      // fields that the far side may set by itself to what an update requests: observing them does not prove a call
	Later           []string      // fields that can be set only once a thing is ready for them: when it is Ready and lacks nothing else, another update follows, and so on
	SetLast         []string      // fields that a call sets after everything else, or a delete before it: a call that was cut may leave any value in them
	Serial          bool          // calls that change things of the kind are made one after the other, so more of them at the same time only wait
	Vanishes        bool          // an update makes the thing absent for a moment, and one that was cut may leave it so
	CutsOff         bool          // a change may cut the far side off from the one who asks for it: it is guarded, where the provider has guards
	Overlap         []string      // keyed lists in which an update temporarily has new elements under other keys beside the old ones

	// Exclusive lists what no two things of the kind can have at the same time.
	Exclusive []Exclusive

	// Detach lists the lists whose elements can be left out for a while, when what they refer to has to be deleted before its
	// successor is made. Other references are never left out.
	Detach []Detachable

	ReadyWithin time.Duration // longest wait for Ready after create and update; zero: ready on return
	GoneWithin  time.Duration // longest wait for absence after delete; zero: gone on return

	UndoCreate, UndoUpdate, UndoDelete Revert // how each verb can be undone; zero is NoUndo, for safety
}

// Named reports whether a thing has a name besides its id, which an update writes: others may rename it.
func (t Traits) Named() bool { return t.ID == "" && t.Update != Never }

// UsedOnce reports whether an id is never used again after its thing was deleted, because the far side would refuse it, or
// because the engine chooses a new one for each incarnation. A late call then meets nothing newer.
func (t Traits) UsedOnce() bool { return t.IDsNotReusable || t.ID == "" }

// Exclusive is what only one thing of a kind can have at a time: a field, as a path through lists ("prefixes.prefix"), or
// "{name}", the name of the thing. Address blocks exclude those that they overlap.
type Exclusive struct {
	Field  string
	Within string // optional: a field; things that differ in it do not exclude each other
	Folded bool   // upper and lower case are the same
	Whole  bool   // the list is one value, whatever its order, not one per element
}

// Detachable is a list field of a kind whose elements may be left out for a while.
type Detachable struct {
	Field string
	Least int // how many elements have to stay

	// An element whose field Head is HeadIs takes with it the elements that equal it in all fields of Group.
	Head, HeadIs string
	Group        []string
}

// Mode says how a verb is guarded.
type Mode string

// The modes of a verb.
const (
	Never       Mode = "never" // the verb does not exist for this kind
	Blind       Mode = "blind"
	Conditional Mode = "conditional" // Create: fails when the id exists
	Versioned   Mode = "versioned"   // Update, Delete: fails when the version token has moved
)

// Revert says how a change can be undone, from exactly to not at all.
type Revert string

// The classes of undo.
const (
	Exact   Revert = "R1" // the previous state is restored, digest for digest
	Restart Revert = "R2" // the configuration is restored, running state is lost
	Replace Revert = "R3" // an equivalent is created under a new identity
	NoUndo  Revert = "R4" // data is destroyed or exposed: nothing can be restored
)

// Reversible reports whether a step of this class may run before the point of no return.
func (r Revert) Reversible() bool { return r == Exact || r == Restart }

// Meaning returns the class in words.
func (r Revert) Meaning() string {
	switch r {
	case Exact:
		return "it is exactly as before"
	case Restart:
		return "its configuration is restored, but running state is lost"
	case Replace:
		return "only an equivalent with a new identity is created"
	}
	return "nothing is restored"
}

// A Served is a kind with its name and traits.
type Served struct {
	Name   string // PROVIDER.NOUN
	Traits Traits
	Kind   Kind
	Watch  Watch // nil: the far side does not tell of changes
}

// A Provider is one external system in one scope. [New] makes one.
type Provider struct {
	Name  string // first half of its kinds' names
	Scope string // schema.ScopeSite or a node's name
	Kinds []Served

	// Limit is how many calls the far side gets at the same time; zero: no limit of its own. Each verb takes one of so many
	// slots, which suits kinds that make one call after the other; a verb that makes several at the same time uses
	// [Provider.Together]. It is set before the first call.
	Limit int

	// Permit is what calls need right before their bytes are sent. It is checked before each call; a provider that
	// waits within a call, for example for a connection or its turn, checks it again after that. Never nil.
	Permit *Permit

	Close func() error // releases connections; never nil

	// Confined says that the far side is a machine that may be in the wrong hands: what it says concerns its own scope, and no other.
	Confined bool

	// Fence makes the far side durably store the epoch of the current lock holder. From then on it refuses calls with a
	// lower epoch, and so does this provider; with an epoch lower than the stored one Fence fails with Denied. The engine
	// calls it under the site lock, before it observes. Nil: the far side has no place for an epoch.
	Fence func(ctx context.Context, epoch int64) error

	// Identity returns a permanent, unique name of the server; empty when it does not report one. The engine records it,
	// because another server would show an empty site. Nil: the far side has none.
	Identity func(ctx context.Context) (string, error)

	// Build returns the software version that the far side reports, which implies the version of its API. It is for people
	// only: what a server can do is found out from its answers. Nil: the far side does not report it.
	Build func(ctx context.Context) (string, error)

	// Health returns why the far side is unavailable, and nil while it is available: calls get through and, where other processes
	// carry out what the far side has only stored, they do. While it is unavailable, Health checks again, one caller at a time. The
	// engine begins no step meanwhile; steps that have begun wait without being blamed for it, and their calls are let through.
	// Health is not wrong for long: what was not requested is not owed, slow is not unavailable, and it is good again with the first
	// thing that is done. Where only a change can find that out, it is good from time to time, so that one is tried. Nil: it
	// is unknown.
	Health func(ctx context.Context) error

	Obstacles Obstacles // nil: only a delete shows what is in its way

	// Settle ends the guard with that id. To keep what was changed, it first reaches the far side over connections that are made for
	// that. It returns whether the changes are kept, which never changes afterwards and is returned again when asked again: they
	// are not when the guard's time is over, whatever is asked for; then they are undone when Settle returns. It fails with Absent when there
	// is no guard with that id, with Transient when the far side cannot be reached, so that the guard will undo the changes, and with
	// Unknown when an undo has failed. Nil: the provider has no guards, and ignores [Call.Guard]. Fence ends what guards of an
	// earlier epoch are still there, by undoing what they guard.
	Settle func(ctx context.Context, s Settling) (kept bool, err error)

	slots func() chan struct{} // nil: no limit
}

// Obstacles returns why the far side would refuse to delete some things, so that a run that cannot end well need not begin with what
// cannot be undone. What only things in deletes or changes use counts as unused: they go too, or may stop using it. Nothing is
// changed, and nothing is promised: a delete may be refused all the same.
type Obstacles func(ctx context.Context, deletes, changes []Target) ([]Obstacle, error)

// A Target is a thing of a provider.
type Target struct{ Kind, ID string }

// An Obstacle is why a thing could not be deleted, in words.
type Obstacle struct {
	Target
	Why string
}

// New makes a provider. Its kinds are guarded: calls of verbs that their traits exclude fail as Unsupported, calls whose context
// or permit has ended fail as Transient, and no more run at the same time than Limit says. So a kind need not check any of that.
// The error of a watch may be any; that it is Transient is added where it has no class. A nil close does nothing.
func New(name, scope string, close func() error, kinds ...Served) *Provider {
	if close == nil {
		close = func() error { return nil }
	}
	p := &Provider{Name: name, Scope: scope, Kinds: slices.Clone(kinds), Close: close, Permit: new(Permit)}
	p.slots = sync.OnceValue(func() chan struct{} {
		if p.Limit <= 0 {
			return nil
		}
		return make(chan struct{}, p.Limit)
	})
	for i, k := range p.Kinds {
		g := guarded{k.Kind, k, p}
		p.Kinds[i].Kind = g
		if k.Watch != nil {
			p.Kinds[i].Watch = g.watch
		}
	}
	return p
}

// A Need is a provider that something asks for in a scope.
type Need struct{ Scope, Provider string }

// Compare orders needs by scope and provider.
func (n Need) Compare(m Need) int {
	return cmp.Or(strings.Compare(n.Scope, m.Scope), strings.Compare(n.Provider, m.Provider))
}

// A Set is all providers of a site, which can be looked up by scope and kind.
type Set struct {
	providers []*Provider
	served    map[schema.Place]serving
	failed    map[Need]error
}

type serving struct {
	provider *Provider
	kind     Served
}

// NewSet returns a set of providers. Two that serve the same kind in the same scope are an error.
func NewSet(ps ...*Provider) (*Set, error) {
	s := &Set{providers: ps, served: map[schema.Place]serving{}, failed: map[Need]error{}}
	for _, p := range ps {
		for _, k := range p.Kinds {
			at := schema.Place{Scope: p.Scope, Kind: k.Name}
			if _, dup := s.served[at]; dup {
				return nil, fmt.Errorf("%s is served twice in scope %s", k.Name, p.Scope)
			}
			s.served[at] = serving{p, k}
		}
	}
	return s, nil
}

// Join adds the contents of another set, including its failures, and closes it with this one. When both serve the same
// kind in the same scope, it fails and adds nothing.
func (s *Set) Join(other *Set) error {
	for at := range other.served {
		if _, dup := s.served[at]; dup {
			return fmt.Errorf("%s is served twice in scope %s", at.Kind, at.Scope)
		}
	}
	for _, p := range other.providers {
		delete(s.failed, Need{p.Scope, p.Name})
	}
	s.providers = append(s.providers, other.providers...)
	maps.Copy(s.served, other.served)
	maps.Copy(s.failed, other.failed)
	return nil
}

// Drop closes the providers of a scope and takes them out of the set, with their failures.
func (s *Set) Drop(scope string) error {
	var errs []error
	s.providers = slices.DeleteFunc(s.providers, func(p *Provider) bool {
		if p.Scope == scope {
			errs = append(errs, p.Close())
		}
		return p.Scope == scope
	})
	maps.DeleteFunc(s.served, func(at schema.Place, _ serving) bool { return at.Scope == scope })
	maps.DeleteFunc(s.failed, func(n Need, _ error) bool { return n.Scope == scope })
	return errors.Join(errs...)
}

// Find returns the kind that is served in a scope, and its provider.
func (s *Set) Find(scope, kind string) (Served, *Provider, bool) {
	p, ok := s.served[schema.Place{Scope: scope, Kind: kind}]
	return p.kind, p.provider, ok
}

// Traits returns the traits of the kind that is served in a scope.
func (s *Set) Traits(scope, kind string) (Traits, bool) {
	k, _, ok := s.Find(scope, kind)
	return k.Traits, ok
}

// Fail records why a provider could not be opened in a scope. Its things are unknown, not absent.
func (s *Set) Fail(scope, provider string, err error) { s.failed[Need{scope, provider}] = err }

// Failure returns the error recorded by Fail; nil when there is none.
func (s *Set) Failure(scope, provider string) error { return s.failed[Need{scope, provider}] }

// Fences returns those providers of the given scopes that can store an epoch.
func (s *Set) Fences(scopes []string) []*Provider {
	return slices.DeleteFunc(slices.Clone(s.providers), func(p *Provider) bool { return p.Fence == nil || !slices.Contains(scopes, p.Scope) })
}

// All returns the providers.
func (s *Set) All() []*Provider { return slices.Clone(s.providers) }

// Bind makes the permits of all providers valid while proof returns nil; release ends that.
func (s *Set) Bind(proof func() error) (release func()) {
	releases := make([]func(), len(s.providers))
	for i, p := range s.providers {
		releases[i] = p.Permit.Bind(proof)
	}
	return func() {
		for _, release := range releases {
			release()
		}
	}
}

// Wrap replaces every served kind by the result of around.
func (s *Set) Wrap(around func(scope string, k Served) Kind) {
	for at, p := range s.served {
		p.kind.Kind = around(at.Scope, p.kind)
		s.served[at] = p
	}
}

// Each calls visit for every served kind, in the order of scope and name.
func (s *Set) Each(visit func(scope string, k Served, p *Provider)) {
	places := make([]schema.Place, 0, len(s.served))
	for k := range s.served {
		places = append(places, k)
	}
	slices.SortFunc(places, schema.Place.Compare)
	for _, at := range places {
		visit(at.Scope, s.served[at].kind, s.served[at].provider)
	}
}

// Close closes all providers.
func (s *Set) Close() error {
	var errs []error
	for _, p := range s.providers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
